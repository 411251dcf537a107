"""The agent's protocol: XML over TCP, framed by length, with mutual authentication. No I/O.

`docs/confd` is the protocol's page; this is its theory. The file travels in the ramdisk:
standard library only.

**Frames.** A frame is four bytes of length (unsigned, most significant first) and that many bytes.
The length is checked before anything is kept for it: 4 KiB until the peer is proven, 4 MiB after.

**Proof.** A machine boots with a secret that was minted for it: a public id and 32 random bytes.
The server keeps only a verifier, as in SCRAM (RFC 5802, section 3), with BLAKE2b (RFC 7693) in its
keyed mode for every hash::

    salted     = B(secret, key salt)              stored_key = B(client_key)
    client_key = B("client key", key salted)      server_key = B("server key", key salted)

    agent                               server
    hello      id, mac, nonce, key ->   looks the id up: salt, stored_key, server_key
                                   <-   challenge  salt, nonce, key
    proof      client_key XOR      ->   undoes the XOR; its hash must be stored_key
               B(transcript, key stored_key)
                                   <-   welcome    B(transcript and welcome, key server_key)

A reader of the database cannot pose as an agent, because it contains no client_key, and a listener
learns neither secret. The transcript consists of the two nonces and all messages so far, so a
recorded exchange proves nothing later. There is no key stretching (PBKDF2): secrets are random, not
passwords.

**Key agreement.** Hello and challenge carry a public key each, made for this connection (X25519,
RFC 7748), and the proofs cover both. A boot's secret comes over plain HTTP, so a listener may know
it, but cannot know the shared secret of X25519. A host between the two that reads the boot's secret
can pose as either.

**Session key.** Both sides derive it from client_key, server_key, the transcript and the shared
secret of X25519; it is never sent. From it come the keys that encrypt and seal frames, and a second
secret (id, key and salt) with which the agent reconnects until its next boot. This secret replaces
the boot's: the server stores its verifier and deletes the boot's secret in one transaction *before*
it sends the welcome. The agent has derived it *before* it sends the proof. So whichever message is
lost, one of the agent's two secrets is valid, and it tries the newer first (`Secrets`).

**Seals.** After the welcome every frame is a tag of 16 bytes and an encrypted body (`frames.Seal`);
the tag is keyed BLAKE2b over the frame's number and the encrypted body. Each direction has a key
for tags and one for encryption. A frame that is replayed, reordered, sent back or forged has a
wrong tag and ends the connection.

**State machines.** `AgentSide` and `ServerSide` turn received bytes into events; bytes to send are
in `to_send()`. A table says which messages a state accepts; in a state that is not in it nothing is
read. The server side asks for facts of the database with an event (`NeedVerifier`, `Proved`), and
reads on when that is answered. Every error raises `ProtocolError`, after which the connection must
be closed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from cod.wire.confd.frames import (
    AHEAD,
    FIRST_LIMIT,
    LIMIT,
    End,
    Framer,
    Parse,
    ProtocolError,
    Seal,
    State,
    frame,
    keyed,
    xor,
)
from cod.wire.confd.keys import (
    NONCE,
    SALT,
    Secret,
    Secrets,
    SessionKeys,
    Verifier,
    framed,
    keys,
    verifier,
    welcome_proof,
)
from cod.wire.confd.messages import (
    FROM_AGENT,
    FROM_SERVER,
    Challenge,
    Error,
    Hello,
    Message,
    Proof,
    Welcome,
    encode,
)
from cod.wire.confd.x25519 import BASE, x25519

__all__ = [
    "AHEAD",
    "FIRST_LIMIT",
    "KEY",
    "LIMIT",
    "NONCE",
    "SALT",
    "AgentSide",
    "Event",
    "Framer",
    "NeedVerifier",
    "NewSecret",
    "Outdated",
    "ProtocolError",
    "Proved",
    "Secret",
    "Secrets",
    "ServerSide",
    "State",
    "Verifier",
    "frame",
    "plain",
    "verifier",
]

KEY = 32  # bytes of an X25519 key

Agree = Callable[[bytes, bytes], bytes]
"""X25519 of a private and a public key. Raises ValueError on a public key that is of no use."""


# ---------------------------------------------------------------- the machines


@dataclass(frozen=True, slots=True)
class NeedVerifier:
    """Server: asks for the verifier of `id`. Answer with `ServerSide.known` or `ServerSide.refuse`."""

    id: str
    mac: str


@dataclass(frozen=True, slots=True)
class Outdated:
    """Server: the agent's trampoline is of an older release and does not encrypt. Answer with
    `ServerSide.refuse`."""

    mac: str


@dataclass(frozen=True, slots=True)
class Proved:
    """Server: the agent has proven that it knows the secret `id`. Answer with `ServerSide.welcome`
    or `ServerSide.refuse`.

    session, verifier   id and verifier of the session's secret, to be stored first if `id` was a
                        boot's secret
    """

    id: str
    mac: str
    session: str
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class NewSecret:
    """Agent: the session's secret, to be passed to `Secrets.learned` before the proof is sent."""

    secret: Secret


