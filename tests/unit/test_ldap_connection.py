"""The LDAP server's connections in memory: what is counted, and what is done for a client that has gone."""

from __future__ import annotations

from typing import Any, cast

from ldaptor.protocols import pureldap
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from cod.model import LdapAnswer, LdapCode, LdapEntry, LdapSearch
from cod.net.ldap.connection import LdapConnection
from cod.net.ldap.server import CONNECTIONS, LdapServer

SEARCH = pureldap.LDAPMessage(pureldap.LDAPSearchRequest(baseObject="dc=pool"), id=3).toWire()


class Slow:
    """A server whose searches end when the test says so."""

    tls: Any = None

    def __init__(self) -> None:
        self.answers: list[Deferred[LdapAnswer]] = []
        self.counted: list[LdapCode] = []

    def admitted(self, connection: LdapConnection, address: str) -> bool:
        return True

    def left(self, connection: LdapConnection, address: str) -> None:
        """Nothing is kept."""

    async def found(self, address: str, search: LdapSearch) -> LdapAnswer:
        self.answers.append(Deferred())
        return await self.answers[-1]

    def count(self, code: LdapCode) -> None:
        self.counted.append(code)


def test_no_answer_is_made_for_a_client_that_has_gone() -> None:
    server, transport = Slow(), StringTransport()
    connection = LdapConnection(server, "10.77.128.1", secure=False)
    connection.makeConnection(transport)
    connection.dataReceived(SEARCH)
    connection.connectionLost(Failure(ConnectionDone()))
    server.answers[0].callback(LdapAnswer(LdapCode.SUCCESS, (LdapEntry("dc=pool", {}),)))
    assert server.counted == []
    assert transport.value() == b""


def test_connections_of_several_servers_are_counted_together(site: Any) -> None:
    """Each network of an isolated vcluster has a server."""
    before = CONNECTIONS._value.get()
    servers = [LdapServer(None, cast(Any, None), site, (), None) for _ in range(2)]
    connections = [LdapConnection(server, "10.77.128.1", secure=False) for server in servers]
    for server, connection in zip(servers, connections, strict=True):
        assert server.admitted(connection, "10.77.128.1")
    assert CONNECTIONS._value.get() == before + 2
    for server, connection in zip(servers, connections, strict=True):
        server.left(connection, "10.77.128.1")
    assert CONNECTIONS._value.get() == before
