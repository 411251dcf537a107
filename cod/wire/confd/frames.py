"""confd's frames, for both ends: cutting a stream into frames, encryption and tags, and reading and
writing of messages. `protocol` has the theory, and how an end gets its seals. Travels in the
ramdisk: standard library only."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from cod.wire.confd.messages import Message, decode, encode
from cod.wire.errors import PeerError

FIRST_LIMIT = 4 * 1024  # bytes of a frame before the peer is proven
LIMIT = 4 * 1024 * 1024  # and after
AHEAD = 256 * 1024  # bytes that may wait while the server asks its database
TAG = 16
BLOCK = 64  # bytes that one hash of the cipher hides

E = TypeVar("E")
Parse = Callable[[bytes], Any]
"""Bytes of a document -> its root element (ElementTree's interface). May raise anything it
likes."""


class ProtocolError(PeerError):
    """The peer has broken the protocol, or is not who it claims to be. The connection must be
    closed."""


def frame(body: bytes) -> bytes:
    """Return `body` with its length in front."""
    return len(body).to_bytes(4, "big") + body


class Framer:
    """A decoder that cuts a stream of bytes into frames. `limit` may be changed between frames."""

    def __init__(self) -> None:
        self.limit = FIRST_LIMIT
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    def __len__(self) -> int:
        return len(self._buffer)

    def take(self) -> bytes | None:
        """Return the next whole frame's body, or None. Raises ProtocolError on a length over the
        limit."""
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if size > self.limit:
            raise ProtocolError(f"a frame of {size} bytes; at most {self.limit} are accepted here")
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return body


# ---------------------------------------------------------------- seals


def keyed(data: bytes, key: bytes, size: int = 32) -> bytes:
    """Return the keyed BLAKE2b of `data`."""
    return blake2b(data, key=key, digest_size=size).digest()


def xor(a: bytes, b: bytes) -> bytes:
    """XOR two byte strings of one length."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} bytes and {len(b)}")
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(len(a), "big")


class Seal:
    """Encrypts and tags the frames of one direction, counting them.

    The cipher is keyed BLAKE2b in counter mode: block `i` of frame `n` is XORed with the hash of
    both numbers. The tag covers the encrypted body, and is checked before decryption.
    """

    def __init__(self, seal: bytes, cipher: bytes) -> None:
        self._seal = seal
        self._cipher = cipher
        self._count = 0

    def close(self, body: bytes) -> bytes:
        """Return `body` encrypted, with its tag in front."""
        self._count += 1
        hidden = self._crypt(body)
        return self._tag(hidden) + hidden

    def open(self, sealed: bytes) -> bytes:
        """Return the body of a sealed frame. Raises ProtocolError when the tag is not the next
        one."""
        self._count += 1
        if not hmac.compare_digest(sealed[:TAG], self._tag(sealed[TAG:])):
            raise ProtocolError("a frame with a wrong tag: changed, replayed or out of order")
        return self._crypt(sealed[TAG:])

    def _tag(self, hidden: bytes) -> bytes:
        return keyed(self._count.to_bytes(8, "big") + hidden, self._seal, TAG)

    def _crypt(self, body: bytes) -> bytes:
        frame_number = self._count.to_bytes(8, "big")
        blocks = range(-(-len(body) // BLOCK))
        pad = b"".join(
            keyed(frame_number + block.to_bytes(8, "big"), self._cipher, BLOCK) for block in blocks
        )
        return xor(body, pad[: len(body)])


# ---------------------------------------------------------------- an end of a connection


class State(StrEnum):
    """State of a connection. In LOOKUP and TRADE the server waits for its database, in all others
    for the peer."""

    HELLO = "hello"
    LOOKUP = "lookup"
    CHALLENGE = "challenge"
    PROOF = "proof"
    TRADE = "trade"
    WELCOME = "welcome"
    OPEN = "open"
    CLOSED = "closed"


class End(ABC, Generic[E]):
    """One end of a connection. It turns received bytes into messages and, during the handshake,
    into questions for its owner (`E`).

    expects  the messages that may arrive in a state; in a state without an entry, received bytes
             are kept and not read
    """

    def __init__(
        self, state: State, parse: Parse, expects: Mapping[State, tuple[type, ...]]
    ) -> None:
        self.state = state
        self._parse = parse
        self._expects = expects
        self._framer = Framer()
        self._output = bytearray()
        self._in: Seal | None = None
        self._out: Seal | None = None

    def to_send(self) -> bytes:
        """Return bytes to be written to the peer now; empty when there are none."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def send(self, message: Message) -> bytes:
        """Return the bytes of a `message` for an open peer."""
        if self.state is not State.OPEN:
            raise ProtocolError(f"nothing can be sent in state {self.state}")
        self._write(encode(message))
        return self.to_send()

    def receive(self, data: bytes) -> list[Message | E]:
        """Return the messages and questions in `data` from the peer. Raises ProtocolError."""
        if self.state is State.CLOSED:
            return []
        self._framer.add(data)
        if self.state not in self._expects and len(self._framer) > AHEAD:
            raise ProtocolError("too much was sent ahead of the answer")
        return self._advance()

    def _advance(self) -> list[Message | E]:
        events: list[Message | E] = []
        try:
            while self.state in self._expects and (body := self._framer.take()) is not None:
                message = self._message(self._in.open(body) if self._in else body)
                if not isinstance(message, self._expects[self.state]):
                    raise ProtocolError(
                        f"{type(message).__name__.lower()} is not expected in state {self.state}"
                    )
                events += [message] if self.state is State.OPEN else self._step(message, body)
        except ProtocolError:
            self.state = State.CLOSED
            raise
        return events

    def _message(self, body: bytes) -> Message:
        try:
            return decode(self._parse(body))
        except Exception as error:  # whatever the parser finds wrong is the peer's mistake
            raise ProtocolError(f"not a message: {error}") from error

    @abstractmethod
    def _step(self, message: Message, body: bytes) -> Sequence[Message | E]:
        """Return the events that a message of the handshake causes; `body`: the received bytes, for
        the proofs."""

    def _write(self, body: bytes) -> None:
        self._output += frame(self._out.close(body) if self._out else body)

    def _open(self, incoming: Seal, outgoing: Seal) -> None:
        self._in, self._out = incoming, outgoing
        self._framer.limit = LIMIT
        self.state = State.OPEN