Asks = NeedVerifier | Outdated | Proved | NewSecret
Event = Message | Asks


class _Side(End[Asks]):
    """An end of a mutually authenticated connection. `private` is its X25519 key, 32 random
    bytes."""

    def __init__(
        self,
        state: State,
        parse: Parse,
        expects: dict[State, tuple[type, ...]],
        private: bytes,
        agree: Agree,
    ) -> None:
        super().__init__(state, parse, expects)
        self._private = private
        self._agree = agree
        self._bodies: list[bytes] = []  # bodies of the handshake so far

    def _say(self, message: Message) -> None:
        body = encode(message)
        self._bodies.append(body)
        self._write(body)

    def _public(self) -> bytes:
        return self._agree(self._private, BASE)

    def _shared(self, public: bytes) -> bytes:
        try:
            return self._agree(self._private, public)
        except ValueError as error:
            raise ProtocolError(f"a public key that is of no use: {error}") from error


def plain(body: bytes) -> Any:
    """Parse with ElementTree, for a side that has no lxml. Raises ProtocolError if the document has
    declarations (``<!``)."""
    if b"<!" in body or b"\0" in body:
        raise ProtocolError("declarations are not allowed")
    return ET.fromstring(body)


class AgentSide(_Side):
    """The agent's end of one connection. `nonce` and `private`, its X25519 key, are 32 random bytes
    each. The hello is in `to_send()` at once."""

    def __init__(
        self,
        secret: Secret,
        mac: str,
        nonce: bytes,
        private: bytes,
        parse: Parse = plain,
        agree: Agree = x25519,
    ) -> None:
        super().__init__(
            State.CHALLENGE,
            parse,
            {
                State.CHALLENGE: (Challenge, Error),
                State.WELCOME: (Welcome, Error),
                State.OPEN: FROM_SERVER,
            },
            private,
            agree,
        )
        self._secret = secret
        self._nonce = nonce
        self._say(Hello(secret.id, mac, nonce, self._public()))

    def _step(self, message: Message, body: bytes) -> Sequence[Event]:
        if isinstance(message, Challenge):
            return self._prove(message, body)
        if isinstance(message, Welcome):
            expected = welcome_proof(
                self._server_key, framed(*self._bodies), message.node, message.heartbeat
            )
            if not hmac.compare_digest(expected, message.proof):
                raise ProtocolError("the server does not know this machine's secret: an impostor")
            keys = self._session
            self._open(
                Seal(keys.server_seal, keys.server_cipher), Seal(keys.agent_seal, keys.agent_cipher)
            )
        else:
            self.state = State.CLOSED
        return [message]

    def _prove(self, challenge: Challenge, body: bytes) -> Sequence[Event]:
        if self.state is not State.CHALLENGE:
            raise ProtocolError("a second challenge")
        if not challenge.key:
            raise ProtocolError(
                "the server encrypts nothing: its COD is older than this trampoline"
            )
        if [len(challenge.salt), len(challenge.nonce), len(challenge.key)] != [SALT, NONCE, KEY]:
            raise ProtocolError("a challenge with a salt, nonce or key of the wrong length")
        self._bodies.append(body)
        client_key, self._server_key = keys(self._secret.key, challenge.salt)
        transcript = framed(*self._bodies)
        shared = self._shared(challenge.key)
        self._session = SessionKeys.derive(client_key, self._server_key, transcript, shared)
        self._say(Proof(xor(client_key, keyed(transcript, keyed(client_key, b"")))))
        self.state = State.WELCOME
        return [NewSecret(self._session.secret)]


