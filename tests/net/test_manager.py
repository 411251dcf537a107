"""The manager's clockwork on a real database, with a clock that the test moves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.exc import OperationalError
from twisted.internet.task import Clock

from cod.core.nodes import transitions
from cod.flows.scheduler import apply_plan, plan
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Effect, Refused, Site, SiteRef
from cod.states import NodeEvent
from cod.store import claims
from cod.store import tables as t
from cod.store.nodes import nodes
from cod.store.scheduler import requests, vclusters
from cod.workers.manager import CLAIM, LEAST, Manager
from tests.contexts import flow_context
from tests.net.handpool import HandPool
from tests.store.manager_world import arrive, check_world, furnish, in_tx, states

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like


class House:
    """A manager with a pool and a clock in its hands; `ahead`: how wrong its time of day is."""

    def __init__(
        self,
        engine: Engine,
        site: Site,
        server: str = "a",
        clock: Clock | None = None,
        ahead: float = 0.0,
        memory: Path | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.pool = HandPool(engine)
        self.effects: list[Effect] = []
        self.manager = Manager(
            self.clock,
            self.pool,
            SiteRef(site),
            server,
            lambda: self.clock.seconds() + ahead,
            self._carry_out,
            memory,
        )

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        self.effects += effects

    def passes(self) -> int:
        """How many passes have run."""
        return self.pool.flows.count("look")

    def seconds(self, count: int) -> None:
        """Let time go by."""
        for _ in range(count):
            self.clock.advance(1.0)


@pytest.fixture
def house(engine: Engine, site: Site) -> House:
    """A house on a site with three free nodes."""
    in_tx(engine, furnish, 3)
    return House(engine, site)


def create(engine: Engine, site: Site, name: str = "one", size: int = 2, now: float = 1.0) -> None:
    """A vcluster that waits for its nodes."""
    in_tx(
        engine,
        owner_flows.create,
        flow_context(site, now),
        AskedVcluster(name=name, size=size, template="debian", group="site"),
    )


def test_a_request_is_granted_within_a_second(house: House, engine: Engine, site: Site) -> None:
    house.manager.startService()
    create(engine, site)
    assert set(in_tx(engine, states).values()) == {"inactive"}
    house.seconds(1)
    assert in_tx(engine, states) == {"node0": "prime", "node1": "prime", "node2": "inactive"}
    assert Effect("wake", "orders") in house.effects


def test_a_wake_up_makes_it_look_at_once_but_not_twice_within_a_moment(
    house: House, engine: Engine, site: Site
) -> None:
    house.manager.startService()
    create(engine, site)
    house.manager.wake()
    assert in_tx(engine, states)["node0"] == "inactive"
    house.clock.advance(LEAST)
    assert in_tx(engine, states)["node0"] == "prime"
    house.clock.advance(LEAST)
    create(engine, site, "late", size=1)
    house.manager.wake()
    assert in_tx(engine, states)["node2"] == "prime"
    house.seconds(1)
    assert len(house.clock.getDelayedCalls()) <= 2


def test_wake_ups_gather_after_a_look_for_three_times_as_long_as_it_took(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*asked: Any, **more: Any) -> Any:
        house.clock.rightNow += 0.1
        return real(*asked, **more)

    real = plan.look
    monkeypatch.setattr(plan, "look", look)
    house.manager.startService()
    for _ in range(5):
        house.manager.wake()
    house.clock.advance(0.29)
    assert house.passes() == 1
    house.clock.advance(0.02)
    assert house.passes() == 2
    house.clock.advance(0.31)
    assert house.passes() == 2, "nobody woke it"
    house.manager.wake()
    assert house.passes() == 3
    house.manager.wake()
    ended = house.manager.stopService()
    assert ended is not None
    assert ended.called, "it ends at once"
    assert house.passes() == 3
    assert house.clock.getDelayedCalls() == []


def test_an_unchanged_world_is_planned_every_ten_seconds_only(house: House) -> None:
    house.manager.startService()
    house.seconds(5)
    assert house.passes() == 1
    house.seconds(20)
    assert house.passes() == 3
    assert house.pool.flows.count("run") == 26


def test_what_has_been_planned_in_vain_is_not_planned_again(
    house: House, engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[float] = []

    def decide(*asked: Any) -> Any:
        planned.append(asked[2])
        return real(*asked)

    real = plan.decide
    monkeypatch.setattr(plan, "decide", decide)
    house.manager.startService()
    house.seconds(25)
    assert (house.passes(), len(planned)) == (3, 1)
    create(engine, site, size=4)  # the site has three: it is rejected
    house.seconds(25)
    assert (house.passes(), len(planned)) == (
        7,
        3,
    ), "one that rejects, and one that finds that nothing is left"


def test_planning_does_not_hold_up_writers(house: House, engine: Engine) -> None:
    """On SQLite a write transaction of 10,000 nodes' snapshot would make DHCP wait."""
    house.manager.startService()
    with engine.connect() as other:
        house.seconds(1)
        assert house.pool.reads == {"find", "observe", "pulse", "look"}
        house.pool.before = lambda name: (
            other.rollback() if name not in house.pool.reads else other.exec_driver_sql("SELECT 1")
        )  # holds the write lock whenever something is only read
        house.seconds(20)
    assert house.passes() == 3


