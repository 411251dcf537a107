"""Of two transactions, the one with the lower row ids commits last: no reader that follows the ids
misses its rows."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, delete, func, select, update
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from cod.flows.nodes import hold
from cod.flows.people import groups as group_flows
from cod.model import Site, SiteRef, Who
from cod.net.notify.delivery import Notifier
from cod.policy.following import SETTLED
from cod.store import claims
from cod.store import tables as t
from cod.store.claims import Progress
from cod.store.engine import Tx, new_id
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.web.api import events
from cod.web.api.event_texts import position_of
from tests.net.handpool import HandPool

pytestmark = pytest.mark.mariadb
GRANT = 200  # nodes that one transaction gives


class Request:
    """The request of a client, to which a stream writes."""

    def __init__(self) -> None:
        self.written, self.gone, self.over = "", Deferred[None](), False

    def notifyFinish(self) -> Deferred[None]:
        return self.gone

    def setHeader(self, name: str, value: str) -> None: ...

    def registerProducer(self, producer: Any, streaming: bool) -> None: ...

    def unregisterProducer(self) -> None: ...

    def finish(self) -> None:
        self.over = True

    def write(self, data: bytes) -> None:
        self.written += data.decode()

    @property
    def causes(self) -> list[str]:
        """Return the causes of the transitions that were written, in order."""
        told = re.findall("event: transition\ndata: (.*)\n", self.written)
        return [json.loads(one)["cause"] for one in told]

    @property
    def last(self) -> str:
        """Return the id of the last event."""
        return re.findall("id: (.*)\n", self.written)[-1]


class Stand:
    """A hub on a MariaDB whose ids go up by three, as at a Galera node."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.clock = engine, Clock()
        self.hub = events.Hub(self.clock, HandPool(engine))
        with engine.begin() as tx:
            self.group = groups.add(tx, "physics", 1.0, webhook="https://h.example.org/")
            self.nodes = [
                nodes.add(
                    tx, name=name, boot_mac=f"52:54:00:00:00:0{n}", now=1.0, cause="", actor="x"
                ).id
                for n, name in enumerate(("slow", "quick"))
            ]

        self.vcluster: int | None = None

    def hold_by_group(self) -> None:
        """Have a vcluster of the group hold the nodes from now on."""
        with self.engine.begin() as tx:
            self.vcluster = _vcluster(tx, self.group.id)

    def write(self, tx: Tx, node: int, *causes: str, at: float = 1.0, step: int = 3) -> None:
        tx.exec_driver_sql(f"SET SESSION auto_increment_increment = {step}")
        row = {
            "node_id": self.nodes[node],
            "at": at,
            "event": "released",
            "from_state": "active",
            "to_state": "trampoline",
            "generation": 9,
            "vcluster_id": self.vcluster,
            "actor": "x",
        }
        tx.execute(t.node_history.insert(), [row | {"cause": cause} for cause in causes])
        tx.exec_driver_sql("SET SESSION auto_increment_increment = 1")

    def follow(self, after: str = "") -> Request:
        request = Request()
        stream = events.EventStream(self.hub, request, Who("user:ann", admin=True), None)
        ensureDeferred(stream.start(position_of(after) if after else None))
        return request

    def look(self) -> None:
        self.clock.advance(events.PERIOD)


def _vcluster(tx: Tx, group: int) -> int:
    template = new_id(
        tx.execute(
            t.config_templates.insert().values(
                name="t", revision=1, document="<x/>", digest="d", created_at=1.0
            )
        )
    )
    return new_id(
        tx.execute(
            t.vclusters.insert().values(
                name="v",
                live_name="v",
                group_id=group,
                state="active",
                template_id=template,
                size=1,
                creation_size=1,
                attributes="",
                lease_time=60.0,
                created_at=1.0,
            )
        )
    )


@pytest.fixture
def stand(mariadb_engine: Engine) -> Stand:
    return Stand(mariadb_engine)


MANY = [f"quick {n}" for n in range(GRANT)]


