"""Captures: what is asked, what the node does for it, what the image server is told, and what can
be seen when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update

from cod.core.nodes import transitions
from cod.flows.agents import progress, sessions
from cod.flows.boot import script
from cod.flows.nodes import captures, deadlines, hold
from cod.flows.nodes import nodes as node_flows
from cod.flows.people import groups
from cod.flows.scheduler import vclusters
from cod.model import (
    Binding,
    CapturedPartition,
    CaptureLimits,
    Effect,
    Ingested,
    Peer,
    Refused,
    ipv4,
)
from cod.policy.nodes import template
from cod.states import IMAGE_SERVER, NODE_RULES, Disk, NodeEvent, NodeState, Step
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.nodes import bindings, nodes
from cod.store.nodes import captures as rows
from cod.store.people import groups as group_rows
from cod.wire import xmldoc
from tests.contexts import flow_context
from tests.store.agentlab import TEMPLATE, Lab, mac
from trampoline.errors import WayError

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

SECRET = "ab" * 32
SAVED = Ingested("capture", "disk", 3 << 20, 2 << 20, 4321, "", "cd" * 32)
PARTS = (CapturedPartition(1, 1 << 20, 1 << 20, "linux", "root", "ext"),)


@pytest.fixture
def lab(tx: Tx, site: Any) -> Lab:
    return Lab(tx, site)


def active(lab: Lab, **columns: Any) -> Peer:
    """Node 1 runs its vcluster's system; nobody is connected any more. The value is the connection
    it was primed by."""
    lab.machine(1, "trampoline", **columns)
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    lab.done(peer, lab.order(1).id)
    lab.apply(1, Step(NodeEvent.BOOTED, "x"))
    return peer


def want(lab: Lab, image: str = "mine", **more: Any) -> Any:
    return captures.want(
        lab.tx,
        flow_context(lab.site, lab.now, "user:ann"),
        name="node1",
        image=image,
        secret=SECRET,
        **more,
    ).value


def asking(lab: Lab, **more: str) -> dict[str, str]:
    return {"order": lab.order(1).id, "address": "10.77.1.1", "secret": SECRET} | more


def keep(lab: Lab, **more: str) -> None:
    captures.note_digest(lab.tx, digest=SAVED.digest, **asking(lab, **more))
    captures.keep(
        lab.tx,
        ingested=SAVED,
        partitions=PARTS,
        rules=lab.site.images,
        now=lab.now,
        **asking(lab, **more),
    )


def show(lab: Lab) -> Any:
    return captures.show(lab.tx, name="node1")


# ---------------------------------------------------------------- the whole way


def test_an_active_node_is_captured_and_comes_back_as_it_was(lab: Lab) -> None:
    active(lab)
    before = lab.node(1)
    assert (want(lab).state, lab.node(1).state, lab.node(1).disk) == (
        "wanted",
        "trampoline",
        Disk.SYSTEM,
    )
    assert lab.wishes(1)[-1:] == ["cycle"]
    peer = lab.boots(1)
    order = lab.order(1)
    assert (order.action, order.wipe, order.images, order.disk) == ("capture", False, (), "first")
    assert order.deposit is not None
    assert (order.deposit.url, order.deposit.secret) == (
        f"http://10.77.0.1:8069/captures/{order.id}",
        SECRET,
    )
    assert order.deposit.least == 1_000_000
    lab.progress(peer, order.id, 5, 10)
    assert (show(lab).state, show(lab).done, show(lab).total) == ("running", 5, 10)
    assert not images.every(lab.tx)
    keep(lab)
    lab.done(peer, order.id, bytes_written=10)
    node = lab.node(1)
    assert (node.state, lab.order(1).action, node.vcluster_id, node.hostname) == (
        "boot",
        "reboot",
        before.vcluster_id,
        before.hostname,
    )
    assert lab.events(1)[-4:] == ["capture_wanted", "capture_ordered", "captured", "boot_ordered"]
    assert (show(lab).state, show(lab).ended_at, rows.get(lab.tx, node.id).secret) == (
        "done",
        lab.now,
        "",
    )
    image = images.named(lab.tx, ["physics/mine"])["physics/mine"]
    assert (image.state, image.size, image.group_id) == ("ready", SAVED.size, show_group(lab))
    made = templates.find(lab.tx, "physics/mine")
    assert made is not None
    xmldoc.parse(made.document.encode(), "template")
    read = template.parse(made.document)
    assert (read.seed, read.verify, [choice.name for choice in read.images]) == (
        True,
        True,
        ["physics/mine"],
    )
    assert made.group_id == show_group(lab)


def show_group(lab: Lab) -> int:
    return group_rows.ensure(lab.tx, "physics", 0.0).id


def test_a_node_of_the_reserve_is_captured_where_it_is(lab: Lab) -> None:
    lab.machine(1)
    peer = lab.boots(1)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.FOREIGN)
    want(lab, template="")
    assert (lab.node(1).state, lab.order(1).action, show(lab).group) == ("capture", "capture", "")
    keep(lab)
    lab.done(peer, lab.order(1).id)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", Disk.FOREIGN)
    assert templates.find(lab.tx, "mine") is None


def test_a_cold_node_is_woken_for_it(lab: Lab) -> None:
    lab.machine(1, "off", disk=Disk.FOREIGN)
    want(lab)
    assert (lab.node(1).state, lab.wishes(1)) == ("trampoline", ["on"])
    lab.boots(1)
    assert lab.node(1).state == "capture"


def test_a_node_that_nothing_can_switch_waits_for_its_reboot(lab: Lab) -> None:
    active(lab)
    nodes.change(lab.tx, lab.node(1), power_driver="wol")
    wishes = lab.wishes(1)
    want(lab)
    node = lab.node(1)
    assert (node.state, node.reason, lab.wishes(1)) == ("active", transitions.FOR_CAPTURE, wishes)
    lab.tick(1e6)
    assert lab.node(1).state == "active"
    bindings.add(
        lab.tx,
        [Binding(ipv4("10.77.1.1"), mac(1), "boot", None, "lab", None, "bound", lab.now + 900)],
    )
    plan = script.script(lab.tx, mac(1), "10.77.1.1", lab.site, lab.now)
    assert (plan.action, lab.node(1).state, lab.node(1).reason) == ("trampoline", "trampoline", "")
    peer = lab.boots(1)
    keep(lab)
    lab.done(peer, lab.order(1).id)
    assert lab.node(1).state == "boot"
    assert script.script(lab.tx, mac(1), "10.77.1.1", lab.site, lab.now).action == "local"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("state", "disk", "why"),
    [
        ("inactive", Disk.CLEAN, "were wiped"),
        ("off", Disk.CLEAN, "were wiped"),
        ("prime", Disk.DIRTY, "is prime"),
        ("new", Disk.FOREIGN, "is new"),
        ("quarantined", Disk.DIRTY, "is quarantined"),
        ("boot", Disk.DIRTY, "is boot"),
    ],
)
def test_nodes_that_cannot_be_captured(lab: Lab, state: str, disk: Disk, why: str) -> None:
    lab.machine(1, state, disk=disk)
    with pytest.raises(Refused, match=why):
        want(lab)
    assert lab.node(1).state == state


def test_a_sleeping_node_without_a_switch_is_refused(lab: Lab) -> None:
    lab.machine(1, "off", disk=Disk.FOREIGN)
    nodes.change(lab.tx, lab.node(1), power_driver="none")
    with pytest.raises(Refused, match="switch it on first"):
        want(lab)


def test_a_diskless_system_is_not_on_the_disk(lab: Lab) -> None:
    active(lab)
    document = '<template><boot mode="diskless"><kernel url="http://x/k"/></boot></template>'
    lab.tx.execute(update(t.config_templates).values(document=document))
    with pytest.raises(Refused, match="boots from the network"):
        want(lab)


def test_names_that_are_taken(lab: Lab) -> None:
    active(lab)
    images.add(lab.tx, name="physics/there", state="ready", format="raw", created_at=0.0)
    with pytest.raises(Refused, match="there is an image"):
        want(lab, "there")
    for fields in ({"image": "chemistry/mine"}, {"image": "mine", "template": "chemistry/mine"}):
        with pytest.raises(Refused, match="is no name for a thing of group physics"):
            want(lab, **fields)
    with pytest.raises(Refused, match="is no name for"):
        want(lab, "../../etc")
    with pytest.raises(Refused, match="there is no group"):
        want(lab, group="nobody")
    want(lab, template="debian2")
    with pytest.raises(Refused, match="being captured as 'physics/mine' already"):
        want(lab, "another")
    with pytest.raises(Refused, match="a node is being captured as 'physics/mine'"):
        images.check_free(lab.tx, "physics/mine", None)


def test_an_image_that_appears_meanwhile_fails_the_capture_not_the_node(lab: Lab) -> None:
    active(lab)
    want(lab)
    lab.boots(1)
    images.add(lab.tx, name="physics/mine", state="ready", format="raw", created_at=0.0)
    with pytest.raises(Refused, match="there is an image"):
        keep(lab)
    assert templates.find(lab.tx, "physics/mine") is None


def test_a_partition_takes_no_disks_place_in_templates_of_its_group(lab: Lab) -> None:
    """Nodes would fail on a template that has meant the site's image of that name."""
    images.add(
        lab.tx, name="debian", state="ready", format="raw", content="disk", size=9, created_at=0.0
    )
    document = TEMPLATE.replace(
        'url="http://10.0.0.9/a.zst" size="1000000" sha256="' + "ab" * 32 + '" compression="zstd"',
        'name="debian"',
    )
    active(lab)
    templates.append(
        lab.tx, "physics/web", document.format(cache="no", more=""), show_group(lab), lab.now
    )
    want(lab, "debian", what="1")
    lab.boots(1)
    with pytest.raises(Refused, match="physics/web@1 names it, and could not be installed"):
        keep(lab)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "00" * 32},
        {"secret": ""},
        {"address": "10.77.1.2"},
        {"order": "1.1"},
        {"order": "x"},
        {"order": "99.1"},
        {"order": ""},
        {"order": "9" * 40 + ".1"},
    ],
)
def test_only_its_agent_may_send_and_only_now(lab: Lab, wrong: dict[str, str]) -> None:
    active(lab)
    with pytest.raises(Refused):
        captures.receiving(lab.tx, order="1.1", address="10.77.1.1", secret=SECRET)
    want(lab)
    peer = lab.boots(1)
    captures.receiving(lab.tx, **asking(lab))
    with pytest.raises(Refused, match="no capture is under way"):
        keep(lab, **wrong)
    old = asking(lab)
    keep(lab)
    keep(lab)  # its answer was lost
    lab.done(peer, old["order"])
    with pytest.raises(Refused):
        captures.receiving(lab.tx, **old)


