"""Which secondaries are told of which zones (`cod.net.dns.notifier`), with a moved clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from cod.flows.boot import zones
from cod.model import Dns, Site, SiteRef
from cod.net.dns.notifier import AT_ONCE, PERIOD, RETRIES, ZoneNotifier
from cod.policy import dns
from cod.wire.dns import decode

LIVE, DEAD = ("192.0.2.1", 53), ("192.0.2.2", 53)
COUNT = 4 * AT_ONCE  # zones


class Network(Clock):
    """A reactor whose datagrams go to `sent`; LIVE answers, DEAD does not."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, tuple[str, int]]] = []

    def listenUDP(self, port: int, protocol: Any, **_: object) -> Network:
        self.protocol = protocol
        protocol.transport = self
        return self

    def stopListening(self) -> None:
        """Nothing is open."""

    def write(self, data: bytes, address: tuple[str, int]) -> None:
        question = decode(data[:2] + b"\0" + data[3:]).question  # as if it were no NOTIFY
        self.sent.append((question.name, address))
        if address == LIVE:
            answer = data[:2] + bytes([data[2] | 0x80]) + data[3:]
            self.callLater(0, self.protocol.datagramReceived, answer, address)


class Zones:
    """The pool, whose site has so many zones, with those serials."""

    def __init__(self, site: Site) -> None:
        self.serials = {dns.vcluster_zone(f"v{number}", site): 1 for number in range(COUNT)}

    def run(self, flow: Callable[..., Any], *_: object) -> Deferred[None]:
        assert flow is zones.configured
        return succeed(None)

    def read(self, flow: Callable[..., Any], *_: object) -> Deferred[Any]:
        assert flow is zones.every
        return succeed(list(self.serials.items()))


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def pool(site: Site) -> Zones:
    return Zones(site)


@pytest.fixture
def started(site: Site, network: Network, pool: Zones) -> ZoneNotifier:
    secondaries = replace(site, dns=Dns(secondaries=(DEAD, LIVE)))
    made = ZoneNotifier(network, pool, SiteRef(secondaries))
    made.startService()
    return made


def test_a_secondary_that_is_away_does_not_keep_another_waiting(
    started: ZoneNotifier, network: Network
) -> None:
    network.pump([PERIOD / 4] * 4 * 6)
    told = {zone for zone, address in network.sent if address == LIVE}
    assert len(told) == COUNT, "all of them, within seconds"
    started.stopService()


def test_each_change_is_told_and_said_again_until_it_is_answered(
    started: ZoneNotifier, network: Network, pool: Zones, caplog: pytest.LogCaptureFixture
) -> None:
    zone = next(iter(pool.serials))
    pool.serials = {zone: 1}
    network.pump([1.0] * round(sum(RETRIES) * (COUNT / AT_ONCE + 1)))
    network.sent.clear()
    pool.serials[zone] = 2
    network.pump([1.0] * round(sum(RETRIES) + 2 * PERIOD))
    assert network.sent.count((zone.name, LIVE)) == 1
    assert network.sent.count((zone.name, DEAD)) == len(RETRIES)
    assert "192.0.2.2 does not answer" in caplog.text
    started.stopService()
    assert not network.getDelayedCalls()
