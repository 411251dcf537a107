"""Delivering notices with a moved clock: retries, crashes at any point, dead targets; and once with
real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, select
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from cod.core import notices as core_notices
from cod.flows.notices import notices as flows
from cod.flows.notices.notices import Delivery
from cod.model import Mail, NoticeRules, Site, SiteRef
from cod.net.notify.delivery import LEASE, POLL, Notifier, Post
from cod.net.notify.delivery_errors import DeliveryError
from cod.pool import Pool, in_transaction
from cod.store import tables
from cod.store.engine import Tx
from cod.store.people import groups
from cod.wire.webhook import unique
from tests.net.handpool import HandPool
from tests.net.receivers import listening, serving
from tests.waiting import until

pytestmark = pytest.mark.slow

# of the site's rules a notifier reads those of notices alone
RULES: Any = SimpleNamespace(current=SimpleNamespace(notices=NoticeRules()))


class Far:
    """The other side: `dead` targets do not answer, `hung` ones never end, `refusing` ones do not
    like the notice."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []
        self.dead, self.hung, self.refusing = set[str](), set[str](), set[str]()
        self.waiting: list[Deferred[str]] = []
        self.bug = False

    async def send(self, delivery: Delivery) -> str:
        target = delivery.send.target
        if self.bug:
            raise ZeroDivisionError
        if target in self.hung:
            self.waiting.append(Deferred())
            return await self.waiting[-1]
        if target in self.dead:
            raise DeliveryError("no answer", dead=True)
        if target in self.refusing:
            raise DeliveryError("not wanted", lasting=True)
        self.got.append((target, delivery.notice.id))
        return ""


