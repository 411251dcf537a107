"""Connections to foreign servers, which may send only a limited number of bytes."""

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
    """A connection that is cut after `most` received bytes, so that its peer cannot fill the
    memory."""

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
    """The connection of one request of Twisted's Agent to its URL's host, as Agent's endpoint.

    line  the protocol of the connection, which limits the answer
    """

    line: type[Limited] = Limited

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self._uri: Any = None
        self._line: Any = None

    def endpointForURI(self, uri: Any) -> Way:
        """Return this object as the endpoint (for Agent)."""
        self._uri = uri
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        """Return a connection to the host (for Agent)."""
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: Any) -> Any:
        host = urlsplit(self._uri.toBytes().decode("ascii")).hostname or ""
        capped: Any = WrappingFactory(factory)
        capped.noisy, capped.protocol = False, self.line
        self._line = await self.reach(host, self._uri.port, self._uri.scheme == b"https", capped)
        return self._line.wrappedProtocol

    async def reach(self, host: str, port: int, tls: bool, factory: Any) -> Any:
        """Return a connection to the host. `tls`: the host's certificate is checked."""
        raise NotImplementedError

    def close(self) -> None:
        """Cut the connection, without waiting for the peer."""
        if self._line is not None:
            self._line.transport.abortConnection()