def test_deadlines_run_every_second(house: House, engine: Engine, site: Site) -> None:
    with engine.begin() as tx:
        node = nodes.by_name(tx, "node0")
        assert node is not None
        transitions.move(tx, node, NodeEvent.ASKED, now=0.0, cause="reset", actor="dhcp")
    house.manager.startService()
    house.seconds(599)
    assert nodes_by_name(engine, "node0").attempts == 0
    house.seconds(2)
    assert nodes_by_name(engine, "node0").attempts == 1


def nodes_by_name(engine: Engine, name: str) -> Any:
    """A node as it is now."""
    return in_tx(engine, nodes.by_name, name)


def test_what_was_read_before_a_hold_is_not_believed_after_it(
    house: House, engine: Engine, site: Site
) -> None:
    """A database that lost its last commits gives a request's id to another request."""
    house.manager.startService()
    create(engine, site)
    create(engine, site, "two")
    house.seconds(2)
    assert list(in_tx(engine, states).values()).count("inactive") == 1, "too few for the second"
    with engine.begin() as tx:
        tx.execute(update(t.request_tuples).values(count=1))
        claims.interrupt(tx, claims.MANAGER)  # a hold does
    house.seconds(int(CLAIM))
    assert "inactive" not in in_tx(engine, states).values()


