"""Every kind of act that a plan is cut into: it looks at its rows again, does its work once, and
can be cut short."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import OperationalError

from cod.core.nodes import transitions
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import apply_plan as flow
from cod.flows.scheduler import plan as plan_flow
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, Site
from cod.states import NodeEvent, Step
from cod.store import claims
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import node_counts, requests
from tests.conftest import SUBNET
from tests.contexts import flow_context
from tests.store.busy_site import (
    EVERY_KIND,
    NOW,
    build,
    everything,
    killed_at,
    ruled,
    summary,
    vcluster_id,
)
from tests.store.manager_world import OWNER, add_node, check_world, in_tx, planned, rest, run_pass

pytestmark = pytest.mark.slow

LATER = NOW + 1.0
END = {
    "warned": ("active", 1, 1),
    "drains": ("ended", 1, 0),
    "expires": ("ended", 1, 0),
    "ends": ("ended", 1, 0),
    "granted": ("active", 1, 1),
    "huge": ("ended", 60, 0),
    "loser8": ("active", 2, 2),
    "winner8": ("active", 2, 2),
    "loser16": ("active", 2, 2),
    "winner16": ("active", 1, 1),
    "loser24": ("active", 3, 3),
    "winner24": ("active", 2, 2),
}


@pytest.fixture
def busy(site: Site) -> Site:
    """The rules of the busy site."""
    return ruled(site)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, empty_sqlite: Path) -> Path:
    """The busy site in a SQLite file, to be copied: building it costs more than most tests."""
    path = tmp_path_factory.mktemp("busy") / "cod.db"
    shutil.copy(empty_sqlite, path)
    engine = connect(f"sqlite:///{path}")
    with engine.begin() as tx:
        build(tx, ruled(Site(name="test", domain="cod.test", subnets=(SUBNET,))))
    engine.dispose()
    return path


@pytest.fixture
def acts(engine: Engine, busy: Site, built: Path) -> dict[str, flow.Act]:
    """The acts of the pass at NOW, one of each kind, by their kind."""
    if engine.dialect.name == "sqlite":
        engine.dispose()
        shutil.copy(built, engine.url.database or "")
    with engine.begin() as tx:
        if engine.dialect.name != "sqlite":
            build(tx, busy)
        return {act.name.rstrip(" 0123456789"): act for act in planned(tx, busy, NOW)}


def claim(engine: Engine, owner: str = "a", now: float = NOW) -> Any:
    """The manager's claim, which another's is over for."""
    over = in_tx(engine, claims.find, "manager")
    return in_tx(engine, claims.hold, "manager", owner, now, 20.0, over=over)


def test_a_pass_has_something_of_every_kind_to_do(acts: dict[str, flow.Act]) -> None:
    assert list(acts) == EVERY_KIND


def test_from_there_the_site_comes_to_rest(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    with engine.begin() as tx:
        rest(tx, busy, NOW, step=40.0)
        assert summary(tx) == END


@pytest.mark.slow
@pytest.mark.parametrize("survived", range(len(EVERY_KIND) + 1))
def test_a_manager_killed_after_any_act_has_a_successor_that_goes_on(
    engine: Engine, busy: Site, acts: dict[str, flow.Act], survived: int
) -> None:
    own = claim(engine)
    for act in list(acts.values())[:survived]:
        in_tx(engine, act.flow, claim=own, now=NOW)
    with engine.begin() as tx:
        rest(tx, busy, NOW + 30.0, owner="b", step=40.0)
        assert summary(tx) == END


@pytest.mark.slow
def test_a_manager_killed_between_any_two_statements_has_done_nothing(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    """Or else the whole act: what is seen afterwards is always one or the other."""
    own = claim(engine)
    for act in acts.values():
        before = everything(engine)
        statement = 0
        while killed_at(engine, act.flow, statement, claim=own, now=NOW):
            assert everything(engine) == before, (act.name, statement)
            statement += 1
        assert statement > 2, act.name
        assert everything(engine) != before, act.name
    with engine.begin() as tx:
        rest(tx, busy, NOW + 30.0, owner="b", step=40.0)
        assert summary(tx) == END


def test_an_act_that_is_run_again_does_its_work_once(
    engine: Engine, acts: dict[str, flow.Act]
) -> None:
    """Nobody knows whether a commit was done whose answer is lost: the flow is run again with the
    same arguments."""
    own = claim(engine)
    for act in acts.values():
        in_tx(engine, act.flow, claim=own, now=NOW)
        once = everything(engine)
        in_tx(engine, act.flow, claim=own, now=NOW)
        assert everything(engine) == once, act.name


def test_two_managers_never_apply_two_plans_at_once(
    engine: Engine, acts: dict[str, flow.Act]
) -> None:
    """The one that lost the claim in the middle of its pass does nothing more, whatever is next in
    its plan."""
    slow = claim(engine)
    quick = claim(engine, "b", NOW + 20.0)
    assert quick.generation > slow.generation
    before = everything(engine)
    for act in acts.values():
        with pytest.raises(flow.Lost):
            in_tx(engine, act.flow, claim=slow, now=NOW + 21.0)
    assert everything(engine) == before
    for act in acts.values():
        in_tx(engine, act.flow, claim=quick, now=NOW + 21.0)
    in_tx(engine, check_world)


def test_nobody_takes_the_claim_over_while_an_act_is_under_way(
    engine: Engine, acts: dict[str, flow.Act]
) -> None:
    """Between an act's look at the claim and its commit no other server can become the manager."""
    own = claim(engine)
    for act in acts.values():
        with engine.begin() as tx:
            act.flow(tx, claim=own, now=NOW)
            # one writer at a time: the other does not even begin
            if engine.dialect.name == "sqlite":
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    sqlite3.connect(engine.url.database or "", timeout=0).execute("BEGIN IMMEDIATE")
            else:
                with engine.connect() as other:
                    other.exec_driver_sql("SET innodb_lock_wait_timeout=0")
                    with pytest.raises(OperationalError, match="Lock wait timeout"):
                        claims.hold(other, "manager", "b", NOW, 20.0)
                    # nobody else shall get a connection that does not wait for locks
                    other.invalidate()
            tx.rollback()


