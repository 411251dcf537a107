"""*Satisfies*, the paper's operator that compares a node with requirements. Pure. (The other one,
*equal*, is in `policy.hardware.equal`.)

Hardware reports and requirements are trees. In a report (schema/report.rng) an XML attribute is a
leaf of its element: ``<memory mib="4096"/>`` is the tree memory/mib with the value 4096.
Requirements (schema/requires.rng) write the same tree with operators on its elements:
``<memory><mib min="4GiB"/></memory>``. docs/attributes is the users' page.

The trees are compared from the root down. Elements of one name are matched one to one by augmenting
paths (Kuhn's algorithm). Each pair of elements at the same place is compared once. So the cost is
at most the product of the two documents' sizes (both limited when they were received), times the
number of wanted siblings. Each comparison is linear in the two texts (`policy.hardware.compare`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from xml.etree import ElementTree

from cod.policy.hardware import operators, quantity, requirements
from cod.policy.hardware.attributes import LEFT_OUT
from cod.policy.hardware.equal import canonical
from cod.policy.hardware.requirements import WantedElement, check

__all__ = ["AttributeMismatch", "canonical", "check", "satisfies"]


@dataclass(frozen=True, slots=True)
class AttributeMismatch:
    """One requirement that is not satisfied: the attribute's path, the wanted and the found value.
    As text it is a phrase for people."""

    attribute: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.attribute}: {self.wanted} wanted, {self.found} found"


@dataclass(frozen=True, slots=True)
class _Tree:
    """An element or attribute of a report. `why`: the cause of its value, for people."""

    value: str
    children: Mapping[str, Sequence[_Tree]] = field(default_factory=dict)
    why: str = ""


def satisfies(requirements_xml: str, attributes_xml: str) -> list[AttributeMismatch]:
    """Return the requirements that a node with these attributes does not satisfy; empty if it
    satisfies all.

    '' stands for no requirements. Both documents were checked when they were received. The names of
    their root elements do not matter.
    """
    if not requirements_xml:
        return []
    return _missing(requirements.read(requirements_xml), _tree(attributes_xml))


@lru_cache(maxsize=1024)
def _tree(attributes_xml: str) -> _Tree:
    return _tree_of(ElementTree.fromstring(attributes_xml), "")


def _tree_of(element: ElementTree.Element, path: str) -> _Tree:
    """Return the tree of an element at `path` ('': the root), with the values that reports leave
    out."""
    attributes = {**LEFT_OUT.get(path, {}), **element.attrib}
    children: dict[str, list[_Tree]] = {name: [_Tree(value)] for name, value in attributes.items()}
    if path == "disk" and attributes.get("local") == "no" and attributes["paths"] != "1":
        why = f" ({attributes['paths']} disks show its WWN; [policy] same_wwn)"
        children["local"] = [_Tree("no", why=why)]
    for child in element:
        children.setdefault(child.tag, []).append(
            _tree_of(child, f"{path}/{child.tag}".lstrip("/"))
        )
    return _Tree((element.text or "").strip(), children)


def _missing(wanted: WantedElement, found: _Tree) -> list[AttributeMismatch]:
    """Return the mismatches among the children of `wanted`."""
    mismatches: list[AttributeMismatch] = []
    for name, siblings in wanted.children.items():
        candidates = found.children.get(name, ())
        present = [child for child in siblings if not child.absent]
        for child in siblings if len(present) < len(siblings) else ():
            if child.absent and any(not _differs(child, one) for one in candidates):
                mismatches.append(AttributeMismatch(child.path, "none" + _about(child), "one"))
        differences = [[_differs(one, other) for other in candidates] for one in present]
        # one against one: report the differences inside, not just that no element matches
        if len(present) == len(candidates) == 1:
            mismatches += differences[0][0]
            continue
        unmatched = _unmatched(
            [[column for column, why in enumerate(row) if not why] for row in differences]
        )
        mismatches += [_lacking(present[row], differences[row]) for row in unmatched]
    return mismatches


def _unmatched(fits: Sequence[Sequence[int]]) -> list[int]:
    """Return the rows that a largest matching leaves out; `fits` lists the columns that fit each
    row."""
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


def _differs(wanted: WantedElement, found: _Tree) -> list[AttributeMismatch]:
    """Return the mismatches of one wanted element with one found: its operators, then its
    children."""
    what = wanted.kind
    wrong = [
        AttributeMismatch(
            wanted.path,
            operators.phrase(operator, value, what),
            (quantity.beside(found.value, value, what) or "nothing") + found.why,
        )
        for operator, value in wanted.operators.items()
        if not operators.holds(operator, value, found.value, what)
    ]
    return wrong + _missing(wanted, found) if wanted.children else wrong


# ---------------------------------------------------------------- phrases


def _lacking(
    wanted: WantedElement, differences: Sequence[list[AttributeMismatch]]
) -> AttributeMismatch:
    path = wanted.path
    fitting = sum(not why for why in differences)
    phrase = ("another" if fitting else "one") + _about(wanted)
    if fitting:
        return AttributeMismatch(path, phrase, f"{fitting} like that among {len(differences)}")
    if not differences:
        own = _own(wanted)
        return AttributeMismatch(
            path, " and ".join(own) if own and not wanted.children else phrase, "none"
        )
    nearest = min(differences, key=lambda why: (len(why), why[0].found == "none"))[0]
    # its own text is not as wanted, as a CPU's flag: there is no nearer or farther
    if nearest.attribute == path:
        return AttributeMismatch(path, phrase, f"none like that among {len(differences)}")
    what = nearest.attribute[len(path) + 1 :]
    return AttributeMismatch(
        path,
        phrase,
        f"none like that among {len(differences)} (the nearest: {what} {nearest.found})",
    )


def _about(wanted: WantedElement) -> str:
    """Return the requirement on an element as a phrase: ' with speed at least 10000 Mb/s'."""
    phrases = _own(wanted) + [part for child in _children(wanted) for part in _parts(child, "")]
    return " with " + ", ".join(phrases) if phrases else ""


def _parts(wanted: WantedElement, prefix: str) -> list[str]:
    name = prefix + wanted.name
    if wanted.absent:
        return [f"no {name}{_about(wanted)}"]
    own = _own(wanted)
    phrase = (
        [" ".join([name, *filter(None, [" and ".join(own)])])] if own or not wanted.children else []
    )
    return phrase + [part for child in _children(wanted) for part in _parts(child, f"{name}/")]


def _children(wanted: WantedElement) -> list[WantedElement]:
    return [child for siblings in wanted.children.values() for child in siblings]


def _own(wanted: WantedElement) -> list[str]:
    return [
        operators.phrase(operator, value, wanted.kind)
        for operator, value in wanted.operators.items()
        if operator != "present"
    ]