def test_a_plan_of_before_a_hold_is_dropped_after_it(
    house: House, engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold has begun and ended while the claim was to be renewed."""
    monkeypatch.setattr(apply_plan, "GRANTED", 1)
    create(engine, site, "p", size=1)
    create(engine, site, "q", size=1)

    def interrupt(name: str) -> None:
        if name == "grant":
            house.clock.rightNow += CLAIM / 2
        if name == "hold" and "grant" in house.pool.flows:
            house.pool.before = lambda name: None
            with engine.begin() as tx:
                claims.interrupt(tx, claims.MANAGER)

    house.pool.before = interrupt
    house.manager.startService()
    assert (house.pool.flows.count("grant"), house.passes()) == (1, 1)
    house.seconds(1)
    assert (house.pool.flows.count("grant"), house.passes()) == (2, 2)


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])
def test_one_manager_at_a_time(house: House, engine: Engine, site: Site, ahead: float) -> None:
    """The second does nothing while the first lives, and goes on when it has died, whatever the
    time of day is there."""
    other = House(engine, site, "b", house.clock, ahead=ahead)
    house.manager.startService()
    other.manager.startService()
    create(engine, site)
    house.seconds(1)
    assert (house.pool.flows.count("grant_all"), other.passes()) == (1, 0)
    house.seconds(2 * int(CLAIM))
    assert other.passes() == 0
    house.manager.running = 0  # its process is gone: it renews nothing and gives nothing up
    house.pool.before = lambda name: pytest.fail(f"a dead manager ran {name}")
    for call in house.clock.getDelayedCalls():
        if getattr(call.func, "__self__", None) is house.manager:
            call.cancel()
    create(engine, site, "two", size=1)
    house.seconds(int(CLAIM / 2) - 1)  # it may have died just before it renewed
    assert other.passes() == 0
    house.seconds(int(CLAIM / 2) + 3)
    assert other.pool.flows.count("grant") == 1
    in_tx(engine, check_world)


def test_a_manager_that_stops_lets_the_next_one_in_at_once(
    house: House, engine: Engine, site: Site
) -> None:
    house.manager.startService()
    other = House(engine, site, "b", house.clock)
    other.manager.startService()
    stopped = house.manager.stopService()
    assert stopped is not None
    assert stopped.called
    other.seconds(1)
    assert other.passes() == 1


def test_a_claim_lost_in_the_middle_of_a_pass_ends_it(
    house: House, engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_plan, "GRANTED", 1)
    create(engine, site, "p", size=1)
    create(engine, site, "q", size=1)

    def steal(name: str) -> None:
        if name == "grant" and "grant" in house.pool.flows:
            with engine.begin() as tx:
                claim = claims.hold(tx, "manager", "b", 0.0, CLAIM, over=claims.find(tx, "manager"))
                assert claim is not None

    house.pool.before = steal
    house.manager.startService()
    assert house.pool.flows.count("grant") == 1
    house.seconds(5)
    assert house.pool.flows.count("grant") == 1


def test_a_stale_act_is_planned_anew(house: House, engine: Engine, site: Site) -> None:
    create(engine, site, size=3)

    def reset_first(name: str) -> None:
        if name == "grant_all":
            house.pool.before = lambda name: None
            with engine.begin() as tx:
                node = nodes.by_name(tx, "node0")
                assert node is not None
                transitions.move(tx, node, NodeEvent.ASKED, now=0.0, cause="reset", actor="dhcp")

    house.pool.before = reset_first
    house.manager.startService()
    assert in_tx(engine, states) == {
        "node0": "trampoline",
        "node1": "inactive",
        "node2": "inactive",
    }
    in_tx(engine, arrive, 1.0)
    house.seconds(1)
    assert set(in_tx(engine, states).values()) == {"prime"}


def test_a_refused_grant_tells_its_request(house: House, engine: Engine, site: Site) -> None:
    create(engine, site)

    def refuse(name: str) -> None:
        if name in ("grant", "grant_all"):
            raise Refused("conflict", "the block is full")

    house.pool.before = refuse
    house.manager.startService()
    assert in_tx(engine, requests.every)[0].reason == "the block is full"
    house.pool.before = lambda name: None
    house.seconds(31)
    assert in_tx(engine, requests.every)[0].state == "granted"


def test_an_act_that_fails_keeps_no_other_waiting(
    house: House, engine: Engine, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    create(engine, site)
    create(engine, site, "two", size=1)
    broken = ["grant_all", "grant"]

    def fail_once(name: str) -> None:
        if name in broken:
            broken.remove(name)
            raise ZeroDivisionError

    house.pool.before = fail_once
    house.manager.startService()
    assert sorted(request.state for request in in_tx(engine, requests.every)) == [
        "granted",
        "pending",
    ]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "grant 2 requests failed",
        "grant request 1 failed",
    ]
    house.seconds(31)
    assert {request.state for request in in_tx(engine, requests.every)} == {"granted"}


def test_a_grant_that_is_refused_keeps_its_nodes_from_nobody(
    house: House, engine: Engine, site: Site
) -> None:
    create(engine, site)
    create(engine, site, "two")
    turn: list[int] = []

    def refuse_every_other(name: str) -> None:
        if name == "grant_all":
            raise Refused("conflict", "the block is full")
        if name == "grant":
            turn.append(1)
            if len(turn) % 2:
                raise Refused("conflict", "the block is full")

    house.pool.before = refuse_every_other
    house.manager.startService()
    house.seconds(2)
    one, two = in_tx(engine, requests.every)
    assert (one.state, one.reason, two.state) == ("pending", "the block is full", "granted")
    house.seconds(60)
    assert len(turn) == 2, "there is nothing left for it"


def test_a_failing_database_and_a_bug_are_logged_and_tried_again(
    house: House, engine: Engine, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    create(engine, site)
    troubles: list[Exception] = [
        OperationalError("", None, sqlite3.OperationalError("database is locked")),
        ZeroDivisionError(),
    ]

    def fail_twice(name: str) -> None:
        if name == "look" and troubles:
            raise troubles.pop(0)

    house.pool.before = fail_twice
    house.manager.startService()
    house.seconds(30)
    assert in_tx(engine, requests.every)[0].state == "granted"
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [bool(record.exc_info) for record in errors] == [False, True]


def test_the_whole_life_of_a_vcluster(house: House, engine: Engine, site: Site) -> None:
    """Created, granted, expired, drained, taken back, ended: by the clock alone."""
    house.manager.startService()
    with engine.begin() as tx:
        owner_flows.create(
            tx,
            flow_context(site, 0.0),
            AskedVcluster(name="one", size=2, template="debian", group="site", lease=60.0),
        )
    house.seconds(2)
    in_tx(engine, arrive, 3.0)
    house.seconds(60)
    assert not nodes_by_name(engine, "node0").released
    house.seconds(300)
    assert [nodes_by_name(engine, name).released > 0 for name in ("node0", "node1", "node2")] == [
        True,
        True,
        False,
    ]
    in_tx(engine, arrive, 363.0)
    house.seconds(2)
    assert set(in_tx(engine, states).values()) == {"inactive"}
    with engine.begin() as tx:
        owner_flows.create(
            tx,
            flow_context(site, 365.0),
            AskedVcluster(name="one", size=3, template="debian", group="site"),
        )
    house.seconds(2)
    assert set(in_tx(engine, states).values()) == {"prime"}
    in_tx(engine, check_world)


def test_what_time_alone_brings_is_done_at_its_time(
    house: House, engine: Engine, site: Site
) -> None:
    """Not when the next pass would come round: an end of a lease, and the end of the grace after
    it."""
    house.manager.startService()
    with engine.begin() as tx:
        owner_flows.create(
            tx,
            flow_context(site, 0.0),
            AskedVcluster(name="one", size=1, template="debian", group="site", lease=95.5),
        )
    house.seconds(90)
    assert house.passes() <= 12
    house.seconds(7)
    drains = in_tx(engine, vclusters.by_name, "one")
    assert drains.expires_at == 96.5
    assert 97.0 <= drains.drain_until - site.policy.drain_grace < 98.5
    house.seconds(301)
    assert nodes_by_name(engine, "node0").released


def test_a_clock_that_is_set_ends_no_lease_for_a_while(
    house: House, engine: Engine, site: Site
) -> None:
    ahead = 0.0
    house.manager = Manager(
        house.clock,
        house.pool,
        SiteRef(site),
        "a",
        lambda: house.clock.seconds() + ahead,
        lambda effects: None,
    )
    create(engine, site)
    house.manager.startService()
    house.seconds(70)
    in_tx(engine, arrive, 70.0)
    assert nodes_by_name(engine, "node0").state == "active"
    ahead = 1e9  # somebody sets it, and sets it right again
    house.seconds(59)
    assert nodes_by_name(engine, "node0").state == "active"
    ahead = 0.0
    house.seconds(70)
    assert nodes_by_name(engine, "node0").state == "active"
    ahead = 1e9  # this time it stays so: the lease runs out, and the grace after it
    house.seconds(75)
    assert nodes_by_name(engine, "node0").state == "active"
    house.seconds(300)
    assert nodes_by_name(engine, "node0").released


def test_passes_go_on_when_the_clock_is_set_back(house: House, engine: Engine, site: Site) -> None:
    """The next pass was a time of day, and the former one was an hour ahead."""
    ahead = 3600.0
    house.manager = Manager(
        house.clock,
        house.pool,
        SiteRef(site),
        "a",
        lambda: house.clock.seconds() + ahead,
        lambda effects: None,
    )
    house.manager.startService()
    house.seconds(20)
    before, ahead = house.passes(), 0.0
    house.seconds(25)
    assert house.passes() >= before + 2