# ---------------------------------------------------------------- rows that change between snapshot
# and act


def release(tx: Tx, site: Site, name: str, count: int = 2) -> None:
    """The owner gives nodes back, of which it is not said that they are taken."""
    row = tx.execute(select(t.vclusters).where(t.vclusters.c.name == name)).one()
    kept = set(tx.scalars(select(t.reservations.c.node_id)))
    spare = [node.name for node in nodes.every(tx, vcluster_id=row.id) if node.id not in kept]
    owner_flows.release(tx, flow_context(site, NOW, OWNER), name=name, nodes_=spare[:count])


def release_others(tx: Tx, site: Site, name: str) -> None:
    """The owner gives back two nodes that stand elsewhere, and so are not of the kind that is
    taken."""
    row = tx.execute(select(t.vclusters).where(t.vclusters.c.name == name)).one()
    kept = set(tx.scalars(select(t.reservations.c.node_id)))
    for node in nodes.every(tx, vcluster_id=row.id):
        if node.id not in kept:
            node_flows.change(
                tx,
                flow_context(site, 1.0, "user:root"),
                name=node.name,
                changes={"block": "elsewhere"},
            )
    release(tx, site, name)


def withdraw(tx: Tx, site: Site, name: str) -> None:
    """Delete the request's vcluster, and with it what that asked for."""
    owner_flows.delete(tx, flow_context(site, NOW, OWNER), name=name)


def promote(tx: Tx, site: Site, name: str) -> None:
    """Give the request's group the priority of the other."""
    tx.execute(update(t.groups).where(t.groups.c.name == "low").values(priority=9))


def assign(tx: Tx, site: Site, name: str) -> None:
    """Assign the vcluster's nodes anew: all are inside their inertia."""
    one = select(t.vclusters.c.id).where(t.vclusters.c.name == name).scalar_subquery()
    tx.execute(update(t.nodes).where(t.nodes.c.vcluster_id == one).values(assigned_at=NOW))


def extend(tx: Tx, site: Site, name: str) -> None:
    """Extend the lease, as the owner does."""
    owner_flows.extend(tx, flow_context(site, NOW), name=name, lease=5000.0)


def reset(tx: Tx, site: Site, name: str) -> None:
    """Every free node is reset, or comes up by itself."""
    for node in nodes.every(tx, ["inactive", "off"]):
        transitions.move(tx, node, NodeEvent.ASKED, now=NOW, cause="reset", actor="dhcp")


def shift(tx: Tx, site: Site, name: str) -> None:
    """An administrator puts all nodes into a block."""
    for node in nodes.every(tx):
        node_flows.change(
            tx, flow_context(site, 1.0, "user:root"), name=node.name, changes={"block": "b1"}
        )


