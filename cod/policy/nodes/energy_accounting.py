"""Energy accounts: the energy that nodes used, by group and vcluster, and the energy that they
would have used without sleep. Pure.

Nodes are counted once a minute by state, type and holder. Each count stands for the time since the
last one: energy = seconds x nodes x watts. The *always-on* account is for the same nodes and time,
but counts sleeping nodes as idle. The difference is the energy that sleep has saved.

    joules    = seconds * sum(nodes * watts of the state's class)
    always_on = the same, with the larger of the watts of off and idle for nodes that are off
    1 kWh     = 3.6 MJ
    grams     = kWh * grams of CO2 for each kWh

If the BMC of a vcluster's node measures power, the measured watts count. For other nodes, the mean
that BMCs of their type measured in the class counts, else the watts configured for the type or the
site.

Cooling, switches and losses in power supplies are not included (a BMC measures before or behind the
supply, depending on its hardware).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from cod.model import Energy, EnergyUse, NodeType, VclusterEnergy
from cod.policy.scheduler.reserve_pool import CLASSES, IDLE, OFF, watts
from cod.states import NodeState

DAY = 86400.0
KWH = 3.6e6  # joules
Key = TypeVar("Key", int, tuple[int, int])
LONGEST = 31 * DAY
"""Longest credible time between two counts, in seconds. If more has passed, the clock was wrong,
and nothing is counted."""


class Nodes(NamedTuple):
    """A number of nodes of a type in one state, for a group and a vcluster (0: none)."""

    state: str
    type_id: int
    group_id: int
    number: int
    vcluster_id: int = 0


class Measured(NamedTuple):
    """A number of nodes of a type and vcluster (0: none) in one state. Their BMCs measure `watts`
    in all."""

    type_id: int
    state: str
    watts: float
    number: int
    vcluster_id: int = 0


class Draw(NamedTuple):
    """The watts that nodes draw now, and those that they would draw without sleep."""

    nodes: Nodes
    watts: float
    always_on: float


def draws(
    nodes: Iterable[Nodes],
    types: Mapping[int, NodeType],
    measured: Iterable[Measured],
    energy: Energy,
) -> Iterator[Draw]:
    """Yield the power of each count of nodes. Nodes in states that have no class of power (retired
    or not seen yet) are left out."""
    measured = list(measured)
    means = _means(measured)
    own_meters = {
        (one.vcluster_id, one.type_id, one.state): one for one in measured if one.vcluster_id
    }
    for each in nodes:
        kind = CLASSES[NodeState(each.state)]
        if kind is None:
            continue
        node_type = types.get(each.type_id)
        own = watts(each.state, node_type, energy, means.get((each.type_id, kind)))
        metered = own_meters.get((each.vcluster_id, each.type_id, each.state))
        drawn = each.number * own
        if metered is not None and 0 < metered.number <= each.number:
            drawn = metered.watts + (each.number - metered.number) * own
        awake = drawn
        if kind == OFF:
            idle = watts(NodeState.INACTIVE, node_type, energy, means.get((each.type_id, IDLE)))
            awake = max(drawn, each.number * idle)
        yield Draw(each, drawn, awake)


def _means(measured: Iterable[Measured]) -> dict[tuple[int, str], float]:
    """Return the mean watts of one node, by type and class."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in measured:
        kind = CLASSES[NodeState(each.state)]
        if kind is not None:
            total = sums[each.type_id, kind]
            total[0] += each.watts
            total[1] += each.number
    return {key: watts_ / count for key, (watts_, count) in sums.items() if count}


def uses(drawn: Iterable[Draw], since: float, until: float, carbon: float = 0.0) -> list[EnergyUse]:
    """Return the energy used between two moments (seconds since the epoch), by day, group and type,
    in that order.

    carbon  grams of CO2 for each kWh
    """
    keyed = (((each.nodes.group_id, each.nodes.type_id), each) for each in drawn)
    return [
        EnergyUse(day, group_id, type_id, *figures)
        for day, (group_id, type_id), figures in _sums(keyed, since, until, carbon)
    ]


def vcluster_uses(
    drawn: Iterable[Draw], since: float, until: float, carbon: float = 0.0
) -> list[VclusterEnergy]:
    """Return the energy that nodes of vclusters used between two moments, by day and vcluster."""
    keyed = ((each.nodes.vcluster_id, each) for each in drawn if each.nodes.vcluster_id)
    return [
        VclusterEnergy(day, vcluster_id, *figures)
        for day, vcluster_id, figures in _sums(keyed, since, until, carbon)
    ]


def _sums(
    keyed: Iterable[tuple[Key, Draw]], since: float, until: float, carbon: float
) -> Iterator[tuple[int, Key, tuple[float, float, float, float]]]:
    """Yield (day, key, (node-seconds, joules, joules always on, grams)), in order of day and
    key."""
    sums: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for key, each in keyed:
        total = sums[key]
        total[0] += each.nodes.number
        total[1] += each.watts
        total[2] += each.always_on
    for day, seconds in days(since, until):
        for key, (number, watts_, awake) in sorted(sums.items()):
            joules = seconds * watts_
            yield day, key, (seconds * number, joules, seconds * awake, joules / KWH * carbon)


def days(since: float, until: float) -> Iterator[tuple[int, float]]:
    """Yield (day since the epoch, seconds of that day) for the time between two moments. Days are
    in UTC."""
    day = int(since // DAY)
    while since < until:
        end = min(until, (day + 1) * DAY)
        yield day, end - since
        since, day = end, day + 1


def months(since: float, until: float) -> Iterator[tuple[int, float]]:
    """Yield (first day of a month, seconds of that month) for the time between two moments."""
    while since < until:
        end = min(until, month_end(since))
        yield month(since), end - since
        since = end


def month(now: float) -> int:
    """Return the first day (since the epoch, UTC) of the month."""
    today = datetime.fromtimestamp(now, UTC)
    return int(now // DAY) - today.day + 1


def month_end(now: float) -> float:
    """Return when the month ends (UTC), in seconds since the epoch."""
    return month((month(now) + 31) * DAY) * DAY


def cost(rules: Energy, seconds: float, joules: float) -> float | None:
    """Return the cost of node-seconds and energy by the site's prices; None if it has set none."""
    if not rules.price_node_hour and not rules.price_kwh:
        return None
    return seconds / 3600 * rules.price_node_hour + joules / KWH * rules.price_kwh


def is_clock_reset(before: float, now: float) -> bool:
    """Return whether counting has to start anew: the clock was set back by more than a day, or more
    than `LONGEST` has passed. If the clock was set back by less than a day, counting waits until
    the time that is counted already is over."""
    return not -DAY <= now - before <= LONGEST
