"""A VCM's service against the real server, each killed at every step it takes: it always comes to
the same end."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cod.core import requests as core_requests
from cod.flows.scheduler import maintenance, vclusters
from cod.flows.vcms import vcms as vcm_flows
from cod.model import AskedWindow, Site
from cod.pool import in_transaction
from cod.store import tables as t
from cod.store import vcms
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import requests
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import LONGEST_BODY
from tests.contexts import flow_context
from tests.net.vcmlab import CarefulToy, Lab, furnish

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

Make = Callable[[], Lab]


@pytest.fixture
def lab(tmp_path: Path, empty_sqlite: Path, site: Site) -> Iterator[Make]:
    """Makes labs, each with a database of its own."""
    quick = replace(site, policy=replace(site.policy, inertia=0.0, reclaim_grace=30.0))
    shutil.copy(empty_sqlite, tmp_path / "first.db")
    engine = connect(f"sqlite:///{tmp_path}/first.db")
    in_transaction(engine, furnish, quick)
    engine.dispose()
    made: list[Lab] = []
    numbers = count()

    def make() -> Lab:
        number = next(numbers)
        shutil.copy(tmp_path / "first.db", tmp_path / f"{number}.db")
        made.append(Lab(tmp_path / f"{number}.db", quick, tmp_path / f"{number}.json"))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------- a story, told with deaths in it


def story(lab: Lab) -> None:
    """Grow by two, lose one to a vcluster of higher priority, ask for another in vain, and
    shrink."""
    lab.books.want = 3
    lab.until(lambda: len(lab.books.members) == 3, "the pool has three nodes")
    lab.create("web", 3, "top")
    lab.until(lambda: len(lab.held("web")) == 3, "the other has three nodes")
    lab.until(lambda: pending(lab) == 1, "the pool asks for another in its place")
    lab.books.want = 2
    lab.until(lambda: pending(lab) == 0, "it takes that back")
    lab.books.want = 1
    lab.until(lambda: len(lab.held("pool")) == 1, "it has shrunk")
    lab.until(lambda: calm(lab), "nothing is left to do")


def calm(lab: Lab) -> bool:
    state = lab.service.state
    owed = in_transaction(lab.engine, vcms.unacknowledged, {1: 0})
    return not (
        state.requests
        or state.reclaims
        or owed
        or any(ours.leaving or ours.lost or not ours.added for ours in state.nodes.values())
    )


def pending(lab: Lab) -> int:
    return len(in_transaction(lab.engine, _pending))


def _pending(tx: Tx) -> list[Any]:
    return requests.every(tx, states=["pending"], vcluster_id=1)


def check(lab: Lab) -> None:
    """Every node once, no request lost or doubled, nothing seized."""
    assert lab.books.members.keys() == lab.held("pool") == {"n1"}
    assert len(lab.service.state.nodes) == 1
    assert len(lab.held("web")) == 3
    with lab.engine.connect() as tx:
        r, k = t.node_requests.c, t.reclaims.c
        grown = (
            tx.execute(select(r.state).where(r.vcluster_id == 1, r.kind == "grow").order_by(r.id))
            .scalars()
            .all()
        )
        assert sorted(grown) == ["granted", "granted", "withdrawn"]
        assert tx.execute(select(k["count"], k.given, k.state)).all() == [(1, 1, "done")]
        causes = tx.execute(select(t.node_history.c.cause)).scalars().all()
        assert not [cause for cause in causes if "taken for" in cause]


def test_the_story_without_a_death(lab: Make, caplog: pytest.LogCaptureFixture) -> None:
    """And the log tells it."""
    caplog.set_level("DEBUG", "cod.vcm")
    one = lab()
    one.start_cod()
    one.start_vcm()
    story(one)
    check(one)
    assert {
        "say request-nodes",
        "say reclaim-answer",
        "say release-nodes",
        "say withdraw",
        "hear grant",
        "hear reclaim",
        "hear reclaim-over",
        "choose",
        "added",
        "removed",
        "remember",
    } <= set(one.vcm.steps)
    said = "\n".join(record.getMessage() for record in caplog.records)
    for words in (
        r"request \d+ is granted: n2 \(\S+\)",
        r"n2 \(\S+\) is active",
        r"n2 \(\S+\) takes part now",
        r"reclaim 1: 1 nodes are wanted back: \S+",
        r"reclaim 1 is answered: n\d",
        r"is out of the pool",
    ):
        assert re.search(words, said), words


def steps(lab: Make, who: str) -> int:
    one = lab()
    one.start_cod()
    one.start_vcm()
    story(one)
    return len(getattr(one, who).steps)


@pytest.mark.parametrize("who", ["vcm", "cod"])
def test_killed_at_some_steps(lab: Make, who: str) -> None:
    for k in range(1, steps(lab, who), 149 if who == "vcm" else 47):
        killed_at(lab(), who, k)


@pytest.mark.slow
@pytest.mark.nightly  # thousands of lives; `test_killed_at_some_steps` has some of them
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("who", ["vcm", "cod"])
def test_killed_at_every_step(lab: Make, who: str) -> None:
    for k in range(1, steps(lab, who)):
        killed_at(lab(), who, k)


def killed_at(lab: Lab, who: str, k: int) -> None:
    lab.start_cod(k if who == "cod" else 0)
    lab.start_vcm(k if who == "vcm" else 0)
    victim = getattr(lab, who)
    try:
        story(lab)
        check(lab)
        assert victim.dead
    except AssertionError as error:
        raise AssertionError(f"{who} killed at step {k}, {victim.steps[-3:]}: {error}") from error
    finally:
        lab.close()


# ---------------------------------------------------------------- one thing at a time


@pytest.fixture
def pool(lab: Make) -> Lab:
    """A pool of one node that is connected and calm."""
    one = lab()
    one.start_cod()
    one.start_vcm()
    one.until(lambda: one.books.members and calm(one), "the pool is calm")
    return one


def grow(lab: Lab, count: int) -> None:
    lab.books.want = count
    lab.until(lambda: len(lab.books.members) == count and calm(lab), f"the pool has {count} nodes")


def test_a_memory_that_is_lost_is_asked_for(pool: Lab) -> None:
    """Also what had been asked for is known again, and new requests do not take old keys for
    theirs."""
    one_for_the_web(pool)
    grow(pool, 2)
    pool.books.want = 5
    pool.until(
        lambda: pending(pool) == 1 and len(pool.books.members) == 4, "two are granted, one waits"
    )
    pool.vcm.die()
    pool.state.unlink()
    pool.until(
        lambda: len(pool.service.state.nodes) == 4 and calm_but_for_one(pool),
        "it knows everything again",
    )
    pool.ticks(5)
    assert pending(pool) == 1
    pool.books.want = 1
    pool.until(
        lambda: pool.held("pool") == {"n1"} and pending(pool) == 0, "it has given back the others"
    )
    grow(pool, 3)


def one_for_the_web(lab: Lab) -> None:
    lab.create("web", 1, "top")
    lab.until(lambda: lab.held("web"), "the other has its node")


def calm_but_for_one(lab: Lab) -> bool:
    return len(lab.service.state.requests) == 1 and all(
        ours.added for ours in lab.service.state.nodes.values()
    )


def test_an_administrator_s_withdrawal_is_told(pool: Lab) -> None:
    one_for_the_web(pool)
    pool.books.want = 6
    pool.until(lambda: pending(pool) == 2 and len(pool.books.members) == 4, "two wait")
    pool.ticks(5)
    assert len(pool.service.state.requests) == 2
    in_transaction(pool.engine, _withdraw_all, pool.now())
    pool.until(lambda: not pool.service.state.requests, "it counts on them no longer")


def _withdraw_all(tx: Tx, now: float) -> None:
    core_requests.withdraw(tx, 1, "not today", now)


def test_the_network_is_cut_and_nobody_is_told(pool: Lab) -> None:
    first = pool.service._link
    pool.cut()
    pool.books.want = 2
    pool.ticks(70)  # two keepalives, and somewhat more
    assert pool.service._link is not first
    pool.connected = True
    grow(pool, 2)


def test_cod_says_no_to_a_request_and_the_rest_goes_on(pool: Lab) -> None:
    grow(pool, 3)
    pool.service.reconciler._options = replace(pool.service.reconciler._options, template="nosuch")
    pool.books.want = 4
    pool.ticks(10)
    assert pool.vcm.steps.count("say request-nodes") == 3  # once in a minute is enough
    assert not pool.service.state.requests
    pool.books.want = 1
    pool.until(lambda: pool.held("pool") == {"n1"}, "it still gives back nodes")


def test_the_last_node_is_not_taken_back_and_so_is_used_again(pool: Lab) -> None:
    pool.books.want = 0
    pool.until(lambda: "say release-nodes" in pool.vcm.steps, "it wants to give back its last node")
    pool.until(lambda: pool.books.members.keys() == {"n1"}, "it uses it again")
    pool.ticks(10)
    assert pool.vcm.steps.count("say release-nodes") == 1


def test_a_node_that_cannot_join_is_given_back(pool: Lab) -> None:
    pool.books.crippled = {"node1", "node2", "node3", "node4"}
    pool.books.want = 2
    pool.until(lambda: len(pool.held("pool")) == 2, "it gets one")
    pool.until(lambda: pool.held("pool") == {"n1"}, "and gives it back")
    pool.ticks(10)
    assert pool.vcm.steps.count("say request-nodes") == 1  # in this minute
    pool.books.crippled.clear()
    pool.ticks(60)
    grow(pool, 2)


@pytest.mark.parametrize("step", ["remembered", "say extend", "has say extend"])
def test_the_lease_is_extended_also_by_one_who_dies_over_it(pool: Lab, step: str) -> None:
    pool.vcm.die()
    pool.reviving = False
    in_transaction(pool.engine, _warn, pool.now())
    pool.start_vcm(step, extend=500_000.0)
    pool.reviving = True
    pool.until(
        lambda: in_transaction(pool.engine, _expires) > pool.now() + 499_000,
        "the lease is extended",
    )
    pool.until(lambda: not pool.service.state.warned, "it knows")


def _warn(tx: Tx, now: float) -> None:
    vcms.enqueue(tx, 1, "lease", {"event": "warning", "expires": now + 60}, now)


def _expires(tx: Tx) -> float:
    return float(
        tx.execute(select(t.vclusters.c.expires_at).where(t.vclusters.c.id == 1)).scalar_one()
    )


def test_a_vcm_that_is_away_loses_the_choice_and_nothing_else(pool: Lab) -> None:
    grow(pool, 3)
    pool.vcm.die()
    pool.reviving = False
    pool.create("web", 3, "top")
    pool.clock.advance(1)
    pool.away = True
    pool.until(lambda: len(pool.held("web")) == 3, "what it did not answer for was seized")
    assert len(pool.held("pool")) == 2
    pool.reviving = True
    pool.books.want = 2
    pool.until(
        lambda: pool.books.members.keys() == pool.held("pool") and calm(pool),
        "it puts its books right",
    )
    pool.away = False


@pytest.mark.parametrize("step", ["say release-nodes", "has say release-nodes", "hear node-state"])
def test_what_is_said_again_late_does_not_hit_another_node_of_that_name(
    pool: Lab, step: str
) -> None:
    """Give back n2 and die; before the VCM is up again the vcluster has got another node, which is
    called n2."""
    grow(pool, 2)
    pool.reviving = False
    pool.vcm.kill_at = step
    pool.books.want = 1
    pool.until(lambda: pool.vcm.dead, "it is dead")
    pool.ticks(2)
    size = 2 if len(pool.held("pool")) == 1 else 3
    in_transaction(
        pool.engine,
        vclusters.resize,
        flow_context(pool.site, pool.now(), "ann"),
        name="pool",
        size=size,
    )
    pool.ticks(2)
    pool.books.want = 2
    pool.reviving = True
    pool.until(lambda: calm(pool) and len(pool.books.members) == 2, "it has two nodes")
    assert pool.books.members.keys() == pool.held("pool")
    with pool.engine.connect() as tx:
        given = (
            tx.execute(select(t.node_history.c.cause).where(t.node_history.c.event == "released"))
            .scalars()
            .all()
        )
    assert len(given) == 1


def test_a_dry_run_changes_nothing(lab: Make) -> None:
    one = lab()
    one.books.want = 3
    one.start_cod()
    one.start_vcm(dry_run=True)
    one.ticks(10)
    assert "look" in one.vcm.steps
    assert {"say request-nodes", "add", "remove"}.isdisjoint(one.vcm.steps)


def test_a_reclaim_is_answered_once_with_what_goes_anyway_first(pool: Lab) -> None:
    """Answer with the node that the VCM was about to give back when COD wants one."""
    grow(pool, 3)
    pool.reviving = False
    pool.vcm.kill_at = "remove"
    pool.books.want = 2
    pool.until(lambda: pool.vcm.dead, "it dies over a removal")
    pool.create("web", 3, "top")
    in_transaction(pool.engine, pool._pass)
    pool.reviving = True
    pool.until(lambda: len(pool.held("web")) == 3 and calm(pool), "the other has its nodes")
    assert len(pool.held("pool")) == 2
    assert "choose" not in pool.vcm.steps


def test_parked_nodes_stay_until_a_request_of_equal_priority_needs_them(pool: Lab) -> None:
    """COD would reclaim none for it. What the request does not lack stays parked."""
    grow(pool, 4)
    pool.books.parked = ("n2", "n3", "n4")
    pool.ticks(5)
    assert len(pool.held("pool")) == 4
    assert "has say park-nodes" in pool.vcm.steps
    pool.until(lambda: pool.service.reconciler.parked == 3, "they are counted")
    pool.create("web", 3, "site")
    pool.until(lambda: len(pool.held("web")) == 3 and calm(pool), "the other has its nodes")
    assert pool.held("pool") == {"n1", "n4"}
    assert "choose" not in pool.vcm.steps


def test_of_more_parked_nodes_than_a_message_holds_the_first_are_asked_about(
    pool: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(pool, 2)
    reconciler, sizes = pool.service.reconciler, list[int]()
    ask = reconciler._ask

    async def watched(body: b.Body) -> b.Body:
        sizes.append(len(xml.write(body)))
        return await ask(body)

    monkeypatch.setattr(reconciler, "_ask", watched)
    pool.books.parked = ("n2", *(f"n{number}".ljust(63, "x") for number in range(1000)))
    pool.until(lambda: sizes, "it asks about them")
    assert max(sizes) <= LONGEST_BODY


def test_what_was_promised_is_told_to_the_pool_when_its_vcm_was_started_anew(pool: Lab) -> None:
    """So it lets jobs end as long as it said. Of what goes for other reasons nothing was
    promised."""
    grow(pool, 4)
    pool.books.want = 2
    pool.vcm.kill_at = "remove"
    pool.until(lambda: pool.vcm.dead, "it dies over a removal")
    pool.ticks(1)
    assert pool.books.recalled == {}
    pool.until(lambda: calm(pool), "it has given back two")
    promised = pool.now() + 5.0  # by what the pool's `choose` says
    pool.vcm.kill_at = "remove"
    pool.create("web", 4, "top")
    pool.until(lambda: pool.vcm.dead, "it dies over another")
    died = pool.now() + 5.0
    pool.ticks(1)
    ((host, when),) = pool.books.recalled.items()
    assert host != "n1"
    assert promised <= when <= died
    pool.books.want = 1  # it does not ask for another instead
    pool.until(lambda: len(pool.held("web")) == 4 and calm(pool), "the other has its nodes")


def test_a_node_whose_grant_its_vcm_has_not_heard_of_cannot_be_meant(pool: Lab) -> None:
    """What it says of n2 is of the one that it had before."""
    grow(pool, 2)
    pool.vcm.die()
    pool.reviving = False
    for node, held in ((["n2"], {"n1"}), ([], {"n1", "n2"}), (["n2"], {"n1", "n2"})):
        if node:
            in_transaction(
                pool.engine,
                vclusters.release,
                flow_context(pool.site, pool.now(), "vcm:pool"),
                name="pool",
                nodes_=node,
                passing_over=True,
            )
            pool.books.members.pop("n2", None)
        else:
            in_transaction(
                pool.engine,
                vclusters.resize,
                flow_context(pool.site, pool.now(), "ann"),
                name="pool",
                size=2,
            )
        pool.ticks(3)
        assert pool.held("pool") == held


def test_nodes_are_given_back_before_maintenance_and_others_take_their_places(pool: Lab) -> None:
    grow(pool, 3)
    pool.toy = CarefulToy
    pool.vcm.die()
    begins = pool.now() + 110.0
    in_transaction(pool.engine, _plan_window, pool.site, pool.now(), begins)
    pool.ticks(8)
    assert pool.held("pool") == {"n1", "n2", "n3"}
    assert "maintain" in pool.vcm.steps
    pool.until(lambda: not in_transaction(pool.engine, vcm_flows.windows, 1), "two are given back")
    assert pool.now() < begins - 80.0
    pool.until(lambda: len(pool.books.members) == 3 and calm(pool), "others take their places")
    assert not in_transaction(pool.engine, vcm_flows.windows, 1), "of nodes that are in no window"


def _plan_window(tx: Tx, site: Site, now: float, begins: float) -> None:
    """Maintenance of the nodes n2 and n3 of the pool."""
    names = " ".join(one.name for one in nodes.every(tx) if one.hostname in ("n2", "n3"))
    asked = AskedWindow("power feed", names, begins_at=begins, ends_at=begins + 60.0)
    maintenance.plan(tx, flow_context(site, now, "user:root"), asked=asked)
