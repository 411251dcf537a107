"""Types and blocks as an administrator handles them; hardware that changes; where nodes are on the
network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from cod.flows import views
from cod.flows.agents import report
from cod.flows.boot import dhcp
from cod.flows.nodes import blocks as block_flows
from cod.flows.nodes import types as type_flows
from cod.model import DhcpQuery, Energy, Refused, Result, Siblings, Site, TypeRules
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import blocks, conflicts, nodes, types
from tests.store.agentlab import NOW, Lab, hardware, mac, uuid

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

ROW = {
    "subnet": "lab",
    "giaddr": "10.77.0.254",
    "circuit": b"Gi1/0/7".hex(),
    "remote": b"leaf3".hex(),
}


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, site)


def change_type(lab: Lab, type_: str, /, **changes: Any) -> Any:
    return type_flows.change(lab.tx, name=type_, site=lab.site, changes=changes)


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **kwargs)
    return caught.value


def reserve(lab: Lab, number: int, **more: Any) -> str:
    """A machine that boots, reports and idles; returns its type's name."""
    lab.machine(number)
    lab.report(lab.open(number), **more)
    return str(views.node(lab.tx, f"node{number}").type)


def told(lab: Lab) -> list[tuple[str, str | None]]:
    """(about, group) of the notices about hardware."""
    n = t.notices.c
    query = (
        select(n.about, t.groups.c.name)
        .select_from(t.notices)
        .outerjoin(t.groups, n.group_id == t.groups.c.id)
    )
    return [
        (row[0], row[1]) for row in lab.tx.execute(query.where(n.kind == "hardware").order_by(n.id))
    ]


# ---------------------------------------------------------------- hardware that changes


def test_a_dead_memory_module_makes_another_type_and_is_told(lab: Lab) -> None:
    before = reserve(lab, 1, mib=8192)
    lab.report(lab.again(1), mib=4096)
    view, _, _, troubles = views.node_in_full(lab.tx, "node1")
    assert view.type != before
    assert [(row["kind"], row["mac"], row["about"]) for row in troubles] == [
        ("hardware", mac(1), "node1: memory/mib: was 8192 MiB, is 4096 MiB")
    ]
    [(about, group)] = told(lab)
    assert group is None
    assert (
        f"was of type {before} and is of type {view.type} now. What has changed: memory/mib: was"
        " 8192 MiB" in about
    )


def test_a_node_is_compared_to_most_nodes_of_its_product(lab: Lab) -> None:
    usual = reserve(lab, 1, mib=8192, product="R640")
    reserve(lab, 2, mib=8192, product="R640")
    reserve(lab, 3, mib=4096, product="R640")
    for number in (4, 5, 6):  # of which there are more
        reserve(lab, number, mib=2048, product="R6400")
    reserve(lab, 7, mib=4096)  # its firmware names no product

    def siblings(number: int) -> Siblings | None:
        return views.node_in_full(lab.tx, f"node{number}")[0].siblings

    assert siblings(1) == Siblings(usual, 2, ())
    assert siblings(3) == Siblings(usual, 2, ("memory/mib: 4096 MiB; siblings have 8192 MiB",))
    assert siblings(7) is None


def test_a_repeated_report_wakes_nobody_and_is_compared_with_what_has_come_up(lab: Lab) -> None:
    reserve(lab, 1, serial="SN-4711", uuid=uuid(1))
    peer = lab.again(1)
    said = {"serial": "SN-4711", "uuid": uuid(1)}
    first = lab.report(peer, **said)
    answer = report.ReportAnswer(peer, lab.order(1))
    assert first == Result(answer)
    # run again, as its commit was not answered: the agent has not got its order
    assert lab.report(peer, **said) == Result(answer)
    lab.now += 5
    assert lab.report(peer, **said) == Result(report.ReportAnswer(peer, None))
    assert (lab.node(1).reported_at, conflicts.every(lab.tx)) == (lab.now, [])
    lab.machine(2, "expected", attributes=None, serial="SN-4711")
    lab.report(peer, **said)
    (told_,) = conflicts.every(lab.tx)
    assert "reports the serial number of node2" in told_["about"]


