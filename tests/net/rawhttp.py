"""One HTTP request, with everything that the answer has."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tests.net.apiserver import ADMIN, Served


def ask(
    served: Served,
    method: str,
    path: str,
    body: bytes | None = None,
    token: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], Any]:
    """(status, headers, JSON or None) for a token's bearer; without one for the local
    administrator, on the socket."""
    if token is None:
        connection = served.local._connect()
    else:
        connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    sent = {"Content-Type": "application/json"} if body is not None else {}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, body, sent | (headers or {}))
        reply = connection.getresponse()
        text = reply.read()
    finally:
        connection.close()
    return reply.status, dict(reply.headers), json.loads(text) if text else None


__all__ = ["ADMIN", "ask"]
