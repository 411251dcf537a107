"""Requests to a BMC's web server: JSON over HTTP, with basic authentication, with limits of time
and size.

A BMC that is busy (503) is asked again after the time that it names.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool, ResponseFailed
from twisted.web.http_headers import Headers

from cod.power.driver import PowerError, SignIn
from cod.power.trust import Noting, Trust

CONNECT = 5.0  # seconds
ANSWER = 15.0
MOST = 1 << 20  # bytes of an answer
BUSY = (429, 503)
TRIES = 3
# errors of a cancelled request
GIVEN_UP = (TookTooLong, CancelledError, ConnectingCancelledError)
LONGEST_PAUSE = 8.0  # seconds until a busy BMC is asked again, whatever it says


class BmcRefusal(PowerError):
    """The BMC has answered with an error. `code` is the HTTP status."""

    def __init__(self, code: int, sentence: str, *, lasting: bool = False) -> None:
        super().__init__(sentence, lasting=lasting)
        self.code = code


class Bmcs:
    """Connections to BMCs. They are kept for a few seconds, because a BMC's processor needs long to
    set up TLS."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._agents: dict[Trust | Noting, Agent] = {}

    async def ask(
        self,
        method: str,
        url: str,
        sign_in: SignIn | None,
        trust: Trust | Noting,
        body: Any = None,
        etag: str = "",
    ) -> tuple[Any, str]:
        """Send a request. Return the answer's JSON (None if the answer has none) and its ETag (''
        if it has none). Raises `PowerError`."""
        headers = {
            "Accept": "application/json",
            "OData-Version": "4.0",
            "User-Agent": "Cluster-on-Demand",
        }
        if sign_in is not None:
            pair = f"{sign_in.user}:{sign_in.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        if etag:
            headers["If-Match"] = etag
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        for _ in range(TRIES):
            response, text = await self._exchange(method, url, headers, content, trust)
            if response.code not in BUSY:
                etag = response.headers.getRawHeaders("ETag", [""])[0]
                return _document(response.code, text), etag
            await deferLater(self._reactor, _pause(response), lambda: None)
        raise PowerError(f"the BMC is busy (HTTP {response.code})")

    async def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        trust: Trust | Noting,
    ) -> tuple[Any, bytes]:
        producer = None if content is None else FileBodyProducer(BytesIO(content))
        try:
            asked = self._agent(trust).request(
                method.encode(),
                url.encode("ascii"),
                Headers({key: [value] for key, value in headers.items()}),
                producer,
            )
            response = await asked.addTimeout(ANSWER, self._reactor)
            return response, await _read(response).addTimeout(ANSWER, self._reactor)
        except PowerError:
            raise
        except Exception as error:
            raise _unheard(error) from None

    def _agent(self, trust: Trust | Noting) -> Any:
        if trust not in self._agents:
            pool = HTTPConnectionPool(self._reactor)
            pool.cachedConnectionTimeout = 5
            self._agents[trust] = Agent(self._reactor, trust, connectTimeout=CONNECT, pool=pool)
        return self._agents[trust]


def _document(code: int, text: bytes) -> Any:
    """Return the JSON of an answer; None if it has none. Raises `PowerError`."""
    if code in (401, 403):
        raise BmcRefusal(code, f"the BMC refuses user or password (HTTP {code})", lasting=True)
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        value = None
    if code >= 300:
        sentence = f"the BMC says: {_message(value) or 'no'} (HTTP {code})"
        raise BmcRefusal(code, sentence, lasting=code == 404)
    if text.strip() and value is None:
        raise PowerError("what answers there is no BMC: that is no JSON")
    return value


def _pause(response: Any) -> float:
    header = response.headers.getRawHeaders("Retry-After", ["1"])[0]
    return min(float(header), LONGEST_PAUSE) if header.isdigit() else 1.0


def _message(value: Any) -> str:
    """Return the message of a Redfish error (DSP0266 8.6), without control characters."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return ""
    further = error.get("@Message.ExtendedInfo")
    first = (
        further[0] if isinstance(further, list) and further and isinstance(further[0], dict) else {}
    )
    text = first.get("Message") or error.get("message") or ""
    return "".join(filter(str.isprintable, " ".join(str(text).split())))[:200]


def _unheard(error: Exception) -> PowerError:
    """Return the error that says why there was no answer."""
    inner = [error, *(failure.value for failure in getattr(error, "reasons", []))]
    if any(
        isinstance(each, SSL.Error) or "VerificationError" in type(each).__name__ for each in inner
    ):
        if any(
            "certificate verify failed" in str(each) or "Verif" in type(each).__name__
            for each in inner
        ):
            return PowerError("the BMC's certificate is not one that is trusted here", lasting=True)
        return PowerError("the BMC does not speak TLS as it is spoken here")
    if any(isinstance(each, GIVEN_UP) for each in inner):
        return PowerError(f"the BMC does not answer within {ANSWER:.0f} s", silent=True)
    if isinstance(error, ResponseFailed):
        return PowerError("the BMC broke the connection off")
    text = " ".join(str(error).split())[:200]
    return PowerError(f"the BMC does not answer: {text}", silent=True)


def _read(response: Any) -> Deferred[bytes]:
    body = _Body()
    response.deliverBody(body)
    return body.whole


class _Body(Protocol):
    """Collects an answer of at most `MOST` bytes. Cancelling `whole` ends the connection."""

    transport: Any

    def __init__(self) -> None:
        self._parts = bytearray()
        self.whole: Deferred[bytes] = Deferred(lambda _: self._end())

    def dataReceived(self, data: bytes) -> None:
        self._parts += data
        if len(self._parts) > MOST and not self.whole.called:
            self.whole.errback(PowerError(f"the BMC's answer is longer than {MOST} bytes"))
            self._end()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.whole.called:
            self.whole.callback(bytes(self._parts))

    def _end(self) -> None:
        getattr(self.transport, "abortConnection", self.transport.loseConnection)()
