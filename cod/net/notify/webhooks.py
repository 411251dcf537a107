"""Posts notices to groups' webhooks.

A person who may set a webhook must not reach other services through this server. The name is
therefore resolved here, forbidden addresses are left out, and the connection is made to one of the
remaining addresses, not to the name, which could mean another address a moment later. Redirects are
not followed. Of the answer only the status is used and shown, and at most `MOST` bytes are read.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from twisted.internet import error as net_errors
from twisted.internet import ssl
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from twisted.internet.threads import deferToThreadPool
from twisted.web import http
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool
from twisted.web.http_headers import Headers

from cod.choices import NoticeFormat
from cod.flows.notices.notices import Delivery, may_reach
from cod.model import Site, SiteRef
from cod.net.limited import Way
from cod.net.notify import chat
from cod.net.notify.delivery_errors import DeliveryError, brief
from cod.wire import webhook as wire

ATTEMPT = 10.0  # seconds
AGENT = "Cluster-on-Demand"
CALM = (408, 425, 429)  # refusals that say "later", RFC 9110 and others

Resolve = Callable[..., Sequence[Any]]
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Webhooks:
    """The sender of deliveries of the channel `webhook`. `key`: the site's key. `clock`: gives the
    time of day. `threads`: a started ThreadPool."""

    def __init__(
        self,
        reactor: Any,
        site: SiteRef,
        key: bytes,
        threads: Any,
        clock: Callable[[], float],
        resolve: Resolve = socket.getaddrinfo,
    ) -> None:
        self._reactor, self._site, self._key, self._clock = reactor, site, key, clock
        self._threads, self._resolve = threads, resolve

    async def send(self, delivery: Delivery) -> str:
        """Post the notice. Raises `DeliveryError`."""
        site, notice, target = self._site.current, delivery.notice, delivery.send.target
        content = _content(site, delivery)
        key = wire.group_key(self._key, notice.group_id or 0, delivery.group or "", delivery.turn)
        signed = wire.headers(key, site.name, notice, self._clock(), content)
        try:
            code = await self._post(target, {**signed, "User-Agent": AGENT}, content)
        except DeliveryError:
            raise
        except Exception as error:
            raise DeliveryError(_why(error), dead=True) from None
        status = f"the webhook answered {code} {http.RESPONSES.get(code, b'').decode()}".rstrip()
        if 300 <= code <= 399:
            raise DeliveryError(f"{status}: redirects are not followed", dead=True)
        if not 200 <= code <= 299:  # 4xx may be about this notice alone
            raise DeliveryError(status, dead=code >= 500 or code in CALM)
        return ""

    async def _post(self, url: str, headers: dict[str, str], content: bytes) -> int:
        way = _Way(self._reactor, self._site, self._addresses)
        agent = Agent.usingEndpointFactory(
            self._reactor, way, HTTPConnectionPool(self._reactor, persistent=False)
        )
        asked: Deferred[Any] = agent.request(
            b"POST",
            url.encode("ascii"),
            Headers({name: [value] for name, value in headers.items()}),
            FileBodyProducer(BytesIO(content)),
        )
        try:
            return int((await asked.addTimeout(ATTEMPT, self._reactor)).code)
        finally:
            way.close()

    async def _addresses(self, host: str, port: int) -> list[tuple[int, str]]:
        """Return (family, address) of each of the host's addresses that the site allows connections
        to. Raises `DeliveryError`."""
        try:
            found = await deferToThreadPool(
                self._reactor, self._threads, self._resolve, host, port, 0, socket.SOCK_STREAM
            )
        except OSError as error:
            raise DeliveryError(f"{host} cannot be found: {brief(error)}", dead=True) from None
        site = self._site.current
        rules, own = site.notices, [each for subnet in site.subnets for each in subnet.servers]
        allowed = [
            (family, where[0])
            for family, _, _, _, where in found
            if may_reach(where[0], rules.local_webhooks, own, rules.closed_networks)
            and (rules.local_webhooks or not _is_ours(family, where[0]))
        ]
        if not allowed:
            raise DeliveryError(
                f"{host} is an address of this server itself, or in a network that is closed to "
                "webhooks, or no host's: webhooks may not be there",
                dead=True,
            )
        return list(dict.fromkeys(allowed))


class _Way(Way):
    """The connection to a webhook's host: to an allowed address, with the certificate checked."""

    def __init__(self, reactor: Any, site: SiteRef, addresses: Callable[[str, int], Any]) -> None:
        super().__init__(reactor)
        self._site, self._addresses = site, addresses

    async def reach(self, host: str, port: int, tls: bool, factory: Any) -> Any:
        """Return a connection to the first address that answers."""
        trust = self._trust(host) if tls else None
        problem: Exception = net_errors.ConnectError()
        for family, address in await self._addresses(host, port):
            kind = TCP6ClientEndpoint if family == socket.AF_INET6 else TCP4ClientEndpoint
            plain: Any = kind(self.reactor, address, port, timeout=ATTEMPT)
            endpoint: Any = wrapClientTLS(trust, plain) if trust else plain
            try:
                return await endpoint.connect(factory)
            except net_errors.ConnectError as error:
                problem = error
        raise problem

    def _trust(self, host: str) -> Any:
        """Return TLS options that check the certificate for `host`."""
        ca_file = self._site.current.notices.ca_file
        if ca_file is None:
            return ssl.optionsForClientTLS(host)
        try:
            found = [
                ssl.Certificate.loadPEM(pem) for pem in _PEM.findall(Path(ca_file).read_text())
            ]
        except Exception as error:  # OpenSSL's errors have no better name here
            raise DeliveryError(f"{ca_file} cannot be used: {brief(error)}", dead=True) from None
        if not found:
            raise DeliveryError(f"{ca_file} has no certificate in it", dead=True)
        return ssl.optionsForClientTLS(host, trustRoot=ssl.trustRootFromCertificates(found))


def _content(site: Site, delivery: Delivery) -> bytes:
    """Return the request's body in the format that the group has chosen."""
    notice, portal = delivery.notice, site.signin.url
    if delivery.form == NoticeFormat.JSON:
        return wire.body(site.name, notice, delivery.group, delivery.vcluster, portal)
    # in a chat a path alone leads nowhere
    return chat.body(delivery.form, notice, portal + notice.link if portal and notice.link else "")


def _is_ours(family: int, address: str) -> bool:
    """Return whether this machine has that address, which it can then bind to."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


# ---------------------------------------------------------------- what came of it


def _why(error: Exception) -> str:
    reasons = getattr(error, "reasons", None)  # of those that Agent wraps
    inner = reasons[0].value if reasons else error
    if isinstance(inner, TookTooLong | CancelledError):
        return f"no answer within {ATTEMPT:.0f} s"
    if isinstance(
        inner, net_errors.ConnectionDone | net_errors.ConnectionLost | net_errors.ConnectionAborted
    ):
        return "the webhook closed the connection without an answer"
    name = type(inner).__name__
    if name in ("VerificationError", "Error"):  # of service-identity, and of OpenSSL
        return f"the webhook's certificate or its TLS is not good: {brief(inner)}"
    if isinstance(inner, net_errors.ConnectError):
        code = inner.osError
        return (
            "the webhook cannot be reached:"
            f" {os.strerror(code) if isinstance(code, int) else brief(inner)}"
        )
    return f"the post failed: {name}: {brief(inner)}"
