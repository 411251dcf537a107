"""Zones that are signed on their way (TSIG): who gets them then, and the secondaries Knot, NSD and
BIND, which follow with a key and refuse without."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dnslib import DNSRecord
from sqlalchemy import Engine

from cod.flows.scheduler import vcluster_names
from cod.model import Dns, Site, SiteRef
from cod.net.dns import transferkey, tsig
from cod.net.dns.notifier import ZoneNotifier
from cod.net.dns.server import DnsServer
from cod.pool import Pool, in_transaction
from cod.security import secretfile
from cod.store.engine import Tx
from cod.wire.errors import PeerError
from tests.contexts import flow_context
from tests.net.dns_stands import Start, dns_servers, secondary_running
from tests.net.test_dns_server import dig
from tests.net.test_zone_transfer import KNOTD, furnished, knot
from tests.ports import free_port
from tests.waiting import until

NOW = 1_000_000.0
SECRET = "c2VjcmV0LW9mLXRoZS10ZXN0cywgMzIgYnl0ZXMgbG9uZw=="
KEY = f"hmac-sha256:cod-transfer:{SECRET}"
OTHER = "hmac-sha256:cod-transfer:b3RoZXItc2VjcmV0LW9mLXRlc3RzLCAzMiBieXRlcw=="
QUESTION = bytes(DNSRecord.question("pool.cod.test", "SOA").pack())


@pytest.fixture
def signing(site: Site, tmp_path: Path) -> Site:
    """The site, which has a key and names 127.0.0.1 as a secondary."""
    file = tmp_path / "transfer.key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    port = free_port(socket.SOCK_DGRAM)
    return replace(site, dns=Dns(secondaries=(("127.0.0.1", port),), transfer_key_file=str(file)))


@pytest.fixture
def start(reactor: Any, in_reactor: Any, pool: Pool) -> Iterator[Start]:
    with dns_servers(reactor, in_reactor, pool) as start:
        yield start


# ---------------------------------------------------------------- messages


def test_a_signed_message_is_opened_by_the_same_key_alone() -> None:
    signed = tsig.MessageSigner(tsig.key(KEY), NOW).sign(QUESTION)
    message, signer = tsig.opened(signed, tsig.key(KEY), NOW + 299)
    assert message == QUESTION
    assert signer is not None
    for key, now in ((OTHER, NOW), (KEY, NOW + 301), (KEY, NOW - 301)):
        with pytest.raises(tsig.Rejected):
            tsig.opened(signed, tsig.key(key), now)
    assert tsig.opened(QUESTION, tsig.key(KEY), NOW) == (QUESTION, None)


def test_each_changed_byte_of_a_signed_message_is_seen() -> None:
    """But those of the number, which a forwarder may change, and of names' case."""
    signed = tsig.MessageSigner(tsig.key(KEY), NOW).sign(QUESTION)
    for at in range(2, len(signed)):
        changed = signed[:at] + bytes([signed[at] ^ 0x80]) + signed[at + 1 :]
        try:
            _, signer = tsig.opened(changed, tsig.key(KEY), NOW)
        except PeerError:
            continue
        assert signer is None, at  # it was no signature any more, but another record


def test_messages_that_end_anywhere_are_refused() -> None:
    signed = tsig.MessageSigner(tsig.key(KEY), NOW).sign(QUESTION)
    for size in range(len(signed)):
        with pytest.raises(PeerError):
            tsig.opened(signed[:size], tsig.key(KEY), NOW)


def test_counts_that_lie_cost_nothing() -> None:
    for counts in ((65535,) * 4, (0, 65535, 65535, 65535)):
        with pytest.raises(PeerError):
            tsig.opened(struct.pack(">6H", 1, 0, *counts) + bytes(4084), tsig.key(KEY), NOW)


@pytest.mark.parametrize(
    "line",
    [
        "",
        SECRET,
        f"hmac-md5:cod:{SECRET}",
        "hmac-sha256:cod:c2hvcnQ=",
        f"hmac-sha256:a..b:{SECRET}",
    ],
)
def test_a_key_that_is_none_is_refused_without_saying_it(line: str) -> None:
    with pytest.raises(ValueError, match="should") as refused:
        tsig.key(line)
    assert SECRET not in str(refused.value)


