"""A lease's life on a real database: warned of, over, drained, extended meanwhile, seized; and when
all are ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from cod import notice_texts
from cod.core import requests as core_requests
from cod.core.networks import address_blocks
from cod.core.nodes import outages, transitions
from cod.flows.agents import report, sessions
from cod.flows.boot import dhcp
from cod.flows.nodes import deadlines, hold, readiness
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import vclusters as flow
from cod.model import AskedVcluster, BootSecret, DhcpQuery, Peer, Policy, Refused, Site, dotted
from cod.states import POWER_CONTROL, NodeEvent, NodeState, Step
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx, savepoint
from cod.store.nodes import bindings, holding, nodes, secrets
from cod.store.scheduler import requests, reservations, vclusters
from tests.contexts import flow_context
from tests.store.agentlab import hardware
from tests.store.busy_site import calm, people, ruled, summary, want
from tests.store.manager_world import OWNER, add_node, arrive, check_world, furnish, rest, run_pass

pytestmark = pytest.mark.slow

LEASE = 5000.0


@pytest.fixture
def leased(tx: Tx, site: Site) -> Site:
    """A vcluster 'one' of one node whose lease of 5000 s began at 2; warnings at 1000 and 100 s, 30
    s to drain."""
    rules = calm(ruled(site))
    rules = replace(rules, policy=replace(rules.policy, lease_warnings=(1000.0, 100.0)))
    people(tx)
    add_node(tx, 0)
    want(tx, rules, "one", 1, 4096, 1.0, lease=LEASE)
    run_pass(tx, rules, 2.0)
    arrive(tx, 3.0)
    return rules


def told(tx: Tx) -> list[str]:
    """Kinds of the notices so far, after the first."""
    return list(tx.scalars(select(t.notices.c.kind).order_by(t.notices.c.id)))[1:]


def one(tx: Tx) -> Any:
    """The vcluster."""
    return tx.execute(select(t.vclusters).where(t.vclusters.c.name == "one")).one()


def test_the_whole_way(tx: Tx, leased: Site) -> None:
    assert run_pass(tx, leased, 4001.9) == []
    assert run_pass(tx, leased, 4002.0) == ["warn vcluster"]
    assert run_pass(tx, leased, 4003.0) == []
    assert run_pass(tx, leased, 4902.0) == ["warn vcluster"]
    assert run_pass(tx, leased, 5002.0) == ["drain vcluster"]
    assert (one(tx).state, one(tx).drain_until) == ("active", 5032.0)
    assert run_pass(tx, leased, 5031.9) == []
    assert nodes.every(tx)[0].state == "active"
    assert run_pass(tx, leased, 5032.0) == ["expire vcluster"]
    assert (nodes.every(tx)[0].power_wanted, one(tx).state) == ("cycle", "releasing")
    arrive(tx, 5033.0)
    assert run_pass(tx, leased, 5034.0) == ["end vcluster"]
    assert told(tx) == ["lease-warning", "lease-warning", "lease-ended", "drained"]
    check_world(tx)


def test_one_that_slept_through_a_warning_gets_the_most_urgent_only(tx: Tx, leased: Site) -> None:
    assert run_pass(tx, leased, 4950.0) == ["warn vcluster"]
    assert one(tx).warned == 100.0
    assert run_pass(tx, leased, 4951.0) == []


def test_extended_before_and_while_draining(tx: Tx, leased: Site) -> None:
    run_pass(tx, leased, 4002.0)
    flow.extend(tx, flow_context(leased, 4003.0), name="one", lease=2000.0)
    assert (one(tx).expires_at, one(tx).warned) == (6003.0, None)
    assert run_pass(tx, leased, 5003.0) == ["warn vcluster"]
    assert run_pass(tx, leased, 6003.0) == ["drain vcluster"]
    flow.extend(tx, flow_context(leased, 6010.0), name="one", lease=50.0)
    assert (one(tx).expires_at, one(tx).drain_until) == (6060.0, None)
    assert run_pass(tx, leased, 6040.0) == [], "an end in sight from the beginning is no news"
    assert run_pass(tx, leased, 6060.0) == ["drain vcluster"]
    assert run_pass(tx, leased, 6090.0) == ["expire vcluster"]
    with pytest.raises(Refused, match="is ending"):
        flow.extend(tx, flow_context(leased, 6091.0), name="one", lease=50.0)
    assert told(tx).count("lease-extended") == 2


def test_an_extension_that_adds_nothing_says_nothing(tx: Tx, leased: Site) -> None:
    flow.extend(tx, flow_context(leased, 4.0), name="one", lease=10.0)
    assert (one(tx).expires_at, told(tx)) == (5002.0, [])


@pytest.mark.parametrize("lease", [0.0, -1.0, 1e300, float("inf"), float("nan")])
def test_a_lease_that_none_can_have_is_refused(tx: Tx, leased: Site, lease: float) -> None:
    before = one(tx)
    with pytest.raises(Refused, match="a lease lasts") as refused:
        flow.extend(tx, flow_context(leased, 4.0), name="one", lease=lease)
    assert (refused.value.code, refused.value.field) == ("invalid", "lease")
    with pytest.raises(Refused, match="a lease lasts"):
        want(tx, leased, "two", 1, 4096, 4.0, lease=lease)
    assert (one(tx), len(vclusters.every(tx))) == (before, 1)


def test_the_groups_maximum_bounds_an_extension(tx: Tx, leased: Site) -> None:
    tx.execute(update(t.groups).where(t.groups.c.name == "low").values(max_lease=6000.0))
    with pytest.raises(Refused, match="with all extensions"):
        flow.extend(tx, flow_context(leased, 10.0), name="one", lease=1e6)
    began = one(tx).leased_at
    assert began is not None
    flow.extend(tx, flow_context(leased, 10.0), name="one", lease=began + 6000.0 - 10.0)
    assert one(tx).expires_at == began + 6000.0


def test_what_it_asked_for_ends_with_it(tx: Tx, leased: Site) -> None:
    flow.resize(tx, flow_context(leased, 4.0, OWNER), name="one", size=2)
    run_pass(tx, leased, 5003.0)
    run_pass(tx, leased, 5040.0)
    assert [request.state for request in requests.every(tx)] == ["granted", "withdrawn"]
    rest(tx, leased, 5041.0)
    assert summary(tx)["one"] == ("ended", 1, 0)


# ---------------------------------------------------------------- ready


def boots(tx: Tx, site: Site, name: str, now: float) -> None:
    """The node's system answers its readiness check."""
    node = nodes.by_name(tx, name)
    assert node is not None
    if node.state == NodeState.PRIME:
        node = transitions.move(tx, node, NodeEvent.PRIMED, now=now, cause="test", actor="test")
    check = readiness.Check(node.id, node.generation, name, "10.0.0.1", 80, "")
    readiness.answered(tx, check, site.policy, now)


