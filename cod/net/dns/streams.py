"""TCP connections of DNS clients (RFC 7766), with limits on their number, their idle time, and the
answers held in memory for a client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int16StringReceiver
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure

LONGEST = 4096  # bytes of a question
STREAMS = 200  # connections at a time
OF_ONE_PEER = 20  # and of one address
PIPELINE = 50  # questions of a connection that wait for their answers
IDLE = 10.0  # seconds in which nothing comes or goes

Asked = Callable[[bytes, str, "Stream"], object]


class Stream(Int16StringReceiver, TimeoutMixin):
    """A client's TCP connection: queries and answers, each preceded by its length.

    Reading pauses while the client does not take its answers, or while `PIPELINE` of its queries
    are unanswered. A zone transfer then pauses, too.
    """

    MAX_LENGTH = LONGEST
    transport: Any

    def __init__(self, streams: Streams, peer: str) -> None:
        self._streams, self._peer = streams, peer
        self._full, self._pending = False, 0
        self._messages: Iterator[bytes] | None = None
        self._sent: Deferred[None] | None = None

    def connectionMade(self) -> None:
        if not self._streams.admit(self._peer):
            self._peer = ""
            self.transport.abortConnection()
            return
        self.transport.registerProducer(self, True)
        self.setTimeout(IDLE)  # type: ignore[no-untyped-call]

    def stringReceived(self, string: bytes) -> None:
        if not self._peer:
            return
        self.resetTimeout()  # type: ignore[no-untyped-call]
        self._pending += 1
        self._regulate()
        self._streams.asked(string, self._peer, self)

    def lengthLimitExceeded(self, length: int) -> None:
        """Close the connection: no question is that long."""
        self.transport.abortConnection()

    def timeoutConnection(self) -> None:
        self.transport.abortConnection()

    def answer(self, data: bytes) -> None:
        if self.connected:
            self.sendString(data)  # type: ignore[no-untyped-call]
            self._answered()

    def drop(self) -> None:
        """Close the connection, because the client sent something other than a question."""
        self.transport.abortConnection()

    def send_all(self, messages: Iterator[bytes]) -> Deferred[None]:
        """Answer one of the questions with several messages, as fast as the client takes them. The
        result fires when all are sent, or when the client has gone."""
        if not self.connected or self._messages is not None:
            self.drop()  # one zone at a time
            return succeed(None)
        self._messages, self._sent = messages, Deferred()
        sent = self._sent
        self._go_on()
        return sent

    def _go_on(self) -> None:
        while self._messages is not None and not self._full and self.connected:
            message = next(self._messages, None)
            if message is None:
                self._end()
                self._answered()
                return
            self.resetTimeout()  # type: ignore[no-untyped-call]
            self.sendString(message)  # type: ignore[no-untyped-call]

    def _end(self) -> None:
        sent, self._messages, self._sent = self._sent, None, None
        if sent is not None:
            sent.callback(None)

    def _answered(self) -> None:
        self._pending -= 1
        self._regulate()

    def _regulate(self) -> None:
        wait = self._full or self._pending >= PIPELINE
        if wait and not self.paused:
            super().pauseProducing()  # type: ignore[no-untyped-call]
        elif self.paused and not wait:
            super().resumeProducing()  # type: ignore[no-untyped-call]

    def pauseProducing(self) -> None:
        """Stop sending, because the client does not take the answers."""
        self._full = True
        self._regulate()

    def resumeProducing(self) -> None:
        self._full = False
        self._regulate()
        self._go_on()

    def stopProducing(self) -> None:
        self._end()

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        self.connected = 0  # Twisted leaves it at 1
        self.setTimeout(None)  # type: ignore[no-untyped-call]
        if self._peer:
            self._streams.leave(self._peer)
        self._end()


class Streams(Factory):
    """The open connections of a server. `asked` is called with a message, its peer and the
    connection to answer on."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._open: Counter[str] = Counter()

    def admit(self, peer: str) -> bool:
        """Count a connection; return False, and count nothing, if there are too many."""
        if self._open.total() >= STREAMS or self._open[peer] >= OF_ONE_PEER:
            return False
        self._open[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        self._open[peer] -= 1
        self._open += Counter()  # without those at nothing

    def buildProtocol(self, addr: IAddress | None) -> Stream:
        return Stream(self, str(getattr(addr, "host", "?")))
