"""Moves of nodes from one vcluster to another of one owner: drained, taken at the deadline, and
never got by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, update

from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import explain, moves, plan
from cod.flows.scheduler import reclaims as reclaim_flows
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import shares as share_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.flows.vcms import vcms as vcm_flows
from cod.model import Refused, RequestView, Site
from cod.store import claims, vcms, views
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes, types
from cod.store.scheduler import reclaims, requests, reservations
from tests.contexts import flow_context
from tests.store.busy_site import everything, killed_at, people, summary, vcluster_id, want
from tests.store.manager_world import OWNER, add_node, arrive, check_world, planned, rest, run_pass

pytestmark = pytest.mark.slow

HOUR = 3600.0
DUE = 100.0 + HOUR


@pytest.fixture
def site(quiet: Site) -> Site:
    return quiet


def furnish(tx: Tx, site: Site, size: int = 5, **rest_: Any) -> None:
    """'old' has all nodes of the site, as many as it was created with, but one, which 'new' has."""
    people(tx)
    for number in range(size + 1):
        add_node(tx, number)
    want(tx, site, "old", size, 4096, 1.0)
    want(tx, site, "new", 1, 4096, 1.0, **rest_)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    run_pass(tx, site, 4.0)
    check_world(tx)


def move(
    tx: Tx,
    site: Site,
    count: int = 2,
    *,
    source: str = "old",
    target: str = "new",
    within: float | None = HOUR,
    now: float = 100.0,
    key: str | None = None,
    only: Sequence[str] = (),
) -> RequestView:
    return moves.start(
        tx,
        flow_context(site, now, OWNER, key=key),
        source=source,
        target=target,
        count=count,
        within=within,
        only=only,
    ).value


def progress(tx: Tx, number: int) -> tuple[str, int, int]:
    """The request's state, how many nodes it has brought, and how many the source still holds."""
    view = views.request(tx, number)
    return view.request.state, view.request.granted, view.leaving


def names(tx: Tx, name: str) -> set[str]:
    return {node.name for node in nodes.every(tx, vcluster_id=vcluster_id(tx, name))}


def told(tx: Tx, kind: str) -> list[str]:
    return list(
        tx.scalars(
            select(t.notices.c.about).where(t.notices.c.kind == kind).order_by(t.notices.c.id)
        )
    )


def test_nobody_answers_and_the_nodes_are_taken_at_the_deadline(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    asked = move(tx, site)
    assert (asked.request.kind, asked.vcluster, asked.source, asked.leaving) == (
        "move",
        "new",
        "old",
        2,
    )
    assert asked.request.deadline == DUE
    assert len(reservations.every(tx)) == 2
    assert "Cluster old gives 2 nodes to cluster new, as user:ann decided." in told(tx, "move")[0]
    assert run_pass(tx, site, 101.0) == ["tell requests why not"]
    assert (
        requests.get(tx, asked.request.id).reason
        == "waits for 2 nodes that the other vcluster still holds"
    )
    assert planned(tx, site, DUE - 0.1) == [], "nothing is taken before the deadline"
    assert run_pass(tx, site, DUE)[0] == "seize by reclaim"
    check_world(tx)
    assert summary(tx)["old"] == ("active", 3, 3), "below its creation size: its owner said so"
    assert "These nodes left cluster old" in told(tx, "moved")[0]
    arrive(tx, DUE + 10)
    assert "grant request" in run_pass(tx, site, DUE + 10)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)
    assert summary(tx)["new"] == ("active", 3, 3)
    rest(tx, site, DUE + 20)
    assert reservations.every(tx) == []
    assert {node.state for node in nodes.every(tx, vcluster_id=vcluster_id(tx, "new"))} == {
        "active"
    }


