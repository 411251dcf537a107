"""A VCM's end of NMP, scripted, for a server under test: what the server says is read by the
product's own decoder and checked against its tables and schemas."""

from __future__ import annotations

import socket
import ssl
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cod.security.ca import SERVER_NAME
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import Decoder, Fault, Message, encode
from cod.wire.nmp.protocol import Conversation, Side
from tests.conformance.kit import Failed

B = TypeVar("B")


class Peer:
    """One connection to the server. `faults`: what the server did against the page."""

    def __init__(self, line: ssl.SSLSocket, patience: float, faults: list[str]) -> None:
        self.socket, self._patience, self._faults = line, patience, faults
        self._decoder, self._talk, self._ids = Decoder(), Conversation(Side.VCM), 0
        self._heard: list[tuple[Message, b.Body]] = []

    def send(self, body: b.Body, *, version: str = "1.0", slowly: bool = False) -> str:
        """Say it, wherever it may stand; its Message-Id. `slowly`: a byte at a time, with a header
        that nobody knows."""
        self._ids += 1
        message = Message(xml.verb(body), f"k{self._ids}", xml.write(body), version=version)
        with suppress(Fault):  # what may not be said is what the clause is about
            self._talk.says(message)
        data = encode(message)
        if slowly:
            for byte in data.replace(b"Message-Id", b"X-Later: 1\r\nmessage-id"):
                self.raw(bytes([byte]))
        else:
            self.raw(data)
        return message.id

    def raw(self, data: bytes) -> None:
        """Send bytes as they are; the server may have gone."""
        with suppress(OSError):
            self.socket.sendall(data)

    def hear(self, seconds: float | None = None) -> tuple[Message, b.Body] | None:
        """The next message; None when the server has closed. Raises TimeoutError."""
        end = time.monotonic() + (self._patience if seconds is None else seconds)
        while not self._heard:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not data:
                return None
            for message in self._decoder.feed(data):
                self._take(message)
        return self._heard.pop(0)

    def _take(self, message: Message) -> None:
        try:
            self._talk.hears(message)
            body = xml.read(message)
        except Fault as fault:
            self._faults.append(f"{message.verb}: {fault.sentence} ({fault.code})")
            return
        if isinstance(body, b.Ping):
            self.raw(encode(Message("pong", f"p{message.id}", xml.write(b.Pong()), message.id)))
        self._heard.append((message, body))

    def until(self, kind: type[B], what: str, answers: str = "") -> tuple[Message, B]:
        """The next message of that kind. Raises `Failed` where none comes in time."""
        try:
            while (heard := self.hear()) is not None:
                message, body = heard
                if isinstance(body, kind) and answers in ("", message.answers):
                    return message, body
                if answers and message.answers == answers:
                    raise Failed(f"{what}: it answers by {xml.write(body).decode()}")
        except TimeoutError:
            raise Failed(f"{what}: no answer within {self._patience:.0f} s") from None
        raise Failed(f"{what}: it closes the connection")

    def asked(self, body: b.Body, kind: type[B]) -> B:
        """Ask, and return the answer, which has to be of that kind."""
        return self.until(kind, xml.verb(body), self.send(body))[1]

    def refused(self, code: str, *, goes_on: bool) -> b.Error:
        """Return the error that has to come next, after which the connection goes on or not."""
        _, error = self.until(b.Error, f"the error {code}")
        if error.code != code:
            raise Failed(f"it says {error.code} ({error.sentence}), not {code}")
        if goes_on:
            self.asked(b.Ping(), b.Pong)
        elif not self.closed():
            raise Failed(f"it goes on after {code}")
        return error

    def closed(self) -> bool:
        """Return whether the server closes."""
        try:
            while self.hear() is not None:
                pass
        except TimeoutError:
            return False
        return True


@dataclass
class Server:
    """A server under test, as the folder that `cod vcm enroll` writes has it.

    vcluster  of the folder's certificate: one to play with
    patience  seconds that the server has for an answer
    """

    folder: Path
    patience: float = 30.0
    faults: list[str] = field(default_factory=list, init=False)
    _peers: list[Peer] = field(default_factory=list, init=False)
    vcluster: str = field(init=False)
    address: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        read = tomllib.loads((self.folder / "vcm.toml").read_text())
        host, _, port = read["servers"][0].rpartition(":")
        self.vcluster, self.address = read["vcluster"], (host.strip("[]"), int(port))

    def connected(self, *, certificate: bool = True) -> Peer:
        """A connection on which nothing was said."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate:
            context.load_cert_chain(self.folder / "vcm.crt", self.folder / "vcm.key")
        try:
            plain = socket.create_connection(self.address, self.patience)
            line = context.wrap_socket(plain, server_hostname=SERVER_NAME)
        except OSError as error:
            raise Failed(f"no connection: {error}") from None
        self._peers.append(Peer(line, self.patience, self.faults))
        return self._peers[-1]

    def opened(self, seen: int = 0) -> tuple[Peer, b.Welcome]:
        """A connection that was welcomed."""
        peer = self.connected()
        return peer, peer.asked(b.Hello(self.vcluster, "conformance", seen), b.Welcome)

    def end(self) -> None:
        """Close every connection."""
        while self._peers:
            self._peers.pop().socket.close()
