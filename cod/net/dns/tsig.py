"""Signatures of DNS messages by a key that two servers share (TSIG, RFC 8945). No I/O.

A signature is a message's last record, and does not cover itself: the signed message is the one
without this record in its counts.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import struct
from dataclasses import dataclass, field

from cod.wire.errors import PeerError

TSIG, ANY = 250, 255
FUDGE = 300  # seconds that two clocks may differ
NOTAUTH = 9
BADSIG, BADKEY, BADTIME = 16, 17, 18
ALGORITHMS = {"hmac-sha256": "sha256", "hmac-sha384": "sha384", "hmac-sha512": "sha512"}
_LEAST = 16  # bytes of a secret
_HEADER, _RECORD = struct.Struct(">6H"), struct.Struct(">HHIH")


@dataclass(frozen=True, slots=True)
class TransferKey:
    """A shared key. `name`, `algorithm`: in lower case, as labels of the wire."""

    name: bytes
    algorithm: bytes
    digest: str
    secret: bytes = field(repr=False)


class Rejected(PeerError):
    """A signature by another key, or of another time. `reply` is the answer that tells the peer."""

    def __init__(self, reason: str, reply: bytes) -> None:
        super().__init__(reason)
        self.reply = reply


def key(line: str) -> TransferKey:
    """Read a key in the form of dig's option -y: ALGORITHM:NAME:SECRET, the secret in base64.
    Raises ValueError, whose text does not contain the secret."""
    match = re.fullmatch(r"([a-z0-9-]+):([A-Za-z0-9_.-]{1,253}):([A-Za-z0-9+/=]+)", line.strip())
    if not match or match[1] not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ValueError(f"should be ALGORITHM:NAME:SECRET, with an algorithm of {known}")
    try:
        secret = base64.b64decode(match[3], validate=True)
        name = _labels(match[2])
    except (binascii.Error, ValueError):
        raise ValueError("should have a DNS name and a secret in base64") from None
    if len(secret) < _LEAST:
        raise ValueError(f"should have a secret of at least {_LEAST} bytes")
    return TransferKey(name, _labels(match[1]), ALGORITHMS[match[1]], secret)


class MessageSigner:
    """The signatures of one exchange: each message's signature covers the one before it."""

    def __init__(self, key: TransferKey, now: float, before: bytes = b"") -> None:
        self._key, self._now, self._before, self._first = key, int(now), before, True

    def sign(self, message: bytes) -> bytes:
        """Return the message with its signature."""
        return self._signed(message, 0, b"")

    def late(self, message: bytes) -> bytes:
        """Return the message, signed, with this server's time, because the peer's clock differs."""
        return self._signed(message, BADTIME, self._now.to_bytes(6, "big"))

    def _signed(self, message: bytes, error: int, other: bytes) -> bytes:
        timers = self._now.to_bytes(6, "big") + struct.pack(">H", FUDGE)
        end = struct.pack(">HH", error, len(other)) + other
        covered = struct.pack(">H", len(self._before)) + self._before if self._before else b""
        covered += message
        covered += _variables(self._key, timers, end) if self._first else timers
        self._before, self._first = _mac(self._key, covered), False
        return _with_record(message, self._key.name, self._key.algorithm, timers, self._before, end)


def opened(data: bytes, key: TransferKey, now: float) -> tuple[bytes, MessageSigner | None]:
    """Return a message without its signature, and the signer of the answer. A message without a
    signature is returned unchanged, with None. Raises `Rejected`, and `PeerError` for bytes that
    are no DNS message."""
    try:
        at = _signature(data)
        if at is None:
            return data, None
        name, after = _name(data, at)
        _, kind, ttl, _ = _RECORD.unpack_from(data, after)
        algorithm, place = _name(data, after + _RECORD.size)
        timers = data[place : place + 8]
        (size,) = struct.unpack_from(">H", data, place + 8)
        mac = data[place + 10 : place + 10 + size]
        rest = data[place + 10 + size :]
        (number,) = struct.unpack_from(">H", rest)
        error = rest[2:]
        if (kind, ttl) != (ANY, 0) or len(mac) < size or len(error) < 4:
            raise PeerError("a signature that is none by its form")
    except (struct.error, IndexError):
        raise PeerError("a message that ends early") from None
    counts = _HEADER.unpack_from(data)
    message = _HEADER.pack(number, *counts[1:5], counts[5] - 1) + data[_HEADER.size : at]
    if (name, algorithm) != (key.name, key.algorithm):
        raise _rejected(message, name, algorithm, timers, BADKEY, "an unknown key")
    if not hmac.compare_digest(_mac(key, message + _variables(key, timers, error)), mac):
        raise _rejected(message, name, algorithm, timers, BADSIG, "a wrong signature")
    signed = int.from_bytes(timers[:6], "big")
    (fudge,) = struct.unpack(">H", timers[6:])
    if abs(int(now) - signed) > fudge:
        reply = MessageSigner(key, now, mac).late(_empty(message))
        raise Rejected(f"a signature of {int(now) - signed} s ago", reply)
    return message, MessageSigner(key, now, mac)


def _rejected(
    message: bytes, name: bytes, algorithm: bytes, timers: bytes, error: int, reason: str
) -> Rejected:
    end = struct.pack(">HH", error, 0)
    return Rejected(reason, _with_record(_empty(message), name, algorithm, timers, b"", end))


def _empty(message: bytes) -> bytes:
    """Return the NOTAUTH answer to a message, without its question."""
    number, flags = struct.unpack_from(">HH", message)
    # opcode and RD are the question's
    return _HEADER.pack(number, 0x8000 | flags & 0x7900 | NOTAUTH, 0, 0, 0, 0)


def _with_record(
    message: bytes, name: bytes, algorithm: bytes, timers: bytes, mac: bytes, end: bytes
) -> bytes:
    counts = _HEADER.unpack_from(message)
    data = algorithm + timers + struct.pack(">H", len(mac)) + mac + message[:2] + end
    return (
        _HEADER.pack(*counts[:5], counts[5] + 1)
        + message[_HEADER.size :]
        + name
        + _RECORD.pack(TSIG, ANY, 0, len(data))
        + data
    )


def _variables(key: TransferKey, timers: bytes, end: bytes) -> bytes:
    return key.name + struct.pack(">HI", ANY, 0) + key.algorithm + timers + end


def _mac(key: TransferKey, covered: bytes) -> bytes:
    return hmac.digest(key.secret, covered, key.digest)


def _signature(data: bytes) -> int | None:
    """Return the offset of the last record, if this is a signature; else None."""
    counts = _HEADER.unpack_from(data)
    at, last = _HEADER.size, None
    for _ in range(counts[2]):
        at = _name(data, at)[1] + 4
    for _ in range(sum(counts[3:])):
        last = at
        at = _name(data, at)[1]
        kind, _, _, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size + size
    if last is None or not counts[5] or kind != TSIG:
        return None
    if at != len(data):
        raise PeerError("bytes behind a signature")
    return last


def _name(data: bytes, at: int) -> tuple[bytes, int]:
    """Return a name's labels in lower case, and the offset behind it. Names of signatures have no
    pointers, so reading ends at a pointer."""
    begin = at
    while size := data[at]:
        if size > 63:
            return data[begin:at].lower(), at + 2
        at += size + 1
    return data[begin : at + 1].lower(), at + 1


def _labels(name: str) -> bytes:
    parts = name.rstrip(".").lower().split(".")
    if not all(0 < len(part) < 64 for part in parts):
        raise ValueError(name)
    return b"".join(bytes([len(part)]) + part.encode("ascii") for part in parts) + b"\0"
