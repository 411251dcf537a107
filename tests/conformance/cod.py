"""The server's end of NMP, scripted: it says what a clause wants said, and writes down what the VCM
does.

One thread, one connection at a time, on loopback with TLS and a certificate authority of its own.
What the VCM says is read by the product's own decoder and checked against its tables and schemas,
so a fault against the page is found wherever it happens.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cod.security.ca import Ca
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import LONGEST_BODY, Decoder, Fault, Message, encode
from cod.wire.nmp.protocol import VERBS, Conversation, Side

VCLUSTER = "pool"
KEEPALIVE = 3.0


def member(number: int, state: str = "active") -> b.Member:
    """The vcluster's node of that number."""
    return b.Member(
        f"node{number}", f"n{number}", f"10.77.128.{number}", state, "debian@1", "type1"
    )


def _context(folder: Path, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return a server's side of TLS with this certificate."""
    (folder / "server.crt").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return context


class Line:
    """One connection: what was heard on it, each message with its body."""

    def __init__(self, plain: socket.socket) -> None:
        self.socket = plain
        self.decoder, self.talk = Decoder(LONGEST_BODY), Conversation(Side.COD)
        self.heard: list[tuple[Message, b.Body]] = []
        self.open = True
        self._ids = 0

    def send(
        self, body: b.Body, *, answers: str = "", sequence: int = 0, version: str = "1.0"
    ) -> str:
        """Say it; its Message-Id. On a connection that has ended nothing is said."""
        self._ids += 1
        message = Message(
            xml.verb(body), f"c{self._ids}", xml.write(body), answers, sequence, version
        )
        self.talk.says(message)
        self.raw(encode(message))
        return message.id

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.close()

    def close(self) -> None:
        """Cut it."""
        self.open = False
        self.socket.close()


class Cod:
    """What the VCM takes for COD.

    members   its nodes, by the site's name; `requests`: the keys it has used, with what was
              answered
    owed      messages not acknowledged yet, by sequence number
    instead   for a verb, what to do in place of the usual answer
    faults    what the VCM did against the page, as sentences
    """

    def __init__(self, folder: Path) -> None:
        self.ca = Ca(folder / "ca", "conformance")
        self.members: dict[str, b.Member] = {}
        self.requests: dict[str, b.Request] = {}
        self.owed: dict[int, b.Body] = {}
        self.sequence = self.acked = 0
        self.instead: dict[str, Callable[[Line, Message, Any], None]] = {}
        self.faults: list[str] = []
        self.lines: list[Line] = []
        self.said: list[tuple[Line, Message, b.Body]] = []  # by the VCM, on all connections
        self.greets = True
        self.impostor: ssl.SSLContext | None = None  # what connections get in place of COD
        self.met_impostor = 0  # connections that did
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._folder, self._context = folder, self._tls(folder)

    def impostors(self) -> list[ssl.SSLContext]:
        """Return servers that are not COD: one whose certificate another authority has signed, and
        another VCM of the site. They take everybody."""
        stranger = Ca(self._folder / "stranger", "another site")
        now = datetime.now(UTC)
        return [
            _context(self._folder, one.certificate, one.key)
            for one in (stranger.server(["127.0.0.1"], now), self.ca.vcm("other", now))
        ]

    def _tls(self, folder: Path) -> ssl.SSLContext:
        own = self.ca.server(["127.0.0.1"], datetime.now(UTC))
        (folder / "authority.crt").write_bytes(self.ca.certificate)
        context = _context(folder, own.certificate, own.key)
        context.load_verify_locations(folder / "authority.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def close(self) -> None:
        """End everything."""
        for line in self.lines:
            line.close()
        self._listener.close()

    # ------------------------------------------------------------ what clauses ask for

    @property
    def line(self) -> Line | None:
        """The newest connection, if it is open and was welcomed."""
        newest = self.lines[-1] if self.lines else None
        return newest if newest and newest.open and newest.talk.state == "open" else None

    def owe(self, body: b.Body) -> int:
        """Keep a message for the VCM until it acknowledges it, and send it if somebody listens; its
        number."""
        self.sequence += 1
        self.owed[self.sequence] = body
        if self.line:
            self.line.send(body, sequence=self.sequence)
        return self.sequence

    def bodies(self, kind: type[Any], since: int = 0) -> list[Any]:
        """What the VCM has said of that kind, after the first `since` messages."""
        return [body for _, _, body in self.said[since:] if isinstance(body, kind)]

    def run(self, seconds: float, until: Callable[[], Any] = lambda: False) -> bool:
        """Serve for so long, or until that is true; was it?"""
        end = time.monotonic() + seconds
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._turn(min(left, 0.2))
        return True

    # ------------------------------------------------------------ hearing

    def _turn(self, seconds: float) -> None:
        there = [line for line in self.lines if line.open]
        pending = [
            line
            for line in there
            if isinstance(line.socket, ssl.SSLSocket) and line.socket.pending()
        ]
        ready, _, _ = select.select(
            [self._listener, *(line.socket for line in there)], [], [], 0 if pending else seconds
        )
        if self._listener in ready:
            self._accept()
        for line in there:
            if line in pending or line.socket in ready:
                self._read(line)

    def _accept(self) -> None:
        plain, _ = self._listener.accept()
        plain.settimeout(10)
        if self.impostor is not None:
            self.met_impostor += 1
            self._deceive(plain, self.impostor)
            return
        try:
            self.lines.append(Line(self._context.wrap_socket(plain, server_side=True)))
        except (OSError, ssl.SSLError) as error:
            self.faults.append(f"On the wire: no TLS with the certificate that was given: {error}")
            plain.close()

    def _deceive(self, plain: socket.socket, impostor: ssl.SSLContext) -> None:
        """Be somebody else, and see what the VCM says."""
        try:
            with impostor.wrap_socket(plain, server_side=True) as line:
                heard = line.recv(65536)
        except OSError:  # it went, or says nothing
            return
        if heard:
            self.faults.append("On the wire: it speaks to a server that is not the site's")

    def _read(self, line: Line) -> None:
        try:
            data = line.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            line.close()
            return
        try:
            for message in line.decoder.feed(data):
                self._hear(line, message)
        except Fault as fault:
            self.faults.append(f"On the wire: {fault.sentence} ({fault.code})")
            line.close()

    def _hear(self, line: Line, message: Message) -> None:
        if message.id in {before.id for before, _ in line.heard}:
            self.faults.append(f"On the wire: the Message-Id {message.id} was used before")
        try:
            line.talk.hears(message)
            body = xml.read(message)
        except Fault as fault:
            self.faults.append(f"{message.verb}: {fault.sentence} ({fault.code})")
            if VERBS.get(message.verb) and not fault.fatal and line.talk.state == "open":
                line.send(b.Error(fault.code, fault.sentence, fault.line), answers=message.id)
            return
        line.heard.append((message, body))
        self.said.append((line, message, body))
        usual = getattr(self, "_" + message.verb.replace("-", "_"), None)
        act = self.instead.get(message.verb, usual)
        if act is not None and line.open:
            act(line, message, body)

    # ------------------------------------------------------------ the usual answers

    def welcome(self, line: Line, message: Message, hello: b.Hello) -> None:
        """Welcome it, and send what is owed beyond what it has dealt with."""
        self.acknowledged(min(max(hello.seen, self.acked), self.sequence))
        line.send(b.Welcome(VCLUSTER, "conformance", KEEPALIVE, self.acked), answers=message.id)
        for sequence, body in sorted(self.owed.items()):
            line.send(body, sequence=sequence)

    def _hello(self, line: Line, message: Message, hello: b.Hello) -> None:
        if hello.vcluster != VCLUSTER:
            self.faults.append(
                f"Opening: hello is for {hello.vcluster!r}, the certificate for {VCLUSTER!r}"
            )
        for older in self.lines[:-1]:
            older.close()
        if self.greets:
            self.welcome(line, message, hello)

    def acknowledged(self, sequence: int) -> None:
        """Everything up to that number is dealt with."""
        self.acked = max(self.acked, sequence)
        self.owed = {number: body for number, body in self.owed.items() if number > self.acked}

    def _ack(self, line: Line, message: Message, ack: b.Ack) -> None:
        if ack.sequence > self.sequence:
            self.faults.append(
                f"What is kept: {ack.sequence} is acknowledged, {self.sequence} is the last one"
                " sent"
            )
        self.acknowledged(min(ack.sequence, self.sequence))

    def _ping(self, line: Line, message: Message, _: b.Ping) -> None:
        line.send(b.Pong(), answers=message.id)

    def _bye(self, line: Line, message: Message, _: b.Bye) -> None:
        line.close()

    def _status(self, line: Line, message: Message, _: b.Status) -> None:
        pending = tuple(one for one in self.requests.values() if one.state == "pending")
        line.send(
            b.Vcluster(
                VCLUSTER, "active", len(self.members), 1, 4e9, tuple(self.members.values()), pending
            ),
            answers=message.id,
        )

    def _request_nodes(self, line: Line, message: Message, asked: b.RequestNodes) -> None:
        known = self.requests.setdefault(
            asked.key, b.Request(17 + len(self.requests), asked.key, "pending")
        )
        line.send(known, answers=message.id)

    def _request_status(self, line: Line, message: Message, asked: b.RequestStatus) -> None:
        self._shown(line, message, asked.request, "")

    def _withdraw(self, line: Line, message: Message, asked: b.Withdraw) -> None:
        self._shown(line, message, asked.request, "withdrawn")

    def _shown(self, line: Line, message: Message, number: int, state: str) -> None:
        found = next((one for one in self.requests.values() if one.request == number), None)
        if found is None:
            line.send(
                b.Error("refused", f"this vcluster has no request {number}"), answers=message.id
            )
            return
        if state and found.state == "pending":
            found = self.requests[found.key] = replace(found, state=state)
            self.owe(b.Refusal(found.request, found.key, "withdrawn"))
        line.send(found, answers=message.id)

    def _release_nodes(self, line: Line, message: Message, asked: b.ReleaseNodes) -> None:
        gone = [
            one
            for one in self.members.values()
            if {one.node, one.hostname} & {each.node for each in asked.nodes}
        ]
        line.send(b.Done(), answers=message.id)
        for one in gone:
            del self.members[one.node]
            self.owe(b.NodeState(one.node, one.hostname, one.address, "lost", "given back"))

    def _park_nodes(self, line: Line, message: Message, _: b.ParkNodes) -> None:
        line.send(b.NeededNodes(), answers=message.id)

    def _maintenance_status(self, line: Line, message: Message, _: b.MaintenanceStatus) -> None:
        line.send(b.NodeMaintenance(), answers=message.id)

    def _reclaim_answer(self, line: Line, message: Message, _: b.ReclaimAnswer) -> None:
        line.send(b.Done(), answers=message.id)

    def _extend(self, line: Line, message: Message, asked: b.Extend) -> None:
        line.send(b.Done(), answers=message.id)
        self.owe(b.Lease("extended", time.time() + asked.seconds))

    def _renew(self, line: Line, message: Message, _: b.Renew) -> None:
        line.send(b.Error("refused", "the certificate is new"), answers=message.id)

    # ------------------------------------------------------------ what happens to the vcluster

    def grant(self, key: str, number: int) -> int:
        """Grant a request with a node that is active at once; the last message's number."""
        request, new = self.requests[key], member(number)
        self.requests[key] = replace(request, state="granted")
        self.members[new.node] = new
        self.owe(b.Grant(request.request, key, 4e9, (replace(new, state="prime"),)))
        return self.owe(b.NodeState(new.node, new.hostname, new.address, "active"))
