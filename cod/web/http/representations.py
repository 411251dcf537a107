"""Bytes of replies, and their tags and codings (RFC 9110, 8)."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic import BaseModel

PACKED = '-gzip"'
_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


def as_json(value: Any) -> bytes:
    """Return a value as the bytes of JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="replace"
    )


def encoded(reply: BaseModel | None) -> bytes:
    """Return a reply as the bytes of JSON; no bytes for None."""
    if reply is None:
        return b""
    try:
        return reply.model_dump_json(by_alias=True).encode()
    except ValueError:  # a text has half of a surrogate pair
        return as_json(reply.model_dump(mode="python", by_alias=True))


def gzips(accept: str) -> bool:
    """Return whether an `Accept-Encoding` header accepts gzip (RFC 9110, 12.5.3)."""
    accepted = {}
    for each in accept.lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";q=")
        accepted[coding] = weight.rstrip("0.") != "" if weight else True
    return accepted.get("gzip", accepted.get("*", False))


def packed_tag(plain: str) -> str:
    """Return the tag of a reply's gzip form: its bytes differ, and so must its strong tag (RFC
    9110, 8.8.3.3)."""
    return plain[:-1] + PACKED


def tag(body: bytes) -> str:
    """Return the strong entity tag of a reply."""
    return f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'


def tags(header: str) -> frozenset[str]:
    """Return the tags in a header; '*' stands for any tag. A tag of a gzip form is returned as that
    of the plain form.

    A weak tag keeps its `W/`, so that it never matches (RFC 9110, 8.8.3: If-Match compares
    strongly).
    """
    if header.strip() == "*":
        return frozenset("*")
    return frozenset(
        one[: -len(PACKED)] + '"' if one.endswith(PACKED) else one for one in _TAG.findall(header)
    )


def fits(header: str | None, body: bytes) -> bool:
    """Return whether the header `If-None-Match` has the tag of that reply. The comparison is weak,
    as RFC 9110 requires for this header."""
    named = frozenset() if header is None else tags(header)
    return "*" in named or tag(body) in {each.removeprefix("W/") for each in named}
