"""Does a node have what is wanted? Attribute trees, *equal* and *satisfies* (the paper's two operators). Pure.

Hardware reports and requirements are trees. In a report (schema/report.rng) an XML attribute is a leaf of its element:
``<memory mib="4096"/>`` is the tree memory/mib with the value 4096. Requirements (schema/requires.rng) write the same
tree with operators on its elements: ``<memory><mib min="4GiB"/></memory>``.

*Equal* is equality of a canonical form, which makes node types: what is particular to one machine is dropped, memory
and clock are rounded, and order plays no part. Requests are matched against the canonical form, so that all nodes of a
type match or none does.

*Satisfies* compares the trees from the root down. Elements of one name are matched one to one by augmenting paths
(Kuhn's algorithm). Each pair of elements at the same place is compared once, so the cost is at most the product of the
two documents' sizes (both capped where they came in), times the number of wanted siblings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from xml.etree import ElementTree

from cod.model import Refused

PARTICULAR = frozenset({
    "version", "kernel", "system/uuid", "system/serial", "nic/name", "nic/mac", "nic/link", "nic/boot", "disk/name",
    "disk/serial", "disk/wwid", "disk/partition",
})


@dataclass(frozen=True, slots=True)
class TypeRules:
    """What makes a node type. A path names an element or attribute below the report's root, e.g. 'disk/serial'.

    drop          paths that take no part
    memory_parts  memory is rounded up to a multiple of this fraction of the next power of two
    clock_step    MHz that clocks are rounded to (they are measured, not read from a plate)
    """

    drop: frozenset[str] = PARTICULAR
    memory_parts: int = 16
    clock_step: int = 100


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing that is not as wanted: the attribute's path, what was wanted, what was found; readable as a phrase."""

    attribute: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.attribute}: {self.wanted} wanted, {self.found} found"


@dataclass(frozen=True, slots=True)
class _Tree:
    """An element or attribute of a report."""

    value: str
    children: Mapping[str, Sequence[_Tree]] = field(default_factory=dict)


# ---------------------------------------------------------------- equal


def canonical(report_xml: str, rules: TypeRules | None = None) -> str:
    """The part of a hardware report that makes the node's type, as XML: equal texts, equal types."""
    root = _reduced(ElementTree.fromstring(report_xml), "", rules or TypeRules())
    return ElementTree.tostring(root, encoding="unicode")


def _reduced(element: ElementTree.Element, path: str, rules: TypeRules) -> ElementTree.Element:
    kept = ElementTree.Element(element.tag)
    for name, value in sorted(element.attrib.items()):
        if path + name not in rules.drop:
            kept.set(name, _rounded(name, value, rules))
    kept.text = (element.text or "").strip() or None
    children = [child for child in element if path + child.tag not in rules.drop]
    kept.extend(sorted((_reduced(child, f"{path}{child.tag}/", rules) for child in children),
                       key=ElementTree.tostring))
    return kept