def test_it_is_ready_once_all_its_nodes_have_been_active(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    flow.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="one", size=2, template="debian", group="site"),
    )
    run_pass(tx, site, 2.0)
    boots(tx, site, "node0", 3.0)
    assert one(tx).ready_at is None
    boots(tx, site, "node1", 4.0)
    assert (one(tx).ready_at, told(tx)) == (4.0, ["ready"])
    node_flows.quarantine(tx, flow_context(site, 5.0, OWNER), name="node1", reason="smoke")
    run_pass(tx, site, 6.0)
    boots(tx, site, "node2", 7.0)
    assert (one(tx).ready_at, told(tx).count("ready")) == (4.0, 1), "once is enough"


def test_without_the_node_that_never_came_up_it_is_ready_too(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    flow.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="one", size=2, template="debian", group="site"),
    )
    run_pass(tx, site, 2.0)
    boots(tx, site, "node0", 3.0)
    flow.resize(tx, flow_context(site, 5.0, OWNER), name="one", size=1)
    assert (one(tx).ready_at, told(tx)) == (5.0, ["ready"])


def test_an_address_by_dhcp_makes_ready_where_the_template_checks_nothing(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 1)
    flow.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="one", size=1, template="debian", group="site"),
    )
    run_pass(tx, site, 2.0)
    node = transitions.move(
        tx, nodes.every(tx)[0], NodeEvent.PRIMED, now=2.5, cause="test", actor="test"
    )
    nodes.change(tx, node, boot_served_at=2.6)
    address = dotted(
        next(each.address for each in bindings.of_node(tx, node.id) if each.kind == "vcluster")
    )
    asked = DhcpQuery(
        "REQUEST",
        node.boot_mac,
        7,
        "lab",
        "os",
        requested=address,
        server_id=site.subnets[0].server,
    )
    assert dhcp.answer(tx, [asked], site, dhcp.Newcomers(), 3.0)[0] is not None
    assert (nodes.every(tx)[0].state, one(tx).ready_at, told(tx)) == ("active", 3.0, ["ready"])


