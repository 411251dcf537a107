"""Reads the curve of price or carbon by the hour, from a file or over HTTP, once in a while.

The source is not trusted: an answer has a limited size and time, redirects are not followed, and
the content is checked before anything uses it (`policy.energy.curve`). Each server with a manager
part reads the curve; the last good one is kept in the database.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from typing import Any

from twisted.internet import ssl
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers

from cod.flows.nodes import energy_curve
from cod.model import Energy, SiteRef
from cod.net.limited import Limited, Way
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 60.0  # seconds between looks whether a curve is due
ATTEMPT = 20.0  # seconds that an answer may take in all
MOST = 2**16  # bytes of a file; an answer may have as many in its head

log = logging.getLogger("cod.energy")


class CurveError(Exception):
    """The curve cannot be read; a sentence for the administrator."""


class CurveReader(Periodic):
    """One server's reader of the curve. `clock()` is the time of day."""

    def __init__(self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        super().__init__(reactor, pool, log, "the energy curve is not read", PERIOD, at_once=True)
        self._reactor, self._site, self._clock = reactor, site, clock
        self._read: tuple[str, str, float] | None = None  # source, what it says, when

    def reread(self) -> None:
        """Read the curve at the next look, because the site file has changed."""
        self._read = None

    async def look(self) -> None:
        """Read the curve if it is due, and store it, or the error."""
        rules = self._site.current.energy
        now, own = self._clock(), (rules.curve, rules.curve_of)
        if self._read is not None and self._read[:2] == own:
            since = now - self._read[2]
            if not rules.curve or 0 <= since < rules.curve_poll:
                return
        self._read = (*own, now)
        content, fault = None, ""
        try:
            content = await self._content(rules) if rules.curve else None
        except CurveError as error:
            fault = str(error)
        if warning := await self._pool.run(energy_curve.note, rules, content, fault, now):
            log.warning("the energy curve %s: %s", rules.curve, warning)

    async def _content(self, rules: Energy) -> bytes:
        """Return the content of the file or of the answer. Raises `CurveError`."""
        if rules.curve_file:
            return _file(rules.curve_file)
        try:
            return await Deferred.fromCoroutine(self._answer(rules.curve_url)).addTimeout(
                ATTEMPT, self._reactor
            )
        except CurveError:
            raise
        except Exception as error:
            raise CurveError(_why(error)) from None

    async def _answer(self, url: str) -> bytes:
        way = _Way(self._reactor)
        agent = Agent.usingEndpointFactory(
            self._reactor, way, HTTPConnectionPool(self._reactor, persistent=False)
        )
        try:
            headers = Headers({"User-Agent": ["Cluster-on-Demand"], "Accept": ["text/csv, */*"]})
            answer = await agent.request(b"GET", url.encode("ascii"), headers)
            if answer.code != 200:
                raise CurveError(f"the server answered {answer.code}")
            whole: Deferred[bytes] = Deferred()
            answer.deliverBody(_Body(whole))
            return await whole
        finally:
            way.close()


def _file(path: str) -> bytes:
    """Return the content of a regular file, up to one byte more than a curve may have."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CurveError("it is no file")
            return file.read(MOST)
    except OSError as error:
        raise CurveError(f"it cannot be read: {error.strerror}") from None


class _Body(Protocol):
    """The body of an HTTP answer. `whole` fires with it when it has arrived completely."""

    def __init__(self, whole: Deferred[bytes]) -> None:
        self._whole, self._pieces = whole, [b""]

    def dataReceived(self, data: bytes) -> None:
        self._pieces.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fire `whole`. A body without a length is an error, because it may be cut off anywhere."""
        if self._whole.called:
            return
        if reason.check(ResponseDone):
            self._whole.callback(b"".join(self._pieces))
        else:
            self._whole.errback(
                CurveError("the answer was cut off: it is too long, has no length, or broke off")
            )


class _Capped(Limited):
    most = 2 * MOST


class _Way(Way):
    """The connection to a curve's host. This host's certificate authorities decide which
    certificates are accepted."""

    line = _Capped

    async def reach(self, host: str, port: int, tls: bool, factory: Any) -> Any:
        endpoint: Any = HostnameEndpoint(self.reactor, host, port, timeout=ATTEMPT)
        if tls:
            endpoint = wrapClientTLS(ssl.optionsForClientTLS(host), endpoint)
        return await endpoint.connect(factory)


def _why(error: Exception) -> str:
    reasons = getattr(error, "reasons", None)  # of those that Agent wraps
    inner = reasons[0].value if reasons else error
    if isinstance(inner, TookTooLong | CancelledError | ConnectingCancelledError):
        return f"no answer within {ATTEMPT:.0f} s"
    return f"it cannot be had: {type(inner).__name__}: {str(inner)[:200]}"
