"""What the manager counts, on both databases: the same as counting by hand, out of one index."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, text, update

from cod.core import snapshot
from cod.flows.scheduler import explain
from cod.flows.scheduler import plan as flow
from cod.model import Policy, Refused, Site
from cod.policy.scheduler.preemption import assigned_by
from cod.policy.scheduler.snapshot import COLD, WARM, Cache, NodeKind, SiteSnapshot
from cod.states import Disk
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import node_counts, node_kinds, node_picks, reservations
from tests.store.busy_site import build, calm, people, ruled, want
from tests.store.manager_world import add_node, add_template, arrive, furnish, run_pass

pytestmark = pytest.mark.slow

NOW = 1000.0


@pytest.fixture
def mixed(tx: Tx, site: Site) -> Site:
    """A busy site with free nodes of all sorts, by a seed."""
    build(tx, ruled(site))
    other = add_template(tx, "kept", cache=True)
    group = groups.ensure(tx, "site", 0.0).id
    dice = random.Random(7)
    request = tx.scalar(select(t.node_requests.c.id).where(t.node_requests.c.state == "pending"))
    for number in range(60, 160):
        node = add_node(
            tx,
            number,
            dice.choice(["inactive", "off", "trampoline", "wipe", "quarantined", "new"]),
            mib=dice.choice([4096, 8192]),
        )
        cached = {"disk": Disk.CACHED, "cached_template_id": other, "cached_group_id": group}
        nodes.change(
            tx,
            node,
            released=dice.choice([0, 0, 0, 1]),
            power_driver=dice.choice(["none", "lab"]),
            subnet=dice.choice([None, "lab"]),
            **dice.choice([{}, {}, cached, {"disk": Disk.DIRTY}]),
        )
        tx.execute(
            update(t.nodes).where(t.nodes.c.id == node.id).values(since=dice.choice([0.0, NOW]))
        )
        if dice.random() < 0.2:
            reservations.add(tx, [node.id], request or 0, None, NOW)
    chosen = t.nodes.c.id.in_(select(t.reservations.c.node_id)), t.nodes.c.vcluster_id.is_not(None)
    tx.execute(update(t.nodes).where(*chosen).values(assigned_at=1.0))  # what is chosen was mobile
    tx.execute(insert(t.node_blocks).values(id=9, name="b9"))
    tx.execute(update(t.nodes).where(t.nodes.c.id % 3 == 0).values(block_id=9))
    return calm(ruled(site))


def by_hand(tx: Tx, idle_since: float) -> Counter[Any]:
    """Free nodes and idle ones, one by one."""
    kept = {one.node_id: one.request_id for one in reservations.every(tx)}
    found: Counter[Any] = Counter()
    for node in nodes.every(tx, ["inactive", "off"]):
        awake = node.state == "inactive"
        if (
            node.vcluster_id is None
            and not node.released
            and (awake or node.power_driver != "none")
        ):
            cache = (
                Cache(node.cached_template_id or 0, node.cached_group_id or 0)
                if node.disk == "cached"
                else None
            )
            kind = NodeKind(node.type_id or 0, node.block_id or 0, "")
            key = kind, WARM if awake else COLD, cache, kept.get(node.id, 0)
            found["count", key] += 1
            found["idle", key] += awake and node.power_driver != "none" and node.since <= idle_since
    return found


def test_lots_are_what_counting_by_hand_gives(tx: Tx, mixed: Site) -> None:
    seen = flow.snapshot(tx, mixed, NOW + 10.0)
    counted: Counter[Any] = Counter()
    for free in seen.free_nodes:
        key = (free.kind, free.readiness, free.cache, free.reserved)
        assert ("count", key) not in counted, "one pool a key"
        counted["count", key] = free.count
        counted["idle", key] = free.idle
    assert counted == by_hand(tx, NOW + 10.0 - mixed.energy.idle_time)
    assert len({free.reserved for free in seen.free_nodes}) == 2


def test_coming_and_held_nodes_are_what_counting_by_hand_gives(tx: Tx, mixed: Site) -> None:
    kept = {one.node_id: one.request_id for one in reservations.every(tx)}
    coming: Counter[Any] = Counter()
    for node in nodes.every(tx, ["trampoline", "wipe", "capture"]):
        if node.vcluster_id is None:
            clean = node.state == "trampoline" and not node.released and node.disk != "dirty"
            coming[
                NodeKind(node.type_id or 0, node.block_id or 0, ""), kept.get(node.id, 0), clean
            ] += 1
    seen = flow.snapshot(tx, mixed, 12.0)
    assert {(one.kind, one.reserved, one.waking): one.count for one in seen.coming} == coming
    timed = snapshot.look(tx, mixed, 12.0, times=True).site.coming
    assert sum(one.count for one in timed) == sum(coming.values())
    assert {one.since for one in timed} == {
        math.ceil(node.since / 10) * 10
        for node in nodes.every(tx, ["trampoline", "wipe", "capture"])
        if node.vcluster_id is None
    }
    held: Counter[Any] = Counter()
    for node in nodes.every(tx):
        if node.vcluster_id is not None:
            key = node.vcluster_id, NodeKind(node.type_id or 0, node.block_id or 0, "")
            held["count", key] += 1
            held["mobile", key] += (node.assigned_at or 0.0) + 10.0 <= 12.0 and node.id not in kept
    for allocation in seen.allocations:
        key = allocation.vcluster_id, allocation.kind
        assert (allocation.count, allocation.mobile) == (held["count", key], held["mobile", key])
    assert sum(holder.held for holder in seen.holders.values()) == sum(
        count for (what, _), count in held.items() if what == "count"
    )


def test_each_lot_can_be_picked_whole(tx: Tx, mixed: Site) -> None:
    """The nodes that are counted are those that are picked: every pool, all of it, and no node
    twice."""
    taken: set[int] = set()
    for one in node_counts.free(tx, node_counts.kept(tx, NOW), False, NOW):
        picked = node_picks.pick_free(tx, one.key, one.nodes, False)
        assert len(picked) == one.nodes
        assert len(node_picks.pick_free(tx, one.key, one.idle, False, NOW)) == one.idle
        for count, since in ((one.nodes + 1, None), (one.idle + 1, NOW)):
            with pytest.raises(
                nodes.Stale, match=f"{count} nodes of a kind were free, {count - 1} are left"
            ):
                node_picks.pick_free(tx, one.key, count, False, since)
        assert [node.id for node in picked] == sorted({node.id for node in picked} - taken)
        taken |= {node.id for node in picked}


def test_inertia_is_the_priorities_own(tx: Tx, site: Site) -> None:
    people(tx)
    for number in range(4):
        add_node(tx, number)
    low, high = (want(tx, site, name, 2, 4096, 1.0, name) for name in ("low", "high"))
    run_pass(tx, calm(site), 10.0)
    tx.execute(update(t.nodes).where(t.nodes.c.name == "node0").values(assigned_at=20.0))
    rules = Policy(inertia=100.0, inertia_by_priority={9: 5.0})
    seen = {
        one.vcluster_id: one
        for one in flow.snapshot(tx, replace(site, policy=rules), 16.0).allocations
    }
    assert {
        one: (seen[one].count, seen[one].mobile, seen[one].immune_until) for one in (low, high)
    } == {low: (2, 0, 110.0), high: (2, 1, 25.0)}
    ends = {
        one.vcluster_id: one
        for one in flow.snapshot(tx, replace(site, policy=rules), 110.0).allocations
    }
    assert (ends[low].mobile, ends[low].immune_until) == (
        2,
        None,
    ), "the very moment at which it ends"


def test_subnets_count_where_there_are_several(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    for name, subnet in (("node0", "lab"), ("node1", "far")):
        tx.execute(update(t.nodes).where(t.nodes.c.name == name).values(subnet=subnet))
    near = site.subnets[0]
    two = replace(
        site, subnets=(near, replace(near, name="far", block_pool=("10.78.0.0", "10.78.0.255")))
    )

    def subnets(seen: SiteSnapshot) -> list[tuple[str, int]]:
        return sorted((free.kind.subnet, free.count) for free in seen.free_nodes)

    assert subnets(flow.snapshot(tx, site, 1.0)) == [("", 3)]
    assert subnets(flow.snapshot(tx, two, 1.0)) == [("", 1), ("far", 1), ("lab", 1)]
    kind = node_kinds.NodeKindRow(next(iter(flow.snapshot(tx, site, 1.0).types)), 0, "far")
    key = node_kinds.FreeKey("inactive", kind, None, None, 0)
    assert [node.name for node in node_picks.pick_free(tx, key, 1, True)] == ["node1"]
    [type_id] = flow.snapshot(tx, site, 1.0).types
    assert node_counts.by_subnet(tx) == {"lab": {type_id: 1}, "far": {type_id: 1}}


def _statements(engine: Engine, step: Any) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    with engine.begin() as tx:
        event.listen(tx, "before_cursor_execute", note)
        step(tx)
        event.remove(tx, "before_cursor_execute", note)
    return seen


@pytest.mark.parametrize("by_priority", [{}, {9: 5.0}])
def test_counting_reads_no_wide_row(
    engine: Engine, site: Site, by_priority: dict[int, float]
) -> None:
    """Every statement that goes over all nodes is served by an index alone."""
    with engine.begin() as tx:
        furnish(tx, 60)
        for number in range(100, 400):
            add_node(tx, number, attributes="x" * 300)
        if engine.dialect.name != "sqlite":
            tx.execute(text("ANALYZE TABLE nodes"))
    policy = Policy(inertia=5.0, inertia_by_priority=by_priority)

    def count(tx: Tx) -> None:
        node_counts.free(tx, [], False, 1.0)
        node_counts.coming(tx, [], False)
        node_counts.coming(tx, [], False, times=True)
        node_counts.held(tx, [], False, node_counts.AssignedBy(*assigned_by(policy, 10.0)))
        node_counts.by_type(tx)

    statements = _statements(engine, count)
    statements = [each for each in statements if "FROM nodes" in each[0] or "JOIN nodes" in each[0]]
    assert len(statements) == 7
    with engine.begin() as tx:
        for statement, parameters in statements:
            plan = _explained(tx, statement, parameters)
            assert plan, f"{statement} reads rows: {plan}"


def _explained(tx: Tx, statement: str, parameters: Any) -> bool:
    if tx.dialect.name == "sqlite":
        rows = tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        details = [row[-1] for row in rows if " nodes" in row[-1]]
        return bool(details) and all("COVERING INDEX" in detail for detail in details)
    steps = tx.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings()
    return all("Using index" in (step["Extra"] or "") for step in steps if step["table"] == "nodes")


def test_an_unchanged_world_is_not_planned(tx: Tx, site: Site) -> None:
    people(tx)
    for number in range(2):
        add_node(tx, number)
    want(tx, site, "one", 1, 4096, 1.0)
    run_pass(tx, calm(site), 2.0)
    arrive(tx, 3.0)
    assert not flow.decide(flow.snapshot(tx, calm(site), 4.0), calm(site), 4.0)
    assert flow.pulse(tx) == flow.pulse(tx)


def test_when_time_alone_gives_something_to_do(tx: Tx, site: Site) -> None:
    """The end of a lease, a warning of it, a deadline, an inertia for which somebody waits:
    whichever comes first."""
    rules = ruled(site)
    build(tx, rules)
    seen = flow.snapshot(tx, rules, 101.0)
    assert flow.due(seen, rules, 101.0) == 120.0, "the reclaim's deadline"
    assert flow.due(replace(seen, reclaims=()), rules, 101.0) == 120.0, (
        "a draining lease's nodes are seized"
    )
    alone = replace(seen, reclaims=(), holders={}, requests=())
    assert flow.due(alone, rules, 101.0) == float("inf")
    fresh = [replace(one, immune_until=107.0) for one in seen.allocations]
    assert flow.due(replace(alone, allocations=fresh), rules, 101.0) == float("inf"), "nobody waits"
    assert (
        flow.due(replace(alone, allocations=fresh, requests=seen.requests), rules, 101.0) == 107.0
    )
    holder = replace(next(iter(seen.holders.values())), expires_at=5000.0, drain_until=None)
    assert flow.due(replace(alone, holders={1: holder}), rules, 101.0) == 4000.0, "its warning"
    assert flow.due(replace(alone, holders={1: holder}), rules, 4000.0) == 5000.0


def test_a_preview_names_what_the_pass_then_does(tx: Tx, site: Site) -> None:
    rules = ruled(site)
    build(tx, rules)
    lines = flow.preview(tx, site=rules, now=130.0)
    kinds = [line.kind for line in lines]
    assert sorted(set(kinds)) == [
        "drain",
        "ease",
        "end",
        "expire",
        "grant",
        "reject",
        "seize",
        "sleep",
        "take",
        "wait",
        "wake",
        "warn",
    ]
    reduction = next(line for line in lines if line.kind == "ease")
    assert (reduction.vcluster, reduction.nodes) == ("loser24", 1)
    preempt = next(line for line in lines if line.kind == "take")
    assert (preempt.vcluster, preempt.nodes, preempt.about) == (
        "loser16",
        1,
        "for vcluster winner16, which goes first",
    )
    seize = next(line for line in lines if line.kind == "seize")
    assert (seize.vcluster, seize.nodes, seize.request_id) == (
        "loser8",
        2,
        next(line.request_id for line in lines if line.vcluster == "winner8"),
    )
    assert next(line for line in lines if line.kind == "grant").vcluster == "granted"
    assert flow.preview(tx, site=rules, now=130.0) == lines, "it is dry"


def test_a_request_is_explained_in_every_state(tx: Tx, site: Site) -> None:
    rules = ruled(site)
    build(tx, rules)
    states = {
        row.state: row.id
        for row in tx.execute(select(t.node_requests.c.state, t.node_requests.c.id))
    }
    seen = flow.look(tx, rules, 130.0)
    ask = partial(
        explain.waits, tx, scene=seen.scene, snapshot=seen.site, site=rules, groups=None, now=130.0
    )
    assert ask(request_id=states["pending"]).why.wanted == 60
    assert ask(request_id=states["granted"]).why.code == "granted"
    with pytest.raises(Refused, match="no request 999"):
        ask(request_id=999)
