"""The LDAP server that nodes look up users in, on each of the site's server addresses: plain with
StartTLS, and TLS from the first byte.

Each search is one read of the database (`flows.people.ldap`). A node's address sees the tree of its
vcluster; other addresses see nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import prometheus_client as prometheus
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory

from cod.flows.people import ldap as flow
from cod.model import LdapAnswer, LdapCode, LdapSearch, SiteRef
from cod.net.ldap.connection import LdapConnection
from cod.net.servertls import TlsFactory
from cod.pool import Pool
from cod.tokenbucket import Buckets
from cod.wire import ldap as wire

MOST = 10_000  # connections
MOST_OF_AN_ADDRESS = 32  # connections of one address
WAITING = 1000  # searches that wait for the database at a time
PATIENCE = 10.0  # seconds that one may wait
# bytes of messages that an address may send, a second and at once
RATE, BURST = 64 * 1024, 128 * 1024
EACH = 100  # bytes that every message counts for beyond its own
BACKLOG = 512

ANSWERS = prometheus.Counter(
    "cod_ldap_answers_total", "Answers of the LDAP server, by result code", ["code"]
)
CONNECTIONS = prometheus.Gauge(
    "cod_ldap_connections", "Clients of the LDAP server", multiprocess_mode="livesum"
)

log = logging.getLogger("cod.ldapserver")


class LdapServer(Service):
    """The LDAP server on `addresses`, at `port` and, with TLS from the first byte, at `tls_port`;
    None: no such port is opened.

    reactor  needs listenTCP, callLater and seconds; tls: the factory of TLS connections
    rate     bytes that are decoded for one address a second: decoding takes processor time, which
             DHCP waits for
    ports    after the start, the listening ports; with port 0 any free one is taken
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        addresses: Sequence[str],
        tls: Any,
        *,
        port: int | None = 389,
        tls_port: int | None = 636,
        rate: float = RATE,
    ) -> None:
        self.reactor, self.tls = reactor, tls
        self.ports: list[Any] = []
        self.connections: set[LdapConnection] = set()
        self.waiting = 0
        self._pool, self._site, self._addresses, self._rate = pool, site, list(addresses), rate
        self._port, self._tls_port = port, tls_port
        self._of_address: Counter[str] = Counter()
        self._buckets = Buckets()

    def startService(self) -> None:
        """Open the ports. Raises CannotListenError."""
        super().startService()  # type: ignore[no-untyped-call]
        secured = TlsFactory(self.tls, False, _Connections(self, secure=True))  # type: ignore[arg-type]
        for address in self._addresses:
            if self._port is not None:
                plain = _Connections(self, secure=False)
                self.ports.append(self.reactor.listenTCP(self._port, plain, BACKLOG, address))
            if self._tls_port is not None:
                self.ports.append(self.reactor.listenTCP(self._tls_port, secured, BACKLOG, address))

    def stopService(self) -> Deferred[Any]:
        super().stopService()  # type: ignore[no-untyped-call]
        closed = [port.stopListening() for port in self.ports]
        self.ports = []
        for connection in list(self.connections):
            connection.transport.abortConnection()
        return DeferredList([each for each in closed if each is not None])

    # ------------------------------------------------------------ what connections ask

    def admitted(self, connection: LdapConnection, address: str) -> bool:
        """Count a connection of that address; return False, and count nothing, if there are too
        many."""
        if len(self.connections) >= MOST or self._of_address[address] >= MOST_OF_AN_ADDRESS:
            ANSWERS.labels("refused").inc()
            return False
        self.connections.add(connection)
        self._of_address[address] += 1
        CONNECTIONS.inc()
        return True

    def left(self, connection: LdapConnection, address: str) -> None:
        self.connections.discard(connection)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        CONNECTIONS.dec()

    def pause(self, address: str, length: int) -> float:
        """Count a message of that length; return the seconds until it may be decoded."""
        now = self.reactor.seconds()
        bucket = self._buckets.of(address, now, self._rate, BURST)
        pause = max(0.0, -bucket.level(now) / self._rate)
        bucket.spend(now, length + EACH)
        return pause

    def count(self, code: LdapCode) -> None:
        ANSWERS.labels(code.name.lower()).inc()

    async def found(self, address: str, search: LdapSearch) -> LdapAnswer:
        if self.waiting >= WAITING:
            return LdapAnswer(LdapCode.BUSY, text="too many searches wait at this moment")
        self.waiting += 1
        try:
            return await self._read(address, search)
        except (DeferredTimeout, CancelledError):
            return LdapAnswer(
                LdapCode.TIME_LIMIT, text=f"the database has not answered within {PATIENCE:g} s"
            )
        except Exception as error:
            log.error(
                "a search of %s failed: %s", address, error, exc_info=not self._pool.is_away(error)
            )
            return LdapAnswer(
                LdapCode.BUSY if self._pool.is_away(error) else LdapCode.OTHER, text="see the log"
            )
        finally:
            self.waiting -= 1

    async def _read(self, address: str, search: LdapSearch) -> LdapAnswer:
        site = self._site.current
        if search.base.strip() or search.scope != 0:
            asked = self._pool.read(flow.search, address=address, search=search, site=site)
            return await asked.addTimeout(PATIENCE, self.reactor)
        context = await self._pool.read(flow.naming_context, address=address, site=site).addTimeout(
            PATIENCE, self.reactor
        )
        return LdapAnswer(
            LdapCode.SUCCESS,
            (flow.root(context, search, (wire.PAGED,), (wire.START_TLS, wire.WHO_AM_I)),),
        )


class _Connections(Factory):
    """Makes connections. `secure`: they have TLS from the first byte."""

    noisy = False

    def __init__(self, server: LdapServer, *, secure: bool) -> None:
        self._server, self._secure = server, secure

    def buildProtocol(self, addr: IAddress | None) -> LdapConnection:
        return LdapConnection(self._server, getattr(addr, "host", ""), secure=self._secure)