def test_a_follower_hears_of_a_transaction_that_commits_after_a_larger_one(stand: Stand) -> None:
    request = stand.follow()
    with stand.engine.begin() as slow:
        stand.write(slow, 0, "slow")
        with stand.engine.begin() as quick:
            stand.write(quick, 1, *MANY)
        stand.look()
        assert request.causes == MANY
    stand.look()
    stand.look()
    assert request.causes == [*MANY, "slow"]


def test_the_first_follower_hears_of_what_was_under_way_when_it_came(stand: Stand) -> None:
    with stand.engine.begin() as slow:
        stand.write(slow, 0, "slow")
        with stand.engine.begin() as quick:
            stand.write(quick, 1, *MANY)
        request = stand.follow()
    stand.look()
    assert request.causes == ["slow"]


def test_who_comes_back_hears_of_what_committed_meanwhile(stand: Stand) -> None:
    request = stand.follow()
    with stand.engine.begin() as slow:
        stand.write(slow, 0, "slow")
        with stand.engine.begin() as quick:
            stand.write(quick, 1, *MANY)
        stand.look()
        request.gone.callback(None)
    again = stand.follow(request.last)
    assert "slow" in again.causes
    stand.look()
    assert sorted(filter(None, again.causes)) == sorted(["slow", *MANY]), "each once"


def test_who_comes_back_hears_of_what_commits_afterwards(stand: Stand) -> None:
    request, other = stand.follow(), stand.follow()
    with stand.engine.begin() as slow:
        stand.write(slow, 0, "slow")
        with stand.engine.begin() as quick:
            stand.write(quick, 1, *MANY)
        stand.look()
        request.gone.callback(None)
        again = stand.follow(request.last)
    stand.look()
    assert again.causes[-1] == other.causes[-1] == "slow"


def test_who_comes_back_hears_again_of_the_last_events_alone(stand: Stand) -> None:
    request, _ = stand.follow(), stand.follow()
    for cause in ("one", "two"):
        with stand.engine.begin() as tx:
            stand.write(tx, 1, cause)
        stand.clock.pump([events.PERIOD] * 60)
    request.gone.callback(None)
    assert stand.follow(request.last).causes == ["two"]


def test_a_follower_hears_of_what_got_the_ids_of_rows_that_were_lost(stand: Stand) -> None:
    h, first = t.node_history.c, Progress("a 1.0", 0, 1, 1)
    with stand.engine.begin() as tx:
        claims.name_database(tx, first.database)
        stand.write(tx, 0, "kept", at=1000.0, step=1)
        kept = tx.scalar(select(func.max(h.id)))
    request = stand.follow()
    with stand.engine.begin() as tx:
        stand.write(tx, 0, "lost", "lost too", at=1990.0, step=1)
    stand.look()
    assert (request.causes, request.last[-9:]) == (["lost", "lost too"], f"-{first.epoch}")

    with stand.engine.begin() as tx:  # another host takes over, which lacks the last commits
        tx.execute(delete(t.node_history).where(h.id > kept))
    with stand.engine.begin() as tx:
        tx.exec_driver_sql(f"ALTER TABLE node_history AUTO_INCREMENT = {kept + 1}")
        stand.write(tx, 0, "anew", "anew too", "next", at=1999.0, step=1)
    stand.look()
    assert request.causes[2:] == ["next"], "nobody has noticed the loss yet"
    with stand.engine.begin() as tx:
        assert hold.watch(tx, first, now=2000.0)
    stand.look()
    assert request.over, "the client has to come back"

    again = stand.follow(f"{kept + 2}-0-{first.epoch}")
    assert again.causes[:3] == ["anew", "anew too", "next"]
    old = stand.follow(f"{kept + 2}-0")
    assert old.causes[0] == "next", "the client left the epoch out, as clients of before"
    with stand.engine.begin() as tx:
        stand.write(tx, 0, "later", step=1)
    stand.look()
    assert (again.causes[-1], old.causes[-1], again.over) == ("later", "later", False)


