"""The clockworks that put energy down and delete what is old: when they run, what stops them, what
they bear."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError
from twisted.internet.task import Clock

from cod.flows.pruning import BATCH
from cod.model import Energy, Policy, Site, SiteRef
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.workers import energy, pruning
from tests.net.handpool import HandPool
from tests.store.manager_world import add_node, in_tx

pytestmark = pytest.mark.slow

DAY = 86400.0


class Hour:
    """A clock that the test moves, and a pool."""

    def __init__(self, engine: Engine) -> None:
        self.clock, self.pool = Clock(), HandPool(engine)
        self.clock.advance(20_000 * DAY)

    def accountant(self, site: Site) -> energy.Accountant:
        return energy.Accountant(self.clock, self.pool, SiteRef(site), self.clock.seconds)

    def pruner(self, keep: float, new_time: float = 0.0) -> pruning.Pruner:
        site = Site("test", "cod.test", (), Policy(new_time=new_time))
        return pruning.Pruner(self.clock, self.pool, SiteRef(site), keep, self.clock.seconds)

    def joules(self) -> float:
        return (
            in_tx(self.pool.engine, lambda tx: tx.scalar(select(func.sum(t.energy_use.c.joules))))
            or 0.0
        )

    def conflicts(self) -> int:
        return int(
            in_tx(
                self.pool.engine,
                lambda tx: tx.scalar(select(func.count()).select_from(t.conflicts)),
            )
        )


@pytest.fixture
def hour(engine: Engine) -> Hour:
    in_tx(engine, add_node, 1, "inactive")
    return Hour(engine)


def add_conflicts(hour: Hour, count: int) -> None:
    rows = [{"at": hour.clock.seconds(), "kind": "declined", "about": "a"}] * count
    in_tx(hour.pool.engine, lambda tx: tx.execute(insert(t.conflicts), rows))


def test_energy_is_put_down_once_a_minute_with_the_rules_of_the_moment(
    hour: Hour, site: Site
) -> None:
    accountant = hour.accountant(site)
    accountant.startService()
    hour.clock.pump([energy.PERIOD] * 10)
    assert hour.joules() == 600 * 80.0
    object.__setattr__(site, "energy", Energy(watts_idle=100.0))  # as SIGHUP does
    hour.clock.advance(energy.PERIOD)
    assert hour.joules() == 600 * 80.0 + 60 * 100.0
    assert hour.pool.reads == {"count"}, "counting holds up nobody who writes"
    accountant.stopService()
    hour.clock.advance(energy.PERIOD)
    assert hour.pool.flows.count("note") == 2 * 12, "energy, and who holds what"


def test_two_accountants_put_each_minute_down_once(hour: Hour, site: Site) -> None:
    one, other = hour.accountant(site), hour.accountant(site)
    one.startService()
    hour.clock.advance(energy.PERIOD / 4)
    other.startService()
    hour.clock.pump([energy.PERIOD / 4] * 7)
    assert hour.joules() == 80.0 * 2 * energy.PERIOD
    one.stopService()
    hour.clock.pump([energy.PERIOD / 4] * 8)
    assert hour.joules() == pytest.approx(80.0 * 3.25 * energy.PERIOD)
    other.stopService()


def test_a_minute_that_cannot_be_put_down_is_with_the_next(
    hour: Hour, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    accountant = hour.accountant(site)
    accountant.startService()

    def away(name: str) -> None:
        raise OperationalError("", None, sqlite3.OperationalError("database is locked"))

    hour.pool.before = away
    hour.clock.advance(energy.PERIOD)
    assert "energy is not put down" in caplog.text
    assert "Traceback" not in caplog.text
    hour.pool.before = lambda name: None
    hour.clock.advance(energy.PERIOD)
    assert hour.joules() == 80.0 * 120
    accountant.stopService()


def test_a_lost_race_is_no_trouble(
    hour: Hour, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def quicker(name: str) -> None:
        if name == "note":
            raise IntegrityError("", None, Exception("there already"))

    hour.pool.before = quicker
    hour.accountant(site).startService()
    assert not caplog.records
    assert in_tx(hour.pool.engine, watermarks.at, watermarks.ENERGY) is None


def test_a_clock_that_was_wrong_is_told(
    hour: Hour, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    hour.accountant(site).startService()
    hour.clock.advance(400 * DAY)
    assert "the clock was wrong" in caplog.text
    assert hour.joules() == 0.0
    hour.clock.advance(energy.PERIOD)
    assert hour.joules() == 80.0 * energy.PERIOD


# ---------------------------------------------------------------- pruning


def test_each_hour_what_is_old_goes_in_small_transactions(
    hour: Hour, caplog: pytest.LogCaptureFixture
) -> None:
    add_conflicts(hour, 2 * BATCH + 101)
    pruner = hour.pruner(DAY)
    with caplog.at_level(logging.INFO, "cod.pruning"):
        pruner.startService()
        # a pause after each transaction; each table has one
        look = [pruning.PERIOD, *[pruning.PAUSE] * 20]
        hour.clock.pump(look * 23)
        assert hour.conflicts() == 2 * BATCH + 101
        hour.clock.pump(look)
    assert hour.conflicts() == 1, "the newest row stays"
    assert f"deleted {2 * BATCH + 100} old rows of conflicts" in caplog.text
    pruner.stopService()
    hour.clock.pump([pruning.PERIOD] * 3)


def test_stopping_ends_between_two_transactions(hour: Hour) -> None:
    add_conflicts(hour, 5 * BATCH)
    pruner = hour.pruner(DAY)
    pruner.startService()
    hour.clock.advance(25 * pruning.PERIOD)
    hour.clock.pump([pruning.PAUSE] * 5)
    left = hour.conflicts()
    assert 1 < left < 5 * BATCH
    ended: list[Any] = []
    stopped = pruner.stopService()
    assert stopped is not None
    stopped.addCallback(ended.append)
    assert ended, "it waits for nothing"
    hour.clock.pump([pruning.PERIOD] * 3)
    assert hour.conflicts() == left


def test_a_site_may_keep_everything(hour: Hour) -> None:
    add_conflicts(hour, 10)
    pruner = hour.pruner(0.0)
    pruner.startService()
    hour.clock.pump([DAY] * 5)
    assert hour.pool.flows == []
    pruner.stopService()


def test_machines_that_never_reported_are_forgotten(
    hour: Hour, caplog: pytest.LogCaptureFixture
) -> None:
    def seen(tx: Tx, number: int) -> None:
        nodes.add(
            tx,
            name=f"node-5254000001{number:02x}",
            boot_mac=f"52:54:00:00:01:{number:02x}",
            now=hour.clock.seconds(),
            cause="seen",
            actor="dhcp",
        )

    for number in range(20):
        in_tx(hour.pool.engine, seen, number)
    pruner = hour.pruner(0.0, new_time=DAY)
    pruner.startService()
    with caplog.at_level(logging.INFO, "cod.pruning"):
        hour.clock.pump([pruning.PERIOD, pruning.PAUSE] * 23)
        assert len(in_tx(hour.pool.engine, nodes.every)) == 21
        hour.clock.pump([pruning.PERIOD, pruning.PAUSE] * 2)
    assert [node.name for node in in_tx(hour.pool.engine, nodes.every)] == ["node1"]
    assert "forgot 20 machines" in caplog.text
    pruner.stopService()


def test_trouble_is_logged_and_the_next_hour_tries_again(
    hour: Hour, caplog: pytest.LogCaptureFixture
) -> None:
    def away(name: str) -> None:
        raise OperationalError("", None, sqlite3.OperationalError("database is locked"))

    add_conflicts(hour, 10)
    hour.pool.before = away
    pruner = hour.pruner(DAY)
    pruner.startService()
    hour.clock.advance(25 * pruning.PERIOD)
    assert "old rows are not deleted" in caplog.text
    hour.pool.before = lambda name: None
    hour.clock.pump([pruning.PERIOD, *[pruning.PAUSE] * 20])
    assert hour.conflicts() == 1
    pruner.stopService()
