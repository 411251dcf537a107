"""confd's secrets, and the keys that are derived from them; `protocol` has the theory. Travels in
the ramdisk: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from cod.wire.confd.frames import frame, keyed

NONCE = 32  # bytes of a nonce, a secret and a key
SALT = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """An agent's proof of identity: a public `id` (at most 32 letters and digits) and 32 random
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
    """The server's record of a secret, which suffices to check the secret, but not to use it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


def verifier(secret: bytes, salt: bytes) -> Verifier:
    """Return the verifier of `secret` under `salt` (16 bytes)."""
    client_key, server_key = keys(secret, salt)
    return Verifier(salt, keyed(client_key, b""), server_key)


def keys(secret: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """Return the client's key and the server's key."""
    salted = keyed(secret, salt)
    return keyed(b"client key", salted), keyed(b"server key", salted)


def framed(*bodies: bytes) -> bytes:
    """Return the bodies, each preceded by its length, so that different lists give different
    bytes."""
    return b"".join(frame(body) for body in bodies)


def welcome_proof(server_key: bytes, transcript: bytes, node: str, heartbeat: float) -> bytes:
    """Return the proof of the server's identity, which also covers the contents of its welcome."""
    return keyed(transcript + framed(node.encode(), repr(float(heartbeat)).encode()), server_key)


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Keys that both sides derive from one handshake: for tags and for encryption of frames, and
    the secret for reconnecting."""

    agent_seal: bytes
    server_seal: bytes
    agent_cipher: bytes
    server_cipher: bytes
    secret: Secret
    salt: bytes

    @classmethod
    def derive(
        cls, client_key: bytes, server_key: bytes, transcript: bytes, shared: bytes
    ) -> SessionKeys:
        """Derive the session's keys from the two keys of the proven secret, all messages until the
        proof, and the shared secret of X25519."""
        base = keyed(transcript + shared, client_key + server_key)
        name = keyed(b"session id", base, SALT).hex()
        return cls(
            keyed(b"agent frames", base),
            keyed(b"server frames", base),
            keyed(b"agent cipher", base),
            keyed(b"server cipher", base),
            Secret(name, keyed(b"session", base)),
            keyed(b"session salt", base, SALT),
        )


class Secrets:
    """An agent's secrets, and which to try next: the session's first, and after each refusal the
    other one."""

    def __init__(self, boot: Secret) -> None:
        self._known = [boot]
        self._next = 0

    def current(self) -> Secret:
        """Return the secret to say hello with."""
        return self._known[self._next % len(self._known)]

    def learned(self, session: Secret) -> None:
        """Add the secret of a `session` that a handshake has derived, if the handshake used the
        boot's secret, which the server replaces by the session's."""
        boot = self._known[-1]
        if self.current() is boot:
            self._known, self._next = [session, boot], 0

    def refused(self) -> None:
        """Try the other secret next, as the server does not know the current one."""
        self._next += 1
