"""Patterns of names that several floors check, and the order of names."""

import re

DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123, in lower case
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"


def natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts names as people count: n2 before n10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
