"""Energy accounts: counting once a minute, notices about them, and reports.

`count` reads and computes, `note` writes; between them no transaction is open. `note` writes the
counted energy and moves the watermark that `count` has read in one transaction. So only one of
several servers that count at once succeeds, and each minute is recorded once, however often this is
tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cod import notice_texts
from cod.core import energy_curve, entitlements, notices
from cod.core import node_hours as core_node_hours
from cod.core.energy_curve import CurveView
from cod.model import SITE, Energy, EnergyUse, GroupUser, Policy, Refused, VclusterEnergy
from cod.policy.nodes import energy_accounting
from cod.policy.nodes.energy_accounting import DAY
from cod.policy.sharing import node_hours, shares
from cod.policy.sharing.node_hours import HOUR
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.nodes import energy, types
from cod.store.people import groups as group_rows
from cod.store.people import user_usage

STEADY = 600.0
"""Seconds that a node must have been in its state for the last measurement of its BMC to belong to
this state: twice a round of measuring."""


FREE = Energy()  # without prices


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy used from `before` until `now`; `before` is None at the first count. `clock_reset`:
    the clock was wrong, and counting starts again. `held`: (vcluster id, type id, number of nodes)
    of the nodes that vclusters held."""

    before: float | None
    now: float
    uses: tuple[EnergyUse, ...] = ()
    vclusters: tuple[VclusterEnergy, ...] = ()
    clock_reset: bool = False
    held: tuple[tuple[int, int, int], ...] = ()


def count(tx: Tx, rules: Energy, now: float) -> Reading | None:
    """Return the energy used since the last count, computed as if the nodes had been in their
    present states all that time. None: no time has passed."""
    before = watermarks.at(tx, watermarks.ENERGY)
    if before is None or energy_accounting.is_clock_reset(before, now):
        return Reading(before, now, clock_reset=before is not None)
    if now <= before:
        return None
    drawn, carbon = _draws(tx, rules, now), energy_curve.carbon(tx, rules, before, now)
    return Reading(
        before,
        now,
        tuple(energy_accounting.uses(drawn, before, now, carbon)),
        tuple(energy_accounting.vcluster_uses(drawn, before, now, carbon)),
        held=tuple(
            (each.nodes.vcluster_id, each.nodes.type_id, each.nodes.number)
            for each in drawn
            if each.nodes.vcluster_id
        ),
    )


def note(tx: Tx, reading: Reading, rules: Policy, prices: Energy = FREE) -> bool:
    """Add the energy read to the accounts, and the node-hours to the groups' fading usage; tell
    groups of their node-hours, and of their budgets by `prices`. Return False if another server has
    counted this time. The energy of a group that was deleted since `count` goes to the site's
    group, because a new group may have the same id."""
    if not watermarks.move(tx, watermarks.ENERGY, reading.before, reading.now):
        return False
    existing = {0} | group_rows.still_there(tx, {use.group_id for use in reading.uses}, reading.now)
    site = group_rows.ensure(tx, SITE, reading.now).id
    uses = [
        use if use.group_id in existing else replace(use, group_id=site) for use in reading.uses
    ]
    energy.add(tx, uses)
    energy.add_vclusters(tx, reading.vclusters)
    _tell(tx, uses, prices, reading.now)
    entitlements.watch(tx, reading.now)
    if rules.fair_half_life > 0:
        _fade(tx, reading, uses, rules.fair_half_life)
    return True


