"""The error in a document that a RELAX NG grammar refuses: the value that is not allowed, and its
line.

libxml2 names an element at best. A refused document is therefore compared with its grammar, in the
document's order, until an attribute, an element or a text is found that the grammar does not allow
there. If only the order or the number of things is wrong, no such place is found, and libxml2's
sentence is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lxml import etree

_RNG = "http://relaxng.org/ns/structure/1.0"
_TYPES = "http://www.w3.org/2001/XMLSchema-datatypes"
_OPEN = {"optional", "zeroOrMore", "choice"}  # what is in these may be missing
MOST = 2000  # elements and attributes that are looked at: this runs where requests are answered
LONGEST = 80  # characters of a value that are quoted


class Faults:
    """Finds errors of documents by a grammar in RELAX NG, as sentences for the documents'
    authors."""

    def __init__(self, path: Path) -> None:
        self._defines: dict[str, Any] = {}
        self._whole = True  # grammars that refer to others by files are not followed
        self._start = self._read(path)
        self._compiled: dict[Any, etree.RelaxNG] = {}
        self._looked = 0

    def _read(self, path: Path) -> Any:
        """Read the definitions of the file and of its includes. Return the pattern of the root
        element."""
        root = etree.parse(str(path), etree.XMLParser(remove_comments=True)).getroot()
        start = None
        for include in root.iter(f"{{{_RNG}}}include"):
            start = self._read(path.parent / include.get("href", ""))
        self._whole = self._whole and root.find(f".//{{{_RNG}}}externalRef") is None
        for define in root.iter(f"{{{_RNG}}}define"):
            self._defines[define.get("name", "")] = define
        found = list(root.iter(f"{{{_RNG}}}start"))
        return found[-1] if found else start

    def first(self, root: Any) -> tuple[int, str] | None:
        """Return line and sentence of the first error of the document; None if it cannot be
        found."""
        if not self._whole:
            return None
        self._looked = 0
        begins = [each for each in self._reached(self._start) if _kind(each) == "element"]
        fits = [each for each in begins if _names(each, root.tag)]
        if not fits:
            wanted = ", ".join(f"<{each.get('name')}>" for each in begins)
            return root.sourceline, f"<{root.tag}> is not what the document should be: {wanted}"
        return next(self._walk(root, fits[0]), None)

    def _walk(self, node: Any, pattern: Any) -> Iterator[tuple[int, str]]:
        self._looked += 1 + len(node.attrib)
        if self._looked > MOST:
            return
        parts = list(self._reached(pattern))
        attributes = [each for each in parts if _kind(each) == "attribute"]
        children = [each for each in parts if _kind(each) == "element"]
        texts = [each for each in parts if _kind(each) in ("data", "value", "text")]
        for name, value in node.attrib.items():
            fitting = [each for each in attributes if each.get("name") == name]
            if not fitting:
                known = [each.get("name") for each in attributes]
                yield node.sourceline, f"<{node.tag}> has no attribute {name}{_may(known)}"
            elif not any(len(each) == 0 or self._accepts_text(each, value) for each in fitting):
                yield (
                    node.sourceline,
                    f"{name}={_quoted(value)} of <{node.tag}>{self._expected(fitting)}",
                )
        for each in self._reached(pattern, needed=True):
            name = each.get("name")
            if _kind(each) == "attribute" and name not in node.attrib:
                yield node.sourceline, f"<{node.tag}> lacks the attribute {name}"
            elif _kind(each) == "element" and name and node.find(name) is None:
                yield node.sourceline, f"<{node.tag}> lacks the element <{name}>"
        text = (node.text or "").strip()
        if text and not any(self._accepts_text(each, node.text) for each in texts):
            yield (
                node.sourceline,
                f"the text {_quoted(text)} of <{node.tag}>{self._expected(texts)}",
            )
        for child in node:
            fitting = [each for each in children if _names(each, child.tag)]
            if not fitting:
                known = [f"<{each.get('name')}>" for each in children if each.get("name")]
                yield child.sourceline, f"<{child.tag}> is not allowed in <{node.tag}>{_may(known)}"
            else:
                yield from self._walk(child, fitting[0])

    def _reached(self, pattern: Any, *, needed: bool = False, _deep: int = 0) -> Iterator[Any]:
        """Yield the attributes, elements and values of a pattern, but not those inside these; with
        `needed`, only those that may not be missing."""
        for each in pattern:
            kind = _kind(each)
            if kind in ("attribute", "element", "data", "value", "text"):
                yield each
            elif kind == "ref" and _deep < 50:
                yield from self._reached(
                    self._defines[each.get("name")], needed=needed, _deep=_deep + 1
                )
            elif not (needed and kind in _OPEN):
                yield from self._reached(each, needed=needed, _deep=_deep)

    def _accepts_text(self, pattern: Any, value: str) -> bool:
        """Return whether the pattern's content allows the text. libxml2 validates an element with
        this content alone."""
        if _kind(pattern) == "text":
            return True
        if pattern not in self._compiled:
            grammar: Any = etree.fromstring(f'<grammar xmlns="{_RNG}" datatypeLibrary="{_TYPES}"/>')
            element = etree.SubElement(
                etree.SubElement(grammar, f"{{{_RNG}}}start"), f"{{{_RNG}}}element", name="v"
            )
            for each in pattern if _kind(pattern) == "attribute" else [pattern]:
                element.append(_copy(each))
            grammar.extend(_copy(each) for each in self._defines.values())
            self._compiled[pattern] = etree.RelaxNG(grammar)
        document = etree.Element("v")
        document.text = value
        return bool(self._compiled[pattern].validate(document))

    def _expected(self, patterns: list[Any]) -> str:
        """Return ' should be …' if the grammar says it in a way that people can read, else ' is not
        allowed'."""
        values, rules = [], []
        for pattern in patterns:
            parts = self._reached(pattern) if _kind(pattern) == "attribute" else [pattern]
            for each in parts:
                if _kind(each) == "value":
                    values.append(each.text or "")
                elif _kind(each) == "data":
                    rules.append(_rule(each))
        words = list(dict.fromkeys(filter(None, rules)))
        if values:
            words.insert(0, "one of " + ", ".join(dict.fromkeys(values)))
        return " should be " + ", or ".join(words) if words else " is not allowed"


def _rule(data: Any) -> str:
    params = {each.get("name"): each.text or "" for each in data}
    if "minInclusive" in params:
        return (
            f"a whole number from {params['minInclusive']} to {params.get('maxInclusive', 'any')}"
        )
    if "pattern" in params:
        return f"like {params['pattern']}"
    return f"a text of at most {params['maxLength']} characters" if "maxLength" in params else ""


def _kind(pattern: Any) -> str:
    return str(etree.QName(pattern).localname)


def _names(pattern: Any, tag: str) -> bool:
    return pattern.get("name") == tag or any(_kind(each) == "anyName" for each in pattern)


def _may(names: list[str]) -> str:
    return f"; it may have {', '.join(dict.fromkeys(names))}" if names else ""


def _quoted(value: str) -> str:
    return f'"{value if len(value) <= LONGEST else value[:LONGEST] + "…"}"'


def _copy(pattern: Any) -> Any:
    return etree.fromstring(etree.tostring(pattern))
