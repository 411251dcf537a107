"""Mutated requests to the LDAP port, each on a connection of its own; no crash, no growth.

`COD_ATTACK` says how many (`make attack`: a million).
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ldaptor.protocols import pureldap
from sqlalchemy import Engine

from cod.model import Site, SiteRef
from cod.net.ldap.server import LdapServer
from cod.net.servertls import ServerTls
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca
from cod.wire import ldap as wire
from cod.wire.errors import PeerError
from tests import ldap_site
from tests.attack.ldap_requests import BASE, requests
from tests.attack.mutants import descriptors, memory, mutants
from tests.net.ldapclient import LdapClient
from tests.waiting import until

pytestmark = pytest.mark.slow

NUMBER = int(os.environ.get("COD_ATTACK", "10000"))
UNBIND = pureldap.LDAPMessage(pureldap.LDAPUnbindRequest(), id=9).toWire()
GROWTH = 16 << 10  # KiB


@pytest.fixture
def ldap(
    reactor: Any, in_reactor: Any, engine: Engine, site: Site, tmp_path: Path
) -> Iterator[LdapServer]:
    in_transaction(engine, ldap_site.physics_and_chemistry)
    pool = Pool(engine, reactor)
    tls = ServerTls(Ca(tmp_path / "ca", "test"), ["127.0.0.1"], lambda: 1.8e9)
    server = LdapServer(
        reactor, pool, SiteRef(site), ["127.0.0.1"], tls, port=0, tls_port=None, rate=1e9
    )
    in_reactor(server.startService)
    yield server
    in_reactor(server.stopService)
    pool.close()


def test_mutated_requests(
    ldap: LdapServer, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    port, outcomes, before = ldap.ports[0].getHost().port, Counter[str](), (0, 0)
    caplog.set_level(logging.WARNING)
    for number, packet in enumerate(mutants(requests(), 389, NUMBER)):
        if number == NUMBER // 10:
            before = memory(), descriptors()
        outcomes[sent(port, packet)] += 1
    grown = memory() - before[0]
    with capsys.disabled():
        print(f"\nldap: {outcomes.total():,} messages, {dict(outcomes)}, {grown} KiB grown")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert grown < GROWTH
    until(lambda: not ldap.connections and not ldap.waiting)
    assert descriptors() <= before[1] + 8
    client = LdapClient(port)
    assert f"uid=ann,ou=people,{BASE}" in client.search("(uid=ann)")[1]
    client.close()


def _whole(packet: bytes) -> bool:
    """Return whether the server sees the end of the last message, or that one of them is none."""
    try:
        while packet:
            length = wire.length(packet)
            if length is None or length > len(packet):
                return False
            packet = packet[length:]
    except PeerError:
        pass
    return True


def sent(port: int, packet: bytes) -> str:
    """Return what came of a message on a connection that ends after it."""
    with socket.create_connection(("127.0.0.1", port), 60, ("127.0.7.1", 0)) as line:
        try:
            line.sendall(packet + UNBIND)
            if not _whole(packet):
                line.shutdown(socket.SHUT_WR)  # the server would wait for the rest
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        except TimeoutError:
            raise
        except OSError:  # of a connection that has ended, shutdown() says that there is none
            return "reset"
    return (
        "nothing" if not answer else "notice" if b"1.3.6.1.4.1.1466.20036" in answer else "answer"
    )
