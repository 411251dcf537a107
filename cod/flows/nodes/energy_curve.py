"""The curve of price or carbon by the hour: the result of the last attempt to read it."""

from __future__ import annotations

from cod.model import Energy
from cod.policy.energy import curve
from cod.store import energy_curve
from cod.store.energy_curve import Stored
from cod.store.engine import Tx


def note(tx: Tx, rules: Energy, content: bytes | None, fault: str, now: float) -> str:
    """Store the curve that was read. If nothing was read (`content` None, for the reason `fault`),
    or the content is no curve, store the fault and keep the last good curve. Return the fault; ''
    for none."""
    if not rules.curve:
        energy_curve.forget(tx)
        return ""
    before = energy_curve.find(tx, rules.curve)
    if content is not None:
        try:
            text = curve.decoded(content)
            read = curve.read(text, rules.curve_of)
        except ValueError as error:
            fault = f"what came is no curve: {error}"
        else:
            good = min(now + rules.curve_stale, read.end)
            energy_curve.put(tx, Stored(rules.curve, text, now, good, ""))
            return ""
    last = before or Stored(rules.curve, "", now, now, "")
    energy_curve.put(tx, last._replace(fault=fault))
    return fault
