"""Services in the networks of isolated vclusters begin and end with the networks; interfaces that
are missing are waited for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.testing import MemoryReactorClock

from cod.core.networks import address_blocks
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Isolation, Site, SiteRef, Subnet
from cod.net.isolated import services as module
from cod.net.isolated.services import EVERY, NetworkServices
from cod.store.scheduler import vclusters
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, furnish

pytestmark = pytest.mark.slow

RULES = Isolation((2001, 2009), "10.80.0.0/16", default_size=28, interface="eth1")


class Recorder:
    """A service that notes what becomes of it."""

    def __init__(self, log: list[str], name: str, error: OSError | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def startService(self) -> None:
        """Begin."""
        if self.error is not None:
            raise self.error
        self.log.append(f"+{self.name}")

    def stopService(self) -> None:
        """End."""
        self.log.append(f"-{self.name}")


class Now:
    """A pool and a thread pool that do everything at once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def run_at(self, _priority: int, flow: Callable[..., Any], *args: Any) -> Any:
        """Run the flow."""
        with self.engine.begin() as tx:
            return flow(tx, *args)

    def is_race(self, _: Exception) -> bool:
        """Never."""
        return False

    def is_away(self, _: Exception) -> bool:
        """Never."""
        return False


@pytest.fixture
def isolating(site: Site, engine: Engine) -> Site:
    """A site with VLANs and a template."""
    with engine.begin() as tx:
        furnish(tx, 0)
    return replace(site, isolation=RULES)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run at once what runs in a thread elsewhere."""

    def call(self: Any, function: Callable[..., None], *args: Any) -> Any:
        from twisted.internet.defer import execute

        return execute(function, *args)

    monkeypatch.setattr(NetworkServices, "_in_thread", call)


def create(engine: Engine, site: Site, name: str) -> None:
    with engine.begin() as tx:
        owner_flows.create(
            tx,
            flow_context(site, 1.0),
            AskedVcluster(name=name, size=1, template="debian", group="site", isolated=True),
        )
        made = vclusters.by_name(tx, name)
        assert made is not None
        address_blocks.extend(tx, made, made.size, site, now=1.0)


def end(engine: Engine, site: Site, name: str) -> None:
    with engine.begin() as tx:
        owner_flows.delete(tx, flow_context(site, 2.0, OWNER), name=name)
        assert vclusters.by_name(tx, name) is None


@pytest.mark.usefixtures("at_once")
def test_services_come_and_go_with_the_networks(engine: Engine, isolating: Site) -> None:
    log: list[str] = []
    reactor = MemoryReactorClock()

    def leave(there: Sequence[Subnet]) -> None:
        log.append("leave " + ",".join(each.name for each in there))

    made = NetworkServices(
        reactor,
        Now(engine),
        SiteRef(isolating),
        lambda subnet: [
            Recorder(log, f"dhcp {subnet.interface}"),
            Recorder(log, f"tftp {subnet.server}"),
        ],
        lambda subnet: log.append(f"join {subnet.interface}"),
        leave,
    )
    create(engine, isolating, "one")
    made.startService()
    assert log == [
        "leave vlan-2001",
        "join eth1.2001",
        "+dhcp eth1.2001",
        "+tftp 10.80.0.1",
    ], "what a crash left goes"
    log.clear()
    create(engine, isolating, "two")
    reactor.advance(EVERY)
    assert log == ["join eth1.2002", "+dhcp eth1.2002", "+tftp 10.80.0.17"]
    log.clear()
    end(engine, isolating, "one")
    reactor.advance(EVERY)
    assert log == ["-tftp 10.80.0.1", "-dhcp eth1.2001", "leave vlan-2002"]
    log.clear()
    reactor.advance(EVERY)
    assert log == []
    made.stopService()
    assert log == ["-tftp 10.80.0.17", "-dhcp eth1.2002"]


@pytest.mark.usefixtures("at_once")
def test_what_cannot_start_is_tried_again_and_told_once(
    engine: Engine, isolating: Site, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    reactor = MemoryReactorClock()
    missing: list[OSError | None] = [OSError(19, "No such device")]
    made = NetworkServices(
        reactor,
        Now(engine),
        SiteRef(isolating),
        lambda _: [Recorder(log, "dhcp"), Recorder(log, "tftp", missing[0])],
    )
    create(engine, isolating, "one")
    made.startService()
    reactor.advance(EVERY)
    assert log == ["+dhcp", "-dhcp"] * 2
    assert caplog.text.count("this host has no such interface") == 1
    missing[0] = None
    reactor.advance(EVERY)
    assert log[4:] == ["+dhcp", "+tftp"]
    made.stopService()
    assert module.EVERY <= 1.0


TAGGED = """
import subprocess
from pathlib import Path
from cod.model import Isolation, Subnet
from cod.net.isolated import tagged
def ip(*words): return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
ip("link", "add", "eth1.2001", "type", "veth", "peer", "name", "other")
subnet = Subnet("vlan-2001", "10.80.0.0/28", "10.80.0.1", ("10.80.0.2",) * 2, ("10.80.0.2",) * 2, interface="eth1.2001")
Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
tagged.join(subnet)
tagged.join(subnet)
shown = ip("-br", "address", "show", "dev", "eth1.2001")
assert shown.count("10.80.0.1/28") == 1, shown
assert Path("/proc/sys/net/ipv4/conf/eth1.2001/forwarding").read_text() == "0\\n"
rules = Isolation((2001, 2009), "10.80.0.0/16", interface="eth1")
tagged.leave(rules, [subnet])
assert "10.80.0.1/28" in ip("-br", "address", "show", "dev", "eth1.2001")
tagged.leave(rules, [])
assert "10.80.0.1/28" not in ip("-br", "address", "show", "dev", "eth1.2001"), "the site's interface stays, empty"
ip("link", "set", "dev", "eth1.2001", "alias", tagged.ALIAS)
tagged.leave(rules, [])
assert "eth1.2001" not in ip("-br", "link"), "COD's own goes"
try:
    tagged.join(subnet)
except OSError as error:
    print(error)
"""


@pytest.mark.system
def test_an_interface_that_is_there_is_taken_and_one_of_cods_own_goes() -> None:
    """In a namespace of its own: an interface of the site gets the address and forwards nothing."""
    done = subprocess.run(
        [
            "unshare",
            "-n",
            "--mount",
            "sh",
            "-c",
            'mount -t sysfs s /sys && exec "$@"',
            "sh",
            sys.executable,
            "-c",
            TAGGED,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ip link add link eth1 name eth1.2001 type vlan id 2001: ")
