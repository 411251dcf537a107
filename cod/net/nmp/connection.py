"""A VCM's connection: bytes in, messages out, and limits that keep a bad peer from doing harm.

The peer's messages are limited in size and rate. The connection is not read while received messages
wait to be carried out, or while the peer does not read. A peer that is silent, or stops in the
middle of a message, is disconnected. So a connection holds a few messages at most, whatever its
peer does. `net.nmp.session` gives messages their meaning.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from itertools import count
from typing import Any, Protocol

import prometheus_client as prometheus
from twisted.internet import protocol
from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from cod.model import SiteRef
from cod.net.nmp.limits import Quota
from cod.net.quietlog import QuietLog
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import LONGEST_BODY, LONGEST_HELLO, Decoder, Fault, Message
from cod.wire.nmp.protocol import Conversation, Side

GREETING = 10.0  # seconds for a hello, and for a message that has begun to be whole
LINGER = 5.0  # seconds that the end of a connection may take
STALLED = 60.0  # seconds after which a VCM that does not read is given up
BACKLOG = 16  # messages heard and not carried out, after which a VCM is not listened to for a while

MESSAGES = prometheus.Counter("cod_nmp_messages_total", "NMP messages", ["direction", "verb"])
FAULTS = prometheus.Counter("cod_nmp_faults_total", "What VCMs did wrong", ["code"])

log = logging.getLogger("cod.nmp")


class Host(Protocol):
    """The server, as its connections use it.

    connected  all connections
    strangers  how many connections have not said hello, by address
    """

    reactor: Any
    site: SiteRef
    connected: set[Any]
    strangers: Counter[str]
    quiet: QuietLog

    def poll(self) -> None:
        """Look for messages to VCMs that are due."""
        ...


@implementer(IPushProducer)
class _Outlet:
    """The connection's producer: the transport tells it to pause and to go on."""

    def __init__(self, line: NmpConnection) -> None:
        self._line = line

    def pauseProducing(self) -> None:
        """Pause sending: the transport's buffer is full."""
        self._line.filled(True)

    def resumeProducing(self) -> None:
        """Resume sending: the transport's buffer is empty."""
        self._line.filled(False)

    def stopProducing(self) -> None:
        """Do nothing: Twisted calls `connectionLost` as well, which cleans up."""


