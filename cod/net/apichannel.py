"""A connection of the REST API: what is no HTTP is answered with a problem document, too."""

from __future__ import annotations

import json
from typing import Any

from twisted.web import http

_BODY = json.dumps({
    "type": "urn:cod:problem:bad_request", "title": "Bad Request", "status": 400, "code": "bad_request",
    "detail": "this is no HTTP request that can be read"}).encode()
_ANSWER = (b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nCache-Control: no-store\r\n"
           b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(_BODY)) + _BODY


class Channel(http.HTTPChannel):
    """HTTP/1.1 by Twisted, but for the answer to what is none."""

    transport: Any

    def _respondToBadRequestAndDisconnect(self) -> None:
        """In place of Twisted's, which says nothing but the status."""
        self.transport.write(_ANSWER)
        self.loseConnection()  # type: ignore[no-untyped-call]