# ---------------------------------------------------------------- trouble


def test_a_capture_that_fails_is_tried_again_and_then_given_up_and_the_node_goes_on(
    lab: Lab,
) -> None:
    active(lab)
    want(lab)
    peer = lab.boots(1)
    first = lab.order(1).id
    lab.failed(peer, first, "the disk cannot be read")
    assert (lab.node(1).state, show(lab).state, show(lab).reason) == (
        "trampoline",
        "wanted",
        "the disk cannot be read",
    )
    lab.tick(6)
    assert (lab.node(1).state, show(lab).state) == ("capture", "running")
    with pytest.raises(Refused):
        captures.receiving(lab.tx, **asking(lab, order=first))
    lab.failed(peer, lab.order(1).id, "the disk cannot be read")
    assert (lab.node(1).state, lab.node(1).attempts) == ("trampoline", 0)
    lab.tick(1)
    node = lab.node(1)
    assert (node.state, node.disk, node.reason) == (
        "boot",
        Disk.SYSTEM,
        "not captured: the disk cannot be read",
    )
    assert show(lab).state == "failed"
    assert "the disk cannot be read" in show(lab).reason
    assert not images.every(lab.tx)
    assert told_of(lab) == ["capture-failed"]


@pytest.mark.parametrize("held", [True, False])
def test_an_image_server_that_is_away_is_waited_for_and_counts_for_nothing(
    lab: Lab, held: bool
) -> None:
    if held:
        active(lab)
        want(lab)
        peer = lab.boots(1)
    else:
        lab.machine(1, "trampoline", disk=Disk.FOREIGN)
        peer = lab.boots(1)
        want(lab)
    began = lab.now
    for _ in range(NODE_RULES[NodeState.CAPTURE].retries + 3):
        assert lab.node(1).state == "capture"
        lab.tick(240)
        progress.failed(
            lab.tx, peer, lab.order(1).id, "no answer", lab.site, lab.now, WayError.cause
        )
        node = lab.node(1)
        assert (node.state, node.attempts, node.waits_for) == ("trampoline", 0, IMAGE_SERVER)
        assert (show(lab).state, show(lab).reason) == ("wanted", "no answer")
        lab.tick(21)
    # administrators are told that the image server is away, once
    notices = lab.tx.scalars(select(t.notices.c.kind).where(t.notices.c.kind == "image-server"))
    assert list(notices) == ["image-server"]
    assert lab.node(1).waits_since == began + 240
    keep(lab)
    lab.done(peer, lab.order(1).id)
    assert (show(lab).state, lab.node(1).waits_for) == ("done", "")
    assert "exhausted" not in lab.events(1)


