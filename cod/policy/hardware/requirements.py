"""Requirements documents (schema/requires.rng), read into trees with the line of each element.

`read` accepts any well-formed XML document within the limits. `check` refuses documents that no
node could ever satisfy: with operators that do not exist or contradict each other, attributes that
no report has, or wrong units. A document is checked once, when it is submitted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn
from xml.parsers import expat

from cod.model import Refused, TypeRules
from cod.policy.hardware import operators
from cod.policy.hardware.attributes import PARTICULAR, PARTS, SEVERAL, is_below, kind, parts

ELEMENTS, DEEPEST, LONGEST = 256, 16, 65536  # elements, elements inside each other, characters


@dataclass(frozen=True, slots=True)
class WantedElement:
    """One element of a requirements document.

    path       path below the document's element; '' for that element itself
    kind       kind of the attribute at this path in reports (see `attributes`); None: no report has
               such an attribute
    operators  values of its operators, by operator
    children   the elements in it by name, in order
    """

    name: str
    line: int
    path: str
    kind: str | None
    operators: Mapping[str, str]
    children: Mapping[str, tuple[WantedElement, ...]] = field(default_factory=dict)

    @property
    def absent(self) -> bool:
        """Return whether the node must have no such element."""
        return self.operators.get("present") == "no"


# ---------------------------------------------------------------- reading


@lru_cache(maxsize=4096)
def read(document: str) -> WantedElement:
    """Return the tree of a document. Raises `Refused`, with the line."""
    if len(document) > LONGEST:
        _refuse(0, f"{len(document)} characters of requirements; at most {LONGEST} are read")
    reader = _Reader()
    try:
        reader.parser.Parse(document.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        _refuse(error.lineno, f"this is no XML: {expat.errors.messages[error.code]}")
    return reader.root


class _Reader:
    """Builder of the tree from expat's events. A document beyond the limits is refused at once."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._doctype
        self._open: list[tuple[str, int, dict[str, str], dict[str, list[WantedElement]]]] = [
            ("", 0, {}, {})
        ]
        self._path: list[str] = []
        self._count = 0

    @property
    def root(self) -> WantedElement:
        """The document's element."""
        ((root,),) = self._open[0][3].values()
        return root

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self._count += 1
        if self._count > ELEMENTS or len(self._open) > DEEPEST:
            _refuse(line, f"requirements have at most {ELEMENTS} elements, {DEEPEST} in each other")
        self._open.append((name, line, attributes, {}))
        self._path.append(name)

    def _end(self, _name: str) -> None:
        name, line, attributes, children = self._open.pop()
        path = "/".join(self._path[1:])
        self._path.pop()
        made = WantedElement(
            name,
            line,
            path,
            kind(path),
            attributes,
            {key: tuple(each) for key, each in children.items()},
        )
        self._open[-1][3].setdefault(name, []).append(made)

    def _text(self, text: str) -> None:
        if text.strip():
            _refuse(
                self.parser.CurrentLineNumber,
                f"there is text in {self._open[-1][0]}: what is wanted of an "
                'attribute is written with operators, as in <mib min="4GiB"/>',
            )

    def _doctype(self, *_: object) -> None:
        _refuse(self.parser.CurrentLineNumber, "a document type declaration is not allowed")


# ---------------------------------------------------------------- checking


def check(
    document: str,
    rules: TypeRules | None = None,
    *,
    root: str = "requires",
    field: str = "attributes",
) -> None:
    """Raise `Refused`, with line and attribute, if no node could ever satisfy the document. The
    document '' has no requirements.

    rules  the site's rules of node types; with them, attributes that types leave out are refused,
           too, because requests match types
    root   the name that the document's element must have
    """
    if not document:
        return
    try:
        wanted = read(document)
        if wanted.name != root:
            _refuse(wanted.line, f"requirements are in an element {root}, not {wanted.name}")
        if wanted.operators:
            _refuse(wanted.line, f"{root} itself takes no operators")
        for line, complaint in _below(wanted, rules):
            _refuse(line, complaint)
    except Refused as refused:
        raise Refused("invalid", refused.sentence, field) from None


def _refuse(line: int, sentence: str) -> NoReturn:
    raise Refused("invalid", f"line {line}: {sentence}" if line else sentence)


def _below(wanted: WantedElement, rules: TypeRules | None) -> Iterator[tuple[int, str]]:
    for siblings in wanted.children.values():
        present = [each for each in siblings if not each.absent]
        if len(present) > 1 and present[1].kind is not None and present[1].path not in SEVERAL:
            fault = (
                f"{present[1].path} is wanted twice, and a node has one: put the operators on one"
                " element"
            )
            yield present[1].line, fault
        for each in siblings:
            complaint = _misplaced(each.path, rules) if each.kind else _unknown(each)
            complaint = complaint or operators.complaint(each.operators, each.kind)
            if complaint:
                yield each.line, f"{each.path}: {complaint}"
            elif each.children and each.kind not in (PARTS, None):
                yield each.line, f"{each.path}: it has no parts"
            else:
                yield from _below(each, rules)


def _misplaced(path: str, rules: TypeRules | None) -> str:
    if is_below(path, PARTICULAR):
        return (
            "it is particular to one machine, and requests match types of nodes, never single ones"
        )
    if rules is not None and is_below(path, frozenset(rules.ignore)):
        return "it takes no part in this site's node types (types.ignore of the site file)"
    return ""


def _unknown(wanted: WantedElement) -> str:
    """Say that no report has the wanted attribute, with a near name; '' if no complaint is due. A
    requirement that an element is absent may name an unknown element, and so may elements inside an
    unknown one, which has been reported already."""
    above, _, name = wanted.path.rpartition("/")
    if wanted.absent or (above and kind(above) is None):
        return ""
    known = [
        each for each in parts(above) if not is_below(f"{above}/{each}".lstrip("/"), PARTICULAR)
    ]
    near = difflib.get_close_matches(name, known, 1, 0.75)
    return "no node has such an attribute; " + (
        f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
    )
