"""What agents' messages, and their absence, do to nodes: every row of the lifecycle table that
confd can cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from sqlalchemy import select

from cod.core.nodes import transitions
from cod.flows.agents import orders, progress, report
from cod.flows.agents import sessions as flow
from cod.flows.boot import script
from cod.flows.nodes import deadlines, power
from cod.flows.nodes import nodes as nodes_flows
from cod.model import Binding, Energy, Page, Peer, Policy, Refused, Result, Site, ipv4
from cod.orders import Erasure, Namesake
from cod.policy.nodes import lifecycle
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState, Step
from cod.store import lists, views
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, conflicts, nodes, secrets, sessions
from cod.store.people import groups
from cod.store.scheduler import requests, vclusters
from tests.contexts import flow_context
from tests.store.agentlab import NOW, TEMPLATE, Lab, hardware, mac, uuid

MOTION = [state for state, rule in NODE_RULES.items() if rule.kind == "motion"]


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, site)


@pytest.fixture
def primed(lab: Lab) -> tuple[Lab, Peer]:
    """Node 1 is being primed for a vcluster; its agent is connected."""
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    return lab, peer


# ---------------------------------------------------------------- the whole way


def test_a_new_machine_idles(lab: Lab) -> None:
    lab.machine(1)
    peer = lab.boots(1)
    node = lab.node(1)
    assert (node.state, node.firmware, node.boot_mac) == ("inactive", "uefi", mac(1))
    assert (node.disk, node.type_id is not None) == (Disk.FOREIGN, True)
    assert lab.events(1) == ["seen", "registered", "approved", "idled"]
    assert lab.order(1).action == "wait"
    lab.report(peer)
    assert lab.node(1).generation == node.generation


def test_approval_is_waited_for(lab: Lab) -> None:
    lab.site = replace(lab.site, policy=Policy(auto_approve=False))
    lab.machine(1)
    peer = lab.boots(1)
    lab.tick(1e6)
    assert (lab.node(1).state, lab.order(1).action) == ("registering", "wait")
    lab.report(peer)
    assert lab.node(1).state == "registering"
    lab.apply(1, Step(NodeEvent.APPROVED, "x"))
    lab.tick(1)
    assert lab.node(1).state == "inactive"


def test_how_disks_were_erased_is_kept_in_the_history(lab: Lab) -> None:
    """A wipe's transition tells of each disk; those before and after it tell of none."""
    lab.machine(1, "trampoline", disk=Disk.DIRTY)
    peer = lab.boots(1)
    order = lab.order(1)
    assert order.action == "wipe"
    sda = Erasure("sda", "M", "S1", "", 1 << 40, "write zeroes, discard", 12.5, 40 << 20)
    lab.erased(peer, order.id, sda, replace(sda, disk="sdb", serial="S2"))
    assert lab.node(1).disk == Disk.CLEAN
    rows = list(lists.history(lab.tx, Page(100), None, node=lab.node(1).name))
    assert {
        row["event"]: [disk["serial"] for disk in row["erased"]] for row in rows if row["erased"]
    } == {"wiped": ["S1", "S2"]}
    told = next(row["erased"][0] for row in rows if row["erased"])
    assert told == asdict(sda)


def test_a_disk_with_the_names_of_the_installed_system_is_told(primed: tuple[Lab, Peer]) -> None:
    """To administrators and to the holder; an order that is over tells nothing."""
    lab, peer = primed
    order = lab.order(1)
    assert order.action == "prime"
    same = Namesake("label", "root", "sdb (serial S2)")
    for _ in range(2):  # the second time after a lost acknowledgement
        progress.done(lab.tx, peer, order.id, {}, lab.site, lab.now, namesakes=(same,))
    assert lab.node(1).state == "boot"
    [row] = conflicts.every(lab.tx, macs=[mac(1)])
    assert (row["kind"], "label root of sdb (serial S2)" in row["about"]) == ("namesake", True)
    n, g = t.notices.c, t.groups.c
    told = select(g.name, n.link).outerjoin(t.groups, n.group_id == g.id)
    rows = lab.tx.execute(told.where(n.kind == "namesake").order_by(n.id))
    assert [tuple(row) for row in rows] == [(None, "/nodes/node1"), ("physics", "/nodes/node1")]


@pytest.mark.parametrize("wipe", ["zero", "purge"])
def test_disks_are_purged_where_the_site_says_so(lab: Lab, wipe: str) -> None:
    lab.site = replace(lab.site, policy=replace(lab.site.policy, wipe=wipe))
    lab.machine(1, "trampoline", disk=Disk.DIRTY)
    peer = lab.boots(1)
    order = lab.order(1)
    assert (order.action, order.purge) == ("wipe", wipe == "purge")
    lab.done(peer, order.id)
    assert not lab.order(1).purge
    lab.assign(1, lab.vcluster(lab.template()))
    order = lab.order(1)
    assert (order.action, order.wipe, order.purge) == ("prime", False, False), "it is clean"


