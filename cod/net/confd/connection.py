"""One agent's connection to confd: bytes to events, events to flows, one after the other."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.protocol import Protocol

from cod.flows.agents import progress, report, sessions
from cod.model import BootSecret, Effect, Meter, Peer, Refused
from cod.net.confd.server import ConfdServer
from cod.orders import Order
from cod.wire import xmldoc
from cod.wire.confd import protocol
from cod.wire.confd.messages import Ack, Done, Error, Failed, Heartbeat, Message, Progress, Report

BEHIND = 32  # messages that may wait before the connection is not read from
# seconds between two writes of a node's progress; agents tell it twice as often
PROGRESS_EVERY = 2.0
LAST_WORDS = 2.0  # seconds for a peer to take the reason why it is closed
# after 'unknown' an agent of an older release reboots, once its order is done, into the new one
OUTDATED = "this trampoline encrypts nothing: build the trampolines anew (cod trampoline build)"

log = logging.getLogger("cod.confd")


def _line(text: str) -> str:
    # what a peer says must not look like another line of the log
    return " ".join(text.split())[:300]


def _agree(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


class AgentConnection(Protocol):
    """A connection of an agent, or of a peer that has not proven itself."""

    transport: Any

    def __init__(self, server: ConfdServer) -> None:
        self.server = server
        self.peer: Peer | None = None
        self.name = self.address = "?"
        self.heard_at = server.reactor.seconds()
        self.dead = False
        self._ordered = 0  # generation of the last order that was sent on it
        self.is_stranger = False
        self._meter: Meter | None = None  # by what to ask whether its machine is on
        self._about: dict[str, str] = {}
        self._log = logging.LoggerAdapter(log, self._about)
        self._side = protocol.ServerSide(
            os.urandom(protocol.NONCE),
            os.urandom(protocol.KEY),
            lambda body: xmldoc.parse(body, "confd"),
            _agree,
        )
        self._waiting: deque[protocol.Event] = deque()
        self._busy = False
        self._timer: Any = None
        self._progress_at = -PROGRESS_EVERY  # when progress was written last
        self._newest: Progress | None = None  # it waits to be written
        self._turn: Any = None  # when that will be

    def connectionMade(self) -> None:
        """Count the new connection as unproven, or close it if there are too many."""
        self.address = self.name = self.transport.getPeer().host
        if not self.server.has_room(self.address):
            self.drop("too many connections")
            return
        self.server.stranger(self)
        self.transport.setTcpNoDelay(True)
        self._set_timer(self.server.limits.proof_time, self.drop, "did not prove itself in time")

    def dataReceived(self, data: bytes) -> None:
        try:
            events = self._side.receive(data)
        except protocol.ProtocolError as error:
            self.drop(str(error))
        else:
            self._take(events)

    def connectionLost(self, reason: Any = None) -> None:
        """Clean up after the connection. A flow that is still running ends in `_proved` or
        `_report`, which check the state."""
        self._side.state = protocol.State.CLOSED
        self._stop_timer()
        self._forget_waiting()
        self.server.gone(self)

    def send(self, message: Message) -> None:
        """Send the message, if the connection is still open."""
        if self._side.state is protocol.State.OPEN:
            self.transport.write(self._side.send(message))

    def order(self, order: Order) -> bool:
        """Send an order; return whether it was sent. After an order of a later generation it is
        not: the look for orders may have found this one before the answer to a message overtook it.
        If the database has lost its last commits, later orders are of earlier generations: the next
        one is sent."""
        if self._side.state is not protocol.State.OPEN:
            return False
        generation = int(order.id.partition(".")[2])
        if generation < self._ordered:
            self._ordered = 0
            return False
        self._ordered = generation
        self.server.counts["orders"] += 1
        self._log.info("%s: order %s: %s", self.name, order.id, order.action)
        self.send(order)
        return True

    def end(self, code: str, reason: str) -> None:
        """Send a refusal with the reason, and close. A peer that does not read is cut off."""
        if self._side.state is not protocol.State.CLOSED:
            self._side.refuse(code, reason)
            self.transport.write(self._side.to_send())
        self._forget_waiting()
        self.transport.loseConnection()
        self._set_timer(LAST_WORDS, self.transport.abortConnection)

    def drop(self, reason: str) -> None:
        """Log the reason and close at once, without sending what waits."""
        self.server.counts["broken"] += 1
        self._say("%s: closed: %s", reason)
        self._side.state = protocol.State.CLOSED
        self._stop_timer()
        self._forget_waiting()
        self.transport.abortConnection()

    def _say(self, what: str, why: str) -> None:
        """Log a line about the peer. Lines about unknown peers are limited."""
        if self.peer is not None or self.server.stranger_lines.allows(self.address):
            self._log.info(what, self.name, _line(why))

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._newest = None
        if self._turn and self._turn.active():
            self._turn.cancel()

    def _set_timer(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self._stop_timer()
        self._timer = self.server.reactor.callLater(seconds, call, *args)

    def _stop_timer(self) -> None:
        if self._timer and self._timer.active():
            self._timer.cancel()

    # ------------------------------------------------------------ one thing after the other

    def _take(self, events: Iterable[protocol.Event]) -> None:
        for event in events:
            if isinstance(event, Heartbeat):
                self.send(event)
            else:
                self._waiting.append(event)
            self.heard_at = self.server.reactor.seconds()
            if self.peer:
                self.server.seen[self.peer.node_id] = self.server.clock()
        if len(self._waiting) > BEHIND:
            self.transport.pauseProducing()
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._busy:
            ensureDeferred(self._work())

    async def _work(self) -> None:
        self._busy = True
        while self._waiting:
            try:
                event = self._waiting.popleft()
                await self._STEPS[type(event)](self, event)
            except Refused as refusal:
                self.server.counts["refused"] += 1
                self._say("%s: refused: %s", refusal.sentence)
                if self.peer is None:
                    self.end("unknown", refusal.sentence)
                else:
                    self.end(
                        "replaced" if refusal.code == "conflict" else "refused", refusal.sentence
                    )
            except protocol.ProtocolError as error:
                self.drop(str(error))
            except Exception:
                self._log.exception("%s: a message could not be dealt with", self.name)
                self.end("broken", "the server could not deal with a message")
        self._busy = False
        self.transport.resumeProducing()

    def _run(self, flow: Callable[..., Any], *args: Any) -> Deferred[Any]:
        return self.server.pool.run_together(flow, *args)

    async def _need_verifier(self, asked: protocol.NeedVerifier) -> None:
        found = await self._run(
            sessions.lookup, asked.id, asked.mac, self.address, self.server.clock()
        )
        if self._side.state is not protocol.State.LOOKUP:
            return
        if found is None:
            self.server.counts["refused"] += 1
            self._log.info(
                "%s: refused: no secret %s of %s for this address", self.name, asked.id, asked.mac
            )
            self.end("unknown", "no such secret")
            return
        self._meter, known = found.meter, found.verifier
        events = self._side.known(protocol.Verifier(known.salt, known.stored_key, known.server_key))
        self.transport.write(self._side.to_send())
        self._take(events)

    async def _outdated(self, refusal: protocol.Outdated) -> None:
        self.server.counts["refused"] += 1
        self._say(f"%s: refused: {refusal.mac}: %s", OUTDATED)
        self.end("unknown", OUTDATED)

    async def _proved(self, proved: protocol.Proved) -> None:
        server, new = self.server, proved.verifier
        session = BootSecret(
            proved.session,
            proved.mac,
            "session",
            self.address,
            new.salt,
            new.stored_key,
            new.server_key,
            0.0,
        )
        meter, power_of = self._meter, server.power_of
        power = await power_of(meter) if meter and power_of else "unknown"
        result = await self._run(
            partial(sessions.open, power=power, here=server.nodes),
            proved.id,
            session,
            server.server,
            server.site.current,
            server.clock(),
        )
        opened: sessions.Opened | str = result.value
        if isinstance(opened, str):
            server.counts["refused"] += 1
            self._say("%s: not believed: %s", opened)
            self.end("refused", opened)
            return
        self._stop_timer()
        self.peer, self.name = opened.peer, opened.name
        self._about.update(node=opened.name, mac=opened.peer.mac)
        server.counts["opened"] += 1
        # closed meanwhile: the session must still end
        if self._side.state is not protocol.State.TRADE:
            server.lose_later(opened.peer)
            return
        server.adopt(self, opened.peer)
        self._log.info("%s: connected from %s", self.name, self.address)
        events = self._side.welcome(opened.name, server.site.current.policy.heartbeat)
        self.transport.write(self._side.to_send())
        self._take(events)
        server.effects(result.effects)

    async def _report(self, message: Report) -> None:
        server = self.server
        assert self.peer is not None
        heard_on = await server.ports_of(self.peer.mac) if server.ports_of else ()
        result = await self._run(
            partial(report.report, heard_on=heard_on),
            self.peer,
            message.document,
            server.site.current,
            server.clock(),
        )
        if isinstance(result.value, str):
            server.counts["refused"] += 1
            self._log.warning("%s: its report is refused: %s", self.name, result.value)
            self.send(Error("refused", result.value))
            return
        peer = result.value.peer
        # closed meanwhile: the session must still end
        if self._side.state is not protocol.State.OPEN:
            server.lose_later(peer)
            server.effects(result.effects)
            return
        if self.peer != peer:
            del server.nodes[self.peer.node_id]
            self.peer = peer
            server.adopt(self, peer)
        server.seen.pop(peer.node_id, None)  # the flow has written it
        self._answer(Ack(), result.value.order, result.effects)

    def _answer(self, ack: Ack, order: Order | None, effects: Iterable[Effect]) -> None:
        """Acknowledge a message, and send the order that came of it."""
        self.send(ack)
        if order is not None and self.peer is not None and not self.order(order):
            self.server.unsent.add((self.peer.node_id, self.peer.epoch))
        self.server.effects(effects)

    async def _progress(self, message: Progress) -> None:
        """Write the agent's progress now, or keep it, in place of an older report, until it is
        due."""
        wait = self._progress_at + PROGRESS_EVERY - self.server.reactor.seconds()
        if wait <= 0:
            await self._write_progress(message)
            return
        if self._newest is None:
            self._turn = self.server.reactor.callLater(wait, self._write_newest)
        self._newest = message

    def _write_newest(self) -> None:
        if self._newest is not None:
            self._waiting.append(self._newest)
            self._newest = None
            self._go_on()

    async def _write_kept(self) -> None:
        """Write the progress that waits, because its order ends with it."""
        if self._newest is not None:
            newest, self._newest = self._newest, None
            self._turn.cancel()
            await self._write_progress(newest)

    async def _write_progress(self, message: Progress) -> None:
        server = self.server
        self._progress_at = server.reactor.seconds()
        await self._run(
            progress.progress,
            self.peer,
            message.order,
            message.phase,
            message.done,
            message.total,
            message.rate,
            server.site.current,
            server.clock(),
            message.source,
        )

    async def _done(self, message: Done) -> None:
        server = self.server
        self._log.info("%s: order %s done", self.name, message.order)
        await self._write_kept()
        result = await self._run(
            progress.done,
            self.peer,
            message.order,
            message.figures,
            server.site.current,
            server.clock(),
            message.results,
            message.erased,
            message.namesakes,
            message.disks,
        )
        self._answer(Ack(message.order), result.value, result.effects)

    async def _failed(self, message: Failed) -> None:
        server = self.server
        self._log.warning(
            "%s: order %s failed: %s", self.name, message.order, _line(message.reason)
        )
        await self._write_kept()
        result = await self._run(
            progress.failed,
            self.peer,
            message.order,
            message.reason,
            server.site.current,
            server.clock(),
            message.cause,
        )
        self._answer(Ack(message.order), result.value, result.effects)

    _STEPS: ClassVar[
        dict[type, Callable[[AgentConnection, Any], Coroutine[Deferred[Any], Any, None]]]
    ] = {
        protocol.NeedVerifier: _need_verifier,
        protocol.Outdated: _outdated,
        protocol.Proved: _proved,
        Report: _report,
        Progress: _progress,
        Done: _done,
        Failed: _failed,
    }