def test_an_agent_gives_a_silent_server_up_before_its_nodes_deadline(lab: Lab) -> None:
    active(lab)
    want(lab)
    lab.boots(1)
    for patience in (1.0, 10.0):
        lab.site = replace(lab.site, policy=replace(lab.site.policy, patience=patience))
        told = lab.order(1).deposit
        assert told is not None
        assert told.patience == 240 * patience
        deadline = (NODE_RULES[NodeState.CAPTURE].deadline or 0) * patience
        assert deadline * 0.75 <= told.patience <= deadline - 30


def told_of(lab: Lab) -> list[str]:
    n = t.notices.c
    return list(lab.tx.scalars(select(n.kind).where(n.kind.like("capture%")).order_by(n.id)))


def test_a_done_without_an_image_is_a_failure(lab: Lab) -> None:
    active(lab)
    want(lab)
    peer = lab.boots(1)
    lab.done(peer, lab.order(1).id)
    assert (lab.node(1).state, show(lab).state) == ("trampoline", "wanted")
    assert "no image has come" in lab.node(1).reason


@pytest.mark.parametrize("what", ["reboots", "is_lost", "is_late"])
def test_whatever_happens_on_the_way_the_node_comes_home(lab: Lab, what: str) -> None:
    active(lab)
    want(lab)
    for _ in range(NODE_RULES[NodeState.CAPTURE].retries + 1):
        peer = lab.boots(1)
        lab.tick(30)
        assert lab.node(1).state == "capture"
        if what == "is_late":
            lab.tick(400)
        elif what == "is_lost":
            sessions.lost(lab.tx, peer, lab.site, lab.now)
        else:
            lab.open(1)
    lab.boots(1)
    lab.tick(30)
    assert (show(lab).state, lab.node(1).state, lab.node(1).disk) == ("failed", "boot", Disk.SYSTEM)


