"""One VCM's connection, the server's end: what it says is carried out in order, what it is owed is sent in order.

Nobody else is held up by it. What it may send is limited in size and rate; while it has said more than was carried out,
or does not read what it is told, it is not listened to either; and whoever is silent, or stops in the middle of a
message, is shown out. So a connection holds a few messages at most, whatever its peer does.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Protocol

import prometheus_client as prometheus
from twisted.internet import protocol
from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from cod.flows import vcms
from cod.model import Effect, Owed, Refused, Result, Site
from cod.net import nmpverbs
from cod.net.nmplimits import Bucket, QuietLog
from cod.net.nmpverbs import Speaker
from cod.pool import Pool
from cod.wire import nmpbodies as b
from cod.wire import nmpxml
from cod.wire.nmp import LONGEST_BODY, LONGEST_HELLO, Decoder, Fault, Message
from cod.wire.nmptalk import Conversation, Side

GREETING = 10.0  # seconds for a hello, and for a message that has begun to be whole
LINGER = 5.0  # seconds that the end of a connection may take
STALLED = 60.0  # seconds after which a VCM that does not read is given up
BACKLOG = 16  # messages heard and not carried out, after which a VCM is not listened to for a while
WINDOW = 200  # messages sent and not acknowledged, after which nothing more is sent
RATE, BURST = 50.0, 200.0  # messages: a second, at once
BYTES = 64 * 1024.0, 512 * 1024.0  # the same for bytes: reading them costs time that all share
COSTLY = {"request-nodes": (1.0, 100.0), "status": (1.0, 10.0)}  # the same, of verbs that leave rows or read many
MOST_FAULTS = 1.0, 100.0  # the same, of faults; then the connection is closed

MESSAGES = prometheus.Counter("cod_nmp_messages_total", "NMP messages", ["direction", "verb"])
FAULTS = prometheus.Counter("cod_nmp_faults_total", "What VCMs did wrong", ["code"])

log = logging.getLogger("cod.nmp")


class Server(Protocol):
    """What a session needs of its server.

    sessions   open ones, by the vcluster's id; `connected`: all, also those that have not said hello
    strangers  how many of those there are, by address
    identity   of a transport: (serial number of the peer's certificate, the name in it); ('', '') for one without
    """

    reactor: Any
    pool: Pool
    site: Site
    server: str
    clock: Callable[[], float]
    effects: Callable[[Iterable[Effect]], object]
    identity: Callable[[Any], tuple[str, str]]
    sessions: dict[int, Session]
    connected: set[Session]
    strangers: Counter[str]
    quiet: QuietLog

    def poll(self) -> None:
        """See what is owed."""
        ...


@implementer(IPushProducer)
class _Outlet:
    """The transport tells it whether what is written goes out."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pauseProducing(self) -> None:
        """Its buffer is full."""
        self._session.filled(True)

    def resumeProducing(self) -> None:
        """Its buffer is empty."""
        self._session.filled(False)

    def stopProducing(self) -> None:
        """It is gone: `connectionLost` says so, too."""


class Session(protocol.Protocol):
    """A VCM's connection."""

    transport: Any

    def __init__(self, server: Server, address: str) -> None:
        self._server, self.address = server, address
        self._decoder, self._talk = Decoder(LONGEST_HELLO), Conversation(Side.COD)
        self._ids = count(1)
        self._heard: deque[Message] = deque()
        self._working = self._paused = self._closing = self._strange = False
        now = self._last_heard = self._begun = self._left_at = server.reactor.seconds()
        self._full_since: float | None = None
        self._messages, self._bytes = Bucket(RATE, BURST, now), Bucket(*BYTES, now)
        self._faults, self._costly = Bucket(*MOST_FAULTS, now), dict[str, Bucket]()
        self._speaker: Speaker | None = None
        self.epoch = self.sent = self.acked = 0

    @property
    def is_open(self) -> bool:
        """Has it been welcomed?"""
        return self._speaker is not None

    # ------------------------------------------------------------ hearing

    def connectionMade(self) -> None:
        """Wait for its hello."""
        self._server.connected.add(self)
        self._server.strangers[self.address] += 1
        self._strange = True
        self.transport.registerProducer(_Outlet(self), True)

    def dataReceived(self, data: bytes) -> None:
        """Take what it says."""
        if self._closing:
            return
        now = self._last_heard = self._server.reactor.seconds()
        self._bytes.spend(now, len(data))
        if not self._decoder.midway:
            self._begun = now
        try:
            for message in self._decoder.feed(data):
                self._begun = now
                self._take(message, now)
        except Fault as fault:
            self._refuse(fault)
        self._throttle(now)

    def _take(self, message: Message, now: float) -> None:
        if self._closing:
            return
        MESSAGES.labels("in", message.verb if message.verb in nmpxml.RECORDS else "unknown").inc()
        try:
            self._talk.hears(message)
            self._spend(message.verb, now)
        except Fault as fault:
            fault.about = message.id
            self._refuse(fault)
            return
        self._heard.append(message)
        self._go_on()

    def _spend(self, verb: str, now: float) -> None:
        if not self._messages.take(now):
            raise Fault("too-many", f"at most {RATE:.0f} messages a second")
        if verb in COSTLY:
            bucket = self._costly.setdefault(verb, Bucket(*COSTLY[verb], now))
            if not bucket.take(now):
                raise Fault("too-many", f"at most {COSTLY[verb][0] * 60:.0f} {verb!r} a minute")

    def _throttle(self, now: float) -> None:
        """Listen to it, or not."""
        crowded = len(self._heard) > (BACKLOG // 2 if self._paused else BACKLOG)
        pause = crowded or self._full_since is not None or self._bytes.level(now) < 0
        if pause == self._paused or self._closing:
            return
        self._paused = pause
        if pause:
            self.transport.pauseProducing()
        else:
            self._last_heard = self._begun = now  # it was we who did not listen
            self.transport.resumeProducing()

    def _refuse(self, fault: Fault) -> None:
        """Tell it what it did wrong."""
        if self._closing:
            return
        FAULTS.labels(fault.code).inc()
        enough = not self._faults.take(self._server.reactor.seconds())
        ends = fault.fatal or enough or not self.is_open
        self._server.quiet.warning(
            (self._name(), fault.code), f"VCM of {self._name()}: {fault.sentence}{'; closed' if ends else ''}")
        self._answer(b.Error(fault.code, fault.sentence[:2000], fault.line), fault.about)
        if ends:
            self.leave("too many faults" if enough else fault.sentence)

    # ------------------------------------------------------------ carrying out, one after the other

    def _go_on(self) -> None:
        if self._heard and self._full_since is None and not self._working and not self._closing:
            self._working = True
            ensureDeferred(self._work())

    async def _work(self) -> None:
        try:
            while self._heard and self._full_since is None and not self._closing:
                await self._carry_out(self._heard.popleft())
                self._throttle(self._server.reactor.seconds())
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
            sentence = f"VCM of {self._name()}: {message.verb} could not be carried out: {error}"
            if self._server.pool.is_away(error):
                self._server.quiet.warning((self._name(), "unavailable"), sentence)
            else:
                log.error("%s", sentence, exc_info=True)
            self._answer(b.Error("unavailable", "this could not be looked up now: ask again"), message.id)
            if not self.is_open:
                self.leave("come again later")

    async def _greet(self, message: Message, hello: b.Hello) -> None:
        serial, name = self._server.identity(self.transport)
        if name and name != hello.vcluster:
            raise Fault("identity", f"the certificate is of vcluster {name}, not {hello.vcluster}", fatal=True)
        server = self._server
        greeted = await server.pool.run(
            vcms.greet, vcluster=hello.vcluster, serial=serial, address=self.address, about=hello.vcm,
            seen=hello.seen, server=server.server, now=server.clock())
        if self._closing:  # it has gone while we looked
            return self._gone(greeted.vcluster_id, greeted.epoch)
        self._speaker = Speaker(hello.vcluster, greeted.vcluster_id)
        self._decoder.longest = LONGEST_BODY
        self._known()
        self.epoch, self.sent, self.acked = greeted.epoch, greeted.acked, greeted.acked
        older = server.sessions.get(greeted.vcluster_id)
        server.sessions[greeted.vcluster_id] = self
        if older is not None:
            older.leave("a newer connection has taken its place")
        keepalive = server.site.nmp_keepalive
        self._answer(b.Welcome(hello.vcluster, server.server, "1.0", keepalive, greeted.acked), message.id)
        log.info("VCM of %s (%s) is connected", hello.vcluster, hello.vcm)
        server.poll()
        return None

    async def _deal_with(self, message: Message, body: b.Body, speaker: Speaker) -> None:
        server = self._server
        if isinstance(body, b.Ack):
            await self._acknowledged(body, speaker)
        elif isinstance(body, b.Ping):
            self._answer(b.Pong(), message.id)
        elif isinstance(body, b.Bye):
            self.leave("")
        elif isinstance(body, b.Error):
            server.quiet.warning((speaker.vcluster, "says"), f"VCM of {speaker.vcluster} says: {body.sentence}")
        elif not isinstance(body, b.Pong):
            flow, shape = nmpverbs.flow(body, speaker, server.site, server.clock())
            value = await server.pool.run(vcms.spoken, speaker.id, self.epoch, flow)
            if isinstance(value, Result):
                server.effects(value.effects)
                value = value.value
            self._answer(shape(value), message.id)

    async def _acknowledged(self, ack: b.Ack, speaker: Speaker) -> None:
        if ack.sequence > self.sent:
            raise Fault("out-of-state", f"{ack.sequence} was not sent yet")
        if ack.sequence <= self.acked or (self._heard and self._heard[0].verb == "ack"):
            return  # the next one says so, too
        await self._server.pool.run(
            vcms.spoken, speaker.id, self.epoch, lambda tx: vcms.acknowledge(tx, speaker.id, ack.sequence))
        had_room = self.has_room()
        self.acked = max(self.acked, ack.sequence)
        if not had_room:
            self._server.poll()

    # ------------------------------------------------------------ saying

    def _answer(self, body: b.Body, question: str) -> None:
        """Answer; an error that answers no open question is said by itself."""
        if not self._say(body, answers=question) and isinstance(body, b.Error):
            self._say(body)

    def tell(self, row: Owed) -> None:
        """Send what it is owed."""
        if self._say(nmpverbs.owed(row), sequence=row.sequence):
            self.sent = row.sequence

    def has_room(self) -> bool:
        """May more be sent, or must it read and acknowledge first?"""
        return self._full_since is None and self.sent - self.acked < WINDOW and not self._closing

    def filled(self, full: bool) -> None:
        """The transport's buffer is full, or not any more."""
        now = self._server.reactor.seconds()
        self._full_since = now if full else None
        self._throttle(now)
        if not full:
            self._go_on()
            self._server.poll()

    def _say(self, body: b.Body, *, answers: str = "", sequence: int = 0) -> bool:
        """False where it cannot be said (any more)."""
        if self._closing:
            return False
        verb = nmpxml.verb(body)
        try:
            data = self._talk.says(Message(verb, f"c{next(self._ids)}", nmpxml.write(body), answers, sequence))
        except Fault as fault:
            log.debug("not said: %s", fault.sentence)
            return False
        MESSAGES.labels("out", verb).inc()
        self.transport.write(data)
        return True

    # ------------------------------------------------------------ silence and the end

    def look_after(self, now: float) -> None:
        """Is it still there?"""
        if self._closing:
            if now >= self._left_at + LINGER:
                self.transport.abortConnection()
        elif self._full_since is not None and now >= self._full_since + STALLED:
            self._cut("does not read what it is told")
        elif self._paused:
            self._throttle(now)
        elif now >= self._begun + GREETING and (self._decoder.midway or not (self.is_open or self._working)):
            self._refuse(Fault("malformed", "no whole message has come in time", fatal=True))
        elif self.is_open and now >= self._last_heard + 3 * self._server.site.nmp_keepalive:
            self._cut("has fallen silent")
        elif self.is_open and now >= self._last_heard + self._server.site.nmp_keepalive and not self._talk.waiting():
            self._say(b.Ping())

    def _cut(self, why: str) -> None:
        """End it without waiting for the other side."""
        self._server.quiet.warning((self._name(), why), f"VCM of {self._name()} {why}; closed")
        self._closing = True
        self.transport.abortConnection()

    def leave(self, reason: str) -> None:
        """Say goodbye and close."""
        if self._closing:
            return
        self._say(b.Bye(reason[:2000]))
        self._closing, self._left_at = True, self._server.reactor.seconds()
        self._heard.clear()
        self.transport.unregisterProducer()  # or the transport would wait for it
        self.transport.resumeProducing()
        self.transport.loseConnection()

    def _name(self) -> str:
        return self._speaker.vcluster if self._speaker else self.address

    def connectionLost(self, reason: Failure | None = None) -> None:
        """It is gone."""
        self._closing = True
        self._heard.clear()
        server, speaker = self._server, self._speaker
        server.connected.discard(self)
        self._known()
        if speaker is not None:
            log.info("VCM of %s is not connected any more", speaker.vcluster)
            if server.sessions.get(speaker.id) is self:
                del server.sessions[speaker.id]
            self._gone(speaker.id, self.epoch)
        elif reason is not None and not reason.check(ConnectionDone, ConnectionLost, ConnectionAborted):
            FAULTS.labels("handshake").inc()
            server.quiet.warning((self.address, "handshake"), f"a VCM at {self.address} was shut out in the TLS "
                                 f"handshake: {_sentence(reason)}")

    def _known(self) -> None:
        """It is no stranger any more."""
        if self._strange:
            self._strange, here = False, self._server.strangers
            here[self.address] -= 1
            if not here[self.address]:
                del here[self.address]

    def _gone(self, vcluster_id: int, epoch: int) -> None:
        server = self._server
        done = server.pool.run(vcms.gone, vcluster_id, server.server, epoch, server.clock())
        done.addErrback(lambda failure: log.warning("not noted: %s", failure.getErrorMessage()))


def _sentence(reason: Failure) -> str:
    """OpenSSL's errors are lists of (library, function, reason)."""
    listed = getattr(reason.value, "args", None)
    if listed and isinstance(listed[0], list):
        return "; ".join(str(each[-1]) for each in listed[0])
    return str(reason.getErrorMessage())
