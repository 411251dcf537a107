"""The planner, its acts, the explanation and the preview agree which nodes an isolated vcluster can
have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.core import preemption
from cod.core.networks import address_blocks
from cod.flows.nodes import switch_ports as port_flows
from cod.flows.scheduler import explain, plan
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Isolation, Reclaim, Refused, Site, Subnet, Switch
from cod.policy.scheduler.snapshot import UNUSABLE, USABLE
from cod.store.engine import Tx
from cod.store.nodes import holding, nodes, switches
from cod.store.nodes import switch_ports as ports
from cod.store.scheduler import node_kinds, node_picks, reclaims, requests, vclusters
from tests.conftest import in_memory
from tests.contexts import flow_context
from tests.store.manager_world import add_node, furnish, run_pass
from tests.store.test_manager_properties import SITE as WORLD

NOW = 1_700_000_000.0
ISOLATION = Isolation((2001, 2009), "10.80.0.0/16", default_size=28, interface="eth1")
LEAF = Switch("leaf", "ovs", "unix:/nowhere")


@pytest.fixture
def site(site: Site) -> Site:
    """A site with VLANs and a switch."""
    return replace(site, isolation=ISOLATION, switches=(LEAF,))


def plug(tx: Tx, number: int, how: str) -> None:
    """Plug a node's boot NIC in: with a usable port, one that was given up, or one of a switch that
    the site file does not name; 'other': only another NIC's port is known."""
    node = nodes.by_name(tx, f"node{number}")
    assert node is not None
    switches.keep(tx, ["leaf"])
    mac = f"52:54:ff:00:00:{number:02x}" if how == "other" else node.boot_mac
    there = ports.add(
        tx,
        switch="gone" if how == "unnamed" else "leaf",
        port=f"p{number}",
        node_id=node.id,
        mac=mac,
        source="lldp",
        now=NOW,
    )
    ports.change(tx, there, given_up=how == "given up")


def create(tx: Tx, site: Site, name: str, size: int, isolated: bool) -> None:
    owner_flows.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name=name, size=size, template="debian", group="site", isolated=isolated),
    )


def held(tx: Tx, name: str) -> list[str]:
    found = vclusters.by_name(tx, name)
    return [node.name for node in nodes.every(tx, vcluster_id=found.id)] if found else []


def test_other_nodes_are_granted_where_some_have_no_usable_port(tx: Tx, site: Site) -> None:
    furnish(tx, 6)
    for number, how in enumerate(("given up", "unnamed", "other", "usable", "usable")):
        plug(tx, number, how)
    create(tx, site, "lab", 2, True)
    run_pass(tx, site, NOW)
    assert held(tx, "lab") == ["node3", "node4"]


def test_a_request_waits_for_ports_until_they_are_entered(tx: Tx, site: Site) -> None:
    furnish(tx, 4)
    plug(tx, 3, "usable")
    create(tx, site, "lab", 2, True)
    assert run_pass(tx, site, NOW) == ["tell requests why not"]
    [request] = requests.every(tx)
    assert (
        request.reason
        == "waits: 2 nodes wanted, 4 nodes match; 3 of them have no usable switch port, and the "
        "vcluster is isolated"
    )
    seen = plan.look(tx, site, NOW)
    why = explain.waits(
        tx,
        request_id=request.id,
        scene=seen.scene,
        snapshot=seen.site,
        site=site,
        groups=None,
        now=NOW,
    ).why
    assert (why.code, why.fitting, why.portless) == ("ports", 1, 3)
    assert [(one.kind, one.about) for one in plan.preview(tx, site=site, now=NOW)] == [
        ("wait", request.reason)
    ]
    entered = port_flows.enter(
        tx, name="node1", switch="leaf", port="p1", mac=None, site=site, now=NOW
    )
    assert "manager" in {effect.what for effect in entered.effects}
    assert [one.kind for one in plan.preview(tx, site=site, now=NOW)] == ["grant"]
    run_pass(tx, site, NOW)
    assert held(tx, "lab") == ["node1", "node3"]


def test_a_forecast_says_how_many_nodes_an_isolated_vcluster_cannot_have(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 4)
    plug(tx, 3, "usable")
    for isolated, code, portless in ((False, "granted", 0), (True, "ports", 3)):
        asked = explain.HypotheticalRequest(2, template="debian", group="site", isolated=isolated)
        seen = plan.look(tx, site, NOW, isolated=isolated)
        found = explain.match_(
            tx, asked=asked, scene=seen.scene, snapshot=seen.site, site=site, groups=None, now=NOW
        )
        assert (found.why.code, found.why.portless) == (code, portless)
        assert found.room == (4063 if isolated else found.room)
    with pytest.raises(Refused, match="no VLANs"):
        explain.match_(
            tx,
            asked=asked,
            scene=seen.scene,
            snapshot=seen.site,
            site=replace(site, isolation=None),
            groups=None,
            now=NOW,
        )


