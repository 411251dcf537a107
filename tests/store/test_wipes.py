"""How disks are erased, and who gets a node of which only the tables were: its own group."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from cod.core import snapshot
from cod.flows.nodes import burnins as burnin_flows
from cod.flows.nodes import nodes as node_flows
from cod.flows.people import groups as group_flows
from cod.model import Peer, Site, Vcluster
from cod.policy.nodes import lifecycle
from cod.policy.reservations import supply
from cod.states import Disk, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import node_counts, node_picks
from tests.contexts import flow_context
from tests.store.agentlab import TEMPLATE, Lab

NETBOOT = '<template><boot mode="diskless"><kernel image="k"/></boot></template>'


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, replace(site, policy=replace(site.policy, wipe="tables", auto_approve=True)))


def says(lab: Lab, wipe: str) -> None:
    lab.site = replace(lab.site, policy=replace(lab.site.policy, wipe=wipe))


def runs(lab: Lab, peer: Peer, vcluster: Vcluster) -> None:
    """Give the free node to the vcluster, and have it installed and started."""
    lab.assign(1, vcluster)
    lab.done(peer, lab.order(1).id)
    lab.apply(1, Step(NodeEvent.BOOTED, "its system runs"))


def comes_back(lab: Lab) -> Peer:
    lab.release(1)
    return lab.boots(1)


def kept(lab: Lab, vcluster: Vcluster) -> Peer:
    """A node that its vcluster has given back, with its tables erased."""
    lab.machine(1, "trampoline")
    runs(lab, lab.boots(1), vcluster)
    peer = comes_back(lab)
    assert (lab.order(1).action, lab.order(1).tables, lab.order(1).purge) == ("wipe", True, False)
    lab.done(peer, lab.order(1).id)
    node = lab.node(1)
    assert (node.state, node.disk, node.cached_group_id) == (
        "inactive",
        Disk.TABLES,
        vcluster.group_id,
    )
    return peer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site_says", "group", "template", "strictest"),
    [
        ("tables", None, "", "tables"),
        ("tables", "zero", "", "zero"),
        ("tables", None, ' wipe="zero"', "zero"),
        ("tables", "purge", ' wipe="zero"', "purge"),
        ("zero", None, ' wipe="purge"', "purge"),
        ("purge", "zero", ' wipe="zero"', "purge"),
    ],
)
def test_the_strictest_of_site_group_and_template_is_done(
    lab: Lab, site_says: str, group: str | None, template: str, strictest: str
) -> None:
    says(lab, site_says)
    document = TEMPLATE.replace("<template ", f"<template{template} ")
    lab.machine(1, "trampoline")
    runs(lab, lab.boots(1), lab.vcluster(lab.template(document=document)))
    group_flows.change(lab.tx, "physics", {"wipe": group}, now=lab.now)  # while it runs
    peer = comes_back(lab)
    order = lab.order(1)
    assert (order.action, order.purge, order.tables) == (
        "wipe",
        strictest == "purge",
        strictest == "tables",
    )
    lab.done(peer, order.id)
    expected = Disk.TABLES if strictest == "tables" else Disk.CLEAN
    assert (lab.node(1).disk, lab.node(1).wipe) == (expected, "")


def test_a_node_whose_tables_were_erased_goes_to_its_group_as_it_is(lab: Lab) -> None:
    first = lab.vcluster(lab.template())
    kept(lab, first)
    lab.assign(1, lab.vcluster(lab.template(revision=2), name="second"))
    assert (lab.order(1).action, lab.order(1).wipe) == ("prime", False)


def test_a_node_whose_tables_were_erased_is_zeroed_for_another_group(lab: Lab) -> None:
    peer = kept(lab, lab.vcluster(lab.template()))
    other = lab.vcluster(lab.template(revision=2), group="chemistry", name="other")
    lab.assign(1, other)
    assert (lab.order(1).action, lab.order(1).wipe) == ("prime", True)
    lab.failed(peer, lab.order(1).id)  # who knows how far it came: nobody's data is known
    peer = comes_back(lab)
    assert (lab.order(1).action, lab.order(1).tables) == ("wipe", False)
    lab.done(peer, lab.order(1).id)
    runs(lab, peer, other)
    comes_back(lab)
    assert lab.order(1).tables, "it has run a system that could read every byte"


def test_disks_are_zeroed_before_another_group_boots_without_them(lab: Lab) -> None:
    """No prime comes that would erase them: a system that boots from the network can read them."""
    peer = kept(lab, lab.vcluster(lab.template()))
    netboot = lab.template(document=NETBOOT, revision=2)
    lab.assign(1, lab.vcluster(netboot, group="chemistry", name="other"))
    assert (lab.order(1).action, lab.order(1).tables) == ("wipe", False)
    lab.done(peer, lab.order(1).id)
    assert (lab.node(1).state, lab.node(1).disk) == ("boot", Disk.CLEAN)


def test_its_own_group_boots_without_the_disks_at_once(lab: Lab) -> None:
    kept(lab, lab.vcluster(lab.template()))
    lab.assign(1, lab.vcluster(lab.template(document=NETBOOT, revision=2), name="second"))
    assert lab.node(1).state == "boot"


@pytest.mark.parametrize("ends", ["fails", "is lost"])
def test_a_wipe_of_tables_that_did_not_end_is_repeated_whole(lab: Lab, ends: str) -> None:
    lab.machine(1, "trampoline")
    runs(lab, lab.boots(1), lab.vcluster(lab.template()))
    peer = comes_back(lab)
    assert lab.order(1).tables
    if ends == "fails":
        lab.failed(peer, lab.order(1).id)
    else:
        lab.apply(1, Step(NodeEvent.LOST, "it is gone"))
        peer = lab.boots(1)
    lab.report(peer)
    lab.tick(lifecycle.FIRST_REST)
    assert (lab.order(1).action, lab.order(1).tables) == ("wipe", False)


def test_a_site_that_changes_its_mind_changes_no_wipe_that_has_begun(lab: Lab) -> None:
    """Let nothing count as zeroed that was ordered before: the order's id stays the same."""
    lab.machine(1, "trampoline")
    runs(lab, lab.boots(1), lab.vcluster(lab.template()))
    peer = comes_back(lab)
    order = lab.order(1)
    says(lab, "zero")
    assert lab.order(1) == order
    lab.done(peer, order.id)
    after = lab.order(1)
    assert (after.action, after.tables, lab.node(1).disk) == ("wipe", False, Disk.TABLES)
    lab.done(peer, after.id)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.CLEAN)
    runs(lab, peer, lab.vcluster(lab.template(revision=2), name="second"))
    peer = comes_back(lab)
    order = lab.order(1)
    says(lab, "tables")
    lab.done(peer, order.id)
    assert (order.tables, lab.node(1).disk) == (False, Disk.CLEAN)