def test_a_system_that_does_not_come_up_again_is_never_primed_over(lab: Lab) -> None:
    active(lab)
    want(lab)
    peer = lab.boots(1)
    keep(lab)
    lab.done(peer, lab.order(1).id)
    for _ in range(NODE_RULES[NodeState.BOOT].retries):
        lab.tick(700)
        lab.boots(1)
        lab.tick(130)
        assert (lab.node(1).state, lab.order(1).action) == ("boot", "reboot")
    lab.tick(700)
    assert (lab.node(1).state, "prime_ordered" in lab.events(1)[5:]) == ("quarantined", False)


@pytest.mark.parametrize("when", ["wanted", "running"])
def test_a_released_node_is_captured_to_the_end_and_then_wiped(lab: Lab, when: str) -> None:
    active(lab)
    want(lab)
    if when == "running":
        lab.boots(1)
    lab.release(1)
    peer = lab.boots(1) if when == "wanted" else lab.again(1)
    if when == "running":
        lab.report(peer)
    assert (lab.node(1).state, lab.node(1).vcluster_id, lab.node(1).disk) == (
        "capture",
        None,
        Disk.DIRTY,
    )
    keep(lab)
    lab.done(peer, lab.order(1).id)
    assert lab.node(1).state == "wipe"


@pytest.mark.parametrize("when", ["wanted", "running"])
def test_a_node_that_is_set_aside_is_captured_no_more(lab: Lab, when: str) -> None:
    active(lab)
    want(lab)
    if when == "running":
        lab.boots(1)
    node_flows.quarantine(
        lab.tx, flow_context(lab.site, lab.now, "user:bob"), name="node1", reason="smoke"
    )
    assert (show(lab).state, show(lab).reason) == ("failed", "user:bob: smoke")
    node_flows.restore(lab.tx, flow_context(lab.site, lab.now, "x"), name="node1")
    lab.boots(1)
    assert lab.node(1).state == "wipe"