def test_the_subnet_with_most_usable_ports_is_chosen(tx: Tx, site: Site) -> None:
    far = Subnet(
        "far",
        "10.99.0.0/24",
        "10.99.0.1",
        ("10.99.0.10", "10.99.0.99"),
        ("10.99.0.100", "10.99.0.199"),
    )
    two = replace(site, subnets=(*site.subnets, far))
    furnish(tx, 0)
    for number in range(3):
        add_node(tx, number, subnet="far" if number == 2 else site.subnets[0].name)
    plug(tx, 2, "usable")
    create(tx, two, "lab", 1, True)
    run_pass(tx, two, NOW)
    assert held(tx, "lab") == ["node2"]


def test_a_node_without_a_usable_port_does_not_answer_a_reclaim_for_an_isolated_vcluster(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 3)
    create(tx, site, "batch", 3, False)
    run_pass(tx, site, NOW)
    for number in (0, 2):
        plug(tx, number, "usable")
    create(tx, site, "lab", 1, True)
    [_, request] = requests.every(tx)
    [kind] = [
        one.kind for one in plan.look(tx, site, NOW).site.allocations if one.kind.port == USABLE
    ]
    batch, taken = vclusters.by_name(tx, "batch"), nodes.by_name(tx, "node0")
    assert batch is not None
    assert taken is not None
    reclaim: Reclaim = reclaims.add(
        tx,
        vcluster_id=batch.id,
        request_id=request.id,
        type_id=kind.type,
        block_id=None,
        subnet="",
        attributes="",
        nodes=[taken],
        deadline=NOW + 9,
        now=NOW,
    )
    assert [node.name for node in preemption.fitting(tx, reclaim, nodes.every(tx))] == [
        "node0",
        "node2",
    ]
    without = nodes.by_name(tx, "node1")
    assert without is not None
    preemption.answer_all(tx, batch.id, [without], NOW)
    assert [one.given for one in reclaims.open_(tx)] == [0]


# ---------------------------------------------------------------- any site

HOW = st.sampled_from(["usable", "usable", "given up", "unnamed", "other", ""])


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25)
@given(
    st.lists(st.tuples(HOW, st.booleans(), st.booleans()), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_all_agree_which_nodes_have_usable_ports(
    machines: list[tuple[str, bool, bool]], size: int, other: int
) -> None:
    rules = replace(WORLD, isolation=ISOLATION, switches=(LEAF,))
    engine = in_memory()
    with engine.begin() as tx:
        furnish(tx, 0)
        batch = None
        for number, (how, asleep, theirs) in enumerate(machines):
            node = add_node(tx, number, state="off" if asleep else "inactive")
            if how:
                plug(tx, number, how)
            if theirs and not asleep:
                if batch is None:
                    create(tx, rules, "batch", 1, False)
                    batch = vclusters.by_name(tx, "batch")
                    assert batch is not None
                    address_blocks.extend(tx, batch, len(machines), rules, now=0.0)
                holding.take(
                    tx,
                    node,
                    vcluster=batch,
                    request_id=1,
                    position=0,
                    template_id=batch.template_id,
                    hostname=f"n{number}",
                    now=0.0,
                )
        create(tx, rules, "lab", size, True)
        for number in range(other):
            create(tx, rules, f"other{number}", 1, False)
        seen = plan.look(tx, rules, NOW).site
        usable = Counter(how == "usable" for how, _, _ in machines)
        counted: Counter[str] = Counter()
        for row in chain[Any](seen.free_nodes, seen.allocations):
            counted[row.kind.port] += row.count
        assert counted == Counter({USABLE: usable[True], UNUSABLE: usable[False]})
        for free in seen.free_nodes:
            kind = node_kinds.NodeKindRow(*free.kind)
            picked = node_picks.pick_free(
                tx,
                node_kinds.FreeKey("off" if free.readiness else "inactive", kind, None, None, 0),
                free.count,
                False,
            )
            assert len(picked) == free.count
            ids = {node.id for node in picked}
            assert node_picks.with_usable_ports(tx, ids) == (ids if kind.port == USABLE else set())
        for one in seen.allocations:
            assert (
                len(
                    node_picks.pick_held(
                        tx, one.vcluster_id, node_kinds.NodeKindRow(*one.kind), False, NOW
                    )
                )
                == one.count
            )
        run_pass(tx, rules, NOW)  # an act that finds other nodes than the plan counted raises
        most = sum(
            how == "usable" and not (theirs and not asleep) for how, asleep, theirs in machines
        )
        assert len(held(tx, "lab")) == (size if size <= most else 0)
        assert set(held(tx, "lab")) <= {
            f"node{number}" for number, (how, _, _) in enumerate(machines) if how == "usable"
        }
    engine.dispose()
