"""Each group's portion of the site among those that hold or want nodes. Pure.

Weighted max-min fairness ("water-filling"): the nodes are dealt out in proportion to the groups'
shares; a group gets no more than it holds and wants, and what it leaves is dealt out among the
others. Nodes that are guaranteed to a group, as far as it wants them, are the least that it gets.
A group that wants nothing changes nothing for the others, however many there are of such.

Subgroups divide what their group gets in the same way. Beside them their group counts as one of
them, with the mean of their shares, as in `policy.sharing.shares`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """A group's demand for nodes of the site, and its weight.

    shares  its part, in proportion to its siblings'
    wanted  nodes that it holds or waits for
    sure    nodes of its guarantee
    parent  id of its parent group; 0: it is no subgroup
    """

    id: int
    shares: float
    wanted: int
    sure: int = 0
    parent: int = 0

    @property
    def least(self) -> int:
        """Nodes that it gets at least."""
        return min(self.sure, self.wanted)


def portions(demands: Iterable[GroupDemand], nodes: float) -> dict[int, float]:
    """Return the portion of `nodes` of each group, by its id: at most the nodes that it wants."""
    by_id = {demand.id: demand for demand in demands}
    families: dict[int, list[GroupDemand]] = defaultdict(list)
    for demand in by_id.values():
        if demand.parent in by_id:
            families[demand.parent].append(demand)
    top = []
    for demand in by_id.values():
        if demand.parent in by_id:
            continue
        if family := families.get(demand.id):
            # what the group itself wants competes with its subgroups as one of them
            mean = sum(one.shares for one in family) / len(family)
            family.append(replace(demand, shares=mean))
            least = sum(one.least for one in family)
            demand = replace(demand, wanted=sum(one.wanted for one in family), sure=least)
        top.append(demand)
    found = _filled(top, nodes)
    for parent, family in families.items():
        found |= _filled(family, found[parent])
    return found


def _filled(demands: Sequence[GroupDemand], nodes: float) -> dict[int, float]:
    """Return each demand's portion, between its least and its wanted nodes, at the level at which
    all nodes are used."""
    level = _level(demands, nodes)
    return {
        demand.id: min(max(demand.shares * level, demand.least), demand.wanted)
        for demand in demands
    }


def _level(demands: Sequence[GroupDemand], nodes: float) -> float:
    """Return the number of nodes for each share. The levels are tried in order, from one at which a
    demand exceeds its least, or reaches its wanted nodes, to the next."""
    rising = [demand for demand in demands if demand.shares > 0 and demand.wanted > demand.least]
    steps = [(demand.least / demand.shares, demand.shares) for demand in rising]
    steps += [(demand.wanted / demand.shares, -demand.shares) for demand in rising]
    dealt, level, slope = float(sum(demand.least for demand in demands)), 0.0, 0.0
    for at, change in sorted(steps):
        if dealt + slope * (at - level) > nodes:  # they are used up before this step
            break
        dealt += slope * (at - level)
        level, slope = at, slope + change
    return level + max(nodes - dealt, 0.0) / slope if slope > 0 else level