def test_nodes_that_are_given_early_do_not_wait_for_the_others(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    asked = move(tx, site, 3)
    one = reclaims.open_(tx)[0]
    reclaim_flows.answer(tx, flow_context(site, 110.0, OWNER), reclaim_id=one.id, nodes_=["node4"])
    arrive(tx, 120.0)
    assert "grant request" in run_pass(tx, site, 121.0)
    assert progress(tx, asked.request.id) == ("pending", 1, 2)
    assert (names(tx, "new") - {"node5"}, summary(tx)["new"]) == ({"node4"}, ("active", 2, 2))
    assert run_pass(tx, site, 122.0) == []
    owner_flows.release(tx, flow_context(site, 130.0, OWNER), name="old", nodes_=["node0"])
    owner_flows.resize(tx, flow_context(site, 131.0, OWNER), name="old", size=2)
    rest(tx, site, 140.0, step=10.0)
    assert progress(tx, asked.request.id) == (
        "granted",
        3,
        0,
    ), "releasing and shrinking are answers, too"
    assert summary(tx) == {"old": ("active", 2, 2), "new": ("active", 4, 4)}


def test_no_other_request_gets_the_nodes_on_the_way(tx: Tx, site: Site) -> None:
    """Neither by priority while they are held, nor when they are free."""
    furnish(tx, site)
    asked = move(tx, site, 2)
    chosen = {one.node_id for one in reservations.every(tx)}
    want(tx, site, "greedy", 3, 4096, 105.0, "high")
    for now in (106.0, 130.0, 500.0):
        run_pass(tx, site, now)
        arrive(tx, now)
    assert {
        one.node_id for one in reservations.every(tx) if one.request_id == asked.request.id
    } == chosen
    rest(tx, site, DUE)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)
    assert chosen <= {node.id for node in nodes.every(tx, vcluster_id=vcluster_id(tx, "new"))}


def test_within_nothing_they_are_taken_in_the_next_pass(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    asked = move(tx, site, 2, within=0.0)
    assert "seize by reclaim" in run_pass(tx, site, 100.0)
    rest(tx, site, 101.0, step=10.0)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)


