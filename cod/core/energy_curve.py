"""The site's curve of price or carbon by the hour: flows use the last curve that could be read,
however old."""

from __future__ import annotations

from dataclasses import dataclass

from cod.model import Energy
from cod.policy.energy import curve
from cod.policy.energy.curve import Curve
from cod.policy.scheduler import reasons
from cod.store import energy_curve
from cod.store.engine import Tx


def current(tx: Tx, rules: Energy) -> Curve | None:
    """Return the site's curve; None if the site has no curve, or it was not read yet."""
    stored = energy_curve.find(tx, rules.curve) if rules.curve else None
    if stored is None or not stored.content:
        return None
    try:
        return curve.read(stored.content, rules.curve_of)
    except ValueError:  # the stored curve may be of prices, if `curve_of` has changed since
        return None


def carbon(tx: Tx, rules: Energy, since: float, until: float) -> float:
    """Return the grams of CO2 for each kWh from `since` to `until`, on average."""
    found = current(tx, rules) if rules.curve_of == curve.CARBON else None
    return rules.carbon if found is None else found.mean(since, until, rules.carbon)


def dear(tx: Tx, rules: Energy, now: float) -> str:
    """Return the sentence that tells people that energy is too dear for preemptible vclusters to get
    nodes now: the curve is above `rules.hold_above`. Return '' if they get nodes: the curve is not
    above it, has no value for now, or the site has no such bound."""
    found = current(tx, rules) if rules.hold_above is not None else None
    value = None if found is None else found.at(now)
    if found is None or value is None or rules.hold_above is None or value <= rules.hold_above:
        return ""
    until = found.cheaper(now, rules.hold_above)
    when = "" if until is None else f"; next below it at {reasons.at(until)}"
    return (
        f"preemptible clusters get no nodes above {rules.hold_above:g}"
        f" {curve.UNITS[rules.curve_of]}, it is {value:g}{when}"
    )


@dataclass(frozen=True, slots=True)
class CurveView:
    """The site's curve as people see it.

    of, unit  'carbon' or 'price', and in which unit its values are
    value     the present value; None if the curve has none
    read_at   when the curve was last read; None: never
    fault     why the last attempt to read it failed; '' if it did not
    """

    of: str
    unit: str
    value: float | None
    read_at: float | None
    fault: str


def shown(tx: Tx, rules: Energy, now: float) -> CurveView | None:
    """Return the site's curve for people; None if the site has no curve."""
    if not rules.curve:
        return None
    stored, read = energy_curve.find(tx, rules.curve), current(tx, rules)
    return CurveView(
        rules.curve_of,
        curve.UNITS[rules.curve_of],
        None if read is None else read.at(now),
        None if stored is None or not stored.content else stored.read_at,
        "" if stored is None else stored.fault,
    )