def test_the_holder_is_told_too_and_of_what_it_lacks(lab: Lab) -> None:
    reserve(lab, 1, mib=8192)
    template = lab.template(more="<requires><memory><mib min='8GiB'/></memory></requires>")
    lab.assign(1, lab.vcluster(template))
    lab.report(lab.again(1), mib=4096)
    assert [group for _, group in told(lab)] == [None, "physics"]
    assert "held by cluster vc" in told(lab)[1][0]
    assert "memory/mib: at least 8GiB wanted, 4 GiB found" in told(lab)[1][0]


def test_the_same_change_is_told_once_an_hour_and_another_at_once(lab: Lab) -> None:
    reserve(lab, 1, mib=8192)
    for mib in (4096, 8192, 4096, 8192, 2048):
        lab.report(lab.again(1), mib=mib)
    assert [row["about"].partition(": ")[2] for row in conflicts.every(lab.tx)][::-1] == [
        "memory/mib: was 8192 MiB, is 4096 MiB",
        "memory/mib: was 4096 MiB, is 8192 MiB",
        "memory/mib: was 8192 MiB, is 2048 MiB",
    ]
    lab.now += 3601
    lab.report(lab.again(1), mib=8192)
    lab.report(lab.again(1), mib=4096)
    assert len(told(lab)) == 5


def test_a_trampoline_that_reports_more_makes_a_type_with_the_same_cost_and_tells_nothing(
    lab: Lab,
) -> None:
    """Administrators priced the type before PCI devices were reported."""
    before = reserve(lab, 1)
    change_type(lab, before, cost=7.5, warm_low=2, warm_high=3)
    pci = (
        '<pci slot="0000:00:03.0" class="0200" vendor="1af4" device="1000"'
        ' driver="virtio-pci"/><kernel'
    )
    report.report(lab.tx, lab.again(1), hardware(mac(1)).replace("<kernel", pci), lab.site, lab.now)
    after = types.get(lab.tx, lab.node(1).type_id or 0)
    assert (after.cost, after.warm_low, after.warm_high) == (7.5, 2, 3)
    assert after.name != before
    assert told(lab) == []
    other = types.of(lab.tx, '<node><memory mib="1" /></node>', lab.now)
    assert (other.cost, other.warm_low) == (1.0, None)


def test_a_first_report_and_other_serials_are_no_change(lab: Lab) -> None:
    lab.machine(1)
    lab.boots(1)
    lab.report(lab.again(1), mac(1), uuid="4c4c4544-0042-3510-8054-000000000001")
    assert told(lab) == []
    assert conflicts.every(lab.tx) == []


def test_a_link_that_comes_up_late_makes_a_type_and_no_alarm(lab: Lab) -> None:
    before = reserve(lab, 1)
    peer = lab.again(1)
    linked = hardware(peer.mac).replace('link="up"', 'link="up" speed="10000"')
    report.report(lab.tx, peer, linked, lab.site, lab.now)
    assert views.node(lab.tx, "node1").type != before
    assert told(lab) == []
    report.report(lab.tx, peer, linked.replace("10000", "1000"), lab.site, lab.now)
    assert "nic/speed: was 10000 Mb/s, is 1000 Mb/s" in told(lab)[0][0]


def test_a_change_of_the_sites_rules_is_no_change_of_hardware(lab: Lab) -> None:
    before = reserve(lab, 1, mib=3000)
    lab.site = replace(lab.site, types=TypeRules(memory_parts=1))
    lab.report(lab.again(1), mib=3000)
    assert views.node(lab.tx, "node1").type != before
    assert told(lab) == []


def test_a_report_beyond_all_measure_is_refused_and_nothing_is_stored(lab: Lab) -> None:
    lab.machine(1)
    peer = lab.open(1)
    before = lab.node(1)
    result = lab.report(
        peer, mac(1), *(f"52:54:01:00:{n // 256:02x}:{n % 256:02x}" for n in range(2048))
    )
    assert "at most 2048 are matched" in result.value
    assert lab.node(1) == before
    assert types.every(lab.tx) == []


