"""Secondaries that do not follow: silent ones, ones that refuse, and a Knot that is not told of a
change."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.defer import ensureDeferred

from cod.flows.nodes import faults
from cod.flows.scheduler import vcluster_names
from cod.model import Dns, Site, SiteRef
from cod.net.dns import secondary_watch
from cod.net.dns.notifier import ZoneNotifier
from cod.net.dns.secondary_watch import LATE, PERIOD, SecondaryWatch
from cod.pool import Pool, in_transaction
from cod.store.notices import notices
from cod.wire import dns as wire
from tests.contexts import flow_context
from tests.net.dns_stands import dns_servers, secondary_running
from tests.net.test_zone_transfer import CONFIGURATION, KNOTD, furnished
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


@pytest.fixture
def secondary(site: Site) -> Site:
    """The site, which names 127.0.0.1 as a secondary."""
    return replace(
        site,
        dns=Dns(secondaries=(("127.0.0.1", free_port(socket.SOCK_DGRAM, socket.SOCK_STREAM)),)),
    )


class Watched:
    """The watch of one server, with a clock that the test moves."""

    def __init__(
        self, engine: Engine, pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
    ) -> None:
        self._engine, self._in_reactor, self.now = engine, in_reactor, NOW
        self._secondary = site.dns.secondaries[0]
        self.watch = SecondaryWatch(reactor, pool, SiteRef(site), "cod1", lambda: self.now)

    def round(self, *, answers: bool = True, later: float = PERIOD) -> None:
        """Judge, ask, and wait for all answers. `later`: seconds since the last round."""
        self.now += later
        self._in_reactor(lambda: ensureDeferred(self.watch.look()))
        if answers:
            asked = len(self.watch._asked[self._secondary])
            until(lambda: len(self.watch._answers[self._secondary]) == asked, "all are answered")

    def told(self) -> list[str]:
        kinds = ("dns-secondary", "dns-recovered")
        return [each.kind for each in in_transaction(self._engine, notices.of_site, kinds, 0.0)]

    def lasting(self) -> list[tuple[str, str, str]]:
        found = in_transaction(self._engine, faults.every, now=self.now)
        return [(each.kind, each.what, each.about) for each in found if each.ended is None]


@contextmanager
def watching(
    engine: Engine, pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Watched]:
    there = Watched(engine, pool, reactor, in_reactor, site)
    in_reactor(there.watch._queries.start)
    yield there
    in_reactor(there.watch._queries.stop)


@pytest.fixture
def watched(
    engine: Engine, pool: Pool, reactor: Any, in_reactor: Callable[..., Any], secondary: Site
) -> Iterator[Watched]:
    in_transaction(engine, furnished, secondary)
    with watching(engine, pool, reactor, in_reactor, secondary) as there:
        yield there


def test_one_that_is_silent_for_long_is_a_fault_until_it_is_named_no_more(
    watched: Watched, engine: Engine, pool: Pool, reactor: Any, in_reactor: Any, secondary: Site
) -> None:
    for _ in range(int(LATE / PERIOD) + 1):
        watched.round(answers=False)
        assert watched.told() == []
    watched.round(answers=False)
    watched.round(answers=False)
    assert watched.told() == ["dns-secondary"], "once"
    [(kind, name, about)] = watched.lasting()
    assert (kind, name) == ("dns-secondary", "name server 127.0.0.1@cod1")
    assert "127.0.0.1" in about
    bare = Watched(engine, pool, reactor, in_reactor, secondary)
    bare.watch._site = SiteRef(replace(secondary, dns=Dns()))
    in_reactor(lambda: ensureDeferred(bare.watch.look()))
    assert watched.told()[-1] == "dns-recovered", "the site file names it no more"
    assert watched.lasting() == []


def test_one_that_refuses_every_zone_is_a_fault(
    watched: Watched, secondary: Site, reactor: Any, in_reactor: Any, pool: Pool
) -> None:
    other = replace(secondary, domain="other.test", subnets=())
    port = secondary.dns.secondaries[0][1]
    with dns_servers(reactor, in_reactor, pool, other) as start:
        server = start(port=port)
        assert server.port == port
        for _ in range(int(LATE / PERIOD) + 2):
            watched.round()
    assert watched.told() == ["dns-secondary"]


def test_knot_that_is_told_of_no_change_is_behind_until_it_is(
    watched: Watched,
    engine: Engine,
    pool: Pool,
    secondary: Site,
    reactor: Any,
    in_reactor: Any,
    tmp_path: Path,
) -> None:
    port = secondary.dns.secondaries[0][1]
    notifier = ZoneNotifier(reactor, pool, SiteRef(secondary), period=0.2)
    silent = ZoneNotifier(reactor, pool, SiteRef(replace(secondary, dns=Dns())))
    with dns_servers(reactor, in_reactor, pool, secondary) as start:
        server = start()
        text = CONFIGURATION.format(port=port, cod=server.port, folder=tmp_path)
        with secondary_running(KNOTD, text, tmp_path, silent, in_reactor):

            def has_pool() -> bool:
                zones = watched.watch._answers.get(secondary.dns.secondaries[0], {})
                if zones.get("pool.cod.test") is not None:
                    return True
                # nothing is late, however often it is asked
                watched.round(answers=False, later=0.0)
                return False

            # a round forgets what the one before it asked: give each the time for an answer
            until(has_pool, "the zone is copied", every=0.5)
            assert watched.told() == []

            def named(tx: Any) -> None:
                context = flow_context(secondary, NOW, "")
                vcluster_names.put(tx, context, vcluster="pool", name="api", target="n4")

            in_transaction(engine, named)
            watched.round()
            watched.now += LATE
            watched.round()
            watched.round()
            assert watched.told() == ["dns-secondary"]
            assert (
                "pool.cod.test"
                in in_transaction(engine, notices.of_site, ("dns-secondary",), 0.0)[0].about
            )
            behind = secondary_watch.ZONES.labels("127.0.0.1", "behind")._value.get()
            assert behind == 1.0
            in_reactor(notifier.startService)
            until(
                lambda: watched.round() or watched.told()[-1] == "dns-recovered",
                "it follows again",
            )
            in_reactor(notifier.stopService)
    assert watched.lasting() == []


def test_rubbish_is_no_serial() -> None:
    dice = random.Random(4)
    for size in range(120):
        assert wire.serial(dice.randbytes(size), "pool.cod.test") is None
    assert wire.serial(wire.serial_question("pool.cod.test", 7), "pool.cod.test") is None
