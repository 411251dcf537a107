"""Requests for a file, without sockets: paths, conditions and ranges of HTTP/1.1 (RFC 9110, RFC
3986).

h11 does the framing of messages (RFC 9112); this module decides which bytes of a file to send.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from cod.wire.errors import PeerError

_RANGE = re.compile(rb"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*")


class BadTarget(PeerError, ValueError):
    """The request's target is no path that could name anything here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer's status, the headers that depend on the request, and the bytes [start, start +
    length) to send."""

    status: int
    headers: tuple[tuple[str, str], ...]
    start: int
    length: int


def path_parts(target: bytes) -> list[str]:
    """Return the path's segments, each percent-decoded once, after the path was split: '%2f' does
    not separate segments.

    Takes origin form and absolute form; the query is dropped. Raises `BadTarget` for anything else,
    and for segments with a meaning for a file system ('..', a slash, a backslash, a control
    character).
    """
    path = re.sub(rb"^https?://[^/?#]*", b"", target, flags=re.IGNORECASE).split(b"?")[0]
    if not path.startswith(b"/"):
        raise BadTarget("not a path")
    try:
        parts = [unquote_to_bytes(part).decode() for part in path[1:].split(b"/")]
    except UnicodeDecodeError as error:
        raise BadTarget("not UTF-8") from error
    if any(part in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", part) for part in parts):
        raise BadTarget("not a plain path")
    return parts


def answer(headers: Mapping[bytes, bytes], size: int, etag: str) -> Answer:
    """Return the answer to a GET or HEAD of a file of `size` bytes; `headers` by lower-case name.

    A malformed range, or a list of several ranges, is ignored, as RFC 9110 section 14.2 allows: the
    whole file is sent.
    """
    same = (("ETag", etag), ("Accept-Ranges", "bytes"))
    if _listed(headers.get(b"if-none-match", b""), etag.encode()):
        return Answer(304, same, 0, 0)
    wanted = headers.get(b"range")
    if wanted is None or headers.get(b"if-range", etag.encode()) != etag.encode():
        return Answer(200, same, 0, size)
    found = _RANGE.fullmatch(wanted)
    if (
        found is None
        or not (found[1] or found[2])
        or (found[1] and found[2] and int(found[1]) > int(found[2]))
    ):
        return Answer(200, same, 0, size)
    start, end = _bounds(found[1], found[2], size)
    if start >= end:
        return Answer(416, (*same, ("Content-Range", f"bytes */{size}")), 0, 0)
    return Answer(
        206, (*same, ("Content-Range", f"bytes {start}-{end - 1}/{size}")), start, end - start
    )


def _bounds(first: bytes, last: bytes, size: int) -> tuple[int, int]:
    if not first:  # the last so many bytes
        return max(0, size - int(last)), size
    return int(first), min(int(last) + 1, size) if last else size


def _listed(condition: bytes, etag: bytes) -> bool:
    tags = [tag.strip().removeprefix(b"W/") for tag in condition.split(b",")]
    return tags == [b"*"] or etag in tags