# ---------------------------------------------------------------- types


def test_types_are_listed_with_their_nodes_and_facts(lab: Lab) -> None:
    small, large = reserve(lab, 1, mib=2048), reserve(lab, 2, mib=8192)
    assert reserve(lab, 3, mib=8192) == large
    lab.machine(4)
    found = {view.type.name: view for view in type_flows.every(lab.tx)}
    assert {name: dict(view.states) for name, view in found.items()} == {
        small: {"inactive": 1},
        large: {"inactive": 2},
    }
    assert ("memory/mib", "8192 MiB") in found[large].facts
    view, members = type_flows.show(lab.tx, name=large, site=lab.site)
    assert [member.node.name for member in members] == ["node2", "node3"]
    assert view == found[large]
    assert refused(type_flows.show, lab.tx, name="none", site=lab.site).code == "not_found"


def test_a_type_is_named_priced_and_given_marks(lab: Lab) -> None:
    name = reserve(lab, 1)
    other = reserve(lab, 2, mib=8192)
    said = change_type(lab, name, name="small", cost=2.5, warm_low=0, watts_idle=60.0)
    assert [(effect.kind, effect.what) for effect in said.effects] == [("wake", "manager")]
    row = types.by_name(lab.tx, "small")
    assert row is not None
    assert (row.cost, row.warm_low, row.warm_high, row.watts_idle) == (2.5, 0, None, 60.0)
    assert said.value.type == row
    change_type(lab, "small", name="small", watts_idle=None)
    assert types.get(lab.tx, row.id).watts_idle is None
    assert refused(change_type, lab, "small", name=other).code == "conflict"
    assert refused(change_type, lab, "small", name="No!").code == "invalid"


@pytest.mark.parametrize(
    ("columns", "sentence", "field"),
    [
        ({"warm_low": 5, "warm_high": 4}, "warm_low 5 should not be above warm_high 4", "warm_low"),
        ({"warm_low": 5}, "warm_low 5 should not be above the site's warm_high 4", "warm_low"),
        ({"warm_high": 0}, "the site's warm_low 1 should not be above warm_high 0", "warm_high"),
    ],
)
def test_marks_that_contradict_each_other_or_the_sites_are_refused(
    lab: Lab, columns: dict[str, int], sentence: str, field: str
) -> None:
    lab.site = replace(lab.site, energy=Energy(warm_low=1, warm_high=4))
    name = reserve(lab, 1)
    said = refused(change_type, lab, name, cost=9.0, **columns)
    assert (said.code, said.sentence, said.field) == ("invalid", sentence, field)
    row = types.by_name(lab.tx, name)
    assert row is not None
    assert (row.cost, row.warm_low, row.warm_high) == (1.0, None, None)


def test_only_a_type_without_nodes_is_forgotten(lab: Lab) -> None:
    gone = reserve(lab, 1, mib=8192)
    assert "has 1 node" in refused(type_flows.delete, lab.tx, name=gone).sentence
    lab.report(lab.again(1), mib=4096)
    type_flows.delete(lab.tx, name=gone)
    assert types.by_name(lab.tx, gone) is None
    lab.report(lab.again(1), mib=8192)
    assert views.node(lab.tx, "node1").type is not None
    assert refused(type_flows.delete, lab.tx, name="none").code == "not_found"