# ---------------------------------------------------------------- hardware that is not what it was


def test_a_node_that_changed_its_hardware_on_its_way_is_replaced_not_primed(
    tx: Tx, site: Site
) -> None:
    """A memory module died while it was asleep: it is woken, reports, and does not do any more."""
    people(tx)
    big = add_node(tx, 1, "off", mib=8192, reported_at=0.0)
    want(tx, site, "one", 1, 8192, 1.0)
    run_pass(tx, site, 2.0)
    add_node(tx, 2, mib=8192)
    key = bytes(32)
    secret = BootSecret("s1", big.boot_mac, "boot", "10.77.1.1", key[:16], key, key, 900.0)
    secrets.add(tx, secret)
    opened = sessions.open(tx, "s1", replace(secret, id="s2", kind="session"), "a", site, 3.0).value
    peer = Peer(big.id, "a", opened.peer.epoch, big.boot_mac)
    report.report(tx, peer, hardware(big.boot_mac, mib=4096), site, 3.0)
    node = nodes.get(tx, big.id)
    assert node is not None
    assert (node.state, node.vcluster_id, node.subnet) == ("wipe", None, "lab")
    assert "its hardware has changed: its holder needs memory" in node.reason
    assert [request.kind for request in requests.every(tx, states=["pending"])] == ["replace"]
    check_world(tx)
    run_pass(tx, site, 4.0)
    assert [each.name for each in nodes.every(tx, vcluster_id=one(tx).id)] == ["node2"]
    check_world(tx)


def test_one_that_still_does_is_primed(tx: Tx, site: Site) -> None:
    """More memory than before is no harm; and a replacement wants what its tuple wanted, not what
    the vcluster does."""
    people(tx)
    add_node(tx, 1, mib=8192)
    want(tx, site, "one", 1, 8192, 1.0)
    run_pass(tx, site, 2.0)
    node = nodes.every(tx)[0]
    wanted = holding.assignment(tx, node)
    assert wanted is not None
    assert len(wanted.requires) == 1
    assert 'mib="8192"' in wanted.hardware
    tx.execute(update(t.vclusters).values(attributes=""))
    core_requests.replace(tx, node, wanted, 3.0)
    assert requests.every(tx)[-1].tuples[0].attributes == wanted.requires[0]


# ---------------------------------------------------------------- the reserve


def test_more_waking_at_once_have_more_time(tx: Tx, site: Site) -> None:
    rules = replace(ruled(site), policy=Policy(patience=2.0))
    rules = replace(rules, energy=replace(rules.energy, warm_low=3))
    people(tx)
    for number in range(4):
        add_node(tx, number, "off")
    assert run_pass(tx, rules, 10.0) == ["wake nodes"]
    deadlines = [node.deadline for node in nodes.every(tx, ["trampoline"])]
    assert deadlines == [10.0 + 2.0 * (100.0 + 2 * 10.0)] * 3
    want(tx, rules, "one", 4, 4096, 11.0)
    run_pass(tx, rules, 12.0)
    woken = next(node for node in nodes.every(tx) if node.deadline not in (None, *deadlines))
    assert woken.deadline == 12.0 + 2.0 * (100.0 + 3 * 10.0)