def test_disks_are_purged_once_after_a_template_that_says_so(lab: Lab) -> None:
    """Keep the wish of a template after its holder has gone, until a wipe has met it."""
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    purged = TEMPLATE.replace("<template ", '<template wipe="purge" ')
    lab.assign(1, lab.vcluster(lab.template(document=purged)))
    order = lab.order(1)
    assert (order.action, order.wipe, order.purge) == ("prime", False, False), "nothing to wipe"
    lab.done(peer, order.id)
    lab.release(1)
    peer = lab.boots(1)
    order = lab.order(1)
    assert (order.action, order.purge) == ("wipe", True)
    lab.done(peer, order.id)
    assert lab.node(1).wipe == ""
    lab.assign(1, lab.vcluster(lab.template(revision=2), name="other"))
    lab.done(peer, lab.order(1).id)
    lab.release(1)
    lab.boots(1)
    order = lab.order(1)
    assert (order.action, order.purge) == ("wipe", False)


def test_a_disk_that_is_wiped_for_its_template_is_purged(primed: tuple[Lab, Peer]) -> None:
    lab, peer = primed
    lab.site = replace(lab.site, policy=replace(lab.site.policy, wipe="purge"))
    lab.failed(peer, lab.order(1).id)
    lab.report(peer)
    lab.tick(lifecycle.FIRST_REST)
    order = lab.order(1)
    assert (order.action, order.wipe, order.purge) == ("prime", True, True)


def test_what_was_erased_before_another_order_is_not_kept(lab: Lab) -> None:
    lab.machine(1, "trampoline", disk=Disk.DIRTY)
    peer = lab.boots(1)
    order = lab.order(1)
    sda = Erasure("sda", "", "S1", "", 1, "overwrite", 1.0, 1)
    node, _, generation = order.id.partition(".")
    lab.erased(peer, f"{node}.{int(generation) - 1}", sda)
    assert lab.node(1).disk == Disk.DIRTY
    rows = lists.history(lab.tx, Page(100), None, node=lab.node(1).name)
    assert not any(row["erased"] for row in rows)


def test_from_the_reserve_to_active_and_back(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    order = lab.order(1)
    assert (order.action, order.wipe, order.verify, order.table) == ("prime", False, True, "keep")
    assert [(i.target, i.url, i.compression, i.size) for i in order.images] == [
        ("disk", "http://10.0.0.9/a.zst", "zstd", 1_000_000)
    ]
    node = lab.node(1)
    vcluster = vclusters.get(lab.tx, node.vcluster_id or 0)
    assert vcluster
    assert f'"local-hostname": "n1.{vcluster.name}.{lab.site.domain}"' in order.seed["meta-data"]
    assert f'"macaddress": "{node.boot_mac}"' in order.seed["network-config"]
    assert order.seed["user-data"] == "#cloud-config"
    assert lab.install(1) == ("pending", lab.node(1).generation)
    lab.now += 100
    lab.done(peer, order.id, bytes_written=1_000_000)
    node = lab.node(1)
    assert (node.state, node.disk, lab.order(1).action) == ("boot", Disk.DIRTY, "reboot")
    assert lab.install(1)[0] == "done"
    row = nodes.history(lab.tx, node.id)[-1]
    assert (row["event"], row["bytes_written"], row["rate"]) == ("primed", 1_000_000, 10_000)
    flow.lost(lab.tx, peer, lab.site, lab.now)  # the agent goes down to reboot
    assert lab.node(1).generation == node.generation
    transitions.apply(
        lab.tx,
        node,
        Step(NodeEvent.BOOTED, "ack"),
        now=lab.now,
        actor="dhcp",
        policy=lab.site.policy,
    )
    lab.release(1)
    assert (lab.node(1).state, lab.node(1).vcluster_id, lab.wishes(1)) == (
        "trampoline",
        None,
        ["cycle"],
    )
    assert bindings.of_node(lab.tx, node.id) == []
    peer = lab.boots(1)
    order = lab.order(1)
    assert (lab.node(1).state, order.action) == ("wipe", "wipe")
    lab.done(peer, order.id)
    node = lab.node(1)
    assert (node.state, node.disk, node.released, lab.install(1)) == (
        "inactive",
        Disk.CLEAN,
        0,
        None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "wishes"), [("pdu", ["cycle"]), ("wol", ["cycle"]), ("none", [])]
)
def test_a_release_without_boot_device_leads_to_the_trampoline(
    lab: Lab, driver: str, wishes: list[str]
) -> None:
    """However the machine comes to be reset, its firmware asks the network first, as the trampoline
    has put its boot order. The first order that it gets has the order put right again, as
    tests/net/test_ctramp.py shows."""
    lab.machine(1, "trampoline", firmware="uefi")
    peer = lab.boots(1)
    nodes.change(lab.tx, lab.node(1), power_driver=driver)
    lab.assign(1, lab.vcluster(lab.template()))
    lab.done(peer, lab.order(1).id)
    lab.apply(1, Step(NodeEvent.BOOTED, "ack"))
    lab.release(1)
    assert (lab.node(1).state, lab.wishes(1)) == ("trampoline", wishes)
    bindings.add(
        lab.tx,
        [Binding(ipv4("10.77.1.1"), mac(1), "boot", None, "lab", None, "bound", lab.now + 1e6)],
    )
    asked = lab.tx, mac(1), "10.77.1.1", lab.site, lab.now
    assert script.unchanged(*asked) == script.script(*asked)
    assert script.script(*asked).action == "trampoline"
    peer = lab.boots(1)
    assert lab.order(1).action == "wipe"
    lab.done(peer, lab.order(1).id)
    assert lab.node(1).state == "inactive"


