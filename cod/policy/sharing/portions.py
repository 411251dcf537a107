"""Each group's portion of the site among the groups that hold or request nodes. Pure.

The method is weighted max-min fairness ("water-filling"). Nodes are distributed in proportion to
the groups' shares. No group gets more nodes than it holds and requests together; the rest goes to
the other groups. Each group gets at least its guaranteed nodes, unless it holds and requests fewer.
Groups that hold and request nothing do not change the portions of the others.

Subgroups divide their group's portion in the same way. Nodes of the group itself compete with the
subgroups: the group counts as one of them, with the mean of their shares, as in
`policy.sharing.shares`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """A group's demand for nodes of the site, and its weight.

    shares  its weight, relative to its siblings'
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
        """The nodes that the group gets in any case."""
        return min(self.sure, self.wanted)


def portions(demands: Iterable[GroupDemand], nodes: float) -> dict[int, float]:
    """Return each group's portion of `nodes`, by the group's id: at most its wanted nodes."""
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
            # the group's own demand competes with its subgroups as one of them
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
    """Return each demand's portion, between its least and its wanted nodes, at the level (nodes per
    share) at which all nodes are used."""
    level = _level(demands, nodes)
    return {
        demand.id: min(max(demand.shares * level, demand.least), demand.wanted)
        for demand in demands
    }


def _level(demands: Sequence[GroupDemand], nodes: float) -> float:
    """Return the level, in nodes per share, at which all nodes are used. The search goes up from
    one level to the next at which a demand exceeds its least or reaches its wanted nodes."""
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
