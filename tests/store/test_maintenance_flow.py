"""Maintenance windows on a real database: planned, told, begun, over, moved, cancelled, ended by
hand; a rack that is drained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import calendar, explain, plan
from cod.flows.scheduler import maintenance as flow
from cod.model import AskedWindow, Refused, Site, WindowView
from cod.states import Disk, NodeState
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import blocks, nodes
from cod.store.scheduler import maintenance, node_counts, requests
from tests.contexts import flow_context
from tests.store.busy_site import calm, people, ruled, want
from tests.store.manager_world import add_node, arrive, planned, run_pass

pytestmark = pytest.mark.slow

NOW, BEGINS, ENDS = 10.0, 20_000.0, 30_000.0
ADMIN = "user:root"


@pytest.fixture
def rules(tx: Tx, site: Site) -> Site:
    """Six nodes, four of them in rack r12; leases are warned of 1,000 s before, and drain 30 s."""
    people(tx)
    for number in range(6):
        add_node(tx, number)
    rack = blocks.ensure(tx, "r12")
    blocks.put(tx, [node.id for node in nodes.every(tx)][:4], rack)
    return calm(ruled(site))


def ask(tx: Tx, rules: Site, now: float = NOW, /, **asked: Any) -> WindowView:
    """A window of rack r12."""
    values = {"reason": "power feed", "names": "@r12", "begins_at": BEGINS, "ends_at": ENDS}
    context = flow_context(rules, now, ADMIN)
    return flow.plan(tx, context, asked=AskedWindow(**(values | asked))).value


def carry_on(tx: Tx, site: Site, now: float) -> None:
    """What the manager does about windows."""
    claim = claims.hold(tx, "manager", "a", now, 10.0)
    assert claim is not None
    while flow.run(tx, claim=claim, site=site, now=now).value:
        pass


def states(tx: Tx) -> Counter[str]:
    """How many nodes are in each state."""
    return Counter(node.state for node in nodes.every(tx))


def told(tx: Tx) -> list[str]:
    """The subjects of notices about maintenance."""
    return list(
        tx.scalars(
            select(t.notices.c.subject)
            .where(t.notices.c.kind == "maintenance")
            .order_by(t.notices.c.id)
        )
    )


def granted(tx: Tx) -> set[str]:
    """The vclusters that hold nodes."""
    query = select(t.vclusters.c.name).join_from(
        t.nodes, t.vclusters, t.nodes.c.vcluster_id == t.vclusters.c.id
    )
    return set(tx.scalars(query))


def test_leases_that_would_run_into_it_get_other_nodes_and_shorter_ones_get_its(
    tx: Tx, rules: Site
) -> None:
    ask(tx, rules)
    want(tx, rules, "long", 3, 4096, 11.0, lease=50_000.0)
    want(tx, rules, "short", 3, 4096, 12.0, lease=5_000.0)
    run_pass(tx, rules, 13.0)
    assert granted(tx) == {"short"}
    (waiting,) = [one for one in requests.pending(tx, {}) if one.reason]
    assert "maintenance of @r12 begins 1970-01-01 05:33 UTC (power feed)" in waiting.reason
    want(tx, rules, "fits", 2, 4096, 14.0, lease=50_000.0)
    run_pass(tx, rules, 15.0)
    inside = {node.id for node in nodes.every(tx)[:4]}
    held = {node.id for node in nodes.every(tx) if node.vcluster_id is not None}
    assert granted(tx) == {"short", "fits"}
    assert len(held & inside) == 3


def test_a_grant_that_was_planned_before_the_window_is_stale(tx: Tx, rules: Site) -> None:
    want(tx, rules, "long", 6, 4096, 11.0, lease=50_000.0, spread=True)
    acts = [act for act in planned(tx, rules, 12.0) if act.name.startswith("grant")]
    ask(tx, rules, 12.0)
    claim = claims.hold(tx, "manager", "a", 12.0, 10.0)
    with pytest.raises(nodes.Stale):
        acts[0].flow(tx, claim=claim, now=12.0)


def test_owners_are_told_when_it_is_planned_and_again_before_it_begins(tx: Tx, rules: Site) -> None:
    want(tx, rules, "web", 4, 4096, 1.0, lease=50_000.0)
    want(tx, rules, "brief", 2, 4096, 1.0, lease=5_000.0)
    run_pass(tx, rules, 2.0)
    ask(tx, rules)
    assert told(tx) == ["web: 4 nodes in maintenance from 1970-01-01 05:33 UTC"]
    carry_on(tx, rules, BEGINS - 1001)
    assert len(told(tx)) == 1
    carry_on(tx, rules, BEGINS - 999)
    carry_on(tx, rules, BEGINS - 998)
    assert len(told(tx)) == 2


def test_owners_of_nodes_that_are_drained_by_a_time_are_warned_too(tx: Tx, rules: Site) -> None:
    want(tx, rules, "web", 4, 4096, 1.0, lease=50_000.0)
    run_pass(tx, rules, 2.0)
    ask(tx, rules, drain=True)
    for now in (NOW + 1, BEGINS - 999, BEGINS - 998):
        carry_on(tx, rules, now)
    assert len(told(tx)) == 2
    carry_on(tx, rules, BEGINS)
    assert states(tx)[NodeState.QUARANTINED] == 4


def test_nodes_go_when_it_begins_and_come_back_when_it_ends(tx: Tx, rules: Site) -> None:
    want(tx, rules, "web", 4, 4096, 1.0, lease=50_000.0)
    run_pass(tx, rules, 2.0)
    arrive(tx, 3.0)
    ask(tx, rules)
    carry_on(tx, rules, BEGINS - 1)
    assert NodeState.QUARANTINED not in states(tx)
    carry_on(tx, rules, BEGINS)
    out = nodes.every(tx, [NodeState.QUARANTINED])
    assert [node.name for node in out] == ["node0", "node1", "node2", "node3"]
    assert {node.reason for node in out} == {"maintenance until 1970-01-01 08:20 UTC: power feed"}
    assert {node.vcluster_id for node in out} == {None}
    assert told(tx)[-1] == "web: 4 nodes taken for maintenance"
    # the owner gets others in their place, as far as there are any
    run_pass(tx, rules, BEGINS + 1)
    assert len([node for node in nodes.every(tx) if node.vcluster_id is not None]) == 2
    waiting, _ = requests.every(tx, states=["pending"])
    seen = plan.look(tx, rules, BEGINS + 2)
    why = explain.waits(
        tx,
        request_id=waiting.id,
        scene=seen.scene,
        snapshot=seen.site,
        site=rules,
        groups=None,
        now=BEGINS + 2,
    ).why
    away = "4 of them are out of service: maintenance until 1970-01-01 08:20 UTC: power feed."
    assert away in why.sentence
    assert "node-lost" not in set(tx.scalars(select(t.notices.c.kind)))
    carry_on(tx, rules, ENDS - 1)
    assert states(tx)[NodeState.QUARANTINED] == 4
    carry_on(tx, rules, ENDS)
    assert states(tx)[NodeState.QUARANTINED] == 0
    back = nodes.every(tx, [NodeState.TRAMPOLINE])
    assert {(node.disk, node.reason, node.power_wanted) for node in back} == {
        (Disk.DIRTY, "", "cycle")
    }
    (over,) = flow.every(tx, site=rules, now=ENDS)
    assert (over.window.state, over.nodes) == ("over", 0)


def test_nodes_stay_out_where_that_was_asked(tx: Tx, rules: Site) -> None:
    ask(tx, rules, stay_out=True)
    for now in (BEGINS, ENDS):
        carry_on(tx, rules, now)
    out = nodes.every(tx, [NodeState.QUARANTINED])
    assert [node.reason for node in out] == ["after maintenance: power feed"] * 4


def test_what_administrators_decide_of_a_node_meanwhile_holds(tx: Tx, rules: Site) -> None:
    node_flows.quarantine(tx, flow_context(rules, NOW, ADMIN), name="node0", reason="fan")
    ask(tx, rules)
    carry_on(tx, rules, BEGINS)
    node_flows.restore(tx, flow_context(rules, BEGINS + 1, ADMIN), name="node1")
    later = flow_context(rules, BEGINS + 2, ADMIN)
    node_flows.quarantine(tx, later, name="node1", reason="disk")
    # the window runs, so a node that is restored by hand goes out again; this one has a reason
    carry_on(tx, rules, BEGINS + 3)
    carry_on(tx, rules, ENDS)
    out = {node.name: node.reason for node in nodes.every(tx, [NodeState.QUARANTINED])}
    assert out == {"node0": "fan", "node1": "disk"}


def test_a_manager_that_stops_in_the_middle_is_followed_by_another(
    tx: Tx, rules: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "BATCH", 3)
    ask(tx, rules)
    first = claims.hold(tx, "manager", "a", BEGINS, 10.0)
    assert first is not None
    assert flow.run(tx, claim=first, site=rules, now=BEGINS).value
    assert states(tx)[NodeState.QUARANTINED] == 3
    over = claims.find(tx, "manager")
    second = claims.hold(tx, "manager", "b", BEGINS + 20, 10.0, over=over)
    assert second is not None
    with pytest.raises(claims.Lost):
        flow.run(tx, claim=first, site=rules, now=BEGINS + 20)
    assert not flow.run(tx, claim=second, site=rules, now=BEGINS + 20).value
    assert states(tx)[NodeState.QUARANTINED] == 4
    assert flow.run(tx, claim=second, site=rules, now=ENDS).value
    assert states(tx)[NodeState.QUARANTINED] == 1
    assert not flow.run(tx, claim=second, site=rules, now=ENDS).value
    assert states(tx)[NodeState.QUARANTINED] == 0


def test_a_node_in_two_windows_comes_back_after_the_later_one(tx: Tx, rules: Site) -> None:
    ask(tx, rules)
    ask(tx, rules, names="node0", begins_at=BEGINS + 100, ends_at=ENDS + 100, reason="memory")
    for now in (BEGINS, BEGINS + 100, ENDS):
        carry_on(tx, rules, now)
    assert [node.name for node in nodes.every(tx, [NodeState.QUARANTINED])] == ["node0"]
    carry_on(tx, rules, ENDS + 100)
    assert states(tx)[NodeState.QUARANTINED] == 0


def test_owners_are_told_when_it_is_moved_or_cancelled(tx: Tx, rules: Site) -> None:
    want(tx, rules, "web", 4, 4096, 1.0, lease=50_000.0)
    run_pass(tx, rules, 2.0)
    made = ask(tx, rules)
    context = flow_context(rules, NOW, ADMIN)
    moved = flow.change(
        tx,
        context,
        window_id=made.window.id,
        changes={"begins_at": BEGINS + 3600, "ends_at": ENDS + 3600},
    ).value
    assert moved.window.begins_at == BEGINS + 3600
    assert told(tx)[1:] == ["web: maintenance now begins 1970-01-01 06:33 UTC"]
    ended = flow.end(tx, context, window_id=made.window.id).value
    assert ended.window.state == "cancelled"
    assert told(tx)[2:] == ["web: maintenance is cancelled"]
    carry_on(tx, rules, BEGINS + 3600)
    assert states(tx)[NodeState.QUARANTINED] == 0
    with pytest.raises(Refused, match="the maintenance is cancelled"):
        flow.end(tx, context, window_id=made.window.id)


def test_another_beginning_is_warned_of_anew_and_another_end_is_not(tx: Tx, rules: Site) -> None:
    want(tx, rules, "web", 4, 4096, 1.0, lease=50_000.0)
    run_pass(tx, rules, 2.0)
    made = ask(tx, rules)
    context = flow_context(rules, BEGINS - 900, ADMIN)
    carry_on(tx, rules, BEGINS - 950)
    assert len(told(tx)) == 2, "planned, and the warning"
    for changes in ({"ends_at": ENDS + 60}, {"begins_at": BEGINS + 3600}):
        flow.change(tx, context, window_id=made.window.id, changes=changes)
        before = len(told(tx))
        carry_on(tx, rules, BEGINS - 800)
        assert len(told(tx)) == before
    carry_on(tx, rules, BEGINS + 3600 - 999)
    assert len(told(tx)) == before + 1


def test_ending_one_that_runs_brings_its_nodes_back(tx: Tx, rules: Site) -> None:
    made = ask(tx, rules, ends_at=None)
    carry_on(tx, rules, BEGINS)
    assert states(tx)[NodeState.QUARANTINED] == 4
    flow.end(tx, flow_context(rules, BEGINS + 5, ADMIN), window_id=made.window.id)
    carry_on(tx, rules, BEGINS + 6)
    assert states(tx)[NodeState.QUARANTINED] == 0


def test_nodes_that_come_to_the_rack_later_are_in_it_too(tx: Tx, rules: Site) -> None:
    ask(tx, rules)
    blocks.put(tx, [nodes.named(tx, "node5").id], blocks.ensure(tx, "r12"))
    carry_on(tx, rules, BEGINS)
    assert states(tx)[NodeState.QUARANTINED] == 5


def test_the_whole_site(tx: Tx, rules: Site) -> None:
    made = ask(tx, rules, names="", site=True)
    assert (made.nodes, made.window.what) == (6, "the whole site")
    carry_on(tx, rules, BEGINS)
    assert states(tx)[NodeState.QUARANTINED] == 6


def test_a_check_says_what_is_taken_from_whom_and_when_it_is_empty_and_changes_nothing(
    tx: Tx, rules: Site
) -> None:
    want(tx, rules, "web", 3, 4096, 1.0, lease=50_000.0)
    want(tx, rules, "brief", 2, 4096, 1.5, lease=5_000.0, spread=True)
    run_pass(tx, rules, 2.0)
    asked = AskedWindow("power feed", "@r12", begins_at=BEGINS, ends_at=ENDS)
    context = flow_context(rules, NOW, ADMIN)
    found = flow.check(tx, context, asked=asked)
    assert {one.vcluster: (one.nodes, one.lost, one.leaves_at) for one in found.holders} == {
        "web": (3, 3, BEGINS),
    } | {one.vcluster: (one.nodes, 0, 5032.0) for one in found.holders if one.vcluster == "brief"}
    assert found.empty_at == BEGINS
    drained = flow.check(tx, context, asked=replace(asked, begins_at=None, drain=True))
    assert (drained.empty_at, sum(one.lost for one in drained.holders)) == (50_032.0, 0)
    assert flow.every(tx, site=rules, now=NOW) == []
    assert told(tx) == []


def test_a_rack_that_is_drained_gets_nothing_new_and_is_empty_when_leases_end(
    tx: Tx, rules: Site
) -> None:
    want(tx, rules, "brief", 3, 4096, 1.0, lease=5_000.0)
    run_pass(tx, rules, 2.0)
    arrive(tx, 3.0)
    ask(tx, rules, begins_at=None, ends_at=None, drain=True)
    carry_on(tx, rules, NOW)
    assert states(tx) == {"active": 3, "quarantined": 1, "inactive": 2}
    want(tx, rules, "next", 3, 4096, 11.0, lease=10.0)
    for now in (12.0, 5_003.0, 5_040.0, 5_041.0):
        run_pass(tx, rules, now)
        carry_on(tx, rules, now)
    assert states(tx) == {"quarantined": 4, "inactive": 2}
    assert granted(tx) == set()


def test_a_reservation_in_the_way_is_told(tx: Tx, rules: Site) -> None:
    want(tx, rules, "course", 6, 4096, 1.0, lease=5000.0, starts_at=BEGINS + 100, spread=True)
    made = ask(tx, rules)
    assert made.late == ("course",)
    assert told(tx) == ["course: maintenance is in the way of its reservation"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"names": ""}, "name nodes"),
        ({"site": True}, "name nodes"),
        ({"begins_at": None}, "say when the maintenance begins"),
        ({"ends_at": BEGINS}, "ends after it begins"),
        ({"begins_at": 1.0, "ends_at": 5.0}, "ends after it begins, and after now"),
        ({"begins_at": NOW - 4000.0, "ends_at": ENDS}, "is over"),
        ({"names": "@nowhere"}, "no block"),
        ({"names": "ghost"}, "no node"),
    ],
)
def test_what_goes_together_with_nothing_is_refused(
    tx: Tx, rules: Site, asked: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        ask(tx, rules, **asked)


def shown(tx: Tx, rules: Site, since: float, until: float) -> list[int]:
    """How many nodes each window of the calendar has."""
    found = calendar.show(tx, since=since, until=until, groups=None, site=rules, now=NOW)
    return [one.nodes for one in found.maintenance]


def test_the_calendar_has_the_windows_of_its_time(tx: Tx, rules: Site) -> None:
    nodes = ask(tx, rules).nodes
    assert shown(tx, rules, BEGINS - 10, BEGINS + 10) == [nodes]
    assert shown(tx, rules, NOW, BEGINS - 10) == []
    assert shown(tx, rules, ENDS + 1, ENDS + 10) == []


def test_the_calendar_has_no_window_that_was_ended_before_it_began(tx: Tx, rules: Site) -> None:
    for drain in (False, True):
        made = ask(tx, rules, drain=drain)
        flow.end(tx, flow_context(rules, NOW), window_id=made.window.id)
    assert shown(tx, rules, NOW - 10, ENDS) == []


def test_what_a_window_took_is_known_afterwards(tx: Tx, rules: Site) -> None:
    """For the preview of shares, which simulates the site's last weeks."""
    view = ask(tx, rules)
    kind, rack = nodes.every(tx)[0].type_id, blocks.by_name(tx, "r12")
    assert kind is not None
    other = ask(tx, rules, begins_at=90_000.0, ends_at=None, names=nodes.every(tx)[5].name)
    cancelled = ask(tx, rules, begins_at=80_000.0, ends_at=81_000.0)
    flow.end(tx, flow_context(rules, NOW, ADMIN), window_id=cancelled.window.id)
    there = node_counts.by_type_and_block(tx)

    def had(since: float, until: float) -> dict[int, dict[tuple[int, int | None], int]]:
        return {one.window.id: dict(one.nodes) for one in maintenance.recorded(tx, since, until)}

    planned = {view.window.id: {(kind, rack): 4}, other.window.id: {(kind, None): 1}}
    assert had(0.0, BEGINS - 1) == planned
    carry_on(tx, rules, BEGINS)
    assert states(tx)["quarantined"] == 4
    assert had(0.0, BEGINS + 1) == planned
    assert node_counts.by_type_and_block(tx) == there, "they come back"
    carry_on(tx, rules, ENDS)
    assert states(tx)["quarantined"] == 0
    assert had(0.0, ENDS + 1) == planned
    assert had(ENDS + 1, ENDS + 2) == {other.window.id: {(kind, None): 1}}
    assert had(0.0, NOW - 1) == {}


def test_windows_of_one_reason_have_each_their_own_nodes(tx: Tx, rules: Site) -> None:
    """A maintenance that goes from rack to rack; and what is out of service anyway is not taken."""
    first, alone = nodes.every(tx)[0], nodes.every(tx)[5]
    assert first.type_id is not None
    rack = blocks.by_name(tx, "r12")
    one = ask(tx, rules)
    two = ask(tx, rules, begins_at=ENDS + 10, ends_at=ENDS + 20, names=alone.name)
    broken = update(t.nodes).where(t.nodes.c.id == first.id).values(state=NodeState.QUARANTINED)
    tx.execute(broken)
    expected = {
        one.window.id: {(first.type_id, rack): 3},
        two.window.id: {(first.type_id, None): 1},
    }
    for now in (NOW, BEGINS, ENDS, ENDS + 10, ENDS + 20):
        carry_on(tx, rules, now)
        found = maintenance.recorded(tx, 0.0, now + 1)
        assert {each.window.id: dict(each.nodes) for each in found} == expected, now
