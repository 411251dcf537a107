"""Disks marked keep through a node's life: approval, report, order, release, a mark that is
removed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.choices import BurninTest
from cod.flows.agents import orders, progress
from cod.flows.agents import report as reporting
from cod.flows.nodes import burnins
from cod.flows.nodes import nodes as flow
from cod.model import KeepRule, Node, Peer, Policy, Refused, Site
from cod.orders import Order, TestResult
from cod.policy.hardware import keep_marks as policy
from cod.states import NodeEvent, Step
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import failures
from cod.store.scheduler import requests
from tests.contexts import flow_context
from tests.store.agentlab import TEMPLATE, Lab, hardware, mac

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

DISKS = "".join(
    f'<disk name="{name}" size="1000000000" transport="ata" local="yes" rotational="no"'
    f' removable="no" serial="{serial}" model="INTEL"/>'
    for name, serial in (("sda", "A1"), ("sdb", "B2"))
)


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, site)


def with_disks(number: int) -> str:
    return hardware(mac(number)).replace("</node>", f"{DISKS}</node>")


def boots(lab: Lab, number: int) -> Peer:
    """The machine boots the trampoline and reports its two disks."""
    peer = lab.open(number)
    value = reporting.report(lab.tx, peer, with_disks(number), lab.site, lab.now).value
    assert isinstance(value, reporting.ReportAnswer), value
    return value.peer


def keep(lab: Lab, number: int, *marks: str) -> Node:
    flow.change(
        lab.tx,
        flow_context(lab.site, lab.now, "user:root"),
        name=lab.node(number).name,
        changes={"keep": marks},
    )
    return lab.node(number)


def test_marked_before_approval_a_disk_survives_wipe_prime_and_release(lab: Lab) -> None:
    lab.site = replace(lab.site, policy=Policy(auto_approve=False))
    lab.machine(1)
    peer = boots(lab, 1)
    assert lab.node(1).state == "registering"
    name = lab.node(1).name
    keep(lab, 1, "serial:B2")
    flow.approve(lab.tx, flow_context(lab.site, lab.now, "user:root"), name=name)
    assert lab.node(1).state == "inactive"
    assert 'serial="B2"' in (lab.node(1).attributes or "")
    vcluster = lab.vcluster(lab.template())
    lab.assign(1, vcluster)
    order = lab.order(1)
    assert (order.action, order.wipe, order.keep) == ("prime", True, ("serial:B2",))
    lab.done(peer, order.id)
    lab.machine(2, "trampoline", disk="dirty", attributes=with_disks(2), keep="serial:B2")
    peer = boots(lab, 2)
    order = lab.order(2)
    assert (order.action, order.keep) == ("wipe", ("serial:B2",))
    lab.done(peer, order.id)
    node = lab.node(2)
    assert (node.state, node.disk, flow.kept(node)) == ("inactive", "clean", ("sdb (serial B2)",))


def test_a_node_with_a_kept_disk_is_of_another_type(lab: Lab) -> None:
    for number in (1, 2):
        lab.machine(number, "trampoline")
        boots(lab, number)
    assert lab.node(1).type_id == lab.node(2).type_id
    assert keep(lab, 1, "serial:B2").type_id != lab.node(2).type_id
    boots(lab, 1)
    assert flow.kept(lab.node(1)) == ("sdb (serial B2)",)  # the next report changes nothing
    assert keep(lab, 1).type_id == lab.node(2).type_id


@pytest.mark.parametrize(
    ("state", "then"), [("inactive", "wipe"), ("off", "off"), ("active", "active")]
)
def test_a_disk_that_is_kept_no_longer_is_wiped_before_the_next_holder(
    lab: Lab, state: str, then: str
) -> None:
    lab.machine(1, "trampoline")
    boots(lab, 1)
    keep(lab, 1, "serial:B2")
    lab.tx.execute(t.nodes.update().values(state=state))
    node = keep(lab, 1)
    assert (node.state, node.disk, node.keep) == (
        then,
        "foreign" if state == "active" else "dirty",
        "",
    )
    if then == "wipe":
        assert lab.order(1).keep == ()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("before", "after"), [(("serial:B2",), ()), ((), ("serial:A1",))])
@pytest.mark.parametrize("by", ["node", "site file"])
def test_what_a_holder_leaves_is_wiped_if_the_marks_changed_meanwhile(
    lab: Lab, before: tuple[str, ...], after: tuple[str, ...], cached: bool, by: str
) -> None:
    """Even where its template says cache="yes"."""
    lab.machine(1, "trampoline")
    peer = boots(lab, 1)
    mark(lab, by, before)
    template = lab.template("yes")
    vcluster = lab.vcluster(template)
    if cached:
        lab.tx.execute(
            t.nodes.update().values(
                disk="cached", cached_template_id=template, cached_group_id=vcluster.group_id
            )
        )
    lab.assign(1, vcluster)
    if not cached:
        lab.done(peer, lab.order(1).id)
    lab.apply(1, Step(NodeEvent.BOOTED, "x"))
    assert (lab.node(1).state, lab.node(1).disk) == ("active", "cached" if cached else "dirty")
    mark(lab, by, after)
    mark(lab, by, after)  # the second time nothing changes
    lab.release(1)
    assert (lab.node(1).disk, lab.node(1).cached_template_id) == ("dirty", None)
    boots(lab, 1)
    assert (lab.node(1).state, lab.order(1).action, lab.order(1).keep) == ("wipe", "wipe", after)


def mark(lab: Lab, by: str, marks: tuple[str, ...]) -> None:
    if by == "node":
        keep(lab, 1, *marks)
    else:
        lab.site = replace(lab.site, keep=tuple(KeepRule("*", each) for each in marks))
        look(lab)


def test_marks_stay_while_disks_are_at_work(lab: Lab) -> None:
    lab.machine(1, "wipe", attributes=with_disks(1))
    with pytest.raises(Refused, match="its disks are at work"):
        keep(lab, 1, "serial:B2")


def given(lab: Lab, peer: Peer) -> Order:
    """The order that is sent to a node, once more if its agent has not got it."""
    unsent = {(peer.node_id, peer.epoch)}
    [(_, _, order)] = orders.waiting(lab.tx, "a", lab.site, lab.now, unsent=unsent).value
    return order


def spare(lab: Lab, *marks: str) -> None:
    """The site file's rules change, and all nodes are looked at."""
    mark(lab, "site file", marks)


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("when", ["before the wipe", "before its order is sent"])
@pytest.mark.parametrize("tables", [False, True])
def test_a_disk_whose_rule_goes_during_a_wipe_is_erased_before_the_node_is_clean(
    lab: Lab, when: str, reports: bool, tables: bool
) -> None:
    """Also where the rule comes and goes during the wipe, whether or not the agent reports."""
    group = lab.vcluster(lab.template()).group_id
    if tables:
        lab.site = replace(lab.site, policy=replace(lab.site.policy, wipe="tables"))
    report = with_disks(1)
    if when == "before the wipe":
        spare(lab, "serial:B2")
        report = policy.marked(report, ["serial:B2"])
    lab.machine(1, "trampoline", disk="dirty", attributes=report, cached_group_id=group)
    peer = boots(lab, 1)
    if when == "before its order is sent":
        spare(lab, "serial:B2")
    order = given(lab, peer)
    assert (order.action, order.tables, order.keep) == ("wipe", tables, ("serial:B2",))
    spare(lab)
    if reports:
        again = reporting.report(lab.tx, lab.again(1), with_disks(1), lab.site, lab.now).value
        assert isinstance(again, reporting.ReportAnswer), again
        peer = again.peer
    lab.done(peer, order.id)
    node = lab.node(1)
    assert (node.state, node.disk, flow.kept(node)) == ("wipe", "dirty", ())
    order = given(lab, peer)
    assert (order.action, order.tables, order.keep) == ("wipe", False, ())
    lab.done(peer, order.id)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", "clean")


