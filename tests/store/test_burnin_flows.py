"""Burn-ins: what is asked, what the node does for it, where it goes with the result, and what can
be seen later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.flows.agents import progress, sessions
from cod.flows.nodes import burnins
from cod.flows.nodes import nodes as node_flows
from cod.model import BurninRules, BurninView, Peer, Refused
from cod.orders import TestResult
from cod.states import NODE_RULES, Disk
from cod.store import pruning
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.contexts import flow_context
from tests.store.agentlab import Lab

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

GOOD = (
    TestResult("memory", "64 MiB", "", "passed"),
    TestResult("disk", "sda (serial X)", "hdd", "passed", "", {"read_mb_s": 150.0}),
    TestResult("network", "eth0", "", "passed", "", {"link_mbit_s": 1000.0}),
)
BAD = (
    *GOOD,
    TestResult("disk", "sdb", "ssd", "failed", "the disk /dev/sdb cannot be read at byte 4096"),
)


@pytest.fixture
def lab(tx: Tx, site: Any) -> Lab:
    return Lab(tx, site)


def idle(lab: Lab, number: int = 1, **columns: Any) -> Peer:
    lab.machine(number, "trampoline", **columns)
    return lab.boots(number)


def want(lab: Lab, number: int = 1, **more: Any) -> BurninView:
    return burnins.want(
        lab.tx, flow_context(lab.site, lab.now, "user:ann"), name=f"node{number}", **more
    ).value


def done(lab: Lab, peer: Peer, results: tuple[TestResult, ...] = GOOD, number: int = 1) -> None:
    progress.done(lab.tx, peer, lab.order(number).id, {}, lab.site, lab.now, results)


def shown(lab: Lab, number: int = 1) -> BurninView:
    return burnins.show(lab.tx, name=f"node{number}")


def rules(lab: Lab, **columns: Any) -> None:
    lab.site = replace(lab.site, burnin=BurninRules(**columns))


# ---------------------------------------------------------------- the whole way


def test_a_free_node_is_tested_and_goes_back_to_the_reserve(lab: Lab) -> None:
    peer = idle(lab)
    assert (want(lab).state, lab.node(1).state, lab.node(1).disk) == (
        "running",
        "burnin",
        Disk.CLEAN,
    )
    order = lab.order(1)
    assert order.action == "burnin"
    assert order.burnin is not None
    assert (
        order.burnin.memory,
        order.burnin.disk,
        order.burnin.network,
        order.burnin.seconds,
        order.burnin.write,
    ) == (True, True, True, 600, True)
    assert order.burnin.url == "http://10.77.0.1:8069/files/trampoline/ramdisk"
    assert len(order.burnin.secret) == 64
    lab.progress(peer, order.id, 5, 10, "memory")
    assert (shown(lab).done, shown(lab).total, shown(lab).phase) == (5, 10, "memory")
    done(lab, peer)
    assert (lab.node(1).state, lab.node(1).disk, lab.node(1).reason) == ("inactive", Disk.CLEAN, "")
    assert lab.events(1)[-3:] == ["burnin_ordered", "burned_in", "idled"]
    view = shown(lab)
    assert (view.state, view.ended_at, view.reason, view.cause) == (
        "passed",
        lab.now,
        "",
        "on demand",
    )
    assert [(each["test"], each["outcome"]) for each in view.results] == [
        ("memory", "passed"),
        ("disk", "passed"),
        ("network", "passed"),
    ]


def test_a_node_that_fails_is_quarantined_with_the_result(lab: Lab) -> None:
    peer = idle(lab)
    want(lab)
    done(lab, peer, BAD)
    reason = "burn-in failed: disk sdb: the disk /dev/sdb cannot be read at byte 4096"
    assert (lab.node(1).state, lab.node(1).reason, lab.node(1).disk) == (
        "quarantined",
        reason,
        Disk.DIRTY,
    )
    view = shown(lab)
    assert (view.state, view.reason, len(view.results)) == ("failed", reason, 4)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"least_hdd": 200}, "disk sda (serial X): 150 MB/s, at least 200 wanted"),
        ({"least_link": 10_000}, "network eth0: 1000 Mb/s, at least 10000 wanted"),
        ({"least_hdd": 150, "least_ssd": 500, "least_link": 1000}, ""),
    ],
)
def test_a_node_below_the_sites_limits_fails(lab: Lab, limit: dict[str, int], reason: str) -> None:
    rules(lab, **limit)
    peer = idle(lab)
    want(lab)
    done(lab, peer)
    assert lab.node(1).reason == (f"burn-in failed: {reason}" if reason else "")


def test_a_test_without_a_result_is_not_passed(lab: Lab) -> None:
    peer = idle(lab)
    want(lab)
    done(lab, peer, GOOD[1:])
    assert lab.node(1).reason == "burn-in failed: memory: its agent told no result"


def test_disks_with_data_are_not_written(lab: Lab) -> None:
    peer = idle(lab, disk=Disk.FOREIGN)
    want(lab, tests=["disk"], seconds=60)
    order = lab.order(1).burnin
    assert order is not None
    assert (order.write, order.memory, order.seconds) == (False, False, 60)
    done(lab, peer, GOOD[1:2])
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.FOREIGN)


def test_disks_are_erased_first_where_that_is_said(lab: Lab) -> None:
    peer = idle(lab, disk=Disk.FOREIGN)
    assert want(lab, erase=True).state == "wanted"
    assert lab.order(1).action == "wipe"
    lab.done(peer, lab.order(1).id)
    order = lab.order(1)
    assert order.action == "burnin"
    assert order.burnin is not None
    assert order.burnin.write
    done(lab, peer)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.CLEAN)


def test_a_node_that_is_off_is_woken(lab: Lab) -> None:
    lab.machine(1, "off")
    assert want(lab).state == "wanted"
    assert lab.wishes(1) == ["on"]
    peer = lab.boots(1)
    assert lab.node(1).state == "burnin"
    done(lab, peer)
    assert lab.node(1).state == "inactive"


# ---------------------------------------------------------------- neighbours


def test_who_begins_second_measures_to_who_began_first(lab: Lab) -> None:
    for number in (1, 2):
        idle(lab, number)
    want(lab)
    first = lab.order(1).burnin
    want(lab, 2)
    second = lab.order(2).burnin
    assert first is not None
    assert second is not None
    assert first.peer == ""
    assert (second.peer, second.peer_secret) == ("10.77.1.1", first.secret)
    assert second.secret != first.secret


# ---------------------------------------------------------------- trouble


def test_an_agent_that_dies_is_given_one_more_try(lab: Lab) -> None:
    peer = idle(lab)
    want(lab)
    sessions.lost(lab.tx, peer, lab.site, lab.now)
    assert (lab.node(1).state, shown(lab).state) == ("trampoline", "wanted")
    assert lab.node(1).disk == Disk.DIRTY  # it may have been writing
    peer = lab.boots(1)
    lab.tick(30)
    assert lab.order(1).action == "wipe"
    lab.done(peer, lab.order(1).id)
    lab.tick(130)
    assert lab.node(1).state == "burnin"
    sessions.lost(lab.tx, peer, lab.site, lab.now)
    assert lab.node(1).state == "quarantined"
    assert (shown(lab).state, "its agent was lost in state burnin" in shown(lab).reason) == (
        "failed",
        True,
    )


def test_a_burn_in_without_progress_times_out(lab: Lab) -> None:
    idle(lab)
    want(lab)
    rule = NODE_RULES[lab.node(1).state]  # type: ignore[index]
    lab.tick((rule.deadline or 0) + 1)
    assert lab.node(1).state == "trampoline"
    assert "no sign of progress for 300 s in state burnin" in shown(lab).reason


def test_a_result_that_comes_twice_or_late_changes_nothing(lab: Lab) -> None:
    peer = idle(lab)
    want(lab)
    order = lab.order(1).id
    done(lab, peer)
    before = lab.node(1)
    progress.done(lab.tx, peer, order, {}, lab.site, lab.now, BAD)
    assert lab.node(1) == before
    assert shown(lab).state == "passed"


def test_cancelled_it_goes_back_by_way_of_a_wipe(lab: Lab) -> None:
    idle(lab)
    want(lab)
    view = burnins.cancel(lab.tx, flow_context(lab.site, lab.now, "user:bob"), name="node1").value
    assert (view.state, view.reason) == ("cancelled", "cancelled by user:bob")
    assert lab.order(1).action == "wipe"


def test_cancelled_before_it_began_it_is_not_tested(lab: Lab) -> None:
    lab.machine(1, "off")
    want(lab)
    burnins.cancel(lab.tx, flow_context(lab.site, lab.now, "user:bob"), name="node1")
    lab.boots(1)
    assert lab.node(1).state == "inactive"
    assert shown(lab).state == "cancelled"


def test_a_node_that_is_set_aside_is_tested_no_more(lab: Lab) -> None:
    idle(lab)
    want(lab)
    node_flows.quarantine(
        lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="node1", reason="smoke"
    )
    assert (shown(lab).state, shown(lab).reason) == ("failed", "user:ann: smoke")


# ---------------------------------------------------------------- the site asks


def test_new_machines_are_tested_when_they_are_approved(lab: Lab) -> None:
    rules(lab, at_registration=True, tests=("memory",), seconds=30)
    lab.machine(1)
    lab.report(lab.open(1))
    assert lab.node(1).state == "burnin" if lab.site.policy.auto_approve else "registering"
    if not lab.site.policy.auto_approve:
        node_flows.approve(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")
    assert lab.node(1).state == "burnin"
    assert (shown(lab).cause, shown(lab).tests, shown(lab).seconds) == (
        "new machine",
        ("memory",),
        30,
    )


def test_machines_that_the_site_approves_by_itself_are_tested_too(lab: Lab) -> None:
    rules(lab, at_registration=True)
    lab.site = replace(lab.site, policy=replace(lab.site.policy, auto_approve=True))
    lab.machine(1)
    lab.report(lab.open(1))
    assert lab.node(1).state == "burnin"


def test_nodes_that_are_restored_are_wiped_and_tested(lab: Lab) -> None:
    rules(lab, after_trouble=True)
    idle(lab)
    node_flows.quarantine(
        lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="node1", reason="smoke"
    )
    node_flows.restore(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")
    peer = lab.boots(1)
    assert lab.order(1).action == "wipe"
    lab.done(peer, lab.order(1).id)
    assert lab.node(1).state == "burnin"
    assert shown(lab).cause == "restored"


def test_a_free_node_that_fails_again_and_again_is_tested(lab: Lab) -> None:
    rules(lab, after_failures=2)
    peer = idle(lab, disk=Disk.DIRTY)
    assert lab.order(1).action == "wipe"
    for pause in (30, 130):
        lab.failed(peer, lab.order(1).id, "the disk is busy")
        lab.tick(pause)
    assert lab.order(1).action == "wipe"
    lab.done(peer, lab.order(1).id)
    lab.tick(130)
    assert (lab.node(1).state, shown(lab).cause) == ("burnin", "failures")
    done(lab, peer)
    assert lab.node(1).state == "inactive"
    lab.tick(1000)
    assert len(burnins.history(lab.tx, name="node1")) == 1, "once"


def test_free_nodes_are_tested_again_one_at_a_time(lab: Lab) -> None:
    peers = [idle(lab, number) for number in (1, 2)]
    rules(lab, every=86400.0)
    lab.tick(10)
    assert [lab.node(number).state for number in (1, 2)] == ["burnin", "inactive"]
    assert shown(lab).cause == "periodic"
    lab.tick(10)
    assert lab.node(2).state == "inactive"
    done(lab, peers[0])
    lab.tick(10)
    assert [lab.node(number).state for number in (1, 2)] == ["inactive", "burnin"]
    done(lab, peers[1], GOOD, 2)
    lab.tick(80_000)
    assert [lab.node(number).state for number in (1, 2)] == ["inactive", "inactive"]
    lab.tick(10_000)
    assert lab.node(1).state == "burnin"


# ---------------------------------------------------------------- refusals, history


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("quarantined", "node node1 is out of service: restore it first"),
        ("registering", "node node1 waits for approval: approve it first"),
        ("off", "node node1 is off, and no power driver can wake it: switch it on first"),
        ("retired", "node node1 is retired: only free nodes are burnt in"),
    ],
)
def test_nodes_that_cannot_be_tested_now(lab: Lab, state: str, sentence: str) -> None:
    nodes.change(lab.tx, lab.machine(1, state), power_driver="none")
    with pytest.raises(Refused) as caught:
        want(lab)
    assert caught.value.sentence == sentence


def test_a_node_in_use_is_not_tested(lab: Lab) -> None:
    idle(lab)
    lab.assign(1, lab.vcluster(lab.template()))
    with pytest.raises(Refused, match="held by a vcluster"):
        want(lab)


def test_refusals_of_what_is_asked(lab: Lab) -> None:
    idle(lab)
    for tests in ((), ("memroy",)):
        with pytest.raises(Refused):
            want(lab, tests=tests)
    want(lab)
    with pytest.raises(Refused, match="is being burnt in already"):
        want(lab)
    lab.machine(2)
    with pytest.raises(Refused, match="node node2 was never burnt in"):
        shown(lab, 2)


def test_results_are_kept_over_time_and_pruned_with_the_rest(lab: Lab) -> None:
    peer = idle(lab)
    for _ in range(3):
        want(lab)
        done(lab, peer)
        lab.now += 100
    views = burnins.history(lab.tx, name="node1")
    assert [view.asked_at for view in views] == sorted(
        (view.asked_at for view in views), reverse=True
    )
    assert len(views) == 3
    assert pruning.burnins(lab.tx, lab.now - 150, 10) == 2
    assert len(burnins.history(lab.tx, name="node1")) == 1
    assert nodes.named(lab.tx, "node1").state == "inactive"
