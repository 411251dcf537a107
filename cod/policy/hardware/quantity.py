"""Numbers with units: '4GiB', '2.4 GHz', '25Gb/s', '20GB', or a bare number in the attribute's own
unit."""

from __future__ import annotations

import re
from functools import lru_cache

from cod.policy.hardware.attributes import BYTES, MHZ, MIB, NUMBER, RATE
from cod.quantity import SIZES

_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z/]*)", re.ASCII)
LARGEST = 2.0**63  # in the attribute's own unit

_CLOCKS = {"Hz": 1e-6, "kHz": 1e-3, "MHz": 1.0, "GHz": 1e3}
_RATES = {"b/s": 1e-6, "kb/s": 1e-3, "Mb/s": 1.0, "Gb/s": 1e3, "Tb/s": 1e6}
# kind of attribute -> unit -> its size in the attribute's own unit
_FACTORS: dict[str, dict[str, float]] = {
    MIB: {unit: factor / 2.0**20 for unit, factor in SIZES.items()},
    BYTES: {unit: float(factor) for unit, factor in SIZES.items()},
    MHZ: _CLOCKS,
    RATE: _RATES,
}
_EXAMPLES = {MIB: " or 4GiB", BYTES: " or 20GB", MHZ: " or 2.4GHz", RATE: " or 10Gb/s"}
COUNTED = frozenset({*_FACTORS, NUMBER})


@lru_cache(maxsize=65536)
def value(text: str, kind: str | None) -> float | None:
    """Return the quantity `text` in the own unit of an attribute of that kind; None if it is no
    quantity of that kind."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if not match[2]:
        return float(match[1])
    factor = _FACTORS.get(kind or "", {}).get(match[2])
    return None if factor is None else float(match[1]) * factor


def complaint(text: str, kind: str | None) -> str:
    """Return why `text` is no quantity for an attribute of that kind (None: any kind), as a phrase;
    '' if it is one."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        if re.match(r"[0-9]{16}", text):
            return f"{_short(text)} is too large: a number has at most 15 digits before its point"
        return f"{_short(text)} is no number such as 4096{_EXAMPLES.get(kind or '', '')}"
    if kind is None:
        return ""
    units = _FACTORS.get(kind, {})
    if match[2] and match[2] not in units:
        which = f"it counts in {', '.join(units)}" if units else "it counts pieces, without a unit"
        return f"{match[2]!r} is no unit for it: {which}"
    found = value(text, kind)
    return (
        f"{_short(text)} is more than any machine has" if found is None or found >= LARGEST else ""
    )


def readable(text: str, kind: str | None) -> str:
    """Return a value of the report (or a bare wanted number) with its unit: '4096 MiB', '500.108
    GB'."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] or kind not in _FACTORS:
        return text
    if kind == BYTES:
        number = float(text)
        unit = next((unit for unit in ("TB", "GB", "MB") if number >= SIZES[unit]), "B")
        return f"{number / SIZES[unit]:.6g} {unit}"
    return f"{text} {kind}"


def beside(text: str, wanted: str, kind: str | None) -> str:
    """Return a value of the report in a unit that compares easily with `wanted`: of the same family
    (binary or decimal), and not larger. '256 MiB' beside '512MiB', '2.1 GHz' beside '2.4GHz'."""
    match, amount = _NUMBER.fullmatch(wanted), value(text, kind)
    units = _FACTORS.get(kind or "", {})
    if match is None or match[2] not in units or not amount:
        return readable(text, kind)
    family = {
        unit: factor
        for unit, factor in units.items()
        if ("i" in unit) == ("i" in match[2]) and factor <= units[match[2]]
    }
    smallest = min(family, key=family.__getitem__)
    fitting = [unit for unit, factor in family.items() if factor <= amount]
    unit = max(fitting, key=family.__getitem__, default=smallest)
    return f"{amount / family[unit]:.6g} {unit}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
