"""Moving placed requests to other nodes so that all of them together cost less. Pure.

Two steps alternate. *Filling up* takes two kinds of nodes, and distributes the requests that are
placed in both so that the cheaper kind is as full as possible; of two kinds of equal cost the
smaller one is filled, which leaves a large free piece of the other. *Driving out* moves a tuple to
a cheaper kind, moves the requests there to new places, the large ones first, and fills up again.
The result stays if all together costs less than before, else it is undone. No request loses its
place, and every change has a gain, so the steps come to an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from cod.policy.scheduler.feasibility import Fit
from cod.policy.scheduler.packed import PackedRequests
from cod.policy.scheduler.placement import FoundPlaces
from cod.policy.scheduler.snapshot import NodeKind

A_MOVE = 20  # attempts that one move counts as
LEAST = 1e-6  # the smallest reduction of cost that counts


class TuplePart(NamedTuple):
    """Nodes of one kind for one tuple of a request."""

    request_id: int
    position: int
    kind: NodeKind
    nodes: int


def save(placed: PackedRequests) -> None:
    """Move requests as long as that reduces the cost and `placed.effort` is not used up."""
    gained = True
    fill_up(placed)
    while gained and placed.effort > 0:
        gained = False
        order = sorted(placed.found, key=lambda one: (-placed.cost_of(placed.found[one][1]), one))
        for part in [
            TuplePart(one, position, kind, nodes)
            for one in order
            for position, place in enumerate(placed.found[one][1].places)
            for kind, nodes in sorted(place.items())
        ]:
            gained |= _drive_out(placed, part)


# ---------------------------------------------------------------- filling up


def fill_up(placed: PackedRequests) -> bool:
    """Make the cheaper of any two kinds as full as possible; of equal cost the smaller one. Return
    whether anything changed."""
    gained, more = False, True
    while more:
        more = False
        for second in [kind for kind in placed.kinds if placed.at.get(kind)]:
            fits = {_fit(placed, part) for part in _parts(placed, second)}
            would_do = set[NodeKind]().union(*(fit.blocks for fit in fits))
            better = [
                kind
                for kind in placed.kinds[: placed.kinds.index(second)]
                if placed.free[kind] and kind in would_do
            ]
            for first in better:
                more |= placed.effort > 0 and _share_out(placed, first, second)
        gained |= more
    return gained


def _parts(placed: PackedRequests, kind: NodeKind) -> list[TuplePart]:
    return [
        TuplePart(one, position, kind, place[kind])
        for one in sorted(placed.at[kind])
        for position, place in enumerate(placed.found[one][1].places)
        if kind in place
    ]


def _fit(placed: PackedRequests, part: TuplePart) -> Fit:
    return placed.found[part.request_id][0].fits[part.position]


def _share_out(placed: PackedRequests, first: NodeKind, second: NodeKind) -> bool:
    """Distribute the tuples that are placed in two kinds anew, so that as many of their nodes as
    possible are of kind `first`. Return whether anything changed."""
    before = [part for part in _parts(placed, first) if second in _fit(placed, part).blocks]
    after = [part for part in _parts(placed, second) if first in _fit(placed, part).blocks]
    placed.effort -= len(before) + len(after)
    filled = sum(part.nodes for part in before)
    parts = sorted(before + after)
    chosen = _fullest(parts, placed.free[first] + filled)
    if sum(part.nodes for part in chosen) <= filled:
        return False
    placed.effort -= A_MOVE
    for part in before:
        if part not in chosen:
            _shift(placed, part, second)
    for part in after:
        if part in chosen:
            _shift(placed, part, first)
    return True


def _fullest(parts: Sequence[TuplePart], room: int) -> list[TuplePart]:
    """Return the selection of `parts` with most nodes that fit into `room` nodes; of equal
    selections the one that has the first parts."""
    sums = [1]  # sums[n]: bit k is set if some of the first n parts have k nodes together
    for part in parts:
        sums.append(sums[-1] | sums[-1] << part.nodes)
    # Begin with the largest sum that there is room for, and go back from the last part. Choose a
    # part if the sum cannot be reached without it: so the first parts are preferred.
    left = (sums[-1] & ((1 << room + 1) - 1)).bit_length() - 1
    chosen = []
    for number in range(len(parts) - 1, -1, -1):
        if not sums[number] >> left & 1:
            chosen.append(parts[number])
            left -= parts[number].nodes
    return chosen


def _shift(placed: PackedRequests, part: TuplePart, new: NodeKind) -> None:
    """Replace a tuple's nodes of one kind by nodes of another kind."""
    want, found = placed.found[part.request_id]
    places = [Counter(place) for place in found.places]
    places[part.position][part.kind] -= part.nodes
    places[part.position][new] += part.nodes
    placed.move(want, FoundPlaces([+place for place in places]))


# ---------------------------------------------------------------- driving out


def _drive_out(placed: PackedRequests, part: TuplePart) -> bool:
    """Move a tuple to nodes of a cheaper kind if all requests together cost less then. Return
    whether it was moved."""
    if placed.found[part.request_id][1].places[part.position].get(part.kind) != part.nodes:
        return False  # it has been moved meanwhile
    for better in _fit(placed, part).kinds:
        if placed.effort <= 0 or placed.costs(better) >= placed.costs(part.kind):
            return False
        mark, before = placed.mark, placed.cost
        if _driven_out(placed, part, better) and placed.cost < before - LEAST:
            return True
        placed.back(mark)
    return False


def _driven_out(placed: PackedRequests, part: TuplePart, better: NodeKind) -> bool:
    others = [placed.found[one] for one in sorted(placed.at[better] - {part.request_id})]
    placed.effort -= A_MOVE * (1 + len(others))
    if (
        placed.free[better]
        + sum(place.get(better, 0) for _, found in others for place in found.places)
        < part.nodes
    ):
        return False
    others.sort(key=lambda one: -sum(each.count for each in one[0].request.tuples))
    for want, _ in others:
        placed.move(want, None)
    _shift(placed, part, better)
    if not all(placed.put(want) for want, _ in others):
        return False
    fill_up(placed)
    return True
