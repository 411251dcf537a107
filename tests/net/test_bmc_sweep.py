"""Fifty BMCs on loopback addresses are swept: tests/net/bmcrack.py."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.logger import capturedLogs
from twisted.web.server import Site as WebSite

from cod import init
from cod.cli.server import bmc as command
from cod.flows.nodes import inventory
from cod.model import Account, FlowContext, KnownMachine, Site, Who
from cod.pool import Pool
from cod.power.driver import SignIn
from cod.power.sweep import probe, ssdp
from cod.power.sweep.probe import ENOUGH, Sweep
from cod.store.nodes import nodes
from tests.net.apiserver import NOW, Served, run, serving
from tests.net.bmcrack import CARDS, COUNT, LIES, REFUSES, SLOW, Rack, RackBmc, mac, uuid
from tests.net.redfishbmc import SYSTEM, Bmc
from tests.ports import free_port
from tests.system.bmcs import certificate
from tests.waiting import until

pytestmark = pytest.mark.slow

ADMIN = {"rack1": SignIn("admin", "secret")}
InReactor = Callable[..., Any]


def host(number: int) -> str:
    return f"127.77.0.{number}"


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PONG", 0.05)


@pytest.fixture
def certified(tmp_path: Path) -> DefaultOpenSSLContextFactory:
    certificate(tmp_path)
    files = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    return DefaultOpenSSLContextFactory(*files, sslmethod=SSL.TLS_SERVER_METHOD)


@pytest.fixture
def listens(
    reactor: Any, in_reactor: InReactor, certified: DefaultOpenSSLContextFactory
) -> Iterator[Callable[..., int]]:
    """Have resources answer at loopback addresses, all at one port, which is returned."""
    ports: list[Any] = []

    def listen(resources: dict[str, Any]) -> int:
        number = free_port()
        for address, resource in resources.items():
            site = WebSite(resource)
            ports.append(in_reactor(reactor.listenSSL, number, site, certified, 50, address))
        return number

    yield listen
    for each in ports:
        in_reactor(each.stopListening)


@pytest.fixture
def accounts(tmp_path: Path) -> tuple[Account, ...]:
    file = tmp_path / "rack1.password"
    file.write_text("secret\n")
    file.chmod(0o600)
    return (Account("rack1", "admin", str(file)),)


@pytest.fixture
def served(
    pool: Pool,
    reactor: Any,
    in_reactor: InReactor,
    site: Site,
    accounts: tuple[Account, ...],
) -> Iterator[Served]:
    with serving(pool, reactor, in_reactor, replace(site, accounts=accounts)) as served:
        yield served


def enter_rack(served: Served) -> None:
    """Enter the fifty machines, each known by a serial number, a UUID or a MAC."""
    known = [
        (
            {"serial": f"SER{number:03}"},
            {"uuid": uuid(number)},
            {"macs": (mac(number),)},
        )[number % 3 if number > 2 else number - 1 and 2]
        for number in range(1, COUNT + 1)
    ]
    machines = [KnownMachine(f"m{number:02}", **each) for number, each in enumerate(known, 1)]
    context = FlowContext(Site("test", "cod.test", ()), NOW, Who("ann", admin=True))
    served.tx(inventory.enter, context, machines=machines)


@pytest.mark.usefixtures("quick_pings")
def test_fifty_bmcs_are_swept_taken_and_their_machines_powered_on(
    served: Served, listens: Callable[..., int], accounts: tuple[Account, ...], tmp_path: Path
) -> None:
    enter_rack(served)
    site_file = tmp_path / "site.toml"
    init.write_site_file(site_file, tmp_path, {})
    account = (
        '\n[[account]]\nname = "rack1"\nuser = "admin"\n'
        f'password_file = "{accounts[0].password_file}"\n'
    )
    site_file.write_text(site_file.read_text() + account)
    rack = Rack()
    bmcs = {host(number): RackBmc(rack, number) for number in range(1, COUNT + 1)}
    port = listens(bmcs)
    asked = ("--site", site_file, "bmc", "sweep", "127.77.0.0/26", "--port", port, "--pin")
    tried = run(served, *asked, "--json", code=1)
    assert "secret" not in tried.output
    value = json.loads(tried.stdout)
    by_host = {row["host"]: row for row in value["systems"]}
    doubts = {1, 2, *LIES}
    for number in range(1, COUNT + 1):
        if number in REFUSES:
            assert host(number) not in by_host
            assert bmcs[host(number)].passwords == 1, "one sign-in is tried, and no more"
            continue
        row = by_host[host(number)]
        outcome, name = ("doubt", "") if number in doubts else ("new", f"m{number:02}")
        assert (row["outcome"], row["node"]) == (outcome, name), row
        assert row["model"] == "Contoso 3500[31m", "without what a terminal would act on"
    assert by_host[host(49)]["about"].startswith("fits several nodes: m01 by serial number SER001")
    assert "and so does the system at https://127.77.0.49:" in by_host[host(1)]["about"]
    assert "and so does the system at https://127.77.0.50:" in by_host[host(2)]["about"]
    assert [one["host"] for one in value["troubles"]] == [host(number) for number in REFUSES]
    assert value["silent"] == 62 - COUNT
    assert {served.tx(nodes.by_name, f"m{number:02}").power_driver for number in range(1, 51)} == {
        "none"
    }
    rack.quick = COUNT - len(SLOW)
    rack.held.clear()
    done = run(served, *asked, "--take", "--power-on", 10, "--every", 0, code=1)
    assert "43 taken, powered on" in done.stdout
    for number in range(1, COUNT + 1):
        node = served.tx(nodes.by_name, f"m{number:02}")
        if number in doubts or number in REFUSES:
            assert (node.power_driver, node.power_wanted) == ("none", None)
        else:
            assert node.power_wanted == "on"
            assert node.power_account == "rack1"
            assert node.power_address.startswith(f"https://{host(number)}:{port}?fingerprint=")


def swept(reactor: Any, in_reactor: InReactor, address: str, **options: Any) -> Any:
    """What a sweep says of one address."""
    accounts, trust = options.pop("accounts", ADMIN), options.pop("trust", {})
    return in_reactor(Sweep(reactor, accounts, trust, **options).look, address)


def test_a_certificate_that_nobody_trusts_is_shown_no_password(
    reactor: Any, in_reactor: InReactor, listens: Callable[..., int]
) -> None:
    bmc = RackBmc(Rack(), 1)
    port = listens({host(1): bmc})
    told = swept(reactor, in_reactor, host(1), https=port)
    assert told.trouble == "the BMC's certificate is not one that is trusted here"
    assert bmc.passwords == 0
    pinned = {host(1): "ab" * 32}
    told = swept(reactor, in_reactor, host(1), https=port, pin=True, pinned=pinned)
    assert told.trouble == "the BMC's certificate is not one that is trusted here"
    insecure = {"trust": {"insecure": "yes"}, "pinned": pinned}
    told = swept(reactor, in_reactor, host(1), https=port, **insecure)
    assert told.trouble == "the BMC's certificate is not one that is trusted here"
    assert bmc.passwords == 0, "the certificate is another than the node's power address has"
    assert swept(reactor, in_reactor, host(1), https=port, trust={"insecure": "yes"}).systems


@pytest.mark.usefixtures("quick_pings")
@pytest.mark.parametrize(
    "answer",
    [
        (302, {"Location": "https://127.77.0.9/redfish/v1/"}, b""),
        (200, {}, b"<html>printer</html>"),
        (200, {}, b"[]"),
        (200, {}, b'{"x": "' + b"x" * (2 << 20) + b'"}'),
        (200, {}, b"[" * 500_000),
    ],
)
def test_what_is_no_bmc_is_shown_no_password(
    reactor: Any, in_reactor: InReactor, listens: Callable[..., int], answer: Any
) -> None:
    class Other(Bmc):
        def render(self, request: Any) -> Any:
            assert request.getHeader("Authorization") is None
            code, headers, body = answer
            return self._send(request, code, body, headers)

    told = swept(reactor, in_reactor, host(1), https=listens({host(1): Other()}), pin=True, rmcp=9)
    assert told.systems == ()


@pytest.mark.parametrize(
    ("page", "content"),
    [
        ("/redfish/v1/Systems", {"Members": [{"@odata.id": "https://127.0.0.1/x"}]}),
        ("/redfish/v1/Systems", {"Members": [{"@odata.id": "//127.0.0.1/x"}] * 3}),
        (
            "/redfish/v1/Systems",
            {"Members": [{"@odata.id": SYSTEM}, {"@odata.id": f"{SYSTEM}?insecure=yes"}]},
        ),
        (SYSTEM, {"SerialNumber": {"a": 1}, "UUID": 7, "EthernetInterfaces": []}),
        (SYSTEM, {"EthernetInterfaces": {"@odata.id": "/redfish/v1/\r\nX: y"}}),
        (CARDS, {"Members": [None] * 3}),
    ],
)
def test_an_answer_that_is_none_is_told(
    reactor: Any, in_reactor: InReactor, listens: Callable[..., int], page: str, content: Any
) -> None:
    bmc = RackBmc(Rack(), 1)
    bmc.pages[page] = content
    told = swept(reactor, in_reactor, host(1), https=listens({host(1): bmc}), pin=True)
    assert told.systems == ()
    assert told.trouble


def test_what_a_bmc_says_of_a_fault_does_nothing_to_a_terminal(
    reactor: Any, in_reactor: InReactor, listens: Callable[..., int]
) -> None:
    bmc = RackBmc(Rack(), 1)
    bmc.first = [(500, {}, json.dumps({"error": {"message": "a\x1b[2J fault\u202e"}}).encode())]
    told = swept(reactor, in_reactor, host(1), https=listens({host(1): bmc}), pin=True)
    assert told.trouble == "the BMC says: a[2J fault (HTTP 500)"


def test_the_authorities_file_is_named_as_the_server_finds_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_accounts", lambda _ctx, _names: {})
    monkeypatch.setattr(command, "_swept", lambda _hosts, begin, *_: begun.append(begin) or [])
    run(served, "bmc", "sweep", "127.77.0.1/32", "--ca", "bmc-ca.pem")
    assert begun[0].keywords["options"] == {"ca": str(tmp_path / "bmc-ca.pem")}


def test_a_bmc_of_too_many_systems_and_cards_is_not_asked_for_all(
    reactor: Any, in_reactor: InReactor, listens: Callable[..., int]
) -> None:
    bmc = RackBmc(Rack(), 1)
    bmc.pages["/redfish/v1/Systems"] = {"Members": [{"@odata.id": SYSTEM}] * 1000}
    bmc.pages[CARDS] = {"Members": [{"@odata.id": f"{CARDS}/1"}] * 1000}
    told = swept(reactor, in_reactor, host(1), https=listens({host(1): bmc}), pin=True)
    assert len(told.systems) == 32
    assert bmc.passwords < 32 * 20
    assert told.systems[0].address.partition("?")[0].endswith(SYSTEM)


def test_an_account_that_all_refuse_is_given_up(
    reactor: Any, in_reactor: InReactor, listens: Callable[..., int]
) -> None:
    """A directory behind the BMCs may lock it."""
    bmcs = {host(number): RackBmc(Rack(), number) for number in range(1, 10)}
    port = listens(bmcs)
    wrong = {"rack1": SignIn("admin", "wrong"), "rack2": SignIn("admin", "secret")}
    one = Sweep(reactor, wrong, {}, pin=True, https=port)
    told = [in_reactor(one.look, each) for each in bmcs]
    assert all(each.systems[0].account == "rack2" for each in told)
    tries = [bmc.passwords for bmc in bmcs.values()]
    assert tries.count(5) == ENOUGH
    assert tries.count(4) == 9 - ENOUGH


@pytest.mark.usefixtures("quick_pings")
def test_where_nobody_answers_nothing_is_told(reactor: Any, in_reactor: InReactor) -> None:
    closed = {"https": free_port(), "rmcp": free_port(socket.SOCK_DGRAM)}
    with capturedLogs() as logs:
        told = swept(reactor, in_reactor, "127.77.0.60", **closed)
    assert (told.systems, told.trouble) == ((), "")
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []


def test_the_search_leaves_by_the_interface_of_the_network(
    reactor: Any, in_reactor: InReactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Multicast leaves by the default route otherwise, and a server has several networks."""
    assert ssdp._own_address(host(9)) == "127.0.0.1"
    sources: list[str] = []

    class Group(DatagramProtocol):
        def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
            sources.append(addr[0])

    monkeypatch.setattr(ssdp, "WAIT", -1)
    monkeypatch.setattr(ssdp, "_own_address", lambda toward: toward)
    group = in_reactor(reactor.listenUDP, 0, Group(), host(1))
    try:
        where = (host(1), group.getHost().port)
        in_reactor(lambda: Deferred.fromCoroutine(ssdp.search(reactor, host(9), where)))
        until(lambda: sources, "a question")
    finally:
        in_reactor(group.stopListening)
    assert sources == [host(9)]