def test_without_a_time_it_is_the_grace_of_a_reclaim(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    assert move(tx, site, within=None).request.deadline == 100.0 + site.policy.reclaim_grace


def test_the_target_installs_its_own_template(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    tx.execute(
        insert(t.config_templates).values(
            id=77,
            name="other",
            revision=1,
            document='<template><image target="disk" name="debian"/></template>',
            digest="1" * 64,
            created_at=0.0,
        )
    )
    tx.execute(update(t.vclusters).where(t.vclusters.c.name == "new").values(template_id=77))
    move(tx, site, within=0.0)
    rest(tx, site, 100.0, step=10.0)
    came = [
        node for node in nodes.every(tx, vcluster_id=vcluster_id(tx, "new")) if node.name != "node5"
    ]
    assert {(node.template_id, node.state) for node in came} == {(77, "active")}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("asked", "code", "field", "sentence"),
    [
        (
            {"count": 5},
            "conflict",
            "nodes",
            "vcluster old has 5 nodes, and one stays: 4 can move at most",
        ),
        ({"target": "old"}, "invalid", "to", "name another vcluster"),
        ({"source": "gone"}, "not_found", "name", "there is no vcluster 'gone'"),
        ({"target": "gone"}, "not_found", "to", "there is no vcluster 'gone'"),
        ({"only": ["vax"]}, "not_found", "types", "there is no node type 'vax'"),
        (
            {"within": 2e6},
            "conflict",
            "within",
            "the lease of vcluster new ends in .*: extend it first",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    tx: Tx, site: Site, asked: dict[str, Any], code: str, field: str, sentence: str
) -> None:
    furnish(tx, site)
    with pytest.raises(Refused, match=sentence) as refused:
        move(tx, site, **asked)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert requests.every(tx, states=["pending"]) == []


def test_nodes_that_the_target_cannot_use_are_refused_at_once(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    add_node(tx, 9, mib=8192)
    want(tx, site, "large", 1, 8192, 5.0)
    run_pass(tx, site, 6.0)
    arrive(tx, 7.0)
    with pytest.raises(
        Refused,
        match=r"0 of the 5 nodes of vcluster old match, 2 were asked for .*memory/mib.*8192",
    ):
        move(tx, site, target="large")
    known = {kind.name: kind.id for kind in types.every(tx)}
    mine = nodes.every(tx, vcluster_id=vcluster_id(tx, "old"))[0].type_id
    other = next(name for name, one in known.items() if one != mine)
    with pytest.raises(Refused, match=r"0 of the 5 nodes .*5: of another type"):
        move(tx, site, only=[other])
    assert move(tx, site, only=[name for name, one in known.items() if one == mine]).leaving == 2


def test_a_target_that_waits_or_drains_gets_nothing(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    want(tx, site, "waiting", 50, 4096, 5.0)
    with pytest.raises(Refused, match="vcluster waiting is pending, not active"):
        move(tx, site, target="waiting")
    tx.execute(
        update(t.vclusters)
        .where(t.vclusters.c.name == "new")
        .values(expires_at=90.0, drain_until=130.0)
    )
    with pytest.raises(Refused, match="the lease of vcluster new has run out"):
        move(tx, site, within=0.0)


def test_the_other_groups_limits_hold(tx: Tx, site: Site) -> None:
    furnish(tx, site, group="high")
    share_flows.change(tx, "high", {"node_limit": 3}, site=site, now=50.0)
    with pytest.raises(Refused, match="group high may hold 3 nodes at once, and would hold 4"):
        move(tx, site, 3)
    asked = move(tx, site, 1)
    assert asked.source == "old"
    with pytest.raises(Refused, match="would hold 4"):
        move(tx, site, 2)
    mine = nodes.every(tx)[0].type_id
    name = next(kind.name for kind in types.every(tx) if kind.id == mine)
    share_flows.change(
        tx, "high", {"node_limit": None, "type_limits": {name: 2}}, site=site, now=50.0
    )
    with pytest.raises(Refused, match=f"may hold 2 nodes of type {name} at once, and would hold 3"):
        move(tx, site, 1)
    assert "a cluster of another group" in told(tx, "move")[0], "old's group may not see new"


def test_a_move_counts_for_the_limit_from_its_beginning(tx: Tx, site: Site) -> None:
    """Else a request of the group would fill the limit while the nodes are on their way."""
    furnish(tx, site, group="high")
    add_node(tx, 20)
    share_flows.change(tx, "high", {"node_limit": 3}, site=site, now=50.0)
    move(tx, site, 2)
    owner_flows.resize(tx, flow_context(site, 101.0, OWNER), name="new", size=2)
    run_pass(tx, site, 102.0)
    assert [one.reason for one in requests.every(tx, states=["pending"]) if one.kind == "grow"] == [
        "waits: its group may hold 3 nodes at once"
    ]


def test_within_one_group_no_limit_stands_against_it(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    share_flows.change(tx, "low", {"node_limit": 6}, site=site, now=50.0)
    asked = move(tx, site, 2, within=0.0)
    rest(tx, site, 100.0, step=10.0)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)


# ---------------------------------------------------------------- what else happens meanwhile


def test_the_source_ends_and_the_nodes_go_on(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    asked = move(tx, site, 2)
    owner_flows.delete(tx, flow_context(site, 110.0, OWNER), name="old")
    rest(tx, site, 120.0, step=10.0)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)
    assert summary(tx)["new"] == ("active", 3, 3)


def test_the_source_s_lease_runs_out_first(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    tx.execute(
        update(t.vclusters).where(t.vclusters.c.name == "old").values(expires_at=200.0, warned=0.0)
    )
    asked = move(tx, site, 2)
    rest(tx, site, 201.0, step=40.0)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)
    assert summary(tx)["new"] == ("active", 3, 3)


@pytest.mark.parametrize("end", ["delete", "lease", "withdraw"])
def test_the_target_ends_and_the_source_keeps_the_rest(tx: Tx, site: Site, end: str) -> None:
    furnish(tx, site)
    asked = move(tx, site, 3)
    owner_flows.release(tx, flow_context(site, 105.0, OWNER), name="old", nodes_=["node4"])
    if end == "delete":
        owner_flows.delete(tx, flow_context(site, 110.0, OWNER), name="new")
    elif end == "withdraw":
        shown = request_flows.withdraw(
            tx, request_id=asked.request.id, reason="withdrawn by ann", now=110.0, seen=frozenset()
        )
        assert shown.value.source is None
    else:
        tx.execute(
            update(t.vclusters)
            .where(t.vclusters.c.name == "new")
            .values(expires_at=109.0, warned=0.0)
        )
        assert "drain vcluster" in run_pass(tx, site, 110.0)
    assert progress(tx, asked.request.id) == ("withdrawn", 0, 0)
    assert (reclaims.open_(tx), reservations.every(tx)) == ([], [])
    assert "needed 2 nodes of cluster old no longer needs them" in told(tx, "reclaim-dropped")[0]
    rest(tx, site, DUE)
    assert summary(tx)["old"] == ("active", 4, 4)
    assert nodes.by_name(tx, "node4").state == "inactive"


def test_a_source_that_has_shrunk_keeps_its_last_node(tx: Tx, site: Site) -> None:
    """Two of its nodes broke and nothing replaces them: the move brings what can be had, and
    ends."""
    furnish(tx, site)
    asked = move(tx, site, 4)
    for name in ("node0", "node1"):
        node_flows.quarantine(tx, flow_context(site, 105.0, OWNER), name=name, reason="smoke")
    rest(tx, site, DUE)
    request = requests.get(tx, asked.request.id)
    assert request is not None
    assert (request.state, request.granted, request.reason) == (
        "granted",
        2,
        "2 of 4 nodes have moved; no others are left",
    )
    assert len(names(tx, "old")) >= 1


def test_nodes_that_break_on_the_way_end_the_move(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    asked = move(tx, site, 1, within=0.0)
    run_pass(tx, site, 100.0)
    kept = reservations.every(tx)[0].node_id
    node_flows.quarantine(
        tx, flow_context(site, 101.0, OWNER), name=nodes.get(tx, kept).name, reason="smoke"
    )
    assert "tell requests why not" in run_pass(tx, site, 102.0)
    request = requests.get(tx, asked.request.id)
    assert request is not None
    assert (request.state, request.reason) == (
        "rejected",
        "none of the nodes that were to move is left",
    )
    assert "none of the nodes that were to move is left" in told(tx, "rejected")[0]
    assert run_pass(tx, site, 103.0) == []


def test_two_moves_and_a_reclaim_take_different_nodes(tx: Tx, site: Site) -> None:
    furnish(tx, site, 6)
    move(tx, site, 2)
    with pytest.raises(
        Refused, match="6 nodes, of which 2 leave already, and one stays: 3 can move at most"
    ):
        move(tx, site, 4, now=101.0)
    move(tx, site, 3, now=101.0)
    assert len({one.node_id for one in reservations.every(tx)}) == 5
    rest(tx, site, DUE + 1)
    assert summary(tx) == {"old": ("active", 1, 1), "new": ("active", 6, 6)}


def test_the_same_key_again_is_the_same_move(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    first = move(tx, site, key="k")
    assert move(tx, site, key="k", now=200.0) == first
    with pytest.raises(Refused, match="that key was used before, for vcluster new"):
        move(tx, site, source="new", target="old", count=1, key="k")


def test_it_is_explained_and_previewed(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    asked = move(tx, site)
    seen = plan.look(tx, site, 101.0)
    why = explain.waits(
        tx,
        request_id=asked.request.id,
        scene=seen.scene,
        snapshot=seen.site,
        site=site,
        groups=None,
        now=101.0,
    ).why
    assert (why.code, why.wanted, why.reason) == (
        "taking",
        2,
        "Waits for 2 nodes that the other vcluster still holds.",
    )
    assert (
        why.sentence
        == f"{why.reason} Next that is known: old gives nodes back at the latest in 59 min"
        " (2 nodes)."
    )
    assert [(one.kind, one.request_id) for one in plan.preview(tx, site=site, now=DUE)] == [
        ("seize", asked.request.id),
        ("wait", asked.request.id),
    ]
    other = want(tx, site, "late", 50, 4096, 102.0, wait=True)
    seen = plan.look(tx, site, 103.0)
    (late,) = [one for one in requests.every(tx, states=["pending"]) if one.vcluster_id == other]
    assert (
        explain.waits(
            tx,
            request_id=late.id,
            scene=seen.scene,
            snapshot=seen.site,
            site=site,
            groups=None,
            now=103.0,
        ).why.ahead
        == ()
    ), "a move competes with nobody"


# ---------------------------------------------------------------- what its VCM hears


def test_the_vcm_is_told_the_deadline_and_may_promise(tx: Tx, site: Site) -> None:
    furnish(tx, site)
    vcm_flows.enrol(tx, vcluster="old", serial="a1", address="", now=50.0)
    vcm_flows.enrol(tx, vcluster="new", serial="a2", address="", now=50.0)
    asked = move(tx, site, 2)
    old, new = vcluster_id(tx, "old"), vcluster_id(tx, "new")
    (said,) = [
        row.body for row in vcms.unacknowledged(tx, {old: 0}, limit=100) if row.verb == "reclaim"
    ]
    assert (said["count"], said["deadline"], said["reason"]) == (
        2,
        DUE,
        "user:ann moves nodes to vcluster new",
    )
    assert len(said["nodes"]) == 5, "all that would do: the VCM chooses"
    reclaim_flows.answer(
        tx,
        flow_context(site, 101.0, "vcm:old"),
        reclaim_id=said["reclaim"],
        nodes_=[],
        later={"n5": 500.0, "n1": 600.0},
    )
    view = reclaim_flows.show(tx, said["reclaim"])
    assert (view.moves, view.promised) == (True, {"node0": 600.0, "node4": 500.0})
    owner_flows.release(
        tx, flow_context(site, 490.0, "vcm:old"), name="old", nodes_=["n5"], passing_over=True
    )
    rest(tx, site, 491.0, step=10.0)
    assert progress(tx, asked.request.id) == ("pending", 1, 1)
    grants = [
        row.body for row in vcms.unacknowledged(tx, {new: 0}, limit=100) if row.verb == "grant"
    ]
    assert [(one["request"], one["key"], len(one["members"])) for one in grants] == [
        (asked.request.id, "", 1)
    ]
    rest(tx, site, DUE)
    assert progress(tx, asked.request.id) == ("granted", 2, 0)
    over = [
        row.body["state"]
        for row in vcms.unacknowledged(tx, {old: 0}, limit=100)
        if row.verb == "reclaim-over"
    ]
    assert over == ["done"]


# ---------------------------------------------------------------- crashes


def test_killed_at_any_statement_nothing_is_half_done(engine: Engine, site: Site) -> None:
    with engine.begin() as tx:
        furnish(tx, site)
    before = everything(engine)
    for statement in range(200):
        if not killed_at(engine, lambda tx: move(tx, site), statement):
            break
        assert everything(engine) == before, statement
    else:
        raise AssertionError("it never went through")
    with engine.begin() as tx:
        number = requests.every(tx, states=["pending"])[0].id
        # The manager dies between any two acts of its passes: the next pass goes on.
        for turn in range(12):
            claim = claims.hold(tx, "manager", "a", DUE + turn * 10, 10.0)
            for act in planned(tx, site, DUE + turn * 10)[:1]:
                act.flow(tx, claim=claim, now=DUE + turn * 10)
                # nobody knew whether it was committed
                act.flow(tx, claim=claim, now=DUE + turn * 10)
            arrive(tx, DUE + turn * 10 + 5)
        assert progress(tx, number) == ("granted", 2, 0)
        assert summary(tx) == {"old": ("active", 3, 3), "new": ("active", 3, 3)}
        check_world(tx)