def test_types_are_worked_out_anew_in_batches(lab: Lab) -> None:
    names = {
        reserve(lab, number, mib=mib)
        for number, mib in ((1, 2100), (2, 2500), (3, 3000), (4, 4096))
    }
    lab.machine(5, attributes=None)
    assert len(names) == 4
    lab.site = replace(lab.site, types=TypeRules(memory_parts=1))
    after: int | None = 0
    looked, changed = [], 0
    while after is not None:
        done = type_flows.refresh(lab.tx, after=after, limit=2, site=lab.site, now=lab.now).value
        after, changed = done.next, changed + done.changed
        looked.append(done.looked)
    assert looked == [2, 2, 0]
    kinds = [views.node(lab.tx, f"node{number}").type for number in (1, 2, 3, 4)]
    assert kinds[0] == kinds[1] == kinds[2] == kinds[3]  # up to the next power of two
    assert changed >= 3
    again = type_flows.refresh(lab.tx, after=0, limit=100, site=lab.site, now=lab.now)
    assert (again.value, again.effects) == (type_flows.Refreshed(4, 0, None), ())
    assert told(lab) == []


def test_a_node_that_reported_meanwhile_keeps_its_newer_type(lab: Lab) -> None:
    reserve(lab, 1, mib=2048)
    [old] = types.reported(lab.tx, 0, 10)
    lab.now += 1
    lab.report(lab.again(1), mib=8192)
    newer = views.node(lab.tx, "node1").type
    assert old.type_id is not None
    assert not types.put(lab.tx, old, old.type_id)
    assert views.node(lab.tx, "node1").type == newer


def test_whoever_a_node_was_kept_for_loses_it_when_its_type_changes(lab: Lab) -> None:
    reserve(lab, 1, mib=2100)
    reserve(lab, 2, mib=4096)
    vcluster = lab.vcluster(lab.template())
    held = lab.assign(2, vcluster)
    for number in (1, 2):
        lab.tx.execute(
            t.reservations.insert().values(
                node_id=lab.node(number).id, request_id=held.request_id, at=NOW
            )
        )
    lab.site = replace(lab.site, types=TypeRules(memory_parts=1))
    type_flows.refresh(lab.tx, after=0, limit=100, site=lab.site, now=lab.now)
    assert list(lab.tx.scalars(select(t.reservations.c.node_id))) == [lab.node(2).id]


# ---------------------------------------------------------------- blocks


def test_a_blocks_life(lab: Lab) -> None:
    kind = reserve(lab, 1)
    for number in (2, 3, 11):
        lab.machine(number)
    assert block_flows.create(lab.tx, name="rack1").types == {}
    said = block_flows.put(lab.tx, name="rack1", nodes=["node1", "node1*", "node2"])
    assert [(effect.kind, effect.what) for effect in said.effects] == [("wake", "manager")]
    assert said.value.types == {kind: 1, "": 2}
    assert [view.node.name for view in views.node_list(lab.tx, block="rack1")] == [
        "node1",
        "node11",
        "node2",
    ]
    assert [view.node.name for view in views.node_list(lab.tx, type=kind)] == ["node1"]
    block_flows.create(lab.tx, name="rack0")
    block_flows.put(lab.tx, name="rack0", nodes=["node2"])
    assert [(each.name, dict(each.types)) for each in block_flows.every(lab.tx)] == [
        ("rack0", {"": 1}),
        ("rack1", {kind: 1, "": 1}),
    ]
    assert "has 2 nodes" in refused(block_flows.delete, lab.tx, name="rack1").sentence
    assert block_flows.remove(lab.tx, name="rack1", nodes=["node*"]).value.types == {}
    assert views.node(lab.tx, "node2").block == "rack0"
    block_flows.delete(lab.tx, name="rack1")
    assert [each.name for each in block_flows.every(lab.tx)] == ["rack0"]


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (
            lambda tx: block_flows.create(tx, name="rack1"),
            "conflict",
            "there is a block 'rack1' already",
        ),
        (lambda tx: block_flows.create(tx, name="proposal"), "invalid", "cannot be called"),
        (lambda tx: block_flows.create(tx, name="No!"), "invalid", "No!"),
        (lambda tx: block_flows.show(tx, name="none"), "not_found", "no block 'none'"),
        (lambda tx: block_flows.delete(tx, name="none"), "not_found", "no block 'none'"),
        (
            lambda tx: block_flows.put(tx, name="none", nodes=["node1"]),
            "not_found",
            "no block 'none'",
        ),
        (
            lambda tx: block_flows.put(tx, name="rack1", nodes=["node2", "none"]),
            "not_found",
            "no node 'none'",
        ),
        (
            lambda tx: block_flows.put(tx, name="rack1", nodes=["node2", "x*"]),
            "not_found",
            "no node 'x*'",
        ),
        (
            lambda tx: block_flows.remove(tx, name="rack1", nodes=["node1", "node2"]),
            "not_found",
            "'node2' in block rack1",
        ),
        (
            lambda tx: block_flows.apply(tx, only=["none"]),
            "not_found",
            "no block 'none' is proposed",
        ),
    ],
)
def test_what_cannot_be_done_with_blocks_changes_nothing(
    lab: Lab, call: Callable[[Tx], Any], code: str, words: str
) -> None:
    lab.machine(1)
    lab.machine(2)
    block_flows.create(lab.tx, name="rack1")
    block_flows.put(lab.tx, name="rack1", nodes=["node1"])
    said = refused(call, lab.tx)
    assert said.code == code
    assert words in said.sentence
    assert [view.block for view in views.node_list(lab.tx)] == ["rack1", None]
    assert [each.name for each in block_flows.every(lab.tx)] == ["rack1"]


