"""Chains of nodes that pass an image on to each other while they are primed with it. Pure.

Nodes form a chain in the order in which their priming began; nodes that began together are ordered
by block and switch port. Each node fetches the image from the node before it, or from nodes further
up if that node fails. A chain uses every link once in each direction, and each node adds the time
of one chunk. A tree would be less deep, but its nodes would share the link of the node that they
fetch from. To keep chains short, every `CHAIN`th node fetches from the server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cod.model import ImageReceiver

CHAIN = 64  # nodes of a chain
ABOVE = 3  # nodes further up the chain that each node is told of
PORT = 8074  # port on nodes
LINGER = 60  # most seconds that a primed node stays to serve others
TOKEN_LASTS = 12 * 3600.0  # seconds; a node's key ends with its order, which is usually earlier


def chains(receivers: Iterable[ImageReceiver]) -> Mapping[int, tuple[ImageReceiver, ...]]:
    """Return, by each node's id, the nodes that it fetches the image from, the first choice first.
    `receivers`: all nodes that are being primed, in the order of the chain.

    A node fetches from nodes of its subnet that are primed with the same template. Nodes that erase
    their disks first have nothing to pass on yet, but will all write at about the same time: they
    form a chain of their own, and fetch from writing nodes as a second choice. A node that only
    stays to serve others is about to leave, and no further node is chained to it.
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
