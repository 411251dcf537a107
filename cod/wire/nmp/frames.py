"""NMP, the node management protocol: its frames, without sockets. `docs/nmp` is the protocol's
page.

A frame is a start line, header lines, an empty line and a body, as in HTTP/1.1 (RFC 9112), lines
ending in CRLF::

    NMP/1.0 grant
    Message-Id: 812
    Sequence: 812
    Content-Length: 164

    <grant request="17" ...>

`Decoder` makes messages of bytes, however they are cut; `encode` is its reverse. An error raises
`Fault`, whose `code` and sentence are sent to the peer. After a `fatal` error the connection has to
be closed, because the beginning of the next message is not known. `wire/nmp/protocol` decides which
messages are allowed at which time; `wire/nmp/xml` reads and writes their bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cod.wire.errors import PeerError

VERSION = "1.0"

LONGEST_LINE = 1024  # bytes of a start line or header line
MOST_HEADERS = 32
LONGEST_HELLO = 4 * 1024  # bytes of a body before the connection is open
LONGEST_BODY = 64 * 1024  # bytes of what a VCM says: checking it against the schema takes time
# bytes of a message of COD, such as the state of a vcluster with thousands of nodes
LONGEST_SENT = 16 * 1024 * 1024


class Fault(PeerError):
    """An error of the peer. `code` is stable (docs/nmp), `line` counts from 1 in the body; 0: none.

    fatal  the connection cannot go on
    about  Message-Id of the message at fault, '' if it could not be read
    """

    def __init__(
        self, code: str, sentence: str, *, line: int = 0, fatal: bool = False, about: str = ""
    ) -> None:
        super().__init__(sentence)
        self.code, self.sentence, self.line, self.fatal = code, sentence, line, fatal
        self.about = about


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `id` is chosen by its sender, new for each message that is not a repetition.

    answers   Message-Id of the question that it answers, or ''
    sequence  the message's number in COD's outbox for the VCM; the outbox repeats the message until
              the VCM acknowledges it. 0: the message is not in the outbox
    """

    verb: str
    id: str
    body: bytes = b""
    answers: str = ""
    sequence: int = 0
    version: str = VERSION


# ---------------------------------------------------------------- frames

_START = re.compile(rb"NMP/([0-9]{1,3}\.[0-9]{1,3}) ([a-z][a-z-]{0,31})")
_HEADER = re.compile(
    rb"([A-Za-z][A-Za-z0-9-]{0,62}):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?[ \t]*"
)
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,18}")


def encode(message: Message) -> bytes:
    """Return the message as bytes."""
    lines = [f"NMP/{message.version} {message.verb}", f"Message-Id: {message.id}"]
    if message.answers:
        lines.append(f"In-Reply-To: {message.answers}")
    if message.sequence:
        lines.append(f"Sequence: {message.sequence}")
    lines.append(f"Content-Length: {len(message.body)}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + message.body


@dataclass(slots=True)
class Decoder:
    """A decoder of bytes into messages. `longest`: bytes of a body."""

    longest: int = LONGEST_SENT
    _lines: list[bytes] = field(default_factory=list)
    _rest: bytearray = field(default_factory=bytearray)
    _head: _Head | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete now. Raises a fatal `Fault`, after which the decoder
        must not be used."""
        self._rest += data
        while (message := self._next()) is not None:
            yield message

    @property
    def midway(self) -> bool:
        """Return whether a message has begun that is not complete yet."""
        return bool(self._rest or self._lines or self._head)

    def _next(self) -> Message | None:
        while self._head is None:
            line = self._line()
            if line is None:
                return None
            if line:
                if not self._lines and not _START.fullmatch(line):
                    raise Fault("malformed", "the start line should be 'NMP/1.0 VERB'", fatal=True)
                self._lines.append(line)
                if len(self._lines) > MOST_HEADERS + 1:
                    raise Fault("malformed", f"more than {MOST_HEADERS} header lines", fatal=True)
            elif self._lines:
                # an empty line before a start line is passed over (RFC 9112 section 2.2)
                self._head, self._lines = _head(self._lines, self.longest), []
        return self._whole(self._head)

    def _line(self) -> bytes | None:
        end = self._rest.find(b"\n", 0, LONGEST_LINE + 2)
        line = bytes(self._rest[: end if end >= 0 else LONGEST_LINE + 2]).removesuffix(b"\r")
        if len(line) > LONGEST_LINE:
            raise Fault("malformed", f"a line is longer than {LONGEST_LINE} bytes", fatal=True)
        if end < 0:
            return None
        del self._rest[: end + 1]
        return line

    def _whole(self, head: _Head) -> Message | None:
        if len(self._rest) < head.length:
            return None
        body = bytes(self._rest[: head.length])
        del self._rest[: head.length]
        self._head = None
        return Message(head.verb, head.id, body, head.answers, head.sequence, head.version)


@dataclass(frozen=True, slots=True)
class _Head:
    verb: str
    version: str
    id: str
    answers: str
    sequence: int
    length: int


def _head(lines: list[bytes], longest: int) -> _Head:
    start = _START.fullmatch(lines[0])
    assert start is not None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise Fault(
                "malformed", "a header line should be 'Name: value', printable ASCII", fatal=True
            )
        name = found[1].decode().lower()
        if name in headers:
            raise Fault("malformed", f"the header {name} stands twice", fatal=True)
        headers[name] = (found[2] or b"").decode()
    length = _number(headers, "content-length")
    if length > longest:
        raise Fault(
            "too-large", f"the body has {length} bytes, a body has at most {longest}", fatal=True
        )
    return _Head(
        start[2].decode(),
        start[1].decode(),
        _token(headers, "message-id"),
        _token(headers, "in-reply-to") if "in-reply-to" in headers else "",
        _number(headers, "sequence"),
        length,
    )


def _token(headers: dict[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not _ID.fullmatch(value):
        raise Fault(
            "malformed", f"the header {name} should have 1 to 64 of A-Z a-z 0-9 . _ -", fatal=True
        )
    return value


def _number(headers: dict[str, str], name: str) -> int:
    value = headers.get(name, "0")
    if not _NUMBER.fullmatch(value):
        raise Fault("malformed", f"the header {name} should be a number", fatal=True)
    return int(value)