class ServerSide(_Side):
    """The server's end of one connection. `nonce` and `private`, its X25519 key, are 32 random
    bytes each."""

    def __init__(
        self, nonce: bytes, private: bytes, parse: Parse = plain, agree: Agree = x25519
    ) -> None:
        super().__init__(
            State.HELLO,
            parse,
            {
                State.HELLO: (Hello,),
                State.PROOF: (Proof,),
                State.OPEN: FROM_AGENT,
            },
            private,
            agree,
        )
        self._nonce = nonce

    def _step(self, message: Message, body: bytes) -> Sequence[Event]:
        if isinstance(message, Hello):
            self._bodies.append(body)
            self.state, self._hello = State.LOOKUP, message
            if not message.key:
                return [Outdated(message.mac)]
            if len(message.key) != KEY:
                raise ProtocolError("a hello with a key of the wrong length")
            return [NeedVerifier(message.id, message.mac)]
        assert isinstance(message, Proof)
        return [self._prove(message, body)]

    def known(self, found: Verifier) -> list[Event]:
        """Answer NeedVerifier: challenge the agent. Return the events of messages that have arrived
        meanwhile."""
        assert self.state is State.LOOKUP
        self._verifier = found
        self._say(Challenge(found.salt, self._nonce, self._public()))
        self.state = State.PROOF
        return self._advance()

    def _prove(self, proof: Proof, body: bytes) -> Proved:
        if len(proof.value) != NONCE:
            raise ProtocolError("a proof of the wrong length")
        transcript = framed(*self._bodies)
        client_key = xor(proof.value, keyed(transcript, self._verifier.stored_key))
        if not hmac.compare_digest(keyed(client_key, b""), self._verifier.stored_key):
            raise ProtocolError(f"{self._hello.mac} does not know the secret {self._hello.id}")
        self._bodies.append(body)
        shared = self._shared(self._hello.key)
        self._session = SessionKeys.derive(
            client_key, self._verifier.server_key, transcript, shared
        )
        self.state = State.TRADE
        secret = self._session.secret
        return Proved(
            self._hello.id, self._hello.mac, secret.id, verifier(secret.key, self._session.salt)
        )

    def welcome(self, node: str, heartbeat: float) -> list[Event]:
        """Answer Proved: the session is stored and open. `heartbeat` is in seconds. Return the
        events of messages that have arrived meanwhile."""
        assert self.state is State.TRADE
        proof = welcome_proof(self._verifier.server_key, framed(*self._bodies), node, heartbeat)
        self._write(encode(Welcome(proof, node, heartbeat)))
        keys = self._session
        self._open(
            Seal(keys.agent_seal, keys.agent_cipher), Seal(keys.server_seal, keys.server_cipher)
        )
        return self._advance()

    def refuse(self, code: str, reason: str) -> None:
        """Send the reason and close: an answer to NeedVerifier and Proved, or the end of an open
        connection."""
        self._write(encode(Error(code, reason)))
        self.state = State.CLOSED
