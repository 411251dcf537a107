"""A client's connection to the LDAP server: each request is answered before the next is read.

Data that arrive while a request is being answered wait in the kernel, so that a connection holds
one search, one message and one answer in memory. The server does not read from a client that does
not take its answers. A client that is silent for too long is dropped, also one that never finishes
a message.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure
from zope.interface import implementer

from cod.model import LdapAnswer, LdapCode, LdapSearch
from cod.wire import ldap as wire
from cod.wire.errors import PeerError

IDLE = 120.0  # seconds between two requests, and for the rest of one that has begun

log = logging.getLogger("cod.ldapserver")


class Server(Protocol):
    """The parts of a server that a connection needs."""

    def admitted(self, connection: LdapConnection, address: str) -> bool:
        """Return whether there is room for one more connection of that address."""

    def left(self, connection: LdapConnection, address: str) -> None:
        """Forget a connection."""

    async def found(self, address: str, search: LdapSearch) -> LdapAnswer:
        """Return what a search finds."""

    def count(self, code: LdapCode) -> None:
        """Count an answer."""

    def pause(self, address: str, length: int) -> float:
        """Count a message of that length; return the seconds until it may be decoded."""

    @property
    def reactor(self) -> Any:
        """Return an object that has callLater."""

    @property
    def tls(self) -> Any:
        """Return the factory of TLS connections."""


@implementer(IPushProducer)
class LdapConnection(TwistedProtocol, TimeoutMixin):
    """A client's connection. `secure`: TLS has begun."""

    transport: Any

    def __init__(self, server: Server, address: str, *, secure: bool) -> None:
        self._server, self._address, self._secure = server, address, secure
        self._data = bytearray()
        self._answering = self._full = False
        self._held: Any = None  # until the turn of the next message
        self._counted = False  # the next message, which has its turn
        self._admitted = False

    def connectionMade(self) -> None:
        self._admitted = self._server.admitted(self, self._address)
        if not self._admitted:
            self.transport.abortConnection()
            return
        self.transport.registerProducer(self, True)
        self.setTimeout(IDLE)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        self.connected = 0  # Twisted leaves it at 1
        self.setTimeout(None)  # type: ignore[no-untyped-call]
        self._data.clear()
        if self._held is not None:
            self._held.cancel()
        if self._admitted:
            self._server.left(self, self._address)

    def timeoutConnection(self) -> None:
        """Drop a client that has been silent, or does not take its answers."""
        if self._answering or self._held is not None:
            self.setTimeout(IDLE)  # type: ignore[no-untyped-call]
        else:
            self.transport.abortConnection()

    # ------------------------------------------------------------ the transport's buffer of answers

    def pauseProducing(self) -> None:
        """Stop answering, because the client does not take its answers."""
        self._full = True

    def resumeProducing(self) -> None:
        self._full = False
        self._set_paused(False)
        self._next()

    def stopProducing(self) -> None:
        """Do nothing: `connectionLost` stops the work."""

    # ------------------------------------------------------------ requests

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        self._next()

    def _next(self) -> None:
        """Answer the requests that have arrived, one after another, until an answer takes time."""
        while self.connected and not self._is_waiting() and not self.transport.disconnecting:
            try:
                length = wire.length(self._data)
                if length is None or len(self._data) < length:
                    break
                if not self._counted and (pause := self._server.pause(self._address, length)) > 0:
                    self._counted = True
                    self._held = self._server.reactor.callLater(pause, self._go_on)
                    break
                self._counted = False
                message = wire.decode(bytes(self._data[:length]))
                del self._data[:length]
            except PeerError as error:
                self._disconnect(LdapCode.PROTOCOL_ERROR, str(error))
                return
            self.resetTimeout()  # type: ignore[no-untyped-call]
            self._take(message)
        # Read on only for the rest of a message; later data wait in the kernel.
        if self.connected and self._is_waiting() and len(self._data) > wire.LONGEST:
            self._set_paused(True)

    def _is_waiting(self) -> bool:
        """Return whether decoding has to wait."""
        return self._answering or self._full or self._held is not None

    def _go_on(self) -> None:
        self._held = None
        self._set_paused(False)
        self._next()

    def _set_paused(self, pause: bool) -> None:
        """Stop reading from the socket, or resume."""
        (self.transport.pauseProducing if pause else self.transport.resumeProducing)()

    def _take(self, message: wire.Message) -> None:
        request = message.request
        if isinstance(request, wire.Unbind):
            self.transport.loseConnection()
        elif isinstance(request, wire.Abandon):
            pass  # what was asked before has been answered
        elif message.unknown:
            self._tell(
                message,
                LdapCode.CRITICAL_EXTENSION,
                f"the control {message.unknown} is not offered here",
            )
        elif isinstance(request, LdapSearch):
            self._answering = True
            ensureDeferred(self._search(message, request)).addErrback(
                lambda failure: log.error("an answer failed: %s", failure.getTraceback())
            )
        elif isinstance(request, wire.Bind):
            self._tell(message, *_bound(request))
        elif isinstance(request, wire.Change):
            self._tell(
                message,
                LdapCode.UNWILLING,
                "this tree is read only: people and groups change in the portal",
            )
        elif request.name == wire.START_TLS:
            self._begin_tls(message)
        elif request.name == wire.WHO_AM_I:
            self._tell(message, LdapCode.SUCCESS, value=b"")
        else:
            self._tell(
                message,
                LdapCode.PROTOCOL_ERROR,
                f"the operation {request.name} is not offered here",
            )

    def _begin_tls(self, message: wire.Message) -> None:
        if self._secure:
            self._tell(message, LdapCode.OPERATIONS_ERROR, "TLS has begun already")
        elif self._data:  # it would be taken for what came over TLS
            self._disconnect(
                LdapCode.PROTOCOL_ERROR, "nothing should follow StartTLS before its answer"
            )
        else:
            self._tell(message, LdapCode.SUCCESS)
            self._secure = True
            self.transport.startTLS(self._server.tls)

    async def _search(self, message: wire.Message, search: LdapSearch) -> None:
        try:
            answer = await self._server.found(self._address, search)
            if not self.connected:
                return
            self.transport.write(
                b"".join(wire.entry(message.id, entry) for entry in answer.entries)
            )
            self._server.count(answer.code)
            cookie = None if search.page is None else answer.cookie
            self.transport.write(wire.done(message.id, answer.code, answer.text, cookie))
        finally:
            self._answering = False
            self.resetTimeout()  # type: ignore[no-untyped-call]
        if self.connected:
            self._set_paused(False)
            self._next()

    def _tell(
        self, message: wire.Message, code: LdapCode, text: str = "", value: bytes | None = None
    ) -> None:
        self._server.count(code)
        self.transport.write(wire.answer(message.id, message.request, code, text, value))

    def _disconnect(self, code: LdapCode, text: str) -> None:
        """Send the reason why the connection ends, and end it."""
        log.debug("%s: %s", self._address, text)
        self._server.count(code)
        self._data.clear()
        self.transport.write(wire.notice(code, text))
        self.transport.loseConnection()


def _bound(request: wire.Bind) -> tuple[LdapCode, str]:
    """Return the answer to a bind. The client's address alone decides what it is shown."""
    if request.version != 3:
        return LdapCode.PROTOCOL_ERROR, "this server speaks LDAP version 3"
    if not request.simple:
        return LdapCode.AUTH_METHOD, "SASL is not offered here: bind anonymously"
    if request.password:
        return (
            LdapCode.INAPPROPRIATE_AUTHENTICATION,
            (
                "passwords are not checked here: whoever has root on a node could read them; log in"
                " by SSH key"
            ),
        )
    return LdapCode.SUCCESS, ""
