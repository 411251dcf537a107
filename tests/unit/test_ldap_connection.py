"""The LDAP server's connections in memory: what is counted, and what is done for a client that has
gone."""

from __future__ import annotations

from typing import Any, cast

from ldaptor.protocols import pureldap
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from cod.model import LdapAnswer, LdapCode, LdapEntry, LdapSearch
from cod.net.ldap.connection import LdapConnection
from cod.net.ldap.server import BURST, CONNECTIONS, EACH, RATE, LdapServer

SEARCH = pureldap.LDAPMessage(pureldap.LDAPSearchRequest(baseObject="dc=pool"), id=3).toWire()


class Slow:
    """A server whose searches end when the test says so."""

    tls: Any = None
    reactor: Any = None

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

    def pause(self, address: str, length: int) -> float:
        return 0.0

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


def test_an_address_that_sends_too_much_waits_and_others_do_not(site: Any) -> None:
    """Decoding takes the time of the process that answers DHCP."""
    clock = Clock()
    server = LdapServer(clock, cast(Any, None), site, (), None)
    bind = pureldap.LDAPMessage(pureldap.LDAPBindRequest(), id=1).toWire()
    greedy, sibling, other = StringTransport(), StringTransport(), StringTransport()
    connections = {}
    for transport, address in (
        (greedy, "10.77.128.1"),
        (sibling, "10.77.128.1"),
        (other, "10.77.128.2"),
    ):
        connections[transport] = LdapConnection(server, address, secure=False)
        connections[transport].makeConnection(transport)
    connections[other].dataReceived(bind)
    one = len(other.value())
    connections[greedy].dataReceived(bind * 5000)
    at_once = BURST // (len(bind) + EACH) + 1
    assert len(greedy.value()) == one * at_once
    connections[sibling].dataReceived(bind)
    assert sibling.value() == b""
    connections[other].dataReceived(bind)
    assert len(other.value()) == 2 * one
    clock.pump([0.1] * 20)
    assert len(sibling.value()) == one
    assert abs(len(greedy.value()) / one - at_once - 2 * RATE / (len(bind) + EACH)) < 10
    clock.pump([1.0] * 10)
    assert len(greedy.value()) == one * 5000
    connections[greedy].dataReceived(bind * 5000)
    assert clock.getDelayedCalls()
    for connection in connections.values():
        connection.connectionLost(Failure(ConnectionDone()))
    assert not clock.getDelayedCalls()