def test_nodes_of_a_group_that_is_gone_are_nobodys(lab: Lab) -> None:
    """A new group may get the id of one that is gone."""
    peer = kept(lab, lab.vcluster(lab.template()))
    group = groups.named(lab.tx, "physics")
    groups.remove(lab.tx, group.id, groups.ensure(lab.tx, groups.SITE, 0.0).id)
    lab.assign(1, lab.vcluster(lab.template(revision=2), group="next", name="other"))
    assert lab.order(1).wipe
    lab.release(1)
    peer = lab.boots(1)
    assert (lab.order(1).action, lab.order(1).tables) == ("wipe", False)
    assert peer.node_id == lab.node(1).id


def test_idle_nodes_of_a_group_that_is_gone_are_zeroed_at_once(lab: Lab) -> None:
    peer = kept(lab, lab.vcluster(lab.template()))
    lab.tick()
    assert lab.node(1).state == "inactive"
    groups.remove(lab.tx, groups.named(lab.tx, "physics").id, groups.ensure(lab.tx, "site", 0.0).id)
    lab.tick()
    order = lab.order(1)
    assert (order.action, order.tables) == ("wipe", False)
    lab.done(peer, order.id)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.CLEAN)


@pytest.mark.parametrize("how", ["asleep", "asleep, and granted there"])
def test_a_kept_node_that_slept_is_zeroed_before_another_group_gets_it(lab: Lab, how: str) -> None:
    kept(lab, lab.vcluster(lab.template()))
    context = flow_context(lab.site, lab.now, "user:ann")
    node_flows.power(lab.tx, context, name="node1", desired="off")
    assert (lab.node(1).state, lab.node(1).disk) == ("off", Disk.TABLES)
    other = lab.vcluster(lab.template(revision=2), group="chemistry", name="other")
    if how == "asleep":
        node_flows.power(lab.tx, context, name="node1", desired="on")
        lab.boots(1)
        assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.TABLES)
        lab.assign(1, other)
    else:
        lab.assign(1, other)
        lab.boots(1)
    assert (lab.order(1).action, lab.order(1).wipe, lab.order(1).tables) == ("prime", True, False)


