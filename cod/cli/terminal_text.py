"""Texts for terminals, which obey control characters: people and machines choose texts that others
read."""

from __future__ import annotations

import json


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON in which what a terminal would obey is escaped: `json` itself leaves
    DEL and the C1 controls as they are."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if is_printable(text):
        return text
    return "".join(each if is_printable(each) else json.dumps(each)[1:-1] for each in text)


def is_printable(text: str) -> bool:
    """Return whether text has no control characters but tabs and ends of lines."""
    return text.translate({ord("\n"): None, ord("\t"): None}).isprintable()


def printable(text: str) -> str:
    """Return text without control characters, which a terminal would obey: people and machines
    choose texts, and somebody else reads them."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)