def test_a_block_stays_while_nodes_of_it_are_reclaimed(lab: Lab) -> None:
    kind = reserve(lab, 1)
    vcluster = lab.vcluster(lab.template())
    block_flows.create(lab.tx, name="rack1")
    request_id = lab.assign(1, vcluster).request_id
    row = types.by_name(lab.tx, kind)
    assert row is not None
    values = dict(
        vcluster_id=vcluster.id,
        request_id=request_id,
        type_id=row.id,
        count=1,
        deadline=NOW,
        state="open",
        block_id=blocks.by_name(lab.tx, "rack1"),
        created_at=NOW,
    )
    lab.tx.execute(t.reclaims.insert().values(**values))
    assert "are being reclaimed" in refused(block_flows.delete, lab.tx, name="rack1").sentence
    lab.tx.execute(t.reclaims.update().values(state="done"))
    block_flows.delete(lab.tx, name="rack1")
    assert lab.tx.scalar(select(t.reclaims.c.block_id)) is None
    lab.report(lab.again(1), mib=8192)
    assert "records of reclaims" in refused(type_flows.delete, lab.tx, name=kind).sentence


# ---------------------------------------------------------------- the network's word


def asks(lab: Lab, number: int, kind: str = "DISCOVER", **way: Any) -> None:
    query = DhcpQuery(
        kind, mac(number), 1, "lab", "ipxe", **{key: way[key] for key in way if key != "subnet"}
    )
    dhcp.answer(lab.tx, [query], lab.site, dhcp.Newcomers(), lab.now)


def way(lab: Lab, number: int) -> tuple[str | None, str | None, str | None]:
    node = lab.node(number)
    return node.relay, node.circuit, node.remote


def relayed(site: Site) -> Site:
    return replace(site, subnets=(replace(site.subnets[0], relay="10.77.0.254"),))


def test_a_discover_tells_where_a_node_is(lab: Lab) -> None:
    lab.site = relayed(lab.site)
    asks(lab, 1, **ROW)  # never seen before
    assert way(lab, 1) == (ROW["giaddr"], ROW["circuit"], ROW["remote"])
    asks(lab, 1, kind="REQUEST", requested="10.77.1.1")  # a renewal speaks past the relay
    assert way(lab, 1) == (ROW["giaddr"], ROW["circuit"], ROW["remote"])
    asks(lab, 1, **ROW | {"circuit": b"Gi1/0/8".hex()})  # it was moved
    assert way(lab, 1)[1] == b"Gi1/0/8".hex()
    asks(lab, 1)  # to a port that no relay serves
    assert way(lab, 1) == (None, None, None)