@pytest.mark.parametrize(
    ("kind", "trouble", "name"),
    [
        ("grant request", reset, ""),
        ("grant request", shift, ""),
        ("take for request", release, "loser16"),
        ("take for request", promote, ""),
        ("take for request", assign, "loser16"),
        ("take for request", shift, ""),
        ("take for request", withdraw, "loser16"),
        ("wake nodes", reset, ""),
        ("put nodes to sleep", reset, ""),
        ("wake nodes", shift, ""),
        ("put nodes to sleep", shift, ""),
    ],
)
def test_an_act_whose_rows_have_changed_is_stale(
    engine: Engine,
    busy: Site,
    acts: dict[str, flow.Act],
    kind: str,
    trouble: Callable[..., None],
    name: str,
) -> None:
    own = claim(engine)
    in_tx(engine, trouble, busy, name)
    before = everything(engine)
    with pytest.raises(flow.Stale):
        in_tx(engine, acts[kind].flow, claim=own, now=LATER)
    assert everything(engine) == before


@pytest.mark.parametrize(
    ("kind", "trouble", "name"),
    [
        ("grant request", withdraw, "granted"),
        ("take for request", withdraw, "winner16"),
        ("ease reclaim", withdraw, "winner24"),
        ("seize by reclaim", withdraw, "winner8"),
        ("warn vcluster", extend, "warned"),
        ("drain vcluster", extend, "drains"),
        ("expire vcluster", extend, "expires"),
        ("expire vcluster", withdraw, "expires"),
        ("warn vcluster", withdraw, "warned"),
        ("drain vcluster", withdraw, "drains"),
    ],
)
def test_an_act_that_is_not_needed_any_more_does_nothing(
    engine: Engine,
    busy: Site,
    acts: dict[str, flow.Act],
    kind: str,
    trouble: Callable[..., None],
    name: str,
) -> None:
    own = claim(engine)
    in_tx(engine, trouble, busy, name)
    before = everything(engine)
    assert in_tx(engine, acts[kind].flow, claim=own, now=LATER).value == 0
    assert everything(engine) == before


@pytest.mark.parametrize(("trouble", "left"), [(release_others, 2), (promote, 4)])
def test_nothing_is_seized_that_may_not_be_taken_any_more(
    engine: Engine, busy: Site, acts: dict[str, flow.Act], trouble: Callable[..., None], left: int
) -> None:
    """Seize nothing of a vcluster that has one node more than its creation size now, or a priority
    as high."""
    own = claim(engine)
    in_tx(engine, trouble, busy, "loser8")
    done = in_tx(engine, acts["seize by reclaim"].flow, claim=own, now=LATER).value
    assert done == (1 if trouble is release_others else 0)
    with engine.begin() as tx:
        check_world(tx)
        assert summary(tx)["loser8"] == ("active", left - done, left - done)
        state = tx.execute(
            select(t.reclaims.c.state, t.reclaims.c.given).order_by(t.reclaims.c.id)
        ).first()
        assert tuple(state or ()) == (
            ("done", 1) if trouble is release_others else ("cancelled", 0)
        )
        held = {node.id for node in _of(tx, "loser8")}
        assert not held & kept(tx), "what stays is kept for nobody"


def kept(tx: Tx, name: str = "winner8") -> set[int]:
    """The ids of the nodes that are kept for that vcluster's requests."""
    query = (
        select(t.reservations.c.node_id)
        .join_from(t.reservations, t.node_requests)
        .where(t.node_requests.c.vcluster_id == vcluster_id(tx, name))
    )
    return set(tx.scalars(query))


def _of(tx: Tx, name: str) -> list[Any]:
    row = tx.execute(select(t.vclusters.c.id).where(t.vclusters.c.name == name)).one()
    return nodes.every(tx, vcluster_id=row.id)