def test_a_bios_machine_boots_the_disk_that_was_primed(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    lab.done(peer, lab.order(1).id, bytes_written=1_000_000, disk_signature=0xFEDCBA98)
    bindings.add(
        lab.tx,
        [Binding(ipv4("10.77.1.1"), mac(1), "boot", None, "lab", None, "bound", lab.now + 1e6)],
    )

    def served() -> str:
        return script.script(lab.tx, mac(1), "10.77.1.1", lab.site, lab.now).kernel

    assert served().endswith("/boot/disk/fedcba98"), "no other disk will do: it was just written"
    lab.apply(1, Step(NodeEvent.BOOTED, "ack"))
    assert served().endswith("/boot/disk/fedcba98-or-first"), (
        "the owner may have written another table"
    )
    lab.release(1)
    peer = lab.boots(1)
    lab.done(peer, lab.order(1).id)
    assert (lab.node(1).disk, lab.node(1).disk_signature) == (Disk.CLEAN, None)


def test_a_node_that_was_primed_before_signatures_were_kept_boots_its_first_disk(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    lab.done(peer, lab.order(1).id, bytes_written=1_000_000)
    bindings.add(
        lab.tx,
        [Binding(ipv4("10.77.1.1"), mac(1), "boot", None, "lab", None, "bound", lab.now + 1e6)],
    )
    plan = script.script(lab.tx, mac(1), "10.77.1.1", lab.site, lab.now)
    assert (plan.action, plan.kernel) == ("local", "")
    served_at = lab.node(1).boot_served_at
    lab.now += 10
    unchanged = script.unchanged(lab.tx, mac(1), "10.77.1.1", lab.site, lab.now)
    assert unchanged is None, "that its boot was served is to be noted"
    assert lab.node(1).boot_served_at == served_at


# ---------------------------------------------------------------- said twice, late, or by somebody
# else


def test_what_is_repeated_changes_nothing(primed: tuple[Lab, Peer]) -> None:
    lab, peer = primed
    order = lab.order(1)
    reboot = lab.done(peer, order.id).value
    assert reboot == lab.order(1)
    before, events = lab.node(1), lab.events(1)
    for message in (lab.done, lab.failed):
        assert message(peer, order.id) == Result(reboot)
    lab.progress(peer, order.id, 50)
    assert (lab.node(1), lab.events(1)) == (before, events)
    # of the reboot: the boot is not over by that
    assert lab.done(peer, lab.order(1).id) == Result(None)
    assert lab.node(1) == before


def test_nobody_speaks_of_another_nodes_order(primed: tuple[Lab, Peer]) -> None:
    lab, _peer = primed
    lab.machine(2, "trampoline")
    other = lab.boots(2)
    before = lab.node(1)
    for message in (lab.done, lab.failed, lambda peer, order_id: lab.progress(peer, order_id, 1)):
        with pytest.raises(Refused) as refused:
            message(other, lab.order(1).id)
        assert refused.value.code == "forbidden"
    assert lab.node(1) == before


def test_an_older_connection_says_nothing_more(primed: tuple[Lab, Peer]) -> None:
    lab, older = primed
    newer = lab.again(1, server="b")
    before = lab.node(1)
    for message in (
        lambda: lab.done(older, lab.order(1).id),
        lambda: lab.report(older),
        lambda: lab.progress(older, lab.order(1).id, 1),
    ):
        with pytest.raises(Refused, match="newer connection"):
            message()
    assert flow.lost(lab.tx, older, lab.site, lab.now) == Result(False)
    assert lab.node(1) == before
    assert sessions.get(lab.tx, before.id).epoch == newer.epoch > older.epoch


def test_wiping_and_writing_are_told_apart_with_true_rates(primed: tuple[Lab, Peer]) -> None:
    lab, peer = primed
    order_id = lab.order(1).id
    lab.progress(peer, order_id, 100, 100, phase="wipe")
    assert (lab.node(1).progress_phase, lab.node(1).progress_done) == ("wipe", 100)
    first = lab.node(1).deadline
    lab.now += 60
    lab.progress(peer, order_id, 100, 100, phase="write")
    assert lab.node(1).progress_phase == "write"
    assert (lab.node(1).deadline or 0) > (first or 0), (
        "another step is progress, though it has as many bytes"
    )
    lab.now += 40
    lab.done(peer, order_id, bytes_written=1_000_000, wipe_seconds=60.0, write_seconds=20.0)
    row = nodes.history(lab.tx, lab.node(1).id)[-1]
    assert (row["bytes_written"], row["rate"]) == (1_000_000, 50_000), "of the writing alone"
    assert lab.node(1).progress_phase == ""


def test_only_progress_moves_the_deadline(primed: tuple[Lab, Peer]) -> None:
    lab, peer = primed
    order_id, first = lab.order(1).id, lab.node(1).deadline
    assert first == lab.now + (NODE_RULES[NodeState.PRIME].deadline or 0.0)
    lab.now += 200
    lab.progress(peer, order_id, 10)
    moved = lab.node(1).deadline
    assert moved == lab.now + (NODE_RULES[NodeState.PRIME].deadline or 0.0)
    lab.now += 200
    lab.progress(peer, order_id, 10)
    assert lab.node(1).deadline == moved
    assert (lab.node(1).progress_done, lab.node(1).progress_rate) == (10, 5.0)
    lab.tick(101)
    assert lab.node(1).state == "trampoline"


# ---------------------------------------------------------------- trouble


def test_a_failure_is_followed_by_a_rest_and_another_try(primed: tuple[Lab, Peer]) -> None:
    lab, peer = primed
    first = lab.order(1)
    lab.failed(peer, first.id, "the image server is down")
    node = lab.node(1)
    assert (node.state, node.reason, node.attempts) == ("trampoline", "the image server is down", 1)
    assert lab.install(1)[0] == "failed"
    lab.report(peer)
    lab.tick(lifecycle.FIRST_REST - 1)
    assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "wait")
    lab.tick(1)
    second = lab.order(1)
    assert (lab.node(1).state, second.action, second.wipe) == ("prime", "prime", True)
    assert second.id != first.id
    assert lab.install(1) == ("pending", lab.node(1).generation)


@pytest.mark.parametrize("state", ["prime", "wipe"])
def test_a_node_that_keeps_failing_is_set_aside_with_its_reason(lab: Lab, state: str) -> None:
    lab.machine(1, "trampoline", disk=Disk.CLEAN if state == "prime" else Disk.DIRTY)
    peer = lab.boots(1)
    if state == "prime":
        lab.assign(1, lab.vcluster(lab.template()))
    tries = 0
    while lab.node(1).state != "quarantined":
        assert lab.node(1).state == state
        tries += 1
        lab.failed(peer, lab.order(1).id, "disk too small")
        lab.tick(lifecycle.LONGEST_REST)
    node = lab.node(1)
    assert tries == NODE_RULES[NodeState(state)].retries + 1
    assert (node.reason, node.disk, lab.order(1).action) == ("disk too small", Disk.DIRTY, "wait")
    lab.tick(1e6)
    assert lab.node(1) == node


def test_a_vcluster_whose_node_is_set_aside_asks_for_another(primed: tuple[Lab, Peer]) -> None:
    lab, peer = primed
    vcluster_id = lab.node(1).vcluster_id
    for _ in range(3):
        lab.failed(peer, lab.order(1).id)
        lab.tick(lifecycle.LONGEST_REST)
    node = lab.node(1)
    assert (node.state, node.vcluster_id, node.hostname) == ("quarantined", None, None)
    assert bindings.of_node(lab.tx, node.id) == []
    assert lab.install(1) is None
    assert [
        (r.kind, r.state, r.tuples[0].count)
        for r in requests.every(lab.tx, vcluster_id=vcluster_id)
    ] == [("create", "pending", 1), ("replace", "pending", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("state", MOTION)
def test_what_takes_too_long_is_cycled_and_then_set_aside(lab: Lab, state: NodeState) -> None:
    rule = NODE_RULES[state]
    lab.machine(1, state, attempts=0)
    assert rule.deadline is not None
    lab.tick(rule.deadline - 0.1)
    assert lab.node(1).state == state
    assert lab.wishes(1) == []
    lab.tick(0.1)
    assert (lab.node(1).state, lab.wishes(1), lab.node(1).attempts) == ("trampoline", ["cycle"], 1)
    assert state in lab.node(1).reason
    for _ in range(4):
        lab.tick(NODE_RULES[NodeState.TRAMPOLINE].deadline or 0)
    assert lab.node(1).state == "quarantined"
    assert lab.wishes(1) == ["cycle"] * 3


@pytest.mark.slow
def test_a_node_that_was_not_switched_on_is_set_aside_with_both_reasons(lab: Lab) -> None:
    """A BMC that is gone for good: its node shows why, in the end, and whoever waits for it gets
    another."""
    lab.machine(1, "off")
    nodes_flows.power(
        lab.tx, flow_context(lab.site, lab.now, "user:root"), name="node1", desired="on"
    )
    while lab.node(1).state == "trampoline":
        for task in power.claim(lab.tx, "s1", {"lab": 1}, lab.now, 75.0):
            power.failed(lab.tx, task, "the BMC does not answer", lab.now + 10.0)
        lab.tick(20.0)
    assert lab.node(1).state == "quarantined"
    assert lab.now < NOW + 3600
    assert lab.node(1).reason.startswith("no sign of progress for 600 s in state trampoline")
    assert lab.node(1).reason.endswith("power: the BMC does not answer")


@pytest.mark.slow
@pytest.mark.parametrize("wake_time", [60.0, 1800.0])
def test_who_does_not_wake_has_the_wake_time_again_at_each_try(lab: Lab, wake_time: float) -> None:
    """And its reason says how long it really had. One that comes in time is not overdue because it
    has to rest."""
    lab.site = replace(lab.site, energy=Energy(wake_time=wake_time))
    lab.machine(1, "off")
    with_deadline = {"deadline": lab.now + wake_time}
    lab.apply(1, Step(NodeEvent.WOKEN, "test", with_deadline, "on"))
    for attempt in range(3):
        lab.tick(wake_time - 1)
        assert lab.node(1).attempts == attempt
        lab.tick(1.0)
        assert (lab.node(1).state, lab.node(1).attempts) == ("trampoline", attempt + 1)
        assert lab.node(1).reason.startswith(
            f"no sign of progress for {wake_time:.0f} s in state trampoline"
        )
    lab.tick(wake_time - 1)
    lab.boots(1)
    lab.tick(lifecycle.rest(3))
    assert lab.node(1).state == "inactive"


def test_an_agent_is_told_to_power_down_though_the_plug_would_do(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    lab.boots(1)
    assert lab.node(1).state == "inactive"
    nodes_flows.power(
        lab.tx, flow_context(lab.site, lab.now, "user:root"), name="node1", desired="off"
    )
    ((_node, _epoch, order),) = orders.waiting(lab.tx, "a", lab.site, lab.now).value
    assert order.action == "off"
    (task,) = power.claim(lab.tx, "s1", {"lab": 1}, lab.now, 75.0)
    assert power.command(task, "on") == "soft"


def test_no_deadline_passes_while_nobody_could_be_heard(lab: Lab) -> None:
    lab.machine(1, "prime")
    lab.machine(2, "inactive")
    started = lab.now + 1e5
    wait = deadlines.SILENCE * lab.site.policy.heartbeat
    deadlines.run(lab.tx, lab.site, started + wait - 1, started)
    assert [lab.node(n).state for n in (1, 2)] == ["prime", "inactive"]
    deadlines.run(lab.tx, lab.site, started + wait, started)
    assert [lab.node(n).state for n in (1, 2)] == ["trampoline", "trampoline"]


@pytest.mark.slow
def test_a_hall_full_of_overdue_nodes_is_dealt_with_in_small_transactions(lab: Lab) -> None:
    for number in range(1, 2 * deadlines.MOST):
        lab.machine(number, "trampoline")
    lab.now += 601.0
    for left in (deadlines.MOST - 1, 0):
        lab.tick(1.0)
        assert sum(not node.attempts for node in nodes.every(lab.tx)) == left


def test_patience_stretches_deadlines(lab: Lab) -> None:
    lab.site = replace(lab.site, policy=Policy(auto_approve=True, patience=3.0))
    lab.machine(1, "trampoline", disk=Disk.DIRTY)
    lab.boots(1)
    assert lab.node(1).deadline == lab.now + 3 * (NODE_RULES[NodeState.WIPE].deadline or 0)


def test_a_site_may_forbid_power_cycles(lab: Lab) -> None:
    lab.site = replace(lab.site, policy=Policy(power_cycle=False))
    lab.machine(1, "boot")
    lab.tick(1e6)
    assert (lab.node(1).state, lab.wishes(1)) == ("trampoline", [])


AFTER_REBOOT = {
    "expected": ("expected", 0),
    "new": ("new", 0),
    "registering": ("registering", 0),
    "off": ("trampoline", 0),
    "trampoline": ("trampoline", 0),
    "inactive": ("trampoline", 0),
    "wipe": ("trampoline", 1),
    "prime": ("trampoline", 1),
    "boot": ("trampoline", 1),
    "capture": ("trampoline", 1),
    "burnin": ("trampoline", 1),
    "active": ("active", 0),
    "quarantined": ("quarantined", 0),
    "retired": ("retired", 0),
}
AFTER_LOSS = AFTER_REBOOT | {"off": ("off", 0), "boot": ("boot", 0)}


@pytest.mark.parametrize("state", NodeState)
def test_a_reboot_in_every_state(lab: Lab, state: NodeState) -> None:
    lab.machine(1, state)
    lab.open(1)
    assert (lab.node(1).state, lab.node(1).attempts) == AFTER_REBOOT[state]


@pytest.mark.parametrize("state", NodeState)
def test_a_lost_agent_in_every_state(lab: Lab, state: NodeState) -> None:
    lab.machine(1, state)
    peer = lab.again(1)
    assert lab.node(1).state == state
    assert flow.lost(lab.tx, peer, lab.site, lab.now).value is True
    assert (lab.node(1).state, lab.node(1).attempts) == AFTER_LOSS[state]
    assert sessions.get(lab.tx, lab.node(1).id) is None


@pytest.mark.parametrize("state", NodeState)
def test_a_reconnect_and_its_report_disturb_no_state(lab: Lab, state: NodeState) -> None:
    lab.machine(1, state)
    before = lab.node(1)
    peer = lab.again(1)
    assert isinstance(lab.report(peer, mib=4096).value, report.ReportAnswer)
    after = lab.node(1)
    assert after.attributes == hardware(mac(1), mib=4096)
    settled = ("expected", "new", "registering", "trampoline")
    expected = "inactive" if state in settled else state
    assert after.state == expected
    if expected == state:
        assert after.generation == before.generation


@pytest.mark.parametrize(
    ("state", "action"),
    [
        ("expected", "wait"),
        ("new", "wait"),
        ("registering", "wait"),
        ("trampoline", "wait"),
        ("inactive", "wait"),
        ("quarantined", "wait"),
        ("retired", "wait"),
        ("wipe", "wipe"),
        ("boot", "reboot"),
        ("active", "reboot"),
        ("off", "off"),
    ],
)
def test_the_order_of_each_state(lab: Lab, state: str, action: str) -> None:
    node = lab.machine(1, state, generation=7)
    assert (lab.order(1).id, lab.order(1).action) == (f"{node.id}.7", action)


def test_a_warm_node_that_no_server_holds_is_noticed(lab: Lab) -> None:
    lab.machine(1, "inactive")
    lab.machine(2, "inactive")
    lab.machine(3, "inactive")
    lab.again(1, server="dead")
    lab.again(2, server="alive")
    lab.tick(deadlines.SILENCE * lab.site.policy.heartbeat - 1)
    assert lab.node(3).state == "inactive"
    flow.held(lab.tx, "alive", lab.now)
    lab.tick(2)
    assert [lab.node(n).state for n in (1, 2, 3)] == ["trampoline", "inactive", "trampoline"]


# ---------------------------------------------------------------- secrets and sessions


def test_a_boots_secret_opens_once_and_takes_the_older_ones_along(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    older, used, newer = (lab.mint(1, lives=lives) for lives in (100, 200, 300))
    old_session = lab.mint(1, "session", lives=1e6)
    lab.open(1, used, "mine")
    assert [secrets.get(lab.tx, one) is None for one in (older, used, newer, old_session)] == [
        True,
        True,
        False,
        True,
    ]
    mine = secrets.get(lab.tx, "mine")
    assert mine is not None
    assert mine.kind == "session"
    with pytest.raises(Refused, match="has been used"):
        lab.open(1, used, "thief")
    assert secrets.get(lab.tx, "thief") is None


def test_opening_may_be_run_again(lab: Lab) -> None:
    """A commit whose outcome is unknown is run again with the same arguments."""
    lab.machine(1, "prime")
    secret = lab.mint(1)
    first = lab.open(1, secret, "mine")
    second = lab.open(1, secret, "mine")
    assert second.epoch > first.epoch
    assert (lab.node(1).attempts, lab.events(1)) == (1, ["seen", "asked"])
    assert lab.node(1).boot_unordered  # nobody has confirmed the boot since


@pytest.mark.parametrize(
    ("who", "address", "later"), [(2, "10.77.1.1", 0), (1, "10.77.1.2", 0), (1, "10.77.1.1", 300)]
)
def test_a_secret_is_good_for_one_machine_at_one_address_for_a_while(
    lab: Lab, who: int, address: str, later: float
) -> None:
    secret = lab.mint(1)
    assert flow.lookup(lab.tx, secret, mac(1), "10.77.1.1", lab.now) is not None
    assert flow.lookup(lab.tx, secret, mac(who), address, lab.now + later) is None
    assert flow.lookup(lab.tx, "unknown", mac(1), "10.77.1.1", lab.now) is None


def test_an_agent_that_was_taken_for_rebooted_comes_back_and_reports(lab: Lab) -> None:
    """A DISCOVER that was late, or sent by another machine: the node waits for a report that nobody
    would send."""
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    transitions.move(
        lab.tx, lab.node(1), NodeEvent.ASKED, now=lab.now, cause="a late DISCOVER", actor="dhcp"
    )
    with pytest.raises(Refused, match="newer connection"):  # its server ends the connection
        lab.report(peer)
    assert lab.node(1).state == "trampoline"
    lab.report(lab.again(1))
    assert lab.node(1).state == "inactive"


def test_orders_wait_for_the_server_that_holds_the_connection(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    lab.machine(2, "trampoline")
    peer = lab.boots(1)
    lab.report(lab.open(2, server="b"))
    assert orders.waiting(lab.tx, "a", lab.site, lab.now).value == []  # their reports are answered
    lab.assign(1, lab.vcluster(lab.template()))
    assert orders.any_waiting(lab.tx, "a", lab.site)
    ((node_id, epoch, order),) = orders.waiting(lab.tx, "a", lab.site, lab.now).value
    assert (node_id, epoch, order) == (peer.node_id, peer.epoch, lab.order(1))
    assert not orders.any_waiting(lab.tx, "a", lab.site)  # it counts as sent
    unsent = {(node_id, epoch + 1)}  # another connection's
    assert orders.waiting(lab.tx, "a", lab.site, lab.now, unsent=unsent).value == []
    unsent = {(node_id, epoch)}
    repeated = orders.waiting(lab.tx, "a", lab.site, lab.now, unsent=unsent).value
    assert repeated == [(node_id, epoch, order)]
    # nobody learnt that this was committed: it is run again
    assert orders.waiting(lab.tx, "a", lab.site, lab.now, unsent=unsent).value == repeated
    again = lab.again(1, server="a")
    assert orders.waiting(lab.tx, "a", lab.site, lab.now).value == []  # not before its report
    lab.report(again)
    ((_, epoch, same),) = orders.waiting(lab.tx, "a", lab.site, lab.now).value
    assert (epoch, same) == (again.epoch, order)
    assert {peer.node_id for peer in flow.inherited(lab.tx, "b")} == {lab.node(2).id}


def test_an_order_that_cannot_be_made_is_a_failure(lab: Lab) -> None:
    lab.machine(1, "trampoline")
    lab.boots(1)
    document = '<template><image target="disk" name="gone"/></template>'
    lab.assign(1, lab.vcluster(lab.template(document=document)))
    assert orders.waiting(lab.tx, "a", lab.site, lab.now).value == []
    assert (lab.node(1).state, "no image 'gone'" in lab.node(1).reason) == ("trampoline", True)


def test_signs_of_life(lab: Lab) -> None:
    lab.machine(1, "inactive")
    lab.machine(2, "inactive")
    lab.now += 50
    flow.seen(lab.tx, [(lab.node(1).id, 1040.0), (lab.node(2).id, 1041.0)])
    assert [lab.node(n).last_seen for n in (1, 2)] == [1040.0, 1041.0]
    flow.seen(lab.tx, [])


# ---------------------------------------------------------------- disks that are kept, nodes
# without


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "revision", "state", "wipe"),
    [("physics", 1, "boot", None), ("physics", 2, "prime", True), ("biology", 1, "prime", True)],
)
def test_a_kept_disk_serves_the_same_group_and_revision_only(
    lab: Lab, group: str, revision: int, state: str, wipe: bool | None
) -> None:
    templates = {1: lab.template("yes"), 2: lab.template("yes", revision=2)}
    owner = groups.ensure(lab.tx, "physics", 0.0)
    lab.machine(
        1, "inactive", disk=Disk.CACHED, cached_template_id=templates[1], cached_group_id=owner.id
    )
    lab.boots(1)
    assert lab.node(1).disk == Disk.CACHED
    lab.assign(1, lab.vcluster(templates[revision], group))
    assert lab.node(1).state == state
    if wipe is not None:
        assert lab.order(1).wipe is wipe


def test_a_kept_disk_that_does_not_boot_is_primed_anew(lab: Lab) -> None:
    template_id = lab.template("yes")
    owner = groups.ensure(lab.tx, "physics", 0.0)
    lab.machine(
        1, "inactive", disk=Disk.CACHED, cached_template_id=template_id, cached_group_id=owner.id
    )
    lab.boots(1)
    lab.assign(1, lab.vcluster(template_id))
    lab.boots(1)
    assert (lab.node(1).state, lab.node(1).disk) == ("trampoline", Disk.DIRTY)
    lab.tick(lifecycle.FIRST_REST)
    assert (lab.node(1).state, lab.order(1).wipe) == ("prime", True)


def test_a_disk_is_kept_if_its_template_says_so_and_it_ran(lab: Lab) -> None:
    template_id = lab.template("yes")
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    vcluster = lab.vcluster(template_id)
    lab.assign(1, vcluster)
    lab.done(peer, lab.order(1).id)
    lab.apply(1, Step(NodeEvent.BOOTED, "x"))
    lab.release(1)
    lab.boots(1)
    node = lab.node(1)
    assert (node.state, node.disk, node.cached_template_id, node.cached_group_id) == (
        "inactive",
        Disk.CACHED,
        template_id,
        vcluster.group_id,
    )


def test_a_diskless_template_skips_priming(lab: Lab) -> None:
    document = '<template><boot mode="diskless"><kernel url="http://x/k"/></boot></template>'
    lab.machine(1, "trampoline")
    lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template(document=document)))
    assert (lab.node(1).state, lab.order(1).action) == ("boot", "reboot")


@pytest.mark.parametrize("end", ["failed", "lost", "reboot", "timeout", "release"])
@pytest.mark.parametrize("disk", [Disk.CLEAN, Disk.FOREIGN, Disk.CACHED])
def test_however_a_prime_is_cut_short_the_disk_is_dirty(lab: Lab, disk: Disk, end: str) -> None:
    lab.machine(1, "trampoline", disk=disk)
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    assert (lab.node(1).disk, lab.order(1).wipe) == (disk, disk != Disk.CLEAN)
    ends: dict[str, Callable[[], object]] = {
        "failed": lambda: lab.failed(peer, lab.order(1).id),
        "lost": lambda: flow.lost(lab.tx, peer, lab.site, lab.now),
        "reboot": lambda: lab.open(1),
        "timeout": lambda: lab.tick(300),
        "release": lambda: lab.release(1),
    }
    ends[end]()
    assert (lab.node(1).state, lab.node(1).disk) == ("trampoline", Disk.DIRTY)


# ---------------------------------------------------------------- identity


def test_a_report_joins_the_machines_nics(lab: Lab) -> None:
    lab.machine(1)
    lab.report(lab.open(1), mac(1), mac(1, 1), mac(1, 2), uuid=uuid(1))
    assert views.nodes(lab.tx, name=lab.node(1).name)[0].macs == (mac(1), mac(1, 1), mac(1, 2))
    assert lab.node(1).uuid == uuid(1)


def test_a_nic_that_was_taken_for_a_machine_is_absorbed(lab: Lab) -> None:
    lab.machine(1)
    lab.machine(2)
    lab.report(lab.open(1), mac(1), mac(2), uuid=uuid(1))
    assert lab.node(1) == lab.node(2)
    assert len(nodes.every(lab.tx)) == 1


def test_another_machines_nic_is_a_conflict_and_disturbs_nobody(lab: Lab) -> None:
    lab.machine(1)
    real = lab.open(1)
    assert lab.report(real, mac(1), mac(1, 1), uuid=uuid(1)).value.order == lab.order(1)
    lab.machine(2)
    impostor = lab.open(2)
    before = lab.node(1)
    for claimed in (mac(1), mac(1, 1)):
        for own in (uuid(1), uuid(2), None):
            sentence = lab.report(impostor, mac(2), claimed, uuid=own).value
            assert isinstance(sentence, str)
            assert claimed in sentence
    assert lab.node(1) == before
    assert sessions.get(lab.tx, before.id).epoch == real.epoch
    assert (lab.node(2).state, lab.node(2).attributes) == ("new", None)
    assert [(c["kind"], c["mac"]) for c in conflicts.every(lab.tx)] == [("identity", mac(2))]


def test_a_report_of_another_machine_is_refused(lab: Lab) -> None:
    lab.machine(1)
    sentence = lab.report(lab.open(1), mac(7), uuid=uuid(7)).value
    assert isinstance(sentence, str)
    assert "another machine" in sentence


@pytest.mark.parametrize("state", ["off", "trampoline", "registering"])
def test_a_machine_with_a_new_network_card_is_known_by_its_uuid(lab: Lab, state: str) -> None:
    old = lab.machine(1, state, uuid=uuid(1))
    lab.machine(2)
    told = lab.report(lab.open(2), mac(2), uuid=uuid(1)).value
    assert isinstance(told, report.ReportAnswer)
    peer = told.peer
    node = lab.node(2)
    assert (peer.node_id, node.id, node.name, node.state) == (old.id, old.id, "node1", "inactive")
    assert views.nodes(lab.tx, name=old.name)[0].macs == (mac(2),)
    assert len(nodes.every(lab.tx)) == 1
    lab.report(peer, mac(2), uuid=uuid(1))
    assert lab.order(2).action == "wait"


def test_two_machines_with_one_uuid_are_two_nodes_and_a_conflict(lab: Lab) -> None:
    """Some makers give many boards one UUID: a machine that nobody has approved may not be wiped,
    or taken for another, in another's name."""
    lab.site = replace(lab.site, policy=Policy(auto_approve=False))
    lab.machine(1, "off", uuid=uuid(1), disk=Disk.DIRTY)
    before = lab.node(1)
    lab.machine(2)
    for _ in range(2):
        lab.report(lab.open(2), mac(2), uuid=uuid(1))
    node = lab.node(2)
    assert (node.name, node.state, node.uuid) == ("node2", "registering", None)
    assert lab.node(1) == before
    [row] = conflicts.every(lab.tx)
    assert (row["kind"], row["mac"]) == ("identity", mac(2))


def test_a_machine_known_by_a_mac_and_its_uuid_is_power_cycled_first(lab: Lab) -> None:
    """The power driver of a node is not asked about a card that is not known to be its own."""
    lab.site = replace(lab.site, policy=Policy(auto_approve=False))
    lab.machine(1, "off", uuid=uuid(1))
    lab.machine(2)
    lab.report(lab.open(2), mac(1), mac(2), uuid=uuid(1))
    assert (lab.node(2).name, lab.node(2).state, lab.wishes(2)) == (
        "node1",
        "trampoline",
        ["cycle"],
    )
    lab.tick(30)
    lab.report(lab.open(2, power="on"), mac(1), mac(2), uuid=uuid(1))
    lab.tick(30)
    assert lab.node(2).state == "inactive"


@pytest.mark.parametrize("state", ["inactive", "active", "prime", "quarantined"])
def test_a_uuid_does_not_take_over_a_machine_that_is_elsewhere(lab: Lab, state: str) -> None:
    lab.machine(1, state, uuid=uuid(1))
    before = lab.node(1)
    lab.machine(2)
    lab.report(lab.open(2), mac(2), uuid=uuid(1))
    assert lab.node(1) == before
    assert (lab.node(2).id != before.id, lab.node(2).uuid) == (True, None)


def test_nor_one_whose_agent_is_connected(lab: Lab) -> None:
    lab.machine(1, "trampoline", uuid=uuid(1), attempts=3)
    lab.open(1)
    lab.machine(2)
    lab.report(lab.open(2), mac(2), uuid=uuid(1))
    assert lab.node(1).id != lab.node(2).id


def test_bogus_uuids_are_ignored(lab: Lab) -> None:
    for number in (1, 2):
        lab.machine(number)
        lab.report(lab.open(number), mac(number), uuid="03000200-0400-0500-0006-000700080009")
    assert (lab.node(1).uuid, lab.node(2).uuid) == (None, None)
    assert lab.node(1).id != lab.node(2).id


def test_machines_that_are_equal_have_one_type(lab: Lab) -> None:
    for number, mib in ((1, 2048), (2, 2048), (3, 8192)):
        lab.machine(number)
        lab.report(lab.open(number), mib=mib)
    one, two, three = (lab.node(number).type_id for number in (1, 2, 3))
    assert one == two != three