class NmpConnection(protocol.Protocol, ABC):
    """An NMP connection of the server. Subclasses carry out messages, one at a time, in
    `carry_out`."""

    transport: Any

    def __init__(self, host: Host, address: str) -> None:
        self._host, self.address = host, address
        self._decoder, self._conversation = Decoder(LONGEST_HELLO), Conversation(Side.COD)
        self._ids = count(1)
        self._heard: deque[Message] = deque()
        self._working = self._paused = self._closing = self._is_stranger = False
        now = self._last_heard = self._begun = self._left_at = host.reactor.seconds()
        self._full_since: float | None = None
        self._quota = Quota(now)
        self.is_open = False

    @property
    def name(self) -> str:
        """Return the peer's name for the log."""
        return self.address

    @abstractmethod
    async def carry_out(self, message: Message) -> None:
        """Carry out a message. Must not raise."""

    def opened(self, quota: Quota) -> None:
        """Open the connection of a known peer, with its remaining quota."""
        self.is_open, self._quota = True, quota
        self._begun = self._host.reactor.seconds()
        self._decoder.longest = LONGEST_BODY
        self._known()

    # ------------------------------------------------------------ hearing

    def connectionMade(self) -> None:
        """Count the connection as a stranger's until it has said hello."""
        self._host.connected.add(self)
        self._host.strangers[self.address] += 1
        self._is_stranger = True
        self.transport.registerProducer(_Outlet(self), True)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        now = self._last_heard = self._host.reactor.seconds()
        self._quota.heard(len(data), now)
        # the time to say hello runs from the connection's beginning, whatever the peer sends
        if self.is_open and not self._decoder.midway:
            self._begun = now
        try:
            for message in self._decoder.feed(data):
                self._begun = now
                if self._closing:
                    continue
                MESSAGES.labels(
                    "in", message.verb if message.verb in xml.RECORDS else "unknown"
                ).inc()
                try:
                    self._conversation.hears(message)
                    self._quota.may_say(message.verb, now)
                except Fault as fault:
                    fault.about = message.id
                    self.refuse(fault)
                    continue
                self._heard.append(message)
                self._go_on()
        except Fault as fault:
            self.refuse(fault)
        self._throttle(now)

    def _throttle(self, now: float) -> None:
        behind = len(self._heard) > (BACKLOG // 2 if self._paused else BACKLOG)
        pause = behind or self._full_since is not None or self._quota.is_spent(now)
        if pause == self._paused or self._closing:
            return
        self._paused = pause
        if pause:
            self.transport.pauseProducing()
        else:
            self._last_heard = self._begun = now  # it was we who did not listen
            self.transport.resumeProducing()

    def refuse(self, fault: Fault) -> None:
        if self._closing:
            return
        FAULTS.labels(fault.code).inc()
        enough = not self._quota.may_err(self._host.reactor.seconds())
        ends = fault.fatal or enough or not self.is_open
        self._host.quiet.warning(
            (self.name, fault.code),
            f"VCM of {self.name}: {fault.sentence}{'; closed' if ends else ''}",
        )
        # the question that this message repeats will have its own answer
        about = "" if fault.code == "repeated" else fault.about
        self.say(b.Error(fault.code, fault.sentence[:2000], fault.line), answers=about)
        if ends:
            self.leave("too many faults" if enough else fault.sentence)

    # ------------------------------------------------------------ carrying out, one after the other

    def _go_on(self) -> None:
        if self._heard and not self._working:
            self._working = True
            ensureDeferred(self._work())

    async def _work(self) -> None:
        try:
            while self._heard and self._full_since is None and not self._closing:
                await self.carry_out(self._heard.popleft())
                self._throttle(self._host.reactor.seconds())
        finally:
            self._working = False

    # ------------------------------------------------------------ saying

    def filled(self, full: bool) -> None:
        """Stop sending while the transport's buffer is full, or resume."""
        now = self._host.reactor.seconds()
        self._full_since = now if full else None
        self._throttle(now)
        if not full:
            self._go_on()
            self._host.poll()

    def say(self, body: b.Body, *, answers: str = "", sequence: int = 0) -> bool:
        """Send a message. Return False if the connection is closing or may not send the message
        now.

        answers  the id of the question that this answers; '' for none, or if it could not be read
        """
        if self._closing:
            return False
        verb = xml.verb(body)
        try:
            data = self._conversation.says(
                Message(verb, f"c{next(self._ids)}", xml.write(body), answers, sequence)
            )
        except Fault as fault:
            log.debug("not said: %s", fault.sentence)
            return False
        MESSAGES.labels("out", verb).inc()
        self.transport.write(data)
        return True

    # ------------------------------------------------------------ silence and the end

    def look_after(self, now: float) -> None:
        """End the connection if the peer is silent or does not read."""
        keepalive = self._host.site.current.nmp.keepalive
        if self._closing:
            if now >= self._left_at + LINGER:
                self.transport.abortConnection()
        elif self._full_since is not None and now >= self._full_since + STALLED:
            self._cut("does not read what it is told")
        elif self._paused:  # nothing is read meanwhile, so silence says nothing of the peer
            self._throttle(now)
        elif now >= self._begun + GREETING and (
            self._decoder.midway or not (self.is_open or self._working)
        ):
            self.refuse(Fault("malformed", "no whole message has come in time", fatal=True))
        elif self.is_open and now >= self._last_heard + 3 * keepalive:
            self._cut("has fallen silent")
        elif (
            self.is_open
            and now >= self._last_heard + keepalive
            and not self._conversation.waiting()
        ):
            self.say(b.Ping())

    def _cut(self, why: str) -> None:
        """End the connection without waiting for the peer."""
        self._host.quiet.warning((self.name, why), f"VCM of {self.name} {why}; closed")
        self._closing = True
        self.transport.abortConnection()

    def leave(self, reason: str) -> None:
        """Send a bye with the reason, and close."""
        if self._closing:
            return
        self.say(b.Bye(reason[:2000]))
        self._closing, self._left_at = True, self._host.reactor.seconds()
        self._heard.clear()
        self.transport.unregisterProducer()  # or the transport would wait for it
        # TLS ends with the peer's close_notify, which has to be read
        self.transport.resumeProducing()
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._closing = True
        self._heard.clear()
        self._host.connected.discard(self)
        self._known()
        failed = reason is not None and not reason.check(
            ConnectionDone, ConnectionLost, ConnectionAborted
        )
        if failed and reason is not None and not self.is_open:
            FAULTS.labels("handshake").inc()
            self._host.quiet.warning(
                (self.address, "handshake"),
                f"a VCM at {self.address} was shut out in the TLS handshake: {_sentence(reason)}",
            )

    def _known(self) -> None:
        """Stop counting the connection as a stranger's."""
        if self._is_stranger:
            self._is_stranger, here = False, self._host.strangers
            here[self.address] -= 1
            if not here[self.address]:
                del here[self.address]


def _sentence(reason: Failure) -> str:
    """Return the text of a failure. OpenSSL's errors are lists of (library, function, reason)."""
    listed = getattr(reason.value, "args", None)
    if listed and isinstance(listed[0], list):
        return "; ".join(str(each[-1]) for each in listed[0])
    return str(reason.getErrorMessage())