def test_services_are_searched_by_ssdp(reactor: Any, in_reactor: InReactor) -> None:
    class Service(DatagramProtocol):
        answer = b""

        def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
            assert datagram.startswith(b"M-SEARCH * HTTP/1.1\r\n")
            assert b"\r\nST: urn:dmtf-org:service:redfish-rest:1\r\n" in datagram
            self.transport.write(self.answer, addr)  # type: ignore[call-arg]

    heard = ssdp._SsdpAnswers()
    searcher = in_reactor(reactor.listenUDP, 0, heard, "127.0.0.1")
    good = b"HTTP/1.1 200 OK\r\nST: urn:dmtf-org:service:redfish-rest:1.9\r\nAL: https://9/\r\n\r\n"
    answers = {host(1): good, host(2): good.replace(b"redfish", b"printer"), host(3): b"\xff"}
    services = []
    for address, answer in answers.items():
        service = Service()
        service.answer = answer
        services.append(in_reactor(reactor.listenUDP, 0, service, address))
    try:
        for each in services:
            there = each.getHost()
            in_reactor(searcher.write, ssdp.QUESTION.encode(), (there.host, there.port))
        until(lambda: heard.hosts, "an answer")
    finally:
        for each in (searcher, *services):
            with suppress(Exception):
                in_reactor(each.stopListening)
    assert heard.hosts == {host(1)}