def _tell(tx: Tx, uses: Sequence[EnergyUse], prices: Energy, now: float) -> None:
    """Tell groups whose node-hours of a month have reached 80 or 100 % of their limit, or whose
    cost has reached this part of their budget, by the last `uses`. Some of these may belong to the
    month before."""
    last: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for use in uses:
        sums = last[energy_accounting.month(use.day * DAY), use.group_id]
        sums[0] += use.seconds
        sums[1] += use.joules
    limited = [one for one in group_rows.every(tx) if (one.hours_limit, one.budget) != (None, None)]
    for month in sorted({first for first, _ in last}):
        own = [one for one in limited if (month, one.id) in last]
        ends = energy_accounting.month_end(month * DAY)
        used = energy.in_month(tx, month, [one.id for one in own], int(ends // DAY)) if own else {}
        for group in own:
            (seconds, joules, *_), (new, newly) = used[group.id], last[month, group.id]
            before = node_hours.reached(group.hours_limit, (seconds - new) / HOUR)
            core_node_hours.tell(tx, group, before, seconds / HOUR, now, ends)
            cost = energy_accounting.cost(prices, seconds, joules) or 0.0
            last_cost = energy_accounting.cost(prices, new, newly) or 0.0
            part = node_hours.reached(group.budget, cost)
            if group.budget is not None and part > node_hours.reached(
                group.budget, cost - last_cost
            ):
                text = notice_texts.budget(
                    group.name, part, cost, group.budget, prices.currency, ends
                )
                notices.add(tx, **text, group_id=group.id, now=now)


def _fade(tx: Tx, reading: Reading, uses: Sequence[EnergyUse], half_life: float) -> None:
    """Let the groups' usage fade until now, and add the last `uses`. If the usage of a group was
    not up to date at the last count, compute it from the accounts, where each day counts as used at
    its middle."""
    seconds = 0.0 if reading.before is None or reading.clock_reset else reading.now - reading.before
    costs: Mapping[int, float] = {}
    if seconds:
        group_rows.fade(
            tx, reading.before or 0.0, shares.faded(1.0, seconds, half_life), reading.now
        )
        costs = {each.id: each.cost for each in types.every(tx)}
        rates: dict[int, float] = defaultdict(float)
        for use in uses:
            rates[use.group_id] += use.seconds * costs.get(use.type_id, 1.0) / seconds
    existing = group_rows.every(tx)
    for group in existing:
        if group.faded_at != reading.now:
            usage = sum(
                shares.faded(used, reading.now - (day + 0.5) * DAY, half_life)
                for day, used in energy.by_day(tx, group.id)
            )
            group_rows.change(tx, group.id, faded_usage=usage, faded_at=reading.now)
        elif seconds and group.id in rates:
            group_rows.use(tx, group.id, shares.faded(0.0, seconds, half_life, rates[group.id]))
    sharing = [group.id for group in existing if group.user_shares]
    if seconds and sharing:
        _fade_users(tx, reading, sharing, costs, half_life)


def _fade_users(
    tx: Tx,
    reading: Reading,
    sharing: Sequence[int],
    costs: Mapping[int, float],
    half_life: float,
) -> None:
    """Add the last usage of users to their rows, in the groups `sharing`, which have users' shares.
    Rows of users without usage since the last count stay as they are: readers let the usage
    fade."""
    creators = user_usage.creators(tx, sharing)
    rates: dict[tuple[int, int], float] = defaultdict(float)
    for vcluster_id, type_id, nodes in reading.held:
        if vcluster_id in creators:
            rates[creators[vcluster_id]] += nodes * costs.get(type_id, 1.0)
    if not rates:
        return
    before = {(one.group_id, one.user_id): one for one in user_usage.of_groups(tx, sharing)}
    seconds = reading.now - (reading.before or 0.0)
    for key, rate in rates.items():
        one = before.get(key) or GroupUser(*key)
        left = shares.faded(one.faded_usage, reading.now - one.faded_at, half_life)
        usage = left + shares.faded(0.0, seconds, half_life, rate)
        user_usage.put(tx, replace(one, faded_usage=usage, faded_at=reading.now))


def _draws(tx: Tx, rules: Energy, now: float) -> list[energy_accounting.Draw]:
    nodes = [energy_accounting.Nodes(*row) for row in energy.nodes(tx)]
    measured = [energy_accounting.Measured(*row) for row in energy.measured(tx, now - STEADY)]
    return list(
        energy_accounting.draws(nodes, {each.id: each for each in types.every(tx)}, measured, rules)
    )


# ---------------------------------------------------------------- for people


@dataclass(frozen=True, slots=True)
class Line:
    """Energy that a group, a vcluster or a type used, or that was used in a day or a month.

    key        the name; the first second of a day or month; None: the reserve, in a report by group
    seconds    node-seconds
    joules     used; `always_on`: joules that would have been used if no node had slept
    grams      of CO2 emitted
    cost       by the site's prices; None: the site has set none
    """

    key: str | float | None
    seconds: float
    joules: float
    always_on: float
    grams: float
    cost: float | None = None

    @property
    def node_hours(self) -> float:
        """Return the hours of all nodes together."""
        return self.seconds / 3600

    @property
    def kwh(self) -> float:
        """Return the energy used."""
        return self.joules / energy_accounting.KWH

    @property
    def kwh_saved(self) -> float:
        """Return how much more energy would have been used if no node had slept."""
        return (self.always_on - self.joules) / energy_accounting.KWH


@dataclass(frozen=True, slots=True)
class Report:
    """Energy accounts of whole days (UTC) from `since` to `until`.

    counted_until  time up to which nodes were counted; None: nothing has been counted
    priced         the site has set prices, in `currency`
    """

    since: float
    until: float
    by: str
    counted_until: float | None
    lines: tuple[Line, ...]
    curve: CurveView | None = None
    currency: str = ""
    priced: bool = False


def report(
    tx: Tx,
    *,
    since: float | None,
    until: float | None,
    by: str,
    group: str = "",
    groups: frozenset[int] | None = None,
    rules: Energy | None = None,
    now: float,
) -> Report:
    """Return the accounts of the days from `since` to `until`, including days that begin or end
    outside; without these times, of the last thirty days. Raises `Refused`.

    rules  the site's; the report includes their curve and prices
    group  the name of the only group to report; '': report `groups` (None: all and the reserve)
    """
    if group:
        groups = frozenset({group_rows.named(tx, group, "group").id})
    until = now if until is None else until
    since = until - 30 * DAY if since is None else since
    if since > until:
        raise Refused("invalid", "'from' should not be after 'to'", "from")
    first = int(since // DAY)
    last = max(first, -int(-until // DAY) - 1)
    sums = energy.sums(tx, first, last, "day" if by == "month" else by, groups)
    if by == "month":
        sums = _by_month(sums)
    dated = by in ("day", "month")
    lines = (_line(key * DAY if dated else key, values, rules) for key, *values in sums)
    return Report(
        first * DAY,
        (last + 1) * DAY,
        by,
        watermarks.at(tx, watermarks.ENERGY),
        tuple(lines),
        None if rules is None else energy_curve.shown(tx, rules, now),
        "" if rules is None else rules.currency,
        rules is not None and energy_accounting.cost(rules, 0.0, 0.0) is not None,
    )


def of_vcluster(tx: Tx, name: str, vcluster_id: int, rules: Energy) -> Line:
    """Return the energy and node-hours of a vcluster's nodes since it was created."""
    return _line(name, energy.vcluster(tx, vcluster_id), rules)


def of_month(tx: Tx, group: str, group_id: int, rules: Energy, now: float) -> Line:
    """Return the energy and node-hours of a group in this month (UTC)."""
    ends = energy_accounting.month_end(now)
    used = energy.in_month(tx, energy_accounting.month(now), [group_id], int(ends // DAY))
    return _line(group, used.get(group_id, (0.0,) * 4), rules)


def _line(key: str | float | None, values: Sequence[float], rules: Energy | None) -> Line:
    seconds, joules, always_on, grams = values
    cost = None if rules is None else energy_accounting.cost(rules, seconds, joules)
    return Line(key, seconds, joules, always_on, grams, cost)


def _by_month(days: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the sums of days added up by month; the key of a month is its first day."""
    months: dict[int, list[float]] = {}
    for day, *values in days:
        sums = months.setdefault(energy_accounting.month(day * DAY), [0.0] * len(values))
        sums[:] = map(sum, zip(sums, values, strict=True))
    return [(first, *sums) for first, sums in months.items()]


def gauges(tx: Tx, rules: Energy, now: float) -> list[tuple[str, str, float]]:
    """Return (kind, group or type, value) for the metrics: by group the joules used, joules saved
    and grams of CO2 emitted; by type the watts drawn now and the nodes of the reserve."""
    found: list[tuple[str, str, float]] = []
    for group, _, joules, always_on, grams in energy.sums(tx, 0, int(now // DAY) + 1, "group"):
        found += [
            ("used", group or "", joules),
            ("saved", group or "", always_on - joules),
            ("emitted", group or "", grams),
        ]
    names = {each.id: each.name for each in types.every(tx)}
    watts: dict[str, float] = defaultdict(float)
    for draw in _draws(tx, rules, now):
        watts[names[draw.nodes.type_id]] += draw.watts
    found += [("watts", name, value) for name, value in sorted(watts.items())]
    counts = energy.reserve(tx)
    return found + [
        (what, name, float(counts.get((type_id, what), 0)))
        for type_id, name in sorted(names.items())
        for what in ("warm", "cold", "waking")
    ]
