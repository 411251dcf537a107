"""Bytes that a thing is shown as, and the tags and codings of these bytes (RFC 9110, 8)."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic import BaseModel

PACKED = '-gzip"'
_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


def as_json(value: Any) -> bytes:
    """Return JSON as it is sent."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="replace"
    )


def encoded(reply: BaseModel | None) -> bytes:
    """Return a reply as it is sent; nothing where there is none."""
    if reply is None:
        return b""
    try:
        return reply.model_dump_json(by_alias=True).encode()
    except ValueError:  # half of a surrogate pair, in a text from somewhere
        return as_json(reply.model_dump(mode="python", by_alias=True))


def gzips(accept: str) -> bool:
    """Return whether an `Accept-Encoding` header takes gzip (RFC 9110, 12.5.3)."""
    accepted = {}
    for each in accept.lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";q=")
        accepted[coding] = weight.rstrip("0.") != "" if weight else True
    return accepted.get("gzip", accepted.get("*", False))


def packed_tag(plain: str) -> str:
    """Return the tag of a reply's gzip form: other bytes, so another strong tag (RFC 9110,
    8.8.3.3)."""
    return plain[:-1] + PACKED


def tag(body: bytes) -> str:
    """Return the strong entity tag of a reply."""
    return f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'


def tags(header: str) -> frozenset[str]:
    """Return the tags that a header names, those of gzip forms as of the plain ones; '*' stands for
    any.

    A weak one stays weak, so that it never fits (RFC 9110, 8.8.3: If-Match compares strongly).
    """
    if header.strip() == "*":
        return frozenset("*")
    return frozenset(
        one[: -len(PACKED)] + '"' if one.endswith(PACKED) else one for one in _TAG.findall(header)
    )


def fits(header: str | None, body: bytes) -> bool:
    """Return whether `If-None-Match` names that reply (a weak comparison, as the RFC wants it
    there)."""
    named = frozenset() if header is None else tags(header)
    return "*" in named or tag(body) in {each.removeprefix("W/") for each in named}