def _rounded(name: str, value: str, rules: TypeRules) -> str:
    if not value.isdecimal():
        return value
    if name == "mib":
        # Up, because firmware and kernel keep some; a power of two as the step, so that sizes land where they are sold.
        step = max(1, (1 << int(value).bit_length()) // rules.memory_parts)
        return str(-(-int(value) // step) * step)
    if name == "mhz":
        # Plates say multiples of 50 MHz; half a plate's step off the middle, no plate sits on a rounding boundary.
        return str((int(value) + 25 + rules.clock_step // 2) // rules.clock_step * rules.clock_step)
    return value


# ---------------------------------------------------------------- satisfies

LARGEST, DEEPEST = 256, 16


def check(requirements_xml: str) -> None:
    """Raise `Refused` where the text is no requirements document that `satisfies` could read; '' is one."""
    if not requirements_xml:
        return
    try:
        root = ElementTree.fromstring(requirements_xml)
    except ElementTree.ParseError as error:
        raise Refused("invalid", f"the requirements are no XML: {error}", "attributes") from None
    if root.tag != "requires":
        raise Refused("invalid", f"requirements are in an element requires, not {root.tag}", "attributes")
    if len(list(root.iter())) > LARGEST or _depth(root) > DEEPEST:
        raise Refused("invalid", f"requirements have at most {LARGEST} elements, {DEEPEST} in each other", "attributes")
    for element in root.iter():
        for operator in element.keys() - _PHRASES.keys():
            raise Refused("invalid", f"{element.tag}: there is no operator {operator!r}", "attributes")


def _depth(element: ElementTree.Element) -> int:
    return 1 + max(map(_depth, element), default=0)


def satisfies(requirements_xml: str, attributes_xml: str) -> list[Mismatch]:
    """What keeps a node with those attributes from satisfying those requirements; empty when it does.

    '' as requirements wants nothing. Both documents have been checked against their schemas. Any root will do.
    """
    if not requirements_xml:
        return []
    return _missing(ElementTree.fromstring(requirements_xml), _tree(attributes_xml), "")


@lru_cache(maxsize=256)
def _tree(attributes_xml: str) -> _Tree:
    return _tree_of(ElementTree.fromstring(attributes_xml))


def _tree_of(element: ElementTree.Element) -> _Tree:
    children: dict[str, list[_Tree]] = {name: [_Tree(value)] for name, value in element.attrib.items()}
    for child in element:
        children.setdefault(child.tag, []).append(_tree_of(child))
    return _Tree((element.text or "").strip(), children)


def _missing(wanted: ElementTree.Element, found: _Tree, path: str) -> list[Mismatch]:
    """Mismatches among the children of `wanted`."""
    mismatches: list[Mismatch] = []
    for name in dict.fromkeys(child.tag for child in wanted):
        siblings = [child for child in wanted if child.tag == name]
        candidates = found.children.get(name, ())
        unwanted = [child for child in siblings if child.get("present") == "no"]
        mismatches += [Mismatch(path + name, "none" + _about(child), "one") for child in unwanted
                       if any(not _differs(child, one, path + name) for one in candidates)]
        mismatches += _one_to_one([child for child in siblings if child not in unwanted], candidates, path + name)
    return mismatches


def _one_to_one(wanted: Sequence[ElementTree.Element], found: Sequence[_Tree], path: str) -> list[Mismatch]:
    differences = [[_differs(one, other, path) for other in found] for one in wanted]
    if len(wanted) == len(found) == 1:
        return differences[0][0]
    unmatched = _unmatched([[column for column, why in enumerate(row) if not why] for row in differences])
    return [_lacking(wanted[row], differences[row], path) for row in unmatched]


def _unmatched(fits: Sequence[Sequence[int]]) -> list[int]:
    """The rows that a largest matching leaves out; `fits` lists the columns that fit each row."""
    taken: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in fits[row]:
            if column not in tried:
                tried.add(column)
                if column not in taken or place(taken[column], tried):
                    taken[column] = row
                    return True
        return False

    return [row for row in range(len(fits)) if not place(row, set())]


def _lacking(wanted: ElementTree.Element, differences: Sequence[list[Mismatch]], path: str) -> Mismatch:
    fitting = sum(not why for why in differences)
    phrase = ("another" if fitting else "one") + _about(wanted)
    if not differences:
        return Mismatch(path, phrase, "none")
    return Mismatch(path, phrase, f"{fitting or 'none'} like that among {len(differences)}")


def _differs(wanted: ElementTree.Element, found: _Tree, path: str) -> list[Mismatch]:
    """Mismatches of one wanted element with one found: its operators, then its children."""
    wrong = [Mismatch(path, _phrase(operator, value), found.value or "nothing")
             for operator, value in wanted.attrib.items() if not _holds(operator, value, found.value, path)]
    return wrong + _missing(wanted, found, path + "/")


def _about(wanted: ElementTree.Element) -> str:
    """The requirement on an element as a phrase: ' with speed at least 10000'."""
    parts = [_phrase(operator, value) for operator, value in wanted.attrib.items() if operator != "present"]
    for child in wanted:
        own = [_phrase(operator, value) for operator, value in child.attrib.items()] or ["present"]
        parts.append(f"{child.tag} {' and '.join(own)}")
    return " with " + ", ".join(parts) if parts else ""


_PHRASES = {"equal": "{}", "min": "at least {}", "max": "at most {}", "one-of": "one of {}", "present": "present: {}"}


def _phrase(operator: str, value: str) -> str:
    return _PHRASES[operator].format(value)


# ---------------------------------------------------------------- operators and units

_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z/]*)", re.ASCII)
_UNITS = {
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "MHz": 1.0, "GHz": 1e3, "Mb/s": 1.0, "Gb/s": 1e3,
}
_KINDS = {unit: "bytes" if unit.endswith("B") else "hertz" if unit.endswith("Hz") else "rate" for unit in _UNITS}
_OWN_UNITS = {"mib": "MiB", "mhz": "MHz", "speed": "Mb/s"}  # every other attribute counts in ones (bytes, pieces)


def _holds(operator: str, wanted: str, found: str, path: str) -> bool:
    if operator == "present":
        return True  # it is here; `_missing` sees to "no"
    if operator == "one-of":
        return any(_same(word, found, path) for word in wanted.split())
    if operator == "equal":
        return _same(wanted, found, path)
    limit, value = _number(wanted, path), _number(found, path)
    if limit is None or value is None:
        return False
    return value >= limit if operator == "min" else value <= limit


def _same(wanted: str, found: str, path: str) -> bool:
    if wanted == found:
        return True
    limit, value = _number(wanted, path), _number(found, path)
    return limit is not None and limit == value


def _number(text: str, path: str) -> float | None:
    """`text` as a number in the unit of the attribute at `path`; None where it is none, or one of something else."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value, unit = float(match[1]), match[2]
    if not unit:
        return value
    own = _OWN_UNITS.get(path.rpartition("/")[2])
    if unit not in _UNITS or _KINDS[unit] != (_KINDS[own] if own else "bytes"):
        return None
    return value * _UNITS[unit] / (_UNITS[own] if own else 1.0)
