"""Connections to servers of others that may send a limited number of bytes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

MOST = 2**16  # bytes of an answer


class Limited(ProtocolWrapper):
    """A connection whose peer cannot fill the memory: it is cut after `most` bytes."""

    transport: Any
    seen = 0
    most = MOST

    def dataReceived(self, data: bytes) -> None:
        self.seen += len(data)
        if self.seen > self.most:
            self.transport.abortConnection()
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
class Way:
    """The way of one request of Twisted's Agent to its URL's host, which may answer so much.

    line  the protocol of the connection
    """

    line: type[Limited] = Limited

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self._uri: Any = None
        self._line: Any = None

    def endpointForURI(self, uri: Any) -> Way:
        """Return the endpoint, for Agent."""
        self._uri = uri
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        """Return the connection, for Agent."""
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: Any) -> Any:
        host = urlsplit(self._uri.toBytes().decode("ascii")).hostname or ""
        capped: Any = WrappingFactory(factory)
        capped.noisy, capped.protocol = False, self.line
        self._line = await self.reach(host, self._uri.port, self._uri.scheme == b"https", capped)
        return self._line.wrappedProtocol

    async def reach(self, host: str, port: int, tls: bool, factory: Any) -> Any:
        """Return a connection to the host; `tls`: with its certificate checked."""
        raise NotImplementedError

    def close(self) -> None:
        """Let the connection go, whatever it still has to say."""
        if self._line is not None:
            self._line.transport.abortConnection()
