"""A connection of the REST API: what is no HTTP is answered with a problem document, too; and how
many there may be."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import Any

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http


def _refusal(detail: str) -> bytes:
    """Return a whole answer, after which the connection is closed."""
    problem = {
        "type": "urn:cod:problem:bad_request",
        "title": "Bad Request",
        "status": 400,
        "code": "bad_request",
        "detail": detail,
    }
    body = json.dumps(problem).encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nCache-Control:"
        b" no-store\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body


_UNREADABLE = _refusal("this is no HTTP request that can be read")
_LONG = _refusal("a line of the request is longer than 16,384 bytes: ask for less at once")

# connections at once; from one address, which may be that of many people
MOST, MOST_OF_ONE = 4096, 2048

log = logging.getLogger("cod.api")


class ConnectionCount:
    """The connections that there are. `of_one`: how many one address may have; None: as many as
    all."""

    def __init__(self, of_one: int | None) -> None:
        self._of_one, self._by_peer = of_one, Counter[str]()

    def enter(self, peer: str) -> bool:
        """Return whether one more connection may come from there. Then it is counted."""
        fits = self._by_peer.total() < MOST and (
            self._of_one is None or self._by_peer[peer] < self._of_one
        )
        if fits:
            self._by_peer[peer] += 1
        else:
            log.debug("a connection from %s is turned away: there are too many", peer)
        return fits

    def leave(self, peer: str) -> None:
        """Count one that has ended."""
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]


class Channel(http.HTTPChannel):
    """HTTP/1.1 by Twisted, but for the answer to what is none, and for those that are too many."""

    transport: Any
    factory: Any
    _peer: str | None = None

    def connectionMade(self) -> None:
        """Count the connection, or cut it off."""
        super().connectionMade()  # type: ignore[no-untyped-call]
        peer = str(getattr(self.transport.getPeer(), "host", ""))
        if self.factory.connections.enter(peer):
            self._peer = peer
        else:
            self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Count the connection no more."""
        if self._peer is not None:
            self.factory.connections.leave(self._peer)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Send a problem document, and close; Twisted's own answer has nothing but the status."""
        self._refuse(_UNREADABLE)

    def lineLengthExceeded(self, line: bytes) -> None:
        """Say so, and close; Twisted's own way is to close without a word."""
        self._refuse(_LONG)

    def _refuse(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.loseConnection()  # type: ignore[no-untyped-call]