def test_the_key_is_read_once_and_again_when_its_file_changes(
    signing: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    first_line = secretfile.first_line
    monkeypatch.setattr(
        secretfile, "first_line", lambda path: reads.append(path) or first_line(path)
    )
    for _ in range(3):
        assert transferkey.read(signing) == tsig.key(KEY)
    assert len(reads) == 1
    file = Path(str(signing.dns.transfer_key_file))
    anew = file.with_suffix(".new")
    anew.write_text(OTHER)
    anew.chmod(0o600)
    anew.replace(file)
    assert transferkey.read(signing) == tsig.key(OTHER)
    file.chmod(0o644)
    with pytest.raises(transferkey.NoKey, match="read by others"):
        transferkey.read(signing)


# ---------------------------------------------------------------- the server


def test_forged_questions_do_not_fill_the_log(
    signing: Site, caplog: pytest.LogCaptureFixture
) -> None:
    nobody: Any = None
    server = DnsServer(nobody, nobody, SiteRef(signing), "127.0.0.1", clock=lambda: NOW)
    forged = tsig.MessageSigner(tsig.key(OTHER), NOW).sign(QUESTION)
    for _ in range(100):
        with pytest.raises(tsig.Rejected):
            server._opened(forged, "127.0.0.1", lambda _: None)
    Path(str(signing.dns.transfer_key_file)).unlink()
    for _ in range(100):
        server._opened(forged, "127.0.0.1", lambda _: None)
    assert len(caplog.records) == 2


@pytest.mark.slow
def test_dig_gets_a_zone_with_the_key_and_nobody_without(
    start: Any, engine: Engine, signing: Site
) -> None:
    """dig checks the signature of each message; the zone has two."""
    in_transaction(engine, furnished, signing)
    server = start(signing)
    many = flow_context(replace(signing, dns=replace(signing.dns, names=400)), NOW, "")

    def name(tx: Tx) -> None:
        for at in range(300):
            vcluster_names.put(tx, many, vcluster="pool", name=f"name-{at}-{'x' * 50}", target="n4")

    in_transaction(engine, name)
    said = dig(server, "-y", KEY, "pool.cod.test", "AXFR")[1]
    assert said.count("TSIG") > 1
    assert "error" not in said
    assert said.count("CNAME") == 301
    assert "Transfer failed" in dig(server, "pool.cod.test", "AXFR")[1]
    assert "Transfer failed" in dig(server, "-y", OTHER, "pool.cod.test", "AXFR")[1]
    assert dig(server, "-y", KEY, "+short", "pool.cod.test", "SOA")[1]
    assert dig(server, "+short", "pool.cod.test", "SOA")[1]  # of one zone anybody may ask


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", ["", "no key\n"])
def test_a_key_that_cannot_be_used_closes_the_zones(
    start: Any, engine: Engine, signing: Site, spoiled: str
) -> None:
    in_transaction(engine, furnished, signing)
    Path(str(signing.dns.transfer_key_file)).write_text(spoiled)
    server = start(signing)
    for words in ((), ("-y", KEY)):
        assert "Transfer failed" in dig(server, *words, "pool.cod.test", "AXFR")[1]


@pytest.mark.slow
def test_a_clock_that_differs_is_told_so(start: Any, engine: Engine, signing: Site) -> None:
    in_transaction(engine, furnished, signing)
    server = start(signing, clock=lambda: time.time() + 1000)
    assert "BADTIME" in dig(server, "-y", KEY, "pool.cod.test", "SOA")[1]


# ---------------------------------------------------------------- secondaries of others

KNOT = """\
server:
    listen: 127.0.0.1@{port}
    rundir: {folder}
database:
    storage: {folder}
key:
  - id: cod-transfer
    algorithm: hmac-sha256
    secret: {secret}
remote:
  - id: cod
    address: 127.0.0.1@{cod}
    key: cod-transfer
acl:
  - id: changes
    key: cod-transfer
    action: notify
template:
  - id: default
    storage: {folder}
    master: cod
    acl: changes
zone:
  - domain: pool.cod.test
"""
NSD = """\
server:
    ip-address: 127.0.0.1@{port}
    username: ""
    zonesdir: "{folder}"
    xfrdfile: "{folder}/xfrd.state"
    xfrdir: "{folder}"
    zonelistfile: "{folder}/zone.list"
    pidfile: "{folder}/nsd.pid"
remote-control:
    control-enable: no
key:
    name: "cod-transfer"
    algorithm: hmac-sha256
    secret: "{secret}"
zone:
    name: "pool.cod.test"
    zonefile: "pool.zone"
    request-xfr: AXFR 127.0.0.1@{cod} cod-transfer
    allow-notify: 127.0.0.1 cod-transfer
"""
BIND = """\
options {{
    directory "{folder}";
    listen-on port {port} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    pid-file "{folder}/named.pid";
    session-keyfile "{folder}/session.key";
    dnssec-validation no;
    recursion no;
}};
controls {{ }};
key "cod-transfer" {{ algorithm hmac-sha256; secret "{secret}"; }};
zone "pool.cod.test" {{
    type secondary;
    file "pool.zone";
    primaries {{ 127.0.0.1 port {cod} key "cod-transfer"; }};
    allow-notify {{ key "cod-transfer"; }};
}};
"""
SECONDARIES = {
    "knot": (KNOT, KNOTD),
    "nsd": (NSD, ("/usr/sbin/nsd", "-d", "-c")),
    "bind": (BIND, ("/usr/sbin/named", "-g", "-n", "1", "-c")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SECONDARIES)
def test_a_secondary_follows_a_zone_by_the_key(
    start: Any,
    engine: Engine,
    pool: Pool,
    signing: Site,
    reactor: Any,
    in_reactor: Any,
    tmp_path: Path,
    name: str,
) -> None:
    in_transaction(engine, furnished, signing)
    server = start(signing)
    port = signing.dns.secondaries[0][1]
    text, command = SECONDARIES[name]
    notifier = ZoneNotifier(reactor, pool, SiteRef(signing), period=0.2)
    configuration = text.format(port=port, cod=server.port, folder=tmp_path, secret=SECRET)
    with secondary_running(command, configuration, tmp_path, notifier, in_reactor):
        address = dig(server, "+short", "n4.pool.cod.test")[1]
        until(lambda: knot(port, "n4.pool.cod.test") == address, "the zone is copied")
        in_transaction(
            engine,
            lambda tx: vcluster_names.put(
                tx, flow_context(signing, NOW, ""), vcluster="pool", name="api", target="n4"
            ),
        )
        until(
            lambda: knot(port, "api.pool.cod.test") == f"n4.pool.cod.test.\n{address}",
            "it hears of a new name",
        )