# ---------------------------------------------------------------- cancelling


@pytest.mark.parametrize("when", ["by hand", "on its way", "running", "over"])
def test_a_capture_is_cancelled(lab: Lab, when: str) -> None:
    active(lab)
    if when == "by hand":
        nodes.change(lab.tx, lab.node(1), power_driver="none")
    want(lab)
    if when in ("running", "over"):
        peer = lab.boots(1)
    if when == "over":
        keep(lab)
        lab.done(peer, lab.order(1).id)
        with pytest.raises(Refused, match="not being captured"):
            cancel(lab)
        return
    if when == "running":
        old = asking(lab)
    assert cancel(lab).value.state == "cancelled"
    if when == "on its way":
        lab.boots(1)
    expected = "active" if when == "by hand" else "boot"
    assert (lab.node(1).state, lab.node(1).reason, show(lab).reason) == (
        expected,
        "",
        "cancelled by user:ann",
    )
    if when == "running":
        with pytest.raises(Refused):
            captures.receiving(lab.tx, **old)
    assert told_of(lab) == []


def cancel(lab: Lab) -> Any:
    return captures.cancel(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")


def test_cancelling_says_what_to_look_at(lab: Lab) -> None:
    active(lab)
    want(lab)
    lab.boots(1)
    assert Effect("wake", "orders") in cancel(lab).effects


# ---------------------------------------------------------------- lists, groups


def test_groups_see_their_own(lab: Lab) -> None:
    active(lab)
    want(lab)
    mine = show_group(lab)
    assert [view.image for view in captures.every(lab.tx)] == ["physics/mine"]
    assert [view.image for view in captures.every(lab.tx, groups=frozenset({mine}))] == [
        "physics/mine"
    ]
    assert captures.every(lab.tx, groups=frozenset({mine + 1})) == []
    with pytest.raises(Refused):
        captures.show(lab.tx, name="node9")


def test_a_group_that_goes_takes_its_captures_along(lab: Lab) -> None:
    lab.machine(1)
    lab.boots(1)
    group_rows.ensure(lab.tx, "artists", 0.0)
    want(lab, group="artists", template="")
    groups.delete(lab.tx, "artists")
    with pytest.raises(Refused, match="any more"):
        lab.order(1)


def test_digests_that_are_about_to_be_seen_are_not_swept(lab: Lab) -> None:
    active(lab)
    want(lab)
    lab.boots(1)
    captures.note_digest(lab.tx, digest=SAVED.digest, **asking(lab))
    assert images.digests(lab.tx) == {SAVED.digest}
    assert captures.under_way(lab.tx) == {lab.node(1).id}
    cancel(lab)
    assert images.digests(lab.tx) == set()
    assert captures.under_way(lab.tx) == set()


def test_a_quota_holds_before_meanwhile_and_after(lab: Lab) -> None:
    active(lab)
    image = images.add(
        lab.tx,
        name="old",
        state="ready",
        format="raw",
        created_at=0.0,
        stored=100,
        group_id=show_group(lab),
    )
    group_rows.change(lab.tx, show_group(lab), image_quota=100)
    with pytest.raises(Refused, match="too much for group physics"):
        want(lab)
    group_rows.change(lab.tx, show_group(lab), image_quota=SAVED.stored)
    want(lab)
    lab.boots(1)
    limits = captures.limits(lab.tx, rules=lab.site.images, **asking(lab))
    assert limits == CaptureLimits(disk=4_000_000_000, room=SAVED.stored - 100)
    with pytest.raises(Refused, match="too much for group physics"):
        keep(lab)
    images.remove(lab.tx, image.id)
    keep(lab)


def test_of_two_captures_at_once_one_gets_the_last_of_a_quota(lab: Lab) -> None:
    """Both are told the same room; it is looked at again when an image is kept."""
    group_rows.change(lab.tx, show_group(lab), image_quota=SAVED.stored)
    orders = []
    for number in (1, 2):
        lab.machine(number)
        lab.boots(number)
        context = flow_context(lab.site, lab.now, "user:ann")
        asked = {"name": f"node{number}", "image": f"own{number}", "secret": SECRET}
        captures.want(lab.tx, context, template="", **asked)
        rows.change(lab.tx, lab.node(number).id, group_id=show_group(lab))
        orders.append({"order": lab.order(number).id})
    for order in orders:
        limits = captures.limits(lab.tx, rules=lab.site.images, **asking(lab, **order))
        assert limits.room == SAVED.stored
    keep(lab, **orders[0])
    with pytest.raises(Refused, match="too much for group physics"):
        keep(lab, **orders[1])
    assert [image.name for image in images.every(lab.tx)] == ["own1"]


# ---------------------------------------------------------------- killed at each statement


class Killed(Exception):
    """The process died here."""


WAYS: dict[str, Callable[[Tx, Any], object]] = {
    "want": lambda tx, lab: captures.want(
        tx, flow_context(lab.site, lab.now, "x"), name="node1", image="mine", secret=SECRET
    ),
    "keep": lambda tx, lab: captures.keep(
        tx, ingested=SAVED, partitions=PARTS, rules=lab.site.images, now=lab.now, **asking(lab)
    ),
    "cancel": lambda tx, lab: captures.cancel(
        tx, flow_context(lab.site, lab.now, "x"), name="node1"
    ),
    "deadline": lambda tx, lab: deadlines.run(tx, lab.site, lab.now + 1000),
}


def everything(tx: Tx) -> dict[str, list[Any]]:
    return {
        table.name: [
            tuple(row) for row in tx.execute(select(table).order_by(*table.primary_key.columns))
        ]
        for table in t.metadata.sorted_tables
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_flow_that_is_killed_at_any_statement_has_done_nothing(
    engine: Engine, site: Any, way: str
) -> None:
    with engine.begin() as tx:
        lab = Lab(tx, site)
        active(lab)
        if way != "want":
            want(lab)
            lab.boots(1)
        before = everything(tx)
    left = [0]

    def dies(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    event.listen(engine, "before_cursor_execute", dies)
    for statements in range(200):
        left[0] = statements
        try:
            with engine.begin() as tx:
                lab.tx = tx
                WAYS[way](tx, lab)
            break
        except Killed:
            left[0] = 10**6
            with engine.begin() as tx:
                assert everything(tx) == before
    event.remove(engine, "before_cursor_execute", dies)
    assert 3 < statements < 199
    with engine.begin() as tx:
        assert everything(tx) != before


def test_a_vcluster_that_ends_meanwhile_leaves_the_capture_alone(lab: Lab) -> None:
    active(lab)
    want(lab)
    vclusters.delete(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="vc")
    lab.boots(1)
    assert (lab.node(1).state, show(lab).state) == ("capture", "running")


def test_a_hardware_change_does_not_cost_the_system(lab: Lab) -> None:
    active(lab)
    want(lab)
    cancel(lab)
    peer = lab.open(1)
    lab.report(peer, mib=512)
    assert (lab.node(1).state, lab.node(1).disk) == ("boot", Disk.SYSTEM)


@pytest.mark.parametrize("later", [0, 9])
def test_a_capture_under_way_waits_until_the_disk_of_a_held_site_is_known(
    lab: Lab, later: int
) -> None:
    """An old copy in the database's place may name a holder of before: the image would be of
    another group's disk."""
    active(lab)
    node = lab.node(1)
    written = lab.install(1).generation
    want(lab)
    peer = lab.boots(1)
    assert lab.order(1).action == "capture"
    hold.start(lab.tx, lab.now)
    order = lab.order(1)
    assert order.action == "look"
    lab.look(peer, order.id, f"{node.id}.{written + later} n1.vc.example.org")
    if later:
        assert (lab.node(1).state, show(lab).state) == ("quarantined", "failed")
    else:
        assert (lab.order(1).action, show(lab).state) == ("capture", "running")