def test_another_is_seized_in_the_place_of_one_that_broke(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    own = claim(engine)
    with engine.begin() as tx:
        chosen = [node for node in _of(tx, "loser8") if node.id in kept(tx)]
        node_flows.quarantine(
            tx, flow_context(busy, NOW, OWNER), name=chosen[0].name, reason="smoke"
        )
        check_world(tx)
    assert in_tx(engine, acts["seize by reclaim"].flow, claim=own, now=LATER).value == 2
    with engine.begin() as tx:
        check_world(tx)
        assert len(_of(tx, "loser8")) == 1
        assert len(kept(tx)) == 2
        assert chosen[0].id not in kept(tx)


def test_a_grant_goes_before_what_is_overdue(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    """Nodes that came meanwhile satisfy the request: what was chosen for it stays where it is."""
    with engine.begin() as tx:
        for number in (50, 51):
            add_node(tx, number, mib=8192)
    own = claim(engine)
    with engine.begin() as tx:
        anew = planned(tx, busy, NOW)
    for act in anew:
        in_tx(engine, act.flow, claim=own, now=NOW)
    with engine.begin() as tx:
        assert summary(tx)["winner8"] == ("active", 2, 2)
        assert summary(tx)["loser8"] == ("active", 4, 4)
        assert tx.scalar(select(t.reclaims.c.state).order_by(t.reclaims.c.id)) == "cancelled"
        check_world(tx)


def test_what_is_taken_is_told(engine: Engine, busy: Site, acts: dict[str, flow.Act]) -> None:
    with engine.begin() as tx:
        rest(tx, busy, NOW, step=40.0)
        query = (
            select(t.notices.c.kind, t.vclusters.c.name)
            .join_from(t.notices, t.vclusters)
            .order_by(t.notices.c.id)
        )
        told = [(kind, name) for kind, name in tx.execute(query)]
    for one in [
        ("reclaim", "loser8"),
        ("reclaim", "loser16"),
        ("reclaimed", "loser8"),
        ("lease-warning", "warned"),
        ("lease-ended", "drains"),
        ("drained", "drains"),
        ("drained", "expires"),
        ("rejected", "huge"),
        ("lease-began", "winner16"),
        ("deleted", "ends"),
    ]:
        assert told.count(one) == 1, one


def test_a_request_that_is_withdrawn_lets_go_of_what_was_kept_for_it(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    with engine.begin() as tx:
        assert len(kept(tx)) == 2
        withdraw(tx, busy, "winner8")
        assert not kept(tx)
        assert tx.scalar(select(t.reclaims.c.state).order_by(t.reclaims.c.id)) == "cancelled"
        rest(tx, busy, NOW, step=40.0)
        assert summary(tx)["loser8"] == ("active", 4, 4)


def test_many_are_woken_in_several_transactions(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    with engine.begin() as tx:
        plan = plan_flow.decide(plan_flow.snapshot(tx, busy, NOW), busy, NOW)
    many = [replace(one, count=120) for one in plan.power_changes if not one.sleep]
    cut = flow.acts(replace(plan, power_changes=tuple(many)), busy)
    wakes: list[Any] = [act.flow for act in cut if act.name == "wake nodes"]
    assert [each.keywords["part"].count for each in wakes] == [50, 50, 20]


def test_who_wakes_while_others_do_has_longer(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    with engine.begin() as tx:
        for number in (70, 71):
            node = add_node(tx, number, "off", mib=512)
            step = Step(NodeEvent.WOKEN, "test", power="on")
            transitions.apply(tx, node, step, now=NOW - 1, actor="test", policy=busy.policy)
        before = node_counts.waking(tx)
    part = acts["wake nodes"].flow.keywords["part"]  # type: ignore[attr-defined]
    in_tx(engine, acts["wake nodes"].flow, claim=claim(engine), now=NOW)
    with engine.begin() as tx:
        woken = [
            node for node in nodes.every(tx) if node.state == "trampoline" and node.since == NOW
        ]
    assert (before, len(woken)) == (2, part.count)
    assert {node.deadline for node in woken} == {NOW + 100 + 10 * (2 + part.count - 1)}


def test_a_grow_request_that_is_withdrawn_cancels_what_is_taken_for_it(
    engine: Engine, busy: Site, acts: dict[str, flow.Act]
) -> None:
    with engine.begin() as tx:
        rest(tx, busy, NOW, step=40.0)
        asked = request_flows.submit(
            tx, flow_context(busy, 900.0), vcluster="winner16", asked=AskedNodes([AskedTuple(1)])
        ).value
        assert "take for request" in run_pass(tx, busy, 900.0)
        request_flows.withdraw(tx, request_id=asked.request.id, reason="not needed", now=901.0)
        assert requests.get(tx, asked.request.id).state == "withdrawn"
        rest(tx, busy, 905.0, step=40.0)
        assert [summary(tx)[name] for name in ("loser16", "winner16")] == [
            ("active", 2, 2),
            ("active", 1, 1),
        ]
