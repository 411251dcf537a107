"""confd's secrets, keys and seals; `protocol` has the theory. Travels in the ramdisk: standard
library only."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import blake2b

from cod.wire.errors import PeerError

NONCE = 32  # bytes of a nonce, a secret and a key
SALT = 16
TAG = 16


class ProtocolError(PeerError):
    """The peer broke the protocol, or is not who it says it is. Close the connection."""


def frame(body: bytes) -> bytes:
    """Return `body` with its length in front."""
    return len(body).to_bytes(4, "big") + body


@dataclass(frozen=True, slots=True)
class Secret:
    """What an agent proves itself with: a public `id` (at most 32 letters and digits) and 32 random
    bytes."""

    id: str
    key: bytes

    @classmethod
    def read(cls, text: str) -> Secret:
        """Return the secret in the boot's secret file: ``<id> <hex>``. Raises ValueError."""
        name, key = text.split()
        return cls(name, bytes.fromhex(key))

    def __str__(self) -> str:
        return f"{self.id} {self.key.hex()}"

    def __repr__(self) -> str:  # must not end in a log
        return f"Secret({self.id!r})"


@dataclass(frozen=True, slots=True)
class Verifier:
    """What the server keeps of a secret: enough to check it, not enough to use it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


def verifier(secret: bytes, salt: bytes) -> Verifier:
    """Return the verifier of `secret` under `salt` (16 bytes)."""
    client_key, server_key = keys(secret, salt)
    return Verifier(salt, keyed(client_key, b""), server_key)


def keyed(data: bytes, key: bytes, size: int = 32) -> bytes:
    """BLAKE2b of `data`, keyed."""
    return blake2b(data, key=key, digest_size=size).digest()


def keys(secret: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """Return the client's and the server's key."""
    salted = keyed(secret, salt)
    return keyed(b"client key", salted), keyed(b"server key", salted)


def xor(a: bytes, b: bytes) -> bytes:
    """Byte by byte; both have one length."""
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def framed(*bodies: bytes) -> bytes:
    """Return all of them, each with its length in front: no two lists give the same bytes."""
    return b"".join(frame(body) for body in bodies)


def welcome_proof(server_key: bytes, transcript: bytes, node: str, heartbeat: float) -> bytes:
    """Return what proves the server, and the welcome's contents with it."""
    return keyed(transcript + framed(node.encode(), repr(float(heartbeat)).encode()), server_key)


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What both sides derive from one handshake: keys that seal frames, and the secret for
    reconnects."""

    agent_seal: bytes
    server_seal: bytes
    secret: Secret
    salt: bytes

    @classmethod
    def derive(cls, client_key: bytes, server_key: bytes, transcript: bytes) -> SessionKeys:
        """Derive the session's keys from the two keys of the secret that was proven, and everything
        said until the proof."""
        base = keyed(transcript, client_key + server_key)
        name = keyed(b"session id", base, SALT).hex()
        return cls(
            keyed(b"agent frames", base),
            keyed(b"server frames", base),
            Secret(name, keyed(b"session", base)),
            keyed(b"session salt", base, SALT),
        )


class Seal:
    """Tags frames of one direction, counting them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def _tag(self, body: bytes) -> bytes:
        self._count += 1
        return keyed(self._count.to_bytes(8, "big") + body, self._key, TAG)

    def close(self, body: bytes) -> bytes:
        """Return `body` with its tag in front."""
        return self._tag(body) + body

    def open(self, sealed: bytes) -> bytes:
        """Return the body of a sealed frame. Raises ProtocolError when the tag is not the next
        one."""
        if not hmac.compare_digest(sealed[:TAG], self._tag(sealed[TAG:])):
            raise ProtocolError("a frame with a wrong tag: changed, replayed or out of order")
        return sealed[TAG:]


class Secrets:
    """An agent's secrets and which to try next: the session's first, and after a refusal the
    boot's, turn about."""

    def __init__(self, boot: Secret) -> None:
        self._known = [boot]
        self._next = 0

    def current(self) -> Secret:
        """Return the secret to say hello with."""
        return self._known[self._next % len(self._known)]

    def learned(self, session: Secret) -> None:
        """A handshake derived `session`. It counts only if it was the boot's secret that it trades
        in."""
        boot = self._known[-1]
        if self.current() is boot:
            self._known, self._next = [session, boot], 0

    def refused(self) -> None:
        """The server does not know the current one."""
        self._next += 1