def test_kept_nodes_count_for_every_group_and_go_to_their_own_first(lab: Lab) -> None:
    own = groups.ensure(lab.tx, "own", 0.0).id
    other = groups.ensure(lab.tx, "other", 0.0).id
    left = [(Disk.TABLES, other), (Disk.CLEAN, None), (Disk.TABLES, own)]
    columns = {"type_id": None}
    for number, (disk, group_id) in enumerate(left, 1):
        lab.machine(number, "trampoline", disk=disk, cached_group_id=group_id, **columns)
        lab.boots(number)
    (free,) = node_counts.free(lab.tx, [], False, 0.0)
    assert free.nodes == 3
    for count, names in ((1, {"node3"}), (2, {"node2", "node3"})):
        picked = node_picks.pick_free(lab.tx, free.key, count, False, group_id=own)
        assert {node.name for node in picked} == names


def test_a_node_that_was_out_of_service_is_zeroed(lab: Lab) -> None:
    """Nobody knows what was done to it meanwhile."""
    kept(lab, lab.vcluster(lab.template()))
    context = flow_context(lab.site, lab.now, "user:ann")
    node_flows.quarantine(lab.tx, context, name="node1", reason="looked at")
    node_flows.restore(lab.tx, context, name="node1")
    lab.boots(1)
    assert (lab.order(1).action, lab.order(1).tables) == ("wipe", False)


@pytest.mark.parametrize("erase", [False, True])
def test_a_kept_node_is_zeroed_before_its_burn_in(lab: Lab, erase: bool) -> None:
    """Else its disks would only be read, each time."""
    peer = kept(lab, lab.vcluster(lab.template()))
    context = flow_context(lab.site, lab.now, "user:ann")
    burnin_flows.want(lab.tx, context, name="node1", erase=erase)
    order = lab.order(1)
    assert (order.action, order.tables) == ("wipe", False)
    lab.done(peer, order.id)
    plan = lab.order(1).burnin
    assert plan is not None
    assert plan.write


@pytest.mark.slow
def test_how_long_nodes_take_to_come_back_is_learnt(lab: Lab) -> None:
    """The planner counts on what the slowest took, and on a little more; troubled ways teach
    nothing."""
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    clusters = [lab.vcluster(lab.template(revision=n), name=f"vc{n}") for n in range(1, 7)]

    def learnt(
        number: int, seconds: float, trouble: bool = False, waited: float = 0.0
    ) -> float | None:
        nonlocal peer
        runs(lab, peer, clusters[number])
        lab.release(1)
        lab.now += waited
        peer = lab.boots(1)
        if trouble:
            lab.failed(peer, lab.order(1).id)
            lab.report(peer)
            lab.tick(lifecycle.FIRST_REST)
        lab.now += seconds
        lab.done(peer, lab.order(1).id)
        if trouble:
            lab.report(peer)
            lab.tick(lifecycle.LONGEST_REST)
        assert lab.node(1).state == "inactive"
        (kind,) = snapshot.snapshot(lab.tx, lab.site, lab.now).types.values()
        return supply.turnaround(
            snapshot.snapshot(lab.tx, lab.site, lab.now), kind.id, lab.site.policy
        )

    assert learnt(0, 100.0) == 125.0
    assert learnt(1, 400.0) == 500.0, "longer at once"
    assert learnt(2, 390.0) == 500.0, "not written for every node"
    assert learnt(3, 40.0) == 500.0 - 450.0 / 8, "shorter by little"
    assert learnt(4, 4000.0, trouble=True) == 500.0 - 450.0 / 8
    # its deadline rested while its BMC did not answer
    assert learnt(5, 40.0, waited=86400.0) == 500.0 - 450.0 / 8


