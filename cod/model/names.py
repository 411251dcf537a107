"""Patterns of names that several layers check, and the order of names."""

import re
from typing import Any

DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123, in lower case
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
ONE_LINE = r"^[^\x00-\x1f\x7f]*$"  # no control characters
_NUMBERS = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[list[Any], str]:
    """Return a key that sorts names with numbers by their values: n2 before n10."""
    parts: list[Any] = _NUMBERS.split(name)  # alternately text and numbers, text first
    parts[1::2] = map(int, parts[1::2])
    return parts, name
