"""Energy accounts: what nodes used, whom it is put down to, and what it would have been had none
slept. Pure.

Nodes are counted once a minute by state, type and holder, and what is counted is taken to have held
since the last count: energy = seconds x nodes x watts. The *always-on* account is of the same nodes
in the same time, with those that slept counted as idle; the difference is what the reserve's sleep
has saved.

    joules    = seconds * sum(nodes * watts of the state's class)
    always_on = seconds * sum(nodes * watts of the state's class, but those of idle, or off if that
    were more, for off)
    1 kWh     = 3.6 MJ

Nothing is said here of what a node's work was good for, of cooling, of switches, or of losses in
power supplies (a BMC measures at the wall or behind the supply, as it can).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from cod.model import Energy, EnergyUse, NodeType
from cod.policy.scheduler.energy import CLASSES, IDLE, OFF, watts
from cod.states import NodeState

DAY = 86400.0
LONGEST = 31 * DAY
"""Seconds between two counts from which on it is rather the clock that was wrong; then nothing is
counted."""


class Nodes(NamedTuple):
    """So many nodes of a type are in a state for a group (0: nobody's)."""

    state: str
    type_id: int
    group_id: int
    number: int


class Measured(NamedTuple):
    """So many nodes of a type have been in a state for a while, and their BMCs measure `watts`
    together."""

    type_id: int
    state: str
    watts: float
    number: int


class Draw(NamedTuple):
    """What nodes draw now, in watts, and what they would draw if they did not sleep."""

    nodes: Nodes
    watts: float
    always_on: float


def draws(
    nodes: Iterable[Nodes],
    types: Mapping[int, NodeType],
    measured: Iterable[Measured],
    energy: Energy,
) -> Iterator[Draw]:
    """Yield what each of those nodes draw. States of nodes that are not (or no longer) the site's
    are left out."""
    means = _means(measured)
    for each in nodes:
        kind = CLASSES[NodeState(each.state)]
        if kind is None:
            continue
        node_type = types.get(each.type_id)
        own = watts(each.state, node_type, energy, means.get((each.type_id, kind)))
        awake = own
        if kind == OFF:
            awake = max(
                own, watts(NodeState.INACTIVE, node_type, energy, means.get((each.type_id, IDLE)))
            )
        yield Draw(each, each.number * own, each.number * awake)


def _means(measured: Iterable[Measured]) -> dict[tuple[int, str], float]:
    """Return the mean of one node's watts, by type and class."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in measured:
        kind = CLASSES[NodeState(each.state)]
        if kind is not None:
            total = sums[each.type_id, kind]
            total[0] += each.watts
            total[1] += each.number
    return {key: watts_ / count for key, (watts_, count) in sums.items() if count}


def uses(drawn: Iterable[Draw], since: float, until: float) -> list[EnergyUse]:
    """Return what it comes to between two moments (seconds since the epoch), by day, group and
    type, in that order."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for each in drawn:
        total = sums[each.nodes.group_id, each.nodes.type_id]
        total[0] += each.nodes.number
        total[1] += each.watts
        total[2] += each.always_on
    return [
        EnergyUse(day, *key, *(seconds * value for value in total))
        for day, seconds in days(since, until)
        for key, total in sorted(sums.items())
    ]


def days(since: float, until: float) -> Iterator[tuple[int, float]]:
    """Yield the days (since the epoch, UTC) between two moments, each with its seconds between
    them."""
    day = int(since // DAY)
    while since < until:
        end = min(until, (day + 1) * DAY)
        yield day, end - since
        since, day = end, day + 1


def month(now: float) -> int:
    """Return the first day (since the epoch, UTC) of the month."""
    today = datetime.fromtimestamp(now, UTC)
    return int(now // DAY) - today.day + 1


def month_end(now: float) -> float:
    """Return when the month ends (UTC), in seconds since the epoch."""
    return month((month(now) + 31) * DAY) * DAY


def anew(before: float, now: float) -> bool:
    """Return whether counting begins anew, because the clock must have been wrong. One that was set
    back by less than a day is waited for: that time is put down already."""
    return not -DAY <= now - before <= LONGEST
