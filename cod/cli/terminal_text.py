"""Texts without the control characters that terminals obey, because people and machines choose
texts that others read."""

from __future__ import annotations

import json


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON in which characters that a terminal obeys are escaped. `json` itself
    leaves DEL and the C1 controls unescaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if is_printable(text):
        return text
    return "".join(each if is_printable(each) else json.dumps(each)[1:-1] for each in text)


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters but tabs and line ends."""
    return text.translate({ord("\n"): None, ord("\t"): None}).isprintable()


def printable(text: str) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)