def test_a_manager_that_was_stopped_moves_no_node_of_a_site_that_is_held_meanwhile(
    tx: Tx, site: Site
) -> None:
    rules = ruled(site)
    people(tx)
    add_node(tx, 0, "boot")
    tx.execute(update(t.nodes).values(deadline=700.0))
    claim = claims.hold(tx, claims.MANAGER, "a", 10.0, 15.0)
    hold.start(tx, 800.0)  # after the manager has seen that nothing is held
    before = nodes.every(tx)
    with pytest.raises(claims.Lost), savepoint(tx):
        deadlines.run(tx, rules, 710.0, claim=claim)
    assert nodes.every(tx) == before
    with savepoint(tx):
        assert deadlines.run(tx, rules, 710.0, claim=claims.find(tx, claims.MANAGER))
    assert nodes.every(tx) != before


def test_a_manager_that_was_stopped_tells_of_no_outage_that_another_has_told_of(
    tx: Tx, site: Site
) -> None:
    rules = ruled(site)
    claim = claims.hold(tx, claims.MANAGER, "a", 10.0, 15.0)
    assert claim is not None
    claims.interrupt(tx, claims.MANAGER)
    deadlines.run(tx, rules, 11.0, claim=claim)  # there is nothing to do
    outages.begin(tx, POWER_CONTROL, notice_texts.power_control_away(["node0"]), 12.0)
    with pytest.raises(claims.Lost):
        deadlines.run(tx, rules, 13.0, claim=claim)


def test_one_that_does_not_wake_is_tried_again_set_aside_and_another_takes_its_place(
    tx: Tx, site: Site
) -> None:
    rules = ruled(site)
    people(tx)
    for number in range(2):
        add_node(tx, number, "off")
    now = 10.0
    assert run_pass(tx, rules, now) == ["wake nodes"]
    for _ in range(20):
        now += 700.0
        deadlines.run(tx, rules, now)
        if nodes.every(tx, ["quarantined"]):
            break
        assert run_pass(tx, rules, now) == [], "it is still expected"
    broken = nodes.every(tx, ["quarantined"])
    assert [node.name for node in broken] == ["node0"]
    assert run_pass(tx, rules, now) == ["wake nodes"]
    assert [node.name for node in nodes.every(tx, ["trampoline"])] == ["node1"]


def test_what_nobody_can_wake_is_not_put_to_sleep(tx: Tx, site: Site) -> None:
    rules = ruled(site)
    people(tx)
    for number in range(4):
        add_node(tx, number, power_driver="none" if number else "lab")
    assert run_pass(tx, rules, 100.0) == ["put nodes to sleep"]
    assert [node.name for node in nodes.every(tx, ["off"])] == ["node0"]
    assert run_pass(tx, rules, 200.0) == []
    asleep = nodes.every(tx, ["off"])[0]
    assert (asleep.power_wanted, nodes.history(tx, asleep.id)[-1]["actor"]) == ("off", "manager")


def test_a_node_that_is_set_aside_or_given_away_is_kept_for_nobody(tx: Tx, site: Site) -> None:
    people(tx)
    node, other = add_node(tx, 1, "trampoline"), add_node(tx, 2)
    vcluster = vclusters.get(tx, want(tx, site, "one", 1, 8192, 1.0))
    assert vcluster is not None
    address_blocks.extend(tx, vcluster, 1, site, now=1.0)
    reservations.add(tx, [node.id, other.id], requests.every(tx)[0].id, None, 2.0)
    holding.take(
        tx,
        other,
        vcluster=vcluster,
        request_id=requests.every(tx)[0].id,
        template_id=vcluster.template_id,
        hostname="n1",
        now=3.0,
    )
    assert [one.node_id for one in reservations.every(tx)] == [node.id]
    moved = transitions.apply(
        tx, node, Step(NodeEvent.QUARANTINED, "smoke"), now=3.0, actor="test", policy=site.policy
    )
    assert (moved.state, reservations.every(tx)) == ("quarantined", [])
