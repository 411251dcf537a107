"""Forecast of the spare nodes that will be needed, by the usage of former weeks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cod.model import Energy
from cod.policy.energy import reserve_forecast
from cod.policy.energy.reserve_forecast import HOUR
from cod.store.engine import Tx
from cod.store.scheduler import usage


def spare(tx: Tx, rules: Energy, types: Iterable[int], now: float) -> Mapping[int, tuple[int, int]]:
    """Return the forecast of each type that has one, for `SiteSnapshot.spare`; {} if the site's
    marks are constant."""
    if not rules.manage or not rules.forecast_weeks:
        return {}
    known_since = usage.counted_since(tx, HOUR)
    if known_since is None:
        return {}
    held: defaultdict[int, dict[int, float]] = defaultdict(dict)
    starts = [hour * HOUR for hour in reserve_forecast.hours(now, rules)]
    for type_id, start, seconds in usage.held_by_type(tx, HOUR, starts):
        held[type_id][start // HOUR] = seconds / HOUR
    found = {
        type_id: reserve_forecast.forecast(held[type_id], known_since, rules, now)
        for type_id in types
    }
    return {type_id: one for type_id, one in found.items() if one is not None}
