"""The manager's pass on a real database: submit -> snapshot -> plan -> apply, and what may come
between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from cod.core.networks import address_blocks as core_blocks
from cod.core.nodes import transitions
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import apply_plan as act_flows
from cod.flows.scheduler import explain
from cod.flows.scheduler import plan as flow
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Binding, Refused, Site
from cod.policy.scheduler.snapshot import PassPlan
from cod.states import Disk, NodeEvent, NodeState, RequestState
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes
from cod.store.scheduler import address_blocks, requests, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import (
    OWNER,
    add_node,
    arrive,
    check_world,
    furnish,
    in_tx,
    members,
    planned,
    rest,
    run_pass,
    states,
)


def create(
    tx: Tx,
    site: Site,
    name: str = "one",
    size: int = 2,
    now: float = 1.0,
    possible: bool = False,
    **rest: Any,
) -> int:
    """A vcluster that waits for its nodes; its id."""
    made = owner_flows.create(
        tx,
        flow_context(site, now),
        AskedVcluster(name=name, size=size, group="site", **{"template": "debian"} | rest),
        possible=possible,
    )
    return int(made.value[0].vcluster.id)


def test_a_request_gets_its_nodes(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    one = create(tx, site, lease=100.0)
    assert run_pass(tx, site, 5.0) == ["grant request"]
    request, held = requests.every(tx)[0], nodes.every(tx, vcluster_id=one)
    assert [(n.name, n.state, n.hostname, n.assigned_at, n.request_id) for n in held] == [
        ("node0", "prime", "n1", 5.0, request.id),
        ("node1", "prime", "n2", 5.0, request.id),
    ]
    vcluster = vclusters.get(tx, one)
    assert vcluster is not None
    assert (vcluster.state, vcluster.expires_at) == ("active", 105.0)
    [block] = address_blocks.of(tx, one)
    addresses = [b.address for n in held for b in bindings.of_node(tx, n.id)]
    assert len(set(addresses)) == 2
    assert all(address in block.addresses for address in addresses)
    install = tx.execute(select(t.install_images)).mappings().all()
    assert {(row["node_id"], row["state"], row["generation"]) for row in install} == {
        (n.id, "pending", n.generation) for n in held
    }
    check_world(tx)
    assert run_pass(tx, site, 6.0) == []


def test_a_cold_node_is_woken_and_primed_when_it_comes(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    add_node(tx, 1, "off")
    add_node(tx, 2, "off", power_driver="none")  # nobody can wake that one
    one = create(tx, site, size=1)
    run_pass(tx, site, 5.0)
    node = nodes.every(tx, vcluster_id=one)[0]
    assert (node.name, node.state, node.power_wanted, node.power_seq) == (
        "node1",
        "trampoline",
        "on",
        1,
    )
    action = tx.execute(select(t.power_actions)).mappings().one()
    assert (action["generation"], action["desired"]) == (node.generation, "on")


def test_a_kept_disk_skips_priming_for_the_same_group_and_revision(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    create(tx, site, size=1, template="kept")
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    owner_flows.delete(tx, flow_context(site, 4.0, OWNER), name="one")
    arrive(tx, 5.0)
    node = nodes.by_name(tx, "node0")
    assert node is not None
    assert (node.state, node.disk, node.released) == ("inactive", "cached", 0)
    create(tx, site, "again", size=1, template="kept", now=6.0)
    run_pass(tx, site, 7.0)
    assert states(tx) == {"node0": "boot", "node1": "inactive"}
    create(tx, site, "other", size=1, template="debian", now=8.0)
    run_pass(tx, site, 9.0)
    assert states(tx)["node1"] == "prime"


def test_an_impossible_request_is_rejected_and_its_vcluster_ends(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    one = create(tx, site)
    assert run_pass(tx, site, 5.0) == ["tell requests why not"]
    request = requests.every(tx)[0]
    assert (request.state, request.reason) == (
        "rejected",
        "2 nodes wanted, the site has 1 matching",
    )
    vcluster = vclusters.get(tx, one)
    assert vcluster is not None
    assert (vcluster.state, vcluster.ended_at, address_blocks.of(tx, one)) == ("ended", 5.0, [])
    assert vclusters.by_name(tx, "one") is None
    assert run_pass(tx, site, 6.0) == []


def test_a_request_waits_until_nodes_are_back(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    create(tx, site)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    two = create(tx, site, "two", size=1, now=4.0)
    run_pass(tx, site, 4.0)
    assert (
        requests.every(tx)[-1].reason
        == "waits: 1 node wanted, too few of the 2 matching are free; the rest is held, kept for"
        " others, or out of service"
    )
    owner_flows.delete(tx, flow_context(site, 5.0, OWNER), name="one")
    run_pass(tx, site, 6.0)
    assert requests.every(tx)[-1].reason == "waits for 1 node on its way back"
    assert members(tx, two) == []
    arrive(tx, 7.0)
    assert run_pass(tx, site, 8.0) == ["end vcluster", "grant request"]
    assert members(tx, two) == ["node0"]
    check_world(tx)


def test_an_expired_lease_takes_the_nodes_back_and_ends_when_they_are_there(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 2)
    one = create(tx, site, lease=100.0)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    assert run_pass(tx, site, 101.9) == []
    assert run_pass(tx, site, 102.0) == ["drain vcluster"]
    assert run_pass(tx, site, 401.9) == []
    assert run_pass(tx, site, 402.0) == ["expire vcluster"]
    for node in nodes.every(tx):
        assert (node.state, node.disk, node.released, node.power_wanted) == (
            "trampoline",
            "dirty",
            one,
            "cycle",
        )
    assert tx.execute(select(t.power_actions.c.generation)).scalars().all() == [
        node.generation for node in nodes.every(tx)
    ]
    check_world(tx)
    arrive(tx, 403.0, "node0")
    assert run_pass(tx, site, 404.0) == []
    arrive(tx, 405.0, "node1")
    assert run_pass(tx, site, 406.0) == ["end vcluster"]
    vcluster = vclusters.get(tx, one)
    assert vcluster is not None
    assert vcluster.state == "ended"


def test_a_node_set_aside_on_its_way_back_does_not_hold_up_the_end(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site, size=1)
    run_pass(tx, site, 2.0)
    owner_flows.delete(tx, flow_context(site, 3.0, OWNER), name="one")
    node_flows.quarantine(tx, flow_context(site, 4.0, OWNER), name="node0", reason="smoke")
    assert run_pass(tx, site, 5.0) == ["end vcluster"]


def test_a_held_node_that_is_set_aside_is_replaced(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    one = create(tx, site)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    node_flows.quarantine(tx, flow_context(site, 4.0, OWNER), name="node0", reason="smoke")
    assert [r.kind for r in requests.every(tx, states=["pending"])] == ["replace"]
    check_world(tx)
    run_pass(tx, site, 5.0)
    assert members(tx, one) == ["node1", "node2"]
    new = nodes.by_name(tx, "node2")
    assert new is not None
    assert new.hostname == "n1"
    check_world(tx)


def test_higher_priority_goes_first(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site, "low", size=1, now=1.0)
    high = create(tx, site, "high", size=1, now=2.0)
    tx.execute(
        update(t.node_requests).where(t.node_requests.c.vcluster_id == high).values(priority=9)
    )
    run_pass(tx, site, 3.0)
    assert members(tx, high) == ["node0"]


def with_far(site: Site) -> Site:
    near = site.subnets[0]
    far = replace(near, name="far", block_pool=("10.78.0.0", "10.78.0.255"))
    return replace(site, subnets=(near, far))


def test_a_new_vcluster_is_where_the_nodes_are_that_match_it(tx: Tx, site: Site) -> None:
    """Two large nodes in a small subnet, beside three small ones in the largest."""
    two = with_far(site)
    furnish(tx, 0)
    for number in range(5):
        subnet, mib = ("far", 16384) if number < 2 else ("lab", 4096)
        add_node(tx, number, subnet=subnet, mib=mib)
    large = '<requires><memory><mib min="8192"/></memory></requires>'
    asked = explain.HypotheticalRequest(2, large, "debian", "site")
    seen = flow.look(tx, two, 1.0)
    found = explain.match_(
        tx, asked=asked, scene=seen.scene, snapshot=seen.site, site=two, groups=None, now=1.0
    )
    assert found.why.code == "granted"
    one = create(tx, two, attributes=large, possible=True)
    other = create(tx, two, "other", 3)
    run_pass(tx, two, 2.0)
    assert (members(tx, one), len(members(tx, other))) == (["node0", "node1"], 3)


def test_nodes_of_another_subnet_are_not_granted(tx: Tx, site: Site) -> None:
    two = with_far(site)
    furnish(tx, 2)
    for number, subnet in enumerate(("far", "lab")):
        tx.execute(update(t.nodes).where(t.nodes.c.name == f"node{number}").values(subnet=subnet))
    one = create(tx, two, size=1)
    run_pass(tx, two, 2.0)
    vcluster = vclusters.get(tx, one)
    assert vcluster is not None
    expected = {"far": "node0", "lab": "node1"}[vcluster.subnet or ""]
    assert members(tx, one) == [expected]


# ---------------------------------------------------------------- between the snapshot and the act


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["asked", "quarantined", "taken"])
def test_a_stale_plan_grants_nothing_at_all(engine: Engine, site: Site, trouble: str) -> None:
    with engine.begin() as tx:
        furnish(tx, 2)
        one = create(tx, site)
        claim = claims.hold(tx, "manager", "a", 2.0, 10.0)
        acts = planned(tx, site, 2.0)
    with engine.begin() as tx:
        node = nodes.by_name(tx, "node1")
        assert node is not None
        if trouble == "asked":
            transitions.move(tx, node, NodeEvent.ASKED, now=3.0, cause="reset", actor="dhcp")
        elif trouble == "quarantined":
            node_flows.quarantine(tx, flow_context(site, 3.0, OWNER), name="node1", reason="smoke")
        else:
            tx.execute(update(t.nodes).where(t.nodes.c.id == node.id).values(vcluster_id=one))
    with pytest.raises(act_flows.Stale), engine.begin() as tx:
        acts[0].flow(tx, claim=claim, now=4.0)
    with engine.begin() as tx:
        assert states(tx)["node0"] == "inactive"
        assert requests.every(tx)[0].state == RequestState.PENDING
        tx.execute(update(t.nodes).values(vcluster_id=None))
        add_node(tx, 2)
        run_pass(tx, site, 5.0)
        assert members(tx, one) == (
            ["node0", "node1"] if trouble == "taken" else ["node0", "node2"]
        )


def test_any_other_node_of_the_pool_does_as_well(engine: Engine, site: Site) -> None:
    """A grant is of so many nodes of a pool: which ones, is settled when it is applied."""
    with engine.begin() as tx:
        furnish(tx, 3)
        one = create(tx, site)
        claim = claims.hold(tx, "manager", "a", 2.0, 10.0)
        act = planned(tx, site, 2.0)[0]
    with engine.begin() as tx:
        node_flows.quarantine(tx, flow_context(site, 3.0, OWNER), name="node1", reason="smoke")
    with engine.begin() as tx:
        act.flow(tx, claim=claim, now=4.0)
        assert members(tx, one) == ["node0", "node2"]
        check_world(tx)


def test_a_withdrawn_request_and_a_deleted_vcluster_get_nothing(engine: Engine, site: Site) -> None:
    with engine.begin() as tx:
        furnish(tx, 2)
        create(tx, site)
        claim = claims.hold(tx, "manager", "a", 2.0, 10.0)
        acts = planned(tx, site, 2.0)
        owner_flows.delete(tx, flow_context(site, 3.0, OWNER), name="one")
    with engine.begin() as tx:
        assert acts[0].flow(tx, claim=claim, now=4.0).value == 0
        assert set(states(tx).values()) == {"inactive"}


def test_an_extended_lease_does_not_expire(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site, size=1, lease=100.0)
    run_pass(tx, site, 2.0)
    claim = claims.hold(tx, "manager", "a", 102.0, 10.0)
    acts = planned(tx, site, 102.0)
    owner_flows.extend(tx, flow_context(site, 102.0), name="one", lease=50.0)
    assert acts[0].flow(tx, claim=claim, now=102.0).value == 0
    assert states(tx) == {"node0": "prime"}


def test_a_full_block_is_told_to_the_request(engine: Engine, site: Site) -> None:
    """Every address was declined: the grant is refused, the nodes stay free, and the request says
    why."""
    with engine.begin() as tx:
        furnish(tx, 1)
        made = vclusters.get(tx, create(tx, site, size=1))
        assert made is not None
        core_blocks.extend(tx, made, 1, site, now=1.0)
        [block] = address_blocks.of(tx, made.id)
        bindings.add(
            tx,
            [
                Binding(address, None, "vcluster", None, "lab", None, "declined", 1e9)
                for address in block.addresses
            ],
        )
        claim = claims.hold(tx, "manager", "a", 2.0, 10.0)
        act = planned(tx, site, 2.0)[0]
    with pytest.raises(Refused) as refused, engine.begin() as tx:
        act.flow(tx, claim=claim, now=3.0)
    with engine.begin() as tx:
        assert states(tx) == {"node0": "inactive"}
        act_flows.waits(tx, act.request_id or 0, refused.value, 3.0)
        assert "no free address" in requests.every(tx)[0].reason


# ---------------------------------------------------------------- one manager at a time, killed at
# any time


def test_only_the_holder_of_the_claim_may_act(engine: Engine, site: Site) -> None:
    """Every act of every kind looks at the claim, in its own transaction."""
    with engine.begin() as tx:
        furnish(tx, 3)
        create(tx, site, "old", size=1, lease=10.0)
        create(tx, site, "gone", size=1)
        run_pass(tx, site, 2.0)
        owner_flows.delete(tx, flow_context(site, 3.0, OWNER), name="gone")
        arrive(tx, 4.0)
        create(tx, site, "new", size=1, now=5.0)
        create(tx, site, "huge", size=9, now=6.0)
        slow = claims.hold(tx, "manager", "a", 12.0, 5.0)
        acts = planned(tx, site, 12.0)
        assert len(acts) == 4
        assert claims.hold(tx, "manager", "b", 14.0, 5.0) is None
        quick = claims.hold(tx, "manager", "b", 17.0, 5.0, over=slow)
        assert slow is not None
        assert quick is not None
        assert quick.generation > slow.generation
        before = [dict(row) for row in tx.execute(select(t.nodes)).mappings()]
    for act in acts:
        with pytest.raises(act_flows.Lost), engine.begin() as tx:
            act.flow(tx, claim=slow, now=17.5)
    with engine.begin() as tx:
        assert [dict(row) for row in tx.execute(select(t.nodes)).mappings()] == before
        for act in acts:
            act.flow(tx, claim=quick, now=18.0)
        check_world(tx)


def test_a_claim_that_ran_out_holds_until_another_server_has_it(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site, size=1)
    claim = claims.hold(tx, "manager", "a", 2.0, 5.0)
    assert claim is not None
    # clocks differ: its expiry says little
    late = claims.hold(tx, "manager", "a", 8.0, 5.0, claim)
    assert late is not None
    assert late.generation == claim.generation
    act = planned(tx, site, 8.0)[0]
    taken = claims.hold(tx, "manager", "b", 14.0, 5.0, over=late)
    assert taken is not None
    assert taken.generation == claim.generation + 1
    with pytest.raises(act_flows.Lost):
        act.flow(tx, claim=late, now=14.0)


def test_a_claim_is_renewed_and_given_up(tx: Tx) -> None:
    first = claims.hold(tx, "manager", "a", 1.0, 5.0)
    again = claims.hold(tx, "manager", "a", 4.0, 5.0, first)
    assert first is not None
    assert again is not None
    assert (again.generation, again.expires_at) == (first.generation, 9.0)
    claims.give_up(tx, again)
    given_up = claims.find(tx, "manager")
    assert claims.hold(tx, "manager", "b", 4.1, 5.0, over=given_up) is not None


def test_a_manager_that_was_started_anew_takes_over_from_its_former_self(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 1)
    create(tx, site, size=1)
    former = claims.hold(tx, "manager", "a", 2.0, 5.0)
    act = planned(tx, site, 2.0)[0]
    assert former is not None
    new = claims.hold(tx, "manager", "a", 3.0, 5.0)
    with pytest.raises(act_flows.Lost):
        act.flow(tx, claim=former, now=3.0)
    assert act.flow(tx, claim=new, now=3.0).value == 1


@pytest.mark.slow
@pytest.mark.parametrize("survived", range(5))
def test_a_manager_killed_after_any_act_leaves_what_the_next_goes_on_from(
    engine: Engine, site: Site, survived: int
) -> None:
    with engine.begin() as tx:
        furnish(tx, 5)
        create(tx, site, "old", size=2, lease=10.0)
        run_pass(tx, site, 2.0)
        arrive(tx, 3.0)
        create(tx, site, "p", size=1, now=4.0)
        create(tx, site, "q", size=2, now=5.0)
        create(tx, site, "r", size=2, now=6.0)
        create(tx, site, "s", size=9, now=7.0)
        claim = claims.hold(tx, "manager", "a", 12.0, 5.0)
        acts = planned(tx, site, 12.0)
    for act in acts[:survived]:
        in_tx(engine, act.flow, claim=claim, now=12.0)
    with engine.begin() as tx:
        check_world(tx)
        rest(tx, site, 20.0, owner="b")
        assert {v.name: (v.state, len(members(tx, v.id))) for v in vclusters.every(tx)} == {
            "p": ("active", 1),
            "q": ("active", 2),
            "r": ("active", 2),
        }
        assert [r.state for r in requests.every(tx)] == ["granted"] * 4 + ["rejected"]


def test_an_unchanged_world_has_the_same_pulse(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    create(tx, site, lease=100.0)
    quiet = flow.pulse(tx)
    assert flow.pulse(tx) == quiet
    run_pass(tx, site, 2.0)
    granted = flow.pulse(tx)
    assert granted != quiet
    owner_flows.extend(tx, flow_context(site, 3.0), name="one", lease=200.0)
    assert flow.pulse(tx) != granted
    assert not flow.decide(flow.snapshot(tx, site, 3.0), site, 3.0)
    assert flow.decide(flow.snapshot(tx, site, 3.0), site, 3.0) == PassPlan()


def test_disks_are_never_free_and_dirty(tx: Tx, site: Site) -> None:
    """A node given back before its prime began is wiped like any other: nobody knows what happened
    to it."""
    furnish(tx, 0)
    add_node(tx, 1, NodeState.OFF)
    create(tx, site, size=1)
    run_pass(tx, site, 2.0)
    owner_flows.delete(tx, flow_context(site, 3.0, OWNER), name="one")
    node = nodes.by_name(tx, "node1")
    assert node is not None
    assert (node.state, node.disk, node.vcluster_id) == ("trampoline", Disk.DIRTY, None)