class Disks:
    """What a node's disks truly hold, by the orders that its agent carries out: groups' data."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.data = lab, set[int]()
        self.clusters = [
            lab.vcluster(
                lab.template(revision=2 * n + part, document=document), group, f"{group}{part}"
            )
            for n, group in enumerate(("physics", "chemistry"))
            for part, document in enumerate((TEMPLATE, NETBOOT), 1)
        ]
        lab.machine(1, "trampoline")
        self.peer = lab.boots(1)
        self.handed_on = {"as it is": 0, "erased": 0}

    def steps(self, dice: Random) -> None:
        """Do one thing: mostly what comes next."""
        node = self.lab.node(1)
        if dice.random() < 0.75:
            self._goes_on(NodeState(node.state), dice)
        else:
            self._goes_wrong(NodeState(node.state), dice)
        self.check()

    def _goes_on(self, state: NodeState, dice: Random) -> None:
        if state is NodeState.INACTIVE:
            cluster = dice.choice(self.clusters)
            if self.data:
                self.handed_on["as it is" if self.data == {cluster.group_id} else "erased"] += 1
            self.lab.assign(1, cluster)
        elif state in (NodeState.WIPE, NodeState.PRIME):
            self._obeys(whole=True)
            self.lab.done(self.peer, self.lab.order(1).id)
        elif state is NodeState.BOOT:
            self.lab.apply(1, Step(NodeEvent.BOOTED, "x"))
        elif state is NodeState.ACTIVE:
            self.lab.release(1)
        elif state is NodeState.TRAMPOLINE:
            self.lab.tick(lifecycle.LONGEST_REST)
            self.peer = self.lab.boots(1)
        else:
            context = flow_context(self.lab.site, self.lab.now, "user:ann")
            node_flows.restore(self.lab.tx, context, name="node1")

    def _goes_wrong(self, state: NodeState, dice: Random) -> None:
        wrong = dice.choice(["policy", "fails", "lost", "released", "out of service"])
        if wrong == "policy":
            says(self.lab, dice.choice(["tables", "tables", "zero"]))
        elif wrong == "fails" and state in (NodeState.WIPE, NodeState.PRIME):
            self._obeys(whole=False)
            self.lab.failed(self.peer, self.lab.order(1).id)
        elif wrong == "lost" and state in (NodeState.WIPE, NodeState.PRIME, NodeState.BOOT):
            event = NodeEvent.BOOT_FAILED if state is NodeState.BOOT else NodeEvent.LOST
            self._obeys(whole=False)
            step = lifecycle.on_trouble(self.lab.node(1), event, "x", self.lab.site.policy)
            self.lab.apply(1, step)
        elif wrong == "released" and self.lab.node(1).vcluster_id is not None:
            self.lab.release(1)
        elif wrong == "out of service" and state in (NodeState.INACTIVE, NodeState.ACTIVE):
            context = flow_context(self.lab.site, self.lab.now, "user:ann")
            node_flows.quarantine(self.lab.tx, context, name="node1", reason="x")

    def _obeys(self, *, whole: bool) -> None:
        """Do to the disks what the node's order says; where it is not carried out whole, the worst
        of it."""
        order = self.lab.order(1)
        erases = (order.action == "wipe" and not order.tables) or (
            order.action == "prime" and order.wipe
        )
        if erases and whole:
            self.data.clear()
        if order.action == "prime":
            self.data.add(self._holder())

    def _holder(self) -> int:
        held = self.lab.node(1).vcluster_id
        return next(one.group_id for one in self.clusters if one.id == held)

    def check(self) -> None:
        node = self.lab.node(1)
        if node.state in (NodeState.BOOT, NodeState.ACTIVE):
            assert self.data <= {self._holder()}, "a group's data reached another"
        if node.state == NodeState.ACTIVE:
            self.data.add(self._holder())
        if node.state in (NodeState.INACTIVE, NodeState.OFF) and self.data:
            assert (node.disk, {node.cached_group_id}) == (Disk.TABLES, self.data)


@pytest.mark.slow
def test_no_walk_hands_a_groups_data_to_another(lab: Lab) -> None:
    dice = Random(21)
    disks = Disks(lab)
    for _ in range(250):
        disks.steps(dice)
    assert min(disks.handed_on.values()) > 2, disks.handed_on