def test_another_nic_tells_nothing_of_where_it_boots(lab: Lab) -> None:
    lab.site = relayed(lab.site)
    node = lab.machine(1)
    nodes.add_mac(lab.tx, node.id, mac(1, 9))
    query = DhcpQuery("DISCOVER", mac(1, 9), 1, "lab", "ipxe", giaddr=str(ROW["giaddr"]))
    dhcp.answer(lab.tx, [query], lab.site, dhcp.Newcomers(), NOW)
    assert way(lab, 1) == (None, None, None)


def test_the_way_is_written_when_it_changes_and_only_then(lab: Lab) -> None:
    lab.site = relayed(lab.site)
    for number in (1, 2, 3):
        lab.machine(
            number, "inactive", relay="10.77.0.254", circuit=ROW["circuit"], remote=ROW["remote"]
        )
    written: list[str] = []

    def seen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE") and "relay" in statement:
            written.append(statement)

    event.listen(lab.tx, "before_cursor_execute", seen)
    usual = [
        DhcpQuery(
            "DISCOVER",
            mac(number),
            1,
            "lab",
            "trampoline",
            giaddr="10.77.0.254",
            circuit=str(ROW["circuit"]),
            remote=str(ROW["remote"]),
        )
        for number in (1, 2, 3)
    ]
    dhcp.answer(lab.tx, usual, lab.site, dhcp.Newcomers(), NOW)
    assert written == []
    moved = [replace(query, circuit="aa") for query in usual]
    both = [*moved, usual[0]]  # the first is heard by two switches: the last counts
    dhcp.answer(lab.tx, both, lab.site, dhcp.Newcomers(), NOW)
    assert len(written) == 1
    assert [way(lab, number)[1] for number in (1, 2, 3)] == [ROW["circuit"], "aa", "aa"]


def test_a_proposal_is_made_and_carried_out(lab: Lab) -> None:
    neighbour = '<neighbour switch="leaf3" port="Eth1"/></nic>'
    seen = hardware(mac(1)).replace('boot="no"/>', f'boot="no">{neighbour}')
    assert neighbour in seen
    lab.machine(1, attributes=seen)
    lab.machine(2, relay="10.77.0.254", circuit=ROW["circuit"], remote=ROW["remote"])
    lab.machine(3)
    lab.machine(4, NodeState.RETIRED, relay="10.77.0.254")
    found = block_flows.proposal(lab.tx)
    assert {
        each.name: [(place.node, place.why) for place in each.places] for each in found.blocks
    } == {
        "leaf3": [
            ("node1", "sees switch leaf3, port Eth1"),
            ("node2", "asked through switch leaf3, relay 10.77.0.254, circuit Gi1/0, port 7"),
        ]
    }
    assert found.unknown == ("node3",)
    assert [view.block for view in views.node_list(lab.tx)] == [None] * 4
    assert block_flows.apply(lab.tx, only=[]).effects == ()
    assert block_flows.apply(lab.tx).value == found
    assert [view.block for view in views.node_list(lab.tx)] == ["leaf3", "leaf3", None, None]
    assert block_flows.apply(lab.tx, only=None).value.blocks == ()


def test_the_switch_that_the_boot_nic_sees_counts(lab: Lab) -> None:
    first = '<nic name="a" mac="{}" link="up" boot="no"><neighbour switch="{}" port="1"/></nic>'
    document = hardware(mac(1)).replace("<kernel", first.format(mac(1, 1), "other") + "<kernel")
    lab.machine(1, attributes=document)
    assert [each.name for each in block_flows.proposal(lab.tx).blocks] == ["other"]
    document = document.replace("<kernel", first.format(mac(1), "its") + "<kernel")
    nodes.change(lab.tx, lab.node(1), attributes=document)
    assert [each.name for each in block_flows.proposal(lab.tx).blocks] == ["its"]


def test_a_large_site_is_read_in_parts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PART", 3)
    for number in range(7):
        lab.machine(number)
    assert [each.name for each in blocks.seen(lab.tx)] == [f"node{number}" for number in range(7)]
    assert len(block_flows.proposal(lab.tx).unknown) == 7
