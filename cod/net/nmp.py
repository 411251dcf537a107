"""The NMP server: virtual cluster managers connect to it over TLS (docs/nmp.md).

Each connection is a `Session` with a conversation of its own (`wire.nmptalk`). Questions are carried out one after the
other, as flows; what is owed to VCMs is looked for twice a second for all sessions in one read, and at once when a flow
of this host says so. One sweep every few seconds looks after silence, so an idle connection costs a few kilobytes and
no timer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import prometheus_client as prometheus
from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from cod.flows import vcms
from cod.model import Effect, Owed, Refused, Result, Site
from cod.net import nmpverbs
from cod.net.nmpverbs import Speaker
from cod.pool import Pool
from cod.wire import nmpbodies as b
from cod.wire import nmpxml
from cod.wire.nmp import Decoder, Fault, Message
from cod.wire.nmptalk import Conversation, Side

KEEPALIVE = 30.0  # silent seconds after which a side says ping
GREETING = 10.0  # seconds for a hello, and for a message that has begun to be whole
SWEEP = 2.0
POLL = 0.5
BACKLOG = 16  # messages heard and not carried out, after which a VCM is not listened to for a while
WINDOW = 200  # messages sent and not acknowledged, after which nothing more is sent
RATE, BURST = 50.0, 200.0  # messages a second
MOST = 20_000  # connections

MESSAGES = prometheus.Counter("cod_nmp_messages_total", "NMP messages", ["direction", "verb"])
FAULTS = prometheus.Counter("cod_nmp_faults_total", "What VCMs did wrong", ["code"])

log = logging.getLogger("cod.nmp")

Identity = Callable[[Any], tuple[str, str]]
"""Of a transport: (serial number of the peer's certificate, the name in it); ('', '') for one without."""


class NmpServer(Service):
    """Serves VCMs on the ports that `listen` opens.

    listen     called with the factory; opens the ports and returns them
    identity   who a transport's peer is
    server     this server's name among those that share its database
    """

    def __init__(
        self, reactor: Any, pool: Pool, site: Site, server: str, listen: Callable[[Any], Sequence[Any]],
        identity: Identity, clock: Callable[[], float], effects: Callable[[Iterable[Effect]], object],
    ) -> None:
        self.reactor, self.pool, self.site, self.server = reactor, pool, site, server
        self.clock, self.effects, self.identity = clock, effects, identity
        self.sessions: dict[int, Session] = {}
        self.connected: set[Session] = set()
        self._listen = listen
        self.ports: Sequence[Any] = ()
        self._loops: list[LoopingCall] = []
        self._looking = self._again = False

    def startService(self) -> None:
        """Open the ports."""
        super().startService()  # type: ignore[no-untyped-call]
        self.ports = self._listen(_Sessions(self))
        for function, seconds in ((self.poll, POLL), (self._sweep, SWEEP)):
            loop = LoopingCall(function)
            loop.clock = self.reactor
            loop.start(seconds, now=False)
            self._loops.append(loop)

    async def _stop(self) -> None:
        for port in self.ports:
            await port.stopListening()
        for session in list(self.connected):
            session.leave("this server is being stopped")

    def stopService(self) -> Deferred[None]:
        """Say goodbye to all."""
        super().stopService()  # type: ignore[no-untyped-call]
        for loop in self._loops:
            loop.stop()
        self._loops = []
        return ensureDeferred(self._stop())

    def poll(self) -> None:
        """See what is owed to the VCMs that are connected here."""
        if self._looking:
            self._again = True
        elif self.sessions:
            self._looking = True
            ensureDeferred(self._look())

    async def _look(self) -> None:
        try:
            sent = {one: (session.epoch, session.sent) for one, session in self.sessions.items() if session.has_room()}
            owed, stale = await self.pool.read(vcms.fresh, sent)
            for vcluster_id in stale:
                session = self.sessions.get(vcluster_id)
                if session is not None and session.epoch == sent[vcluster_id][0]:
                    session.leave("a newer connection, or another certificate, has taken its place")
            for row in owed:
                self._send(row)
        except Exception as error:
            log.error("what VCMs are owed could not be read: %s", error, exc_info=not self.pool.is_away(error))
        finally:
            self._looking, again, self._again = False, self._again, False
            if again:
                self.poll()

    def _send(self, row: Owed) -> None:
        session = self.sessions.get(row.vcluster_id)
        if session is not None and session.sent < row.sequence:
            session.tell(row)

    def _sweep(self) -> None:
        now = self.reactor.seconds()
        for session in list(self.connected):
            session.look_after(now)


class _Sessions(Factory):
    """Makes a session for each connection."""

    def __init__(self, server: NmpServer) -> None:
        self._server = server

    def buildProtocol(self, addr: IAddress | None) -> Session | None:
        """A session, if there is room."""
        return Session(self._server) if len(self._server.connected) < MOST else None


class Session(Protocol):
    """A VCM's connection."""

    transport: Any

    def __init__(self, server: NmpServer) -> None:
        self._server = server
        self._decoder, self._talk = Decoder(), Conversation(Side.COD)
        self._ids = count(1)
        self._heard: deque[Message] = deque()
        self._working = self._paused = self._closing = False
        self._last_heard = self._begun = server.reactor.seconds()
        self._pinged = False
        self._tokens, self._tokens_at = BURST, self._last_heard
        self._speaker: Speaker | None = None
        self.epoch = self.sent = self.acked = 0

    # ------------------------------------------------------------ hearing

    def connectionMade(self) -> None:
        """Wait for its hello."""
        self._server.connected.add(self)

    def dataReceived(self, data: bytes) -> None:
        """Take what it says."""
        self._last_heard, self._pinged = self._server.reactor.seconds(), False
        if not self._decoder.midway:
            self._begun = self._last_heard
        try:
            for message in self._decoder.feed(data):
                self._begun = self._last_heard
                self._take(message)
        except Fault as fault:
            self._refuse(fault)

    def _take(self, message: Message) -> None:
        if self._closing:
            return
        MESSAGES.labels("in", message.verb if message.verb in nmpxml.RECORDS else "unknown").inc()
        try:
            self._spend()
            self._talk.hears(message)
        except Fault as fault:
            fault.about = message.id
            self._refuse(fault)
            return
        self._heard.append(message)
        if len(self._heard) > BACKLOG and not self._paused:
            self._paused = True
            self.transport.pauseProducing()
        if not self._working:
            self._working = True
            ensureDeferred(self._work())

    def _spend(self) -> None:
        now = self._last_heard
        self._tokens = min(BURST, self._tokens + (now - self._tokens_at) * RATE)
        self._tokens_at = now
        if self._tokens < 1:
            raise Fault("too-many", f"at most {RATE:.0f} messages a second")
        self._tokens -= 1

    def _refuse(self, fault: Fault) -> None:
        """Tell it what it did wrong."""
        FAULTS.labels(fault.code).inc()
        log.warning("VCM of %s: %s%s", self._name(), fault.sentence, "; closed" if fault.fatal else "")
        self._answer(b.Error(fault.code, fault.sentence[:2000], fault.line), fault.about)
        if fault.fatal:
            self.leave(fault.sentence)

    # ------------------------------------------------------------ carrying out, one after the other

    async def _work(self) -> None:
        try:
            while self._heard and not self._closing:
                await self._carry_out(self._heard.popleft())
                if self._paused and len(self._heard) <= BACKLOG // 2:
                    self._paused = False
                    self.transport.resumeProducing()
        finally:
            self._working = False

    async def _carry_out(self, message: Message) -> None:
        try:
            body = nmpxml.read(message)
            if isinstance(body, b.Hello):
                await self._greet(message, body)
            elif self._speaker is not None:
                await self._deal_with(message, body, self._speaker)
        except Fault as fault:
            fault.about = message.id
            self._refuse(fault)
        except Refused as refused:
            fatal = refused.code == "forbidden"
            self._refuse(Fault("identity" if fatal else "refused", refused.sentence, about=message.id, fatal=fatal))
        except Exception as error:
            trace = not self._server.pool.is_away(error)
            log.error("VCM of %s: %s could not be carried out: %s", self._name(), message.verb, error, exc_info=trace)
            self._answer(b.Error("unavailable", "this could not be looked up now: ask again"), message.id)

    async def _greet(self, message: Message, hello: b.Hello) -> None:
        serial, name = self._server.identity(self.transport)
        if name and name != hello.vcluster:
            raise Fault("identity", f"the certificate is of vcluster {name}, not {hello.vcluster}", fatal=True)
        server = self._server
        greeted = await server.pool.run(
            vcms.greet, vcluster=hello.vcluster, serial=serial, address=self.transport.getPeer().host, about=hello.vcm,
            seen=hello.seen, server=server.server, now=server.clock())
        if self._closing:
            return
        self._speaker = Speaker(hello.vcluster, greeted.vcluster_id)
        self.epoch, self.sent, self.acked = greeted.epoch, greeted.acked, greeted.acked
        older = server.sessions.get(greeted.vcluster_id)
        server.sessions[greeted.vcluster_id] = self
        if older is not None:
            older.leave("a newer connection has taken its place")
        self._answer(b.Welcome(hello.vcluster, server.server, "1.0", KEEPALIVE), message.id)
        log.info("VCM of %s (%s) is connected", hello.vcluster, hello.vcm)
        server.poll()

    async def _deal_with(self, message: Message, body: b.Body, speaker: Speaker) -> None:
        server = self._server
        if isinstance(body, b.Ack):
            if body.sequence > self.sent:
                raise Fault("out-of-state", f"{body.sequence} was not sent yet")
            self.acked = max(self.acked, body.sequence)
            await server.pool.run(vcms.acknowledge, speaker.id, body.sequence)
        elif isinstance(body, b.Ping):
            self._answer(b.Pong(), message.id)
        elif isinstance(body, b.Bye):
            self.leave("")
        elif isinstance(body, b.Error):
            log.warning("VCM of %s says: %s", speaker.vcluster, body.sentence)
        elif not isinstance(body, b.Pong):
            flow, shape = nmpverbs.flow(body, speaker, server.site, server.clock())
            value = await server.pool.run(flow)
            if isinstance(value, Result):
                server.effects(value.effects)
                value = value.value
            self._answer(shape(value), message.id)

    # ------------------------------------------------------------ saying

    def _answer(self, body: b.Body, question: str) -> None:
        """Answer; an error that answers no open question is said by itself."""
        try:
            self._say(body, answers=question)
        except Fault:
            if isinstance(body, b.Error):
                self._say(body)

    def tell(self, row: Owed) -> None:
        """Send what it is owed."""
        self.sent = row.sequence
        self._say(nmpverbs.owed(row), sequence=row.sequence)

    def has_room(self) -> bool:
        """May more be sent, or must it acknowledge first?"""
        return self.sent - self.acked < WINDOW

    def _say(self, body: b.Body, *, answers: str = "", sequence: int = 0) -> None:
        if self._closing:
            return
        verb = nmpxml.verb(body)
        data = self._talk.says(Message(verb, f"c{next(self._ids)}", nmpxml.write(body), answers, sequence))
        MESSAGES.labels("out", verb).inc()
        self.transport.write(data)

    def look_after(self, now: float) -> None:
        """Is it still there?"""
        greeting = self._speaker is None
        if (greeting or self._decoder.midway) and now >= self._begun + GREETING:
            self._refuse(Fault("malformed", "no whole message has come in time", fatal=True))
        elif not greeting and now >= self._last_heard + 3 * KEEPALIVE:
            self.leave("silent")
            self.transport.abortConnection()
        elif not greeting and now >= self._last_heard + KEEPALIVE and not self._pinged:
            self._pinged = True
            self._say(b.Ping())

    def leave(self, reason: str) -> None:
        """Say goodbye and close."""
        if self._closing:
            return
        try:
            self._say(b.Bye(reason))
        except Fault:
            log.debug("closed without goodbye: %s", reason)
        self._closing = True
        self.transport.loseConnection()

    def _name(self) -> str:
        return self._speaker.vcluster if self._speaker else str(getattr(self.transport.getPeer(), "host", "?"))

    def connectionLost(self, reason: Failure | None = None) -> None:
        """It is gone."""
        self._closing = True
        server, speaker = self._server, self._speaker
        server.connected.discard(self)
        if speaker is not None:
            log.info("VCM of %s is not connected any more", speaker.vcluster)
            if server.sessions.get(speaker.id) is self:
                del server.sessions[speaker.id]
            done = server.pool.run(vcms.gone, speaker.id, server.server, self.epoch, server.clock())
            done.addErrback(lambda failure: log.warning("not noted: %s", failure.getErrorMessage()))