class World:
    """One server, or several, on one database; time is moved."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.clock, self.far = engine, Clock(), Far()
        self.clock.advance(1_000_000.0)
        self.pool = HandPool(engine)
        self.servers: list[Notifier] = []

    def server(self, name: str = "a") -> Notifier:
        made = Notifier(
            self.clock,
            self.pool,
            name,
            self.clock.seconds,
            {"webhook": self.far, "email": self.far},
            RULES,
        )
        made.startService()
        self.servers.append(made)
        return made

    def tell(self, name: str, **columns: Any) -> int:
        def step(tx: Tx) -> int:
            group = groups.by_name(tx, name) or groups.add(tx, name, 0.0, **columns)
            return core_notices.add(
                tx, kind="test", group_id=group.id, subject="s", about="a", now=self.clock.seconds()
            ).id

        return in_transaction(self.engine, step)

    def wait(self, seconds: float, step: float = POLL) -> None:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)

    def rows(self) -> list[Any]:
        return sends(self.engine)


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    world = World(engine)
    yield world
    for server in world.servers:
        server.stopService()
    assert world.clock.getDelayedCalls() == []


def test_a_notice_is_delivered_within_a_second_and_once(world: World) -> None:
    world.server()
    number = world.tell("g", webhook="https://h/", email="a@x.org")
    world.wait(POLL + 0.1)
    assert sorted(world.far.got) == [("a@x.org", number), ("https://h/", number)]
    world.wait(LEASE * 3, 10.0)
    assert len(world.far.got) == 2
    assert all(row.delivered and row.done_at for row in world.rows())


def test_waking_delivers_at_once(world: World) -> None:
    server = world.server()
    world.tell("g", webhook="https://h/")
    assert world.far.got == []
    server.wake()
    assert len(world.far.got) == 1


def test_a_backlog_does_not_wait_for_the_next_look(world: World) -> None:
    numbers = [world.tell("g", webhook="https://h/") for _ in range(20)]
    world.server()
    assert world.far.got == [("https://h/", number) for number in numbers], (
        "all, in order, without a tick"
    )


def test_a_server_that_is_away_gets_it_when_it_is_back(world: World) -> None:
    world.far.dead.add("https://h/")
    world.server()
    number = world.tell("g", webhook="https://h/")
    world.wait(100)
    assert world.far.got == []
    (row,) = world.rows()
    # 2 + 4 + … + 32 s, and a second each
    assert (row.attempts, row.error, row.done_at) == (6, "no answer", None)
    world.far.dead.clear()
    world.wait(64)
    assert world.far.got == [("https://h/", number)]


def test_it_is_given_up_after_a_day_with_the_error_shown(world: World) -> None:
    world.far.dead.add("https://h/")
    world.server()
    world.tell("g", webhook="https://h/")
    world.wait(86400 + 7200, 600.0)
    (row,) = world.rows()
    assert (row.delivered, row.error) == (False, "no answer")
    assert row.done_at is not None
    assert row.attempts < 50


def test_a_dead_webhook_delays_nobody(world: World) -> None:
    world.far.dead.add("https://dead/")
    world.far.hung.add("https://hung/")
    for _ in range(40):
        world.tell("dead", webhook="https://dead/")
        world.tell("hung", webhook="https://hung/")
    world.server()
    world.wait(10)
    number = world.tell("good", webhook="https://good/")
    world.wait(POLL + 0.1)
    assert world.far.got == [("https://good/", number)]
    assert len(world.far.waiting) == 1
    assert sum(row.attempts for row in world.rows() if row.target == "https://dead/") <= 4


def test_a_refusal_that_lasts_is_not_repeated(world: World) -> None:
    world.far.refusing.add("a@x.org")
    world.server()
    world.tell("g", email="a@x.org")
    world.wait(600, 60.0)
    (row,) = world.rows()
    assert (row.attempts, row.delivered, row.error) == (1, False, "not wanted")
    assert row.done_at is not None


@pytest.mark.parametrize("moment", ["claim", "succeeded"])
def test_a_server_that_dies_at_any_point_loses_nothing(world: World, moment: str) -> None:
    """'succeeded': the notice was sent, and that was not written down: it comes again, under the
    same id."""
    number = world.tell("g", webhook="https://h/")
    world.pool.broken.add(moment)
    first = world.server("a")
    world.wait(5)
    first.stopService()
    world.pool.broken.clear()
    world.server("b")
    world.wait(LEASE + 20, 10.0)
    assert world.far.got == [("https://h/", number)] * (2 if moment == "succeeded" else 1)
    assert world.rows()[0].delivered


def test_a_server_that_dies_while_sending(world: World) -> None:
    number = world.tell("g", webhook="https://h/")
    world.far.hung.add("https://h/")
    world.server("a")
    world.far.hung.clear()
    world.server("b")
    world.wait(LEASE - 10, 10.0)
    assert world.far.got == [], "it may still be at work"
    world.wait(12)
    assert world.far.got == [("https://h/", number)]
    world.far.waiting[0].callback("")  # it was not dead after all: its word counts no more
    assert [row.attempts for row in world.rows()] == [2]


def test_two_servers_share_the_work(world: World) -> None:
    numbers = [world.tell(f"g{n}", webhook=f"https://h{n}/") for n in range(20)]
    world.server("a")
    world.server("b")
    world.wait(5)
    assert sorted(number for _, number in world.far.got) == numbers


def test_a_bug_in_a_sender_is_no_end(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.far.bug = True
    world.server()
    number = world.tell("g", webhook="https://h/")
    world.wait(2)
    assert "a bug in COD: ZeroDivisionError" in world.rows()[0].error
    assert "the sender is broken" in caplog.text
    world.far.bug = False
    world.wait(10)
    assert world.far.got == [("https://h/", number)]


def test_a_lost_database_is_no_end(world: World) -> None:
    world.pool.broken.add("claim")
    world.server()
    number = world.tell("g", webhook="https://h/")
    world.wait(5)
    world.pool.broken.clear()
    world.wait(POLL + 0.1)
    assert world.far.got == [("https://h/", number)]


def test_stopping_waits_for_what_is_under_way(world: World) -> None:
    world.far.hung.add("https://h/")
    world.tell("g", webhook="https://h/")
    server = world.server()
    ended: list[object] = []
    server.stopService().addCallback(ended.append)
    world.tell("other", webhook="https://other/")
    server.wake()
    world.wait(5)
    assert (ended, world.far.got) == ([], [])
    world.far.waiting[0].callback("")
    assert len(ended) == 1
    assert world.far.got == []


@pytest.mark.slow
def test_with_real_servers(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, engine: Engine
) -> None:
    """The whole of it: rows, clocks, threads, sockets; the webhook fails at first."""
    pools_time = [1_000_000.0]
    with serving() as box, listening() as listener:
        listener.status = 500
        used = replace(
            site,
            mail=Mail("127.0.0.1", box.port, "none", sender="cod@x.org"),
            notices=NoticeRules(local_webhooks=True),
        )
        post = Post(reactor, pool, SiteRef(used), "a", bytes(32), lambda: pools_time[0])
        in_transaction(engine, groups.add, "g", 0.0, webhook=listener.url(), email="ann@x.org")
        told = in_transaction(engine, flows.test, "g", "test", pools_time[0])
        in_reactor(post.startService)
        try:
            until(lambda: box.got and listener.got, "nothing came")
            until(lambda: "500" in sends(engine)[0].error, "the failure was not written")
            listener.status = 200
            pools_time[0] += 3.0
            until(lambda: all(row.delivered for row in sends(engine)), lambda: sends(engine))
        finally:
            in_reactor(post.stopService)
    assert len(listener.got) == 2
    ids = [
        {name.lower(): value for name, value in headers.items()}["webhook-id"]
        for _, headers, _ in listener.got
    ]
    assert ids == [unique(used.name, told.value.notice)] * 2
    assert listener.got[0][2] == listener.got[1][2]


def sends(engine: Engine) -> list[Any]:
    asked = select(tables.notice_sends).order_by(tables.notice_sends.c.id)
    return in_transaction(engine, lambda tx: [*tx.execute(asked)])