class Posts:
    """Notifiers of two servers, and a group that has the events of its nodes posted. The servers'
    clocks differ from the database's."""

    def __init__(self, stand: Stand, site: Site) -> None:
        self.stand, self.ahead = stand, 0.0
        self.notifiers = [
            Notifier(stand.clock, HandPool(stand.engine), name, self.now, {}, SiteRef(site))
            for name in ("a", "b")
        ]
        with stand.engine.begin() as tx:
            group_flows.change(tx, "physics", {"events": ["nodes"]}, now=1.0)
        stand.hold_by_group()
        self.look()

    def now(self) -> float:
        return 1e6 + self.stand.clock.seconds() + self.ahead

    def look(self, seconds: float = 1.0) -> None:
        for _ in range(round(seconds)):
            self.stand.clock.advance(1.0)
            for each in self.notifiers:
                ensureDeferred(each.look())

    @property
    def causes(self) -> list[str]:
        """Return the causes of the events that were posted, in order."""
        with self.stand.engine.begin() as tx:
            posts = tx.scalars(
                select(t.notices.c.events)
                .where(t.notices.c.events.is_not(None))
                .order_by(t.notices.c.id)
            )
            return [event["cause"] for post in posts for event in json.loads(post)]


@pytest.fixture
def posts(stand: Stand, site: Site) -> Posts:
    return Posts(stand, site)


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_server_whose_clock_is_wrong_holds_up_no_post(posts: Posts, ahead: float) -> None:
    with posts.stand.engine.begin() as tx:
        posts.stand.write(tx, 0, "by it", at=posts.now() + ahead, step=1)
    with posts.stand.engine.begin() as tx:
        posts.stand.write(tx, 0, "by another", at=posts.now(), step=1)
    posts.look(2)
    assert posts.causes == ["by it", "by another"]


@pytest.mark.parametrize("ahead", [0.0, -3600.0])
def test_what_commits_late_is_posted_too_and_once(posts: Posts, ahead: float) -> None:
    with posts.stand.engine.begin() as slow:
        posts.stand.write(slow, 0, "slow", at=posts.now() + ahead)
        with posts.stand.engine.begin() as quick:
            posts.stand.write(quick, 1, "quick", at=posts.now() + ahead)
        posts.look(3)
        assert posts.causes == []
    posts.look(SETTLED + 2)
    assert posts.causes == ["slow", "quick"]


def test_a_transaction_that_is_undone_holds_up_posts_for_a_while(posts: Posts) -> None:
    with suppress(ZeroDivisionError), posts.stand.engine.begin() as tx:
        posts.stand.write(tx, 0, "undone", step=1)
        with posts.stand.engine.begin() as other:
            posts.stand.write(other, 1, "done", step=1)
        raise ZeroDivisionError
    posts.look(SETTLED / 2)
    assert posts.causes == []
    posts.look(SETTLED / 2 + 2)
    assert posts.causes == ["done"]


def test_what_happens_after_rows_were_lost_is_posted(posts: Posts) -> None:
    """A database that has lost its last commits gives their ids again."""
    stand, h, m = posts.stand, t.node_history.c, t.marks.c
    with stand.engine.begin() as tx:
        before = tx.scalar(select(m.at).where(m.name == "posted nodes"))
        stand.write(tx, 0, "lost", "lost too", step=1)
    posts.look(3)
    assert posts.causes == ["lost", "lost too"]
    with stand.engine.begin() as tx:
        tx.execute(delete(t.node_history).where(h.id > before))
        tx.execute(update(t.marks).where(m.name == "posted nodes").values(at=before))
    posts.look(3)
    with stand.engine.begin() as tx:
        tx.exec_driver_sql(f"ALTER TABLE node_history AUTO_INCREMENT = {int(before or 0) + 1}")
        stand.write(tx, 0, "anew", step=1)
    posts.look(SETTLED + 3)
    assert posts.causes == ["lost", "lost too", "anew"]
