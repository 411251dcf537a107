"""A pool's parked nodes that waiting requests need. Pure.

A parked node is idle, and its VCM keeps it booted only until a request could use it. A request
needs parked nodes only for the nodes that it still lacks after nodes without a holder, and nodes on
their way back, are counted for it. Each node is counted once, for the earliest request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cod.policy.hardware.match import satisfies


class ParkedNode(NamedTuple):
    """A parked node. `template_id`: the template of its system; None: unknown."""

    hostname: str
    type_id: int
    vcluster_id: int
    template_id: int | None


@dataclass(frozen=True, slots=True)
class Needs:
    """A tuple of a waiting request of `vcluster_id`."""

    vcluster_id: int
    count: int
    attributes: str
    template_id: int


def needed(
    parked: Sequence[ParkedNode],
    waiting: Iterable[Needs],
    unheld: Mapping[int, int],
    types: Mapping[int, str],
) -> list[str]:
    """Return the host names of the parked nodes that the waiting tuples need.

    waiting  the tuples, the first request's first
    unheld   nodes without a holder, by type, with those on their way back
    types    canonical attributes (XML), by the type's id

    A vcluster's own request does not need nodes that the same vcluster parks with the requested
    template: the VCM that made the request knows them.
    """
    free, left, found = Counter(unheld), list(parked), list[str]()
    kinds = {node.type_id for node in left}
    matching: dict[str, set[int]] = {}
    for one in waiting:
        if not left:
            break
        if one.attributes not in matching:
            matching[one.attributes] = {
                type_id
                for type_id, attributes in types.items()
                if not satisfies(one.attributes, attributes)
            }
        lacking = one.count
        for type_id in matching[one.attributes]:
            used = min(lacking, free[type_id])
            free[type_id] -= used
            lacking -= used
        if not lacking or kinds.isdisjoint(matching[one.attributes]):  # as most of a long queue
            continue
        own = one.vcluster_id, one.template_id
        taken = [
            node
            for node in left
            if node.type_id in matching[one.attributes]
            and (node.vcluster_id, node.template_id) != own
        ][:lacking]
        found += [node.hostname for node in taken]
        left = [node for node in left if node not in taken]
    return found
