"""Requirements on nodes, in a form: a choice for each attribute in which the site's types differ,
and a field for requirements as XML (schema/requires.rng). Both together become one document. Faults
in the XML are reported with the lines as they were typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from cod.model import TypeView
from cod.quantity import SIZES
from cod.web.portal.forms import Fields


@dataclass(frozen=True, slots=True)
class AttributeChoice:
    """An attribute, with the values that a person can choose. `options` are (value, text), the
    least first."""

    name: str
    title: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Attribute:
    """An attribute of node types.

    path      its path in a type's facts; for one of several like parts, without the part's number
    operator  'min' or 'equal'
    """

    name: str
    title: str
    path: str
    operator: str


_ATTRIBUTES = (
    _Attribute("memory", "Memory", "memory/mib", "min"),
    _Attribute("cpus", "CPUs", "cpu/count", "min"),
    _Attribute("clock", "Clock", "cpu/mhz", "min"),
    _Attribute("arch", "Architecture", "cpu/arch", "equal"),
    _Attribute("nic", "Network", "nic/speed", "min"),
    _Attribute("disk", "A disk of", "disk/size", "min"),
    _Attribute("gpus", "GPUs", "gpu/count", "min"),
)  # the CPU's attributes are adjacent, because they become one element
NAMES = (*(each.name for each in _ATTRIBUTES), "xml")
_HEAD = re.compile(r"\s*(?:<\?xml[^>]*\?>\s*)?<requires\s*(/?)>")


def choices(types: Iterable[TypeView]) -> list[AttributeChoice]:
    """Return the attributes to choose by, with the values that nodes of these types have."""
    views = list(types)
    found = []
    for each in _ATTRIBUTES:
        if values := _values(each, views):
            found.append(AttributeChoice(each.name, each.title, tuple(_options(each, values))))
    return found


def of_type(types: Iterable[TypeView], name: str) -> dict[str, str]:
    """Return the choices, by attribute, that nodes of the type called `name` meet."""
    views = [view for view in types if view.type.name == name]
    return {
        each.name: max(values, key=_number)
        for each in _ATTRIBUTES
        if (values := _values(each, views))
    }


def _values(attribute: _Attribute, types: Iterable[TypeView]) -> set[str]:
    """Return the values that nodes of these types have of an attribute. Memory of whole GiB is in
    GiB, as a request shows it later. If a type has several like parts, the facts have the part's
    number ('nic 2/speed'), which the attribute's path lacks."""
    return {
        spoken(path, value)
        if path == "memory/mib" and _number(value) % SIZES["GiB"] == 0
        else value
        for view in types
        for path, value in view.facts
        if re.sub(r" \d+/", "/", path) == attribute.path and value
    }


def _options(attribute: _Attribute, values: Iterable[str]) -> Iterable[tuple[str, str]]:
    if attribute.operator == "equal":
        return [(value, value) for value in sorted(values)]
    numbers = {_number(value): value for value in values}
    return [
        (value, f"{spoken(attribute.path, value) if number else value} or more")
        for number, value in sorted(numbers.items())
    ]


def _number(value: str) -> float:
    """Return the number in '3000 MHz', or the bytes of '4096 MiB' and '3.84 TB'."""
    number, _, unit = value.partition(" ")
    try:
        return float(number) * SIZES.get(unit, 1)
    except ValueError:
        return 0.0


def spoken(path: str, value: str) -> str:
    """Return a fact of a type in common units: '131072 MiB' of 'memory/mib' is '128 GiB'."""
    number = _number(value)
    if path == "memory/mib":
        return f"{number / SIZES['GiB']:g} GiB"
    if path == "cpu/mhz":
        return f"{number / 1000:g} GHz"
    return f"{number / 1000:g} Gb/s" if path == "nic/speed" and number >= 1000 else value


def document(fields: Fields, prefix: str = "") -> str:
    """Return the requirements that were chosen and typed, as one document; '' for none. The fields'
    names begin with `prefix`."""
    picked = ""
    for each in _ATTRIBUTES:
        if value := fields.one(prefix + each.name).strip():
            part, name = each.path.split("/")
            picked += f"<{part}><{name} {each.operator}={quoteattr(value)}/></{part}>"
    typed = fields.one(prefix + "xml")
    if not picked:
        return typed if typed.strip() else ""
    return _joined(re.sub(r"</(\w+)><\1>", "", picked), typed)  # clock and count are of one CPU


def _joined(picked: str, typed: str) -> str:
    """Insert the choices into the first line of the typed document, so that its lines keep their
    numbers."""
    if not typed.strip():
        return f"<requires>{picked}</requires>"
    head = _HEAD.match(typed)
    if head is None:
        return f"<requires>{picked}{typed}</requires>"
    rest = typed[head.end() :]
    above = "\n" * head[0].count("\n")
    return f"{above}<requires>{picked}{'</requires>' if head[1] else ''}{rest}"


def without(fields: Fields, prefixes: Sequence[str] = ("",)) -> Fields:
    """Return the fields of the form that are not for requirements."""
    own = {prefix + name for prefix in prefixes for name in NAMES}
    return Fields({name: texts for name, texts in fields.values.items() if name not in own})
