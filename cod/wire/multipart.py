"""A browser's form with a file at its end, read while it arrives (RFC 7578, RFC 2046 section 5.1).

Browsers send the length of the whole body, and nothing but the closing delimiter behind the file.
The file's length is therefore known as soon as its headers have been read, before its bytes arrive.
"""

from __future__ import annotations

import re
from email.message import Message

from cod.wire.errors import PeerError

MOST = 65536  # bytes of all fields before the file
MOST_FIELDS = 50  # each costs a copy of all that comes behind it
_CRLF = b"\r\n"
_LAST = "the file should be the last field of the form"


class BadForm(PeerError):
    """The body is no such form."""


def boundary(content_type: str) -> bytes:
    """Return the boundary of 'multipart/form-data; boundary=…'. Raises BadForm."""
    message = Message()
    message["content-type"] = content_type
    try:
        found = message.get_boundary()
    except ValueError:  # of a parameter in a charset (RFC 2231)
        found = None
    if (
        message.get_content_type() != "multipart/form-data"
        or not found
        or not found.isascii()
        or len(found) > 70
    ):
        raise BadForm("the form should be multipart/form-data with a boundary")
    return found.encode()


class FileForm:
    """A form that is being read. The fields before the file are in `fields`; then `size` is the
    file's length, and `feed` returns its bytes.

    length  of the whole body
    """

    def __init__(self, boundary: bytes, length: int) -> None:
        self.fields: dict[str, str] = {}
        self.size: int | None = None
        self._delimiter, self._length = b"--" + boundary, length
        self._closing = _CRLF + self._delimiter + b"--" + _CRLF
        self._early, self._taken, self._given, self._rest = b"", 0, 0, b""
        self._tail, self._count = b"", 0

    def feed(self, data: bytes) -> bytes:
        """Return the file's bytes in the next bytes of the body. Raises BadForm."""
        self._taken += len(data)
        if self.size is None:
            self._early += data
            while self.size is None and self._field():
                pass
            if self.size is None:
                if len(self._early) > MOST:
                    raise BadForm("the fields before the file are too long")
                return b""
            data, self._early = self._early, b""  # what has come of the file
        own = data[: self.size - self._given]
        self._given += len(own)
        self._rest += data[len(own) :]
        seen = self._tail + own  # a delimiter in it would begin another field
        if len(self._rest) > len(self._closing) or _CRLF + self._delimiter in seen:
            raise BadForm(_LAST)
        self._tail = seen[-len(self._delimiter) - 1 :]
        return own

    def close(self) -> None:
        """End the form, which has arrived completely. Raises BadForm unless it ended with one
        file."""
        if self.size is None or self._given != self.size or self._rest != self._closing:
            raise BadForm(_LAST)

    def _field(self) -> bool:
        """Remove the next field from `_early`, if it has arrived completely; of the file, its
        headers. Return whether there was one."""
        head, found, rest = self._early.partition(_CRLF + _CRLF)
        if not found:
            return False
        line, _, headers = head.partition(_CRLF)
        if line != self._delimiter:
            raise BadForm("the form's parts are not delimited as it says")
        name, is_file = _named(headers)
        if is_file:
            self._early = rest
            self.size = self._length - (self._taken - len(rest)) - len(self._closing)
            if self.size < 0:
                raise BadForm("the form ends before its file does")
            return False
        value, found, after = rest.partition(_CRLF + self._delimiter)
        if not found:
            return False
        if after.startswith(b"--"):
            raise BadForm("there is no file in the form")
        self._count += 1
        if self._count > MOST_FIELDS:
            raise BadForm(f"the form has more than {MOST_FIELDS} fields")
        self.fields[name] = value.decode(errors="replace")
        self._early = self._delimiter + after
        return True


def _named(headers: bytes) -> tuple[str, bool]:
    """Return the name of a part, and whether it is a file's."""
    for line in headers.decode(errors="replace").split("\r\n"):
        if line.lower().startswith("content-disposition:") and (
            found := re.search(r'[; ]name="([^"]*)"', line)
        ):
            return found[1], "filename" in line
    raise BadForm("a part of the form has no name")
