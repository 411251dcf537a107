"""One connection of a VCM to COD: hello, questions and answers, pings.

`Link` is the protocol; `VcmService` (cod/vcm/service.py) makes a new link whenever one is lost, and
decides which messages to send. A VCM without a certificate sends `enroll` instead of `hello`, and
the link ends with the answer (cod/vcm/enroll.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from cod.wire.nmp import xml
from cod.wire.nmp.bodies import Ack, Body, Bye, Enroll, Error, Hello, Ping, Pong, Welcome
from cod.wire.nmp.frames import Decoder, Fault, Message
from cod.wire.nmp.protocol import Conversation, Side, State

GREETING = 30.0  # seconds that COD has for its welcome
# errors after which a repeated question may succeed
PASSING = frozenset({"unavailable", "too-many", "repeated"})

log = logging.getLogger("cod.vcm")


class NmpError(Exception):
    """COD answered a question with an error; `code` as in docs/nmp."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.sentence)
        self.code = error.code


class LastingError(NmpError):
    """COD refused a question, and would refuse it again."""


class LinkLost(Exception):
    """The connection ended before the answer came: repeat the question on the next connection."""


class Link(Protocol):
    """The VCM's end of a connection.

    reactor   needs callLater
    hello     the first message
    welcomed  called with its answer
    received  called with (sequence, body) for messages that COD sends by itself; sequence is 0 if
              COD does not keep the message, body is None if it cannot be understood
    lost      called with a sentence when the connection has ended
    """

    transport: Any

    def __init__(
        self,
        reactor: Any,
        hello: Hello | Enroll,
        *,
        welcomed: Callable[[Any], object],
        received: Callable[[int, Body | None], object],
        lost: Callable[[str], object],
    ) -> None:
        self._reactor, self._hello = reactor, hello
        self._welcomed, self._received, self._lost = welcomed, received, lost
        self._decoder, self._conversation = Decoder(), Conversation(Side.VCM)
        self._ids = count(1)
        self._answers: dict[str, Deferred[Body]] = {}
        self._keepalive = GREETING
        self._silence: Any = None
        self._pinged = self._ended = False
        self._why = ""

    # ------------------------------------------------------------ saying

    def connectionMade(self) -> None:
        """Send the hello, unless `leave` was called already."""
        # `leave` was called while the connection was being made
        if self._why:
            self.transport.loseConnection()
            return
        self._listen_again()
        self.ask(self._hello).addCallbacks(self._greeted, self._not_greeted)

    def ask(self, body: Body) -> Deferred[Body]:
        """Send a question; the Deferred fires with the answer. It fails with `NmpError`, or with
        `LinkLost` (at once if the connection has ended already). Raises `Fault` if the
        conversation's state does not allow the question."""
        if self._ended or self._conversation.state == State.CLOSED:
            return fail(LinkLost(self._why or "the connection has ended"))
        message = self._message(body)
        self.transport.write(self._conversation.says(message))
        answer = self._answers[message.id] = Deferred()
        return answer

    def acknowledge(self, sequence: int) -> None:
        """Acknowledge all messages up to `sequence`."""
        self._say(Ack(sequence))

    def leave(self, reason: str) -> None:
        """Send a bye with the reason, and close."""
        self._why = reason
        if self.transport is None:  # not connected yet
            return
        try:
            self._say(Bye(reason))
        except Fault:
            log.debug("closed without goodbye: %s", reason)
        self.transport.loseConnection()

    def _say(self, body: Body, answers: str = "") -> None:
        self.transport.write(self._conversation.says(self._message(body, answers)))

    def _message(self, body: Body, answers: str = "") -> Message:
        return Message(xml.verb(body), f"v{next(self._ids)}", xml.write(body), answers)

    # ------------------------------------------------------------ hearing

    def dataReceived(self, data: bytes) -> None:
        self._listen_again()
        try:
            for message in self._decoder.feed(data):
                self._hear(message)
        except Fault as fault:
            log.error("COD said what cannot be understood: %s", fault.sentence)
            self.leave(fault.sentence)

    def _hear(self, message: Message) -> None:
        try:
            self._conversation.hears(message)
            body = xml.read(message)
        except Fault as fault:
            if fault.fatal:
                raise
            # A newer COD may have sent it. The connection goes on, and the message is acknowledged:
            # otherwise COD would send it again for ever.
            log.error("COD said what cannot be understood: %s: %s", message.verb, fault.sentence)
            answer = self._answers.pop(message.answers, None) if message.answers else None
            if answer is not None:
                answer.errback(LinkLost(f"its answer cannot be understood: {fault.sentence}"))
            elif message.sequence:
                self._received(message.sequence, None)
            return
        answer = self._answers.pop(message.answers, None) if message.answers else None
        if answer is not None:
            if isinstance(body, Error):
                answer.errback((NmpError if body.code in PASSING else LastingError)(body))
            else:
                answer.callback(body)
        elif isinstance(body, Ping):
            self._say(Pong(), message.id)
        elif isinstance(body, Bye):
            self._why = body.reason or "COD said goodbye"
            self.transport.loseConnection()
        elif isinstance(body, Error):
            log.warning("COD says: %s", body.sentence)
        else:
            self._received(message.sequence, body)

    def _greeted(self, welcome: Body) -> None:
        if isinstance(welcome, Welcome):
            self._keepalive = welcome.keepalive
            self._listen_again()
        self._welcomed(welcome)

    def _not_greeted(self, failure: Failure) -> None:
        if not failure.check(LinkLost):
            self._why = failure.getErrorMessage()
            self.transport.loseConnection()

    # ------------------------------------------------------------ silence and the end

    def _listen_again(self) -> None:
        self._pinged = False
        if self._silence is not None and self._silence.active():
            self._silence.reset(self._keepalive)
        else:
            self._silence = self._reactor.callLater(self._keepalive, self._silent)

    def _silent(self) -> None:
        if self._pinged or self._conversation.state != "open":
            self._why = "COD has fallen silent"
            self.transport.abortConnection()
            return
        self._pinged = True
        self._silence = self._reactor.callLater(self._keepalive, self._silent)
        self.ask(Ping()).addErrback(lambda failure: failure.trap(LinkLost, NmpError))

    def connectionLost(self, reason: Failure | None = None) -> None:
        """Fail the questions without an answer."""
        self._ended = True
        if self._silence is not None and self._silence.active():
            self._silence.cancel()
        why = self._why
        if not why and reason is not None:
            why = "closed by COD" if reason.check(ConnectionDone) else reason.getErrorMessage()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.errback(LinkLost(why))
        self._lost(why)
