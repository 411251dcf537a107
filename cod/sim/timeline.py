"""Numbers of held nodes over time, as a server counts them: by type and hour, from which the
reserve's marks are forecast, and by group in a month."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from cod.model import Energy
from cod.policy.energy import reserve_forecast
from cod.policy.energy.reserve_forecast import HOUR
from cod.policy.nodes import energy_accounting


class HeldTimeline:
    """A record of how many nodes were held, by type and hour, for forecasts of the reserve."""

    def __init__(self, rules: Energy, types: Iterable[int]) -> None:
        self._rules, self._types = rules, tuple(types)
        self._at = 0.0
        self._nodes: Counter[int] = Counter()  # by type, since `_at`
        self._held: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def count(self, nodes: Counter[int], now: float) -> None:
        """Record the node-hours held until `now` (simulated seconds). From `now` on, `nodes` are
        held, by type."""
        while self._at < now:
            hour = int(self._at // HOUR)
            until = min(now, (hour + 1) * HOUR)
            for type_id, number in self._nodes.items():
                self._held[type_id][hour] += number * (until - self._at) / HOUR
            self._at = until
        self._nodes = nodes

    def spare(self, now: float) -> Mapping[int, tuple[int, int]]:
        """Return the forecast of each type that has one, for `SiteSnapshot.spare`."""
        found = {
            one: reserve_forecast.forecast(self._held[one], 0.0, self._rules, now)
            for one in self._types
        }
        return {one: each for one, each in found.items() if each is not None}


class MonthUsage:
    """Node-seconds that groups have used in the current calendar month (UTC): `used`, by id. The
    run begins on the first day of a month."""

    def __init__(self) -> None:
        self.used: dict[int, float] = defaultdict(float)
        self._at = 0.0
        self._nodes: Counter[int] = Counter()  # by group, since `_at`

    def count(self, nodes: Counter[int], now: float) -> None:
        """Add the nodes held until `now` to the month's use. From `now` on, `nodes` are held, by
        group."""
        while self._at < now:
            ends = energy_accounting.month_end(self._at)
            until = min(now, ends)
            for group_id, number in self._nodes.items():
                self.used[group_id] += number * (until - self._at)
            if until == ends:
                self.used.clear()
            self._at = until
        self._nodes = nodes
