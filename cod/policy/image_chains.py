"""Chains of nodes that pass an image on, while they are primed with it. Pure.

Nodes form a chain in the order in which their priming began, those that began together by block and
switch port; each asks the node before it, and those before that one where it fails. A chain uses
every link once in each direction, and costs one chunk's time for each node. In a tree, which is
less deep, nodes would share the link of the node that they ask. So that the end of a long row does
not wait too long, every `CHAIN`th node asks the server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cod.model import ImageReceiver

CHAIN = 64  # nodes
ABOVE = 3  # of them that each is told of
PORT = 8074  # on nodes
LINGER = 60  # seconds that a node stays for others at most
TOKEN_LASTS = 12 * 3600.0  # seconds; a node's key ends with its order, mostly earlier


def chains(receivers: Iterable[ImageReceiver]) -> Mapping[int, tuple[ImageReceiver, ...]]:
    """Return the nodes that each node is to ask, the first choice first, by its id. `receivers`:
    all that are being primed, in the order of the chain.

    A node asks others of its subnet that have the same template. Those that erase their disks first
    have nothing for the others, but write at about the same time: they make a chain of their own,
    and ask the others after it. One that only stays for others is about to leave.
    """
    rows: dict[tuple[int | None, str | None, bool], list[ImageReceiver]] = defaultdict(list)
    found = {}
    for each in receivers:
        erases = each.phase not in ("write", "pass on") and not each.clean
        row, writing = (rows[each.template_id, each.subnet, which] for which in (erases, False))
        first = len(row) - len(row) % CHAIN
        above = row[first:][-ABOVE:]
        if erases:
            above = [*writing[-ABOVE:], *above][-ABOVE:]
        found[each.node_id] = tuple(reversed(above))
        if each.phase != "pass on":
            row.append(each)
    return found