def test_a_disk_whose_rule_goes_during_a_prime_is_erased_when_the_node_is_released(
    lab: Lab,
) -> None:
    """Even where its template says cache="yes"."""
    lab.machine(1, "trampoline", attributes=with_disks(1))
    spare(lab, "serial:B2")
    boots(lab, 1)
    lab.assign(1, lab.vcluster(lab.template("yes")))
    peer = lab.again(1)
    reporting.report(lab.tx, peer, with_disks(1), lab.site, lab.now)
    order = given(lab, peer)
    assert (order.action, order.wipe, order.keep) == ("prime", False, ("serial:B2",))
    spare(lab)
    reporting.report(lab.tx, peer, with_disks(1), lab.site, lab.now)
    lab.done(peer, order.id)
    assert lab.node(1).disk == "foreign"
    lab.apply(1, Step(NodeEvent.BOOTED, "x"))
    lab.release(1)
    boots(lab, 1)
    assert (lab.order(1).action, lab.order(1).keep) == ("wipe", ())


def test_a_disk_whose_rule_goes_during_a_burn_in_is_erased_before_the_node_is_idle(
    lab: Lab,
) -> None:
    spare(lab, "serial:B2")
    lab.machine(1, "trampoline", attributes=with_disks(1))
    peer = boots(lab, 1)
    burnins.want(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")
    order = given(lab, peer)
    assert (order.action, order.keep, lab.node(1).disk) == ("burnin", ("serial:B2",), "clean")
    spare(lab)
    results = tuple(TestResult(test, "all", "", "passed") for test in BurninTest)
    progress.done(lab.tx, peer, order.id, {}, lab.site, lab.now, results)
    assert (lab.node(1).state, flow.kept(lab.node(1))) == ("wipe", ())


def test_a_template_that_wants_a_kept_disk_is_refused_before_anything_is_wiped(lab: Lab) -> None:
    lab.machine(1, "inactive", attributes=with_disks(1), keep="serial:B2", disk="dirty")
    document = TEMPLATE.replace("<image", '<disk select="serial:B2"/><image', 1)
    template = lab.template(document=document)
    lab.assign(1, lab.vcluster(template))
    with pytest.raises(Refused, match="which is marked keep on the node"):
        lab.order(1)
    keep_all = replace(
        lab.site, keep=(KeepRule("*", "model:INTEL"), KeepRule("*", "path:/dev/vda"))
    )
    lab.machine(2, "inactive", attributes=with_disks(2))
    lab.assign(2, lab.vcluster(lab.template(revision=2), name="other"))
    lab.site = keep_all
    with pytest.raises(Refused, match="every local disk of the node is marked keep"):
        lab.order(2)


def test_a_kept_disk_stops_the_request_and_counts_against_no_template(lab: Lab) -> None:
    lab.machine(1, "trampoline", attributes=with_disks(1), keep="serial:B2")
    boots(lab, 1)
    document = TEMPLATE.replace("<image", '<disk select="serial:B2"/><image', 1)
    template = lab.template(document=document)
    lab.assign(1, lab.vcluster(template))
    assert orders.waiting(lab.tx, "a", lab.site, lab.now).value == []
    [stopped] = requests.every(lab.tx, states=["stopped"])
    assert "marked keep on the node" in stopped.reason
    assert lab.node(1).vcluster_id is None
    assert failures.with_template(lab.tx, template, but=0) == 0


def test_the_sites_rules_are_followed_when_they_change(lab: Lab) -> None:
    for number in (1, 2):
        lab.machine(number, "trampoline")
        boots(lab, number)
    assert lab.node(1).state == "inactive"
    plain = lab.site
    lab.site = replace(lab.site, keep=(KeepRule("node1", "serial:B2"),))
    look(lab)
    assert (flow.kept(lab.node(1)), flow.kept(lab.node(2))) == (("sdb (serial B2)",), ())
    assert lab.node(1).state == "inactive"
    assert lab.order(1).keep == ("serial:B2",)
    lab.site = plain
    look(lab)
    assert (lab.node(1).state, lab.node(1).disk, lab.node(2).state) == ("wipe", "dirty", "inactive")


def test_marks_of_a_nic_that_was_taken_for_a_machine_come_along(lab: Lab) -> None:
    lab.machine(1, keep="serial:C3")
    lab.machine(2, keep="serial:B2")
    document = hardware(mac(1), mac(2)).replace("</node>", f"{DISKS}</node>")
    reporting.report(lab.tx, lab.open(1), document, lab.site, lab.now)
    assert lab.node(1) == lab.node(2)
    assert (lab.node(1).keep, flow.kept(lab.node(1))) == (
        "serial:C3\nserial:B2",
        ("sdb (serial B2)",),
    )


def look(lab: Lab) -> None:
    after: Any = 0
    while after is not None:
        after = flow.look_again(lab.tx, after=after, site=lab.site, now=lab.now).value


def test_a_disk_whose_rule_went_is_wiped_with_the_next_prime(lab: Lab) -> None:
    """Whatever became of the look at all nodes."""
    lab.machine(1, "trampoline")
    lab.site, plain = replace(lab.site, keep=(KeepRule("*", "serial:B2"),)), lab.site
    boots(lab, 1)
    assert lab.node(1).disk == "clean"
    lab.assign(1, lab.vcluster(lab.template()))
    order: Order = lab.order(1)
    assert (order.wipe, order.keep) == (False, ("serial:B2",))
    lab.site = plain
    order = lab.order(1)
    assert (order.wipe, order.keep) == (True, ())


def test_a_report_that_cannot_be_marked_costs_its_own_node_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsent = set[tuple[int, int]]()
    for number in (1, 2):
        lab.machine(number, "trampoline", disk="dirty")
        peer = boots(lab, number)
        unsent.add((peer.node_id, peer.epoch))
        assert lab.node(number).state == "wipe"
    bad = lab.node(1).id

    def remark(tx: Tx, node: Node, site: Site, now: float) -> Node:
        if node.id == bad:
            raise Refused("invalid", "the report has 5000 elements; at most 4000 are matched")
        return node

    monkeypatch.setattr("cod.core.nodes.kept_disks.remark", remark)
    given = orders.waiting(lab.tx, "a", lab.site, lab.now, unsent=unsent).value
    assert [node for node, _, _ in given] == [lab.node(2).id]
    assert lab.node(1).state != "wipe"
