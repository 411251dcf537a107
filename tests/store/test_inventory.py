"""Machines that an administrator enters before they boot, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from cod.core.networks.dhcp_batch import GIVES_WAY
from cod.flows.agents import report
from cod.flows.boot import dhcp
from cod.flows.nodes import inventory
from cod.flows.nodes import nodes as node_flows
from cod.machine_lists import csv_file
from cod.machine_lists.entry import ListedMachine
from cod.model import (
    DhcpAnswer,
    DhcpQuery,
    EntryOutcome,
    FlowContext,
    KnownMachine,
    Node,
    PowerRule,
    Refused,
    Site,
    Who,
)
from cod.policy.nodes.newcomers import Newcomers
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import blocks, conflicts, nodes
from tests.store.agentlab import NOW, Lab, hardware, mac, uuid

ADDED, CHANGED, UNCHANGED, REFUSED = EntryOutcome
SERIAL = "B5TN222"


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, replace(site, policy=replace(site.policy, auto_approve=False)))


def context(lab: Lab) -> FlowContext:
    return FlowContext(lab.site, lab.now, Who("ann", admin=True))


def enter(lab: Lab, *machines: KnownMachine) -> list[tuple[EntryOutcome, str]]:
    value = inventory.enter(lab.tx, context(lab), machines=machines).value
    return [(each.outcome, each.about) for each in value]


def asks(lab: Lab, number: int, nic: int = 0, *, of: str | None = None) -> DhcpAnswer | None:
    """What a machine's firmware gets that asks for an address."""
    query = DhcpQuery("DISCOVER", mac(number, nic), 1, "lab", "ipxe", uuid=of)
    [answer] = dhcp.answer(lab.tx, [query], lab.site, Newcomers(), lab.now)
    return answer


def named(lab: Lab, name: str) -> Node:
    return nodes.named(lab.tx, name)


def only(lab: Lab) -> Node:
    [name] = lab.tx.scalars(select(t.nodes.c.name)).all()
    return named(lab, name)


def test_an_expected_machine_is_adopted_by_its_mac_at_its_first_boot(lab: Lab) -> None:
    lab.site = replace(lab.site, policy=replace(lab.site.policy, unknown="known-only"))
    machine = KnownMachine("r1-01", (mac(1), mac(1, 1)), block="rack1")
    assert enter(lab, machine) == [(ADDED, "")]
    assert named(lab, "r1-01").state == NodeState.EXPECTED
    assert asks(lab, 2) is None, "known machines only"
    assert asks(lab, 1, nic=1) is not None
    assert only(lab).state == NodeState.EXPECTED
    lab.report(lab.open(1), mac(1), mac(1, 1), serial=SERIAL)
    node = only(lab)
    assert (node.name, node.state, node.serial) == ("r1-01", NodeState.REGISTERING, SERIAL)
    assert blocks.names(lab.tx)[node.block_id or 0] == "rack1"
    events = [(row["event"], row["to_state"]) for row in nodes.history(lab.tx, node.id)]
    assert events == [("entered", "expected"), ("seen", "new"), ("registered", "registering")]


@pytest.mark.parametrize("unknown", ["discover", "known-only"])
def test_an_expected_machine_is_adopted_by_its_uuid_when_it_asks(lab: Lab, unknown: Any) -> None:
    lab.site = replace(lab.site, policy=replace(lab.site.policy, unknown=unknown))
    enter(lab, KnownMachine("r1-01", uuid=uuid(1).upper()))
    assert asks(lab, 1, of=uuid(1)) is not None
    node = only(lab)
    assert (node.name, node.state, node.boot_mac) == ("r1-01", NodeState.EXPECTED, mac(1))


def test_an_expected_machine_is_adopted_by_its_serial_number_when_it_reports(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", serial=SERIAL))
    assert asks(lab, 1, of=uuid(1)) is not None
    assert nodes.by_mac(lab.tx, mac(1)) is not None, "nothing but the report has the serial number"
    lab.report(lab.open(1), mac(1), uuid=uuid(1), serial=f" {SERIAL} ")
    node = only(lab)
    assert (node.name, node.state, node.boot_mac) == ("r1-01", NodeState.REGISTERING, mac(1))
    assert (node.uuid, node.serial) == (uuid(1), SERIAL)


def test_a_machine_that_boots_from_another_card_is_the_expected_one(lab: Lab) -> None:
    """The list has the MAC of a card from which the machine does not boot."""
    enter(lab, KnownMachine("r1-01", (mac(1),)))
    asks(lab, 1, nic=1)
    lab.tx.execute(t.nics.update().values(mac=mac(7)).where(t.nics.c.mac == mac(1, 1)))
    lab.report(lab.open(7), mac(7), mac(1))
    assert (only(lab).name, only(lab).state) == ("r1-01", NodeState.REGISTERING)


def test_a_serial_number_of_the_makers_tool_tells_nothing(lab: Lab) -> None:
    bogus = "To be filled by O.E.M."
    [(outcome, about)] = enter(lab, KnownMachine("r1-01", serial=bogus))
    assert (outcome, about[:13]) == (REFUSED, "nothing tells")
    enter(lab, KnownMachine("r1-01", (mac(1),), serial=bogus))
    asks(lab, 2)
    lab.report(lab.open(2), mac(2), serial=bogus)
    assert named(lab, "r1-01").state == NodeState.EXPECTED
    assert lab.node(2).serial is None


def test_a_serial_number_of_a_node_that_reported_adopts_nothing(lab: Lab) -> None:
    """Only what an administrator entered is adopted by a serial number, which anybody can send."""
    asks(lab, 1)
    lab.report(lab.open(1), mac(1), serial=SERIAL)
    asks(lab, 2)
    lab.report(lab.open(2), mac(2), serial=SERIAL)
    assert lab.node(1).id != lab.node(2).id


def test_nodes_of_a_chassis_with_one_serial_number_are_listed_and_entered_again(lab: Lab) -> None:
    machines = [
        KnownMachine(f"blade{each}", (mac(each),), serial=SERIAL, block="r1", position="1", tags=())
        for each in (1, 2)
    ]
    assert enter(lab, *machines) == [(ADDED, ""), (ADDED, "")]
    known = inventory.listed(lab.tx, names="", where="", who=context(lab).who, now=lab.now)
    table = csv_file.written(known)
    again = [one.known() for one in csv_file.read_text(table) if isinstance(one, ListedMachine)]
    assert enter(lab, *again) == [(UNCHANGED, ""), (UNCHANGED, "")]


def test_a_cell_is_read_as_it_was_however_it_begins() -> None:
    for serial in ("=1", "'=1", "''", "-"):
        table = csv_file.written([KnownMachine("n1", (), serial=serial)])
        [one] = csv_file.read_text(table)
        assert isinstance(one, ListedMachine)
        assert one.serial == serial
        assert f",'{serial}," in table


def test_an_entry_names_and_places_a_node_that_was_seen(lab: Lab) -> None:
    lab.site = replace(lab.site, power=(PowerRule("*", "ipmi", "bmc-{name}"),))
    asks(lab, 1)
    lab.report(lab.open(1), mac(1), serial=SERIAL)
    by_serial = KnownMachine("r1-01", serial=SERIAL, block="rack1", power_address="10.1.0.1")
    was = only(lab)
    assert enter(lab, by_serial) == [
        (
            CHANGED,
            f"name {was.name} → r1-01, block rack1, power address {was.power_address} → 10.1.0.1",
        )
    ]
    assert enter(lab, by_serial) == [(UNCHANGED, "")]
    node = only(lab)
    assert (node.name, node.state, node.power_address) == (
        "r1-01",
        NodeState.REGISTERING,
        "10.1.0.1",
    )


def test_a_list_says_where_machines_are_and_what_people_call_them(lab: Lab) -> None:
    placed = KnownMachine("r1-01", (mac(1),), block="r1", position="17", tags=("old", "GPU"))
    assert enter(lab, placed) == [(ADDED, "")]
    assert enter(lab, placed, KnownMachine("r1-02", (mac(2),))) == [(UNCHANGED, ""), (ADDED, "")]
    node, other = named(lab, "r1-01"), named(lab, "r1-02")
    assert (node.rack_position, node.tags) == ("17", " gpu old ")
    assert (other.rack_position, other.tags) == (None, "")
    said_less = replace(placed, position=None, tags=None)
    assert enter(lab, said_less) == [(UNCHANGED, "")]
    assert enter(lab, replace(placed, position="", tags=())) == [(CHANGED, "no position, no tags")]
    elsewhere = replace(placed, block="r2", tags=("gpu",))
    assert enter(lab, elsewhere) == [(CHANGED, "block r1 → r2, position 17, tags gpu")]
    assert enter(lab, placed) == [(CHANGED, "block r2 → r1, tags gpu → gpu old")]
    assert enter(lab, replace(placed, position="", tags=())) == [(CHANGED, "no position, no tags")]
    wrong = KnownMachine("r1-03", (mac(3),), block="r9", position="top shelf")
    tagged = KnownMachine("r1-04", (mac(4),), tags=("two words",))
    many = KnownMachine("r1-05", (mac(5),), tags=tuple(f"t{number}" for number in range(17)))
    assert [about.split(":")[0] for _, about in enter(lab, wrong, tagged, many)] == [
        "'top shelf' is no position in a rack",
        "'two words' is no tag",
        "a node has at most 16 tags, not 17",
    ]


def test_what_a_report_names_is_kept_until_the_next_one(lab: Lab) -> None:
    def reports(board: str, *disks: str) -> set[tuple[str, str]]:
        document = hardware(mac(1)).replace("<system", f'<system board="{board}"')
        more = "".join(
            f'<disk name="sd{number}" size="1" transport="ata" local="yes" rotational="no"'
            f' removable="no" serial="{serial}"/>'
            for number, serial in enumerate(disks)
        )
        document = document.replace("<kernel", f'{more}<bmc by="ipmi" address="10.1.0.7"/><kernel')
        assert isinstance(
            report.report(lab.tx, peer, document, lab.site, lab.now).value, report.ReportAnswer
        )
        rows = lab.tx.execute(select(t.node_labels.c.kind, t.node_labels.c.label))
        return {(row[0], row[1]) for row in rows}

    asks(lab, 1)
    peer = lab.open(1)
    bmc = ("reported_bmc", "10.1.0.7")
    assert reports("CN70", "S1", "s1", "0000") == {("part", "cn70"), ("part", "s1"), bmc}
    assert reports("CN70", "S2") == {("part", "cn70"), ("part", "s2"), bmc}
    nodes.forget(lab.tx, [only(lab).id])
    assert not list(lab.tx.execute(select(t.node_labels)))


def test_an_expected_machine_is_changed_by_a_second_list(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),)))
    more = KnownMachine("r1-01", (mac(1, 1), mac(1)), uuid=uuid(1), serial=SERIAL)
    [(outcome, about)] = enter(lab, more)
    assert outcome == CHANGED
    assert about == (
        f"UUID {uuid(1)}, serial number {SERIAL}, boot MAC {mac(1)} → {mac(1, 1)}, MAC {mac(1, 1)}"
    )
    assert enter(lab, more) == [(UNCHANGED, "")]
    assert nodes.by_mac(lab.tx, mac(1, 1)) == nodes.by_mac(lab.tx, mac(1))


def test_an_entry_that_is_in_doubt_leaves_the_others_alone(lab: Lab) -> None:
    lab.machine(1, "inactive")
    lab.machine(2, "inactive")
    entered = enter(
        lab,
        KnownMachine("node1", (mac(2),)),
        KnownMachine("node1", (mac(9),)),
        KnownMachine("r1-03", (mac(3),)),
        KnownMachine("r1-04", (mac(3),)),
        KnownMachine("R1_05", (mac(5),)),
        KnownMachine("r1-06", (mac(6),), power_account="nobodys"),
        KnownMachine("r1-07"),
        KnownMachine("r1-08", (mac(8),)),
    )
    assert [outcome for outcome, _ in entered] == [
        *(REFUSED, REFUSED, ADDED, REFUSED, REFUSED, REFUSED, REFUSED, ADDED)
    ]
    abouts = [about for outcome, about in entered if outcome is REFUSED]
    assert abouts[0] == f"it fits several nodes: node1 by name node1, node2 by MAC {mac(2)}"
    assert abouts[1] == "the name node1 is in two entries"
    assert abouts[2] == f"the MAC {mac(3)} is in two entries"
    assert abouts[3].startswith("'R1_05' is no DNS label")
    assert abouts[4].startswith("the site file has no [[account]] named 'nobodys'")
    names = set(lab.tx.scalars(select(t.nodes.c.name)))
    assert names == {"node1", "node2", "r1-03", "r1-08"}


def test_a_nodes_name_does_not_go_to_other_hardware(lab: Lab) -> None:
    lab.machine(1, "inactive")
    [(outcome, about)] = enter(lab, KnownMachine("node1", (mac(9),)))
    assert outcome is REFUSED
    assert about == (
        f"node node1 is another machine: it has the MAC {mac(1)}, and neither MAC {mac(9)}"
    )
    assert enter(lab, KnownMachine("node1", block="rack1")) == [(CHANGED, "block rack1")]


def test_a_check_changes_nothing(lab: Lab) -> None:
    machines = [KnownMachine("r1-01", (mac(1),), block="rack1"), KnownMachine("r1-02")]
    value = inventory.check(lab.tx, context(lab), machines=machines)
    assert [each.outcome for each in value] == [ADDED, REFUSED]
    assert not lab.tx.scalars(select(t.nodes.c.id)).all()
    assert not blocks.names(lab.tx)


def test_one_machine_is_added_and_a_second_time_refused(lab: Lab) -> None:
    machine = KnownMachine("r1-01", (mac(1),))
    assert inventory.add(lab.tx, context(lab), machine=machine).node.state == NodeState.EXPECTED
    with pytest.raises(Refused, match="that machine is node r1-01 already"):
        inventory.add(lab.tx, context(lab), machine=machine)
    with pytest.raises(Refused, match="nothing tells which machine it is"):
        inventory.add(lab.tx, context(lab), machine=KnownMachine("r1-02"))


def test_a_machine_that_never_reported_is_deleted_and_another_is_not(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),)))
    asks(lab, 1)
    inventory.remove(lab.tx, name="r1-01")
    assert nodes.by_mac(lab.tx, mac(1)) is None
    lab.machine(2, "inactive")
    with pytest.raises(Refused, match="retire it"):
        inventory.remove(lab.tx, name="node2")


def test_an_expected_machine_can_be_switched_on_and_is_not_approved(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),), power_driver="lab", power_address="x"))
    node_flows.power(lab.tx, context(lab), name="r1-01", desired="on")
    assert named(lab, "r1-01").power_wanted == "on"
    with pytest.raises(Refused):
        node_flows.approve(lab.tx, context(lab), name="r1-01")


def test_expected_machines_are_outside_the_limit_of_new_ones(lab: Lab) -> None:
    lab.site = replace(lab.site, policy=replace(lab.site.policy, new_machines=1))
    enter(lab, *(KnownMachine(f"r1-{number:02}", (mac(number),)) for number in range(1, 4)))
    assert asks(lab, 9) is not None
    lab.now = NOW + 2 * GIVES_WAY
    assert asks(lab, 8) is not None, "the machine that never reported gives way"
    assert {named(lab, f"r1-{number:02}").state for number in range(1, 4)} == {"expected"}


def test_the_uuid_that_an_expected_machine_was_entered_with_is_not_a_conflict(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),), uuid=uuid(1)))
    asks(lab, 1, of=uuid(1))
    lab.report(lab.open(1), mac(1), uuid=uuid(1))
    assert only(lab).state == NodeState.REGISTERING
    assert conflicts.every(lab.tx) == []


def told(lab: Lab) -> list[str]:
    return [row["about"] for row in conflicts.every(lab.tx)]


def test_an_expected_machine_that_asks_is_expected_until_it_reports(lab: Lab) -> None:
    """Anybody can send a listed MAC or UUID; an entry is not lost by that."""
    policy = replace(lab.site.policy, new_machines=1, unknown="known-only")
    lab.site = replace(lab.site, policy=policy)
    name = f"node-{mac(1).replace(':', '')}"
    enter(lab, KnownMachine(name, (mac(1),), uuid=uuid(1)))
    assert asks(lab, 1, of=uuid(1)) is not None
    assert asks(lab, 1, nic=1, of=uuid(1)) is not None, "another card of the same machine"
    lab.site = replace(lab.site, policy=replace(policy, unknown="discover"))
    lab.now = NOW + 2 * GIVES_WAY
    assert asks(lab, 8) is not None
    lab.now += 2 * GIVES_WAY
    assert asks(lab, 9) is not None, "the machine 8 gives way"
    assert named(lab, name).state == NodeState.EXPECTED


@pytest.mark.parametrize("reports", ["both cards", "the serial number of the other"])
def test_a_report_that_fits_two_entries_deletes_neither(lab: Lab, reports: str) -> None:
    enter(lab, KnownMachine("a", (mac(1),)), KnownMachine("b", (mac(2),), serial=SERIAL))
    asks(lab, 1)
    if reports == "both cards":
        said = lab.report(lab.open(1), mac(1), mac(2)).value
        assert said == f"a reports MACs that belong to other machines: {mac(2)} (b)"
    else:
        lab.report(lab.open(1), mac(1), serial=SERIAL)
        assert named(lab, "a").state == NodeState.REGISTERING
        [about] = told(lab)
        assert about.startswith(f"a reports the serial number of b, {SERIAL}, ")
    assert named(lab, "b").state == NodeState.EXPECTED


@pytest.mark.parametrize("entered", [{"macs": (mac(1),)}, {"uuid": uuid(1)}])
def test_a_serial_number_alone_adopts_no_machine_that_was_entered_with_more(
    lab: Lab, entered: dict[str, Any]
) -> None:
    """Anybody can send a serial number; the MAC or the UUID of the entry speaks against it."""
    enter(lab, KnownMachine("r1-01", serial=SERIAL, **entered))
    asks(lab, 9, of=uuid(9))
    lab.report(lab.open(9), mac(9), uuid=uuid(9), serial=SERIAL)
    assert (lab.node(9).state, named(lab, "r1-01").state) == ("registering", "expected")
    assert lab.node(9).name != "r1-01"
    [about] = told(lab)
    assert about.startswith(f"{lab.node(9).name} reports the serial number of r1-01, {SERIAL}, ")


def test_a_machine_whose_board_was_changed_is_told(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),), uuid=uuid(1), serial=SERIAL))
    asks(lab, 1)
    lab.report(lab.open(1), mac(1), uuid=uuid(2), serial="OTHER12")
    assert only(lab).state == NodeState.REGISTERING
    assert told(lab) == [
        f"r1-01 is expected with the UUID {uuid(1)}, the serial number {SERIAL}; its machine"
        f" reports the UUID {uuid(2)}, the serial number OTHER12: compare them before you approve"
        " it"
    ]


def test_a_machine_that_sends_an_expected_uuid_and_has_none_of_its_macs_is_told(lab: Lab) -> None:
    """Anybody can send a UUID, and by it get into the entry by DHCP."""
    enter(lab, KnownMachine("r1-01", (mac(1),), uuid=uuid(1)))
    asks(lab, 9, of=uuid(1))
    lab.report(lab.open(9), mac(9), uuid=uuid(1))
    assert only(lab).state == NodeState.REGISTERING
    assert told(lab) == [
        f"r1-01 is expected with the MAC {mac(1)}; its machine reports the MAC {mac(9)}: compare"
        " them before you approve it"
    ]


def test_an_entry_takes_over_a_machine_that_asked_before_it(lab: Lab) -> None:
    asks(lab, 1)
    entry = KnownMachine("r1-01", (mac(1, 1), mac(1)), uuid=uuid(1), serial=SERIAL)
    [(outcome, _)] = enter(lab, entry)
    assert outcome == CHANGED
    node = only(lab)
    assert (node.state, node.uuid, node.serial) == (NodeState.EXPECTED, uuid(1), SERIAL)
    assert nodes.by_mac(lab.tx, mac(1, 1)) == node
    assert enter(lab, entry) == [(UNCHANGED, "")]
    lab.report(lab.open(1), mac(1), mac(1, 1), uuid=uuid(1), serial=SERIAL)
    assert only(lab).state == NodeState.REGISTERING
    assert not told(lab)


def test_a_mac_that_a_list_corrects_is_not_expected_any_more(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1), mac(1, 1))))
    [(outcome, about)] = enter(lab, KnownMachine("r1-01", (mac(2), mac(1, 1))))
    assert (outcome, about) == (
        CHANGED,
        f"boot MAC {mac(1)} → {mac(2)}, MAC {mac(2)}, no MAC {mac(1)}",
    )
    assert nodes.by_mac(lab.tx, mac(1)) is None
    assert enter(lab, KnownMachine("r1-01", block="rack1")) == [(CHANGED, "block rack1")]
    assert nodes.by_mac(lab.tx, mac(2)) == nodes.by_mac(lab.tx, mac(1, 1)) == only(lab)


def test_two_entries_of_one_machine_are_refused(lab: Lab) -> None:
    enter(lab, KnownMachine("a", (mac(1),)))
    entered = enter(lab, KnownMachine("x", (mac(1),)), KnownMachine("a", (mac(2),)))
    assert [outcome for outcome, _ in entered] == [CHANGED, REFUSED]
    assert entered[1][1] == "it fits the node that entry x fits"
    assert only(lab).boot_mac == mac(1)


def test_a_retired_machine_is_not_entered_again_but_restored(lab: Lab) -> None:
    lab.machine(1, "retired")
    [(outcome, about)] = enter(lab, KnownMachine("r1-01", (mac(1),)))
    assert outcome is REFUSED
    assert about == "it is node node1, which is retired: restore that node"


def test_a_serial_number_of_two_nodes_tells_nothing(lab: Lab) -> None:
    for number in (1, 2):
        asks(lab, number)
        lab.report(lab.open(number), mac(number), serial=SERIAL)
    [(outcome, about)] = enter(lab, KnownMachine("r1-01", serial=SERIAL))
    assert outcome is REFUSED
    assert about.startswith("it fits several nodes: ")
    by_mac = KnownMachine("r1-01", (mac(2),), serial=SERIAL)
    [(outcome, about)] = enter(lab, by_mac)
    assert (outcome, about.endswith(" → r1-01")) == (CHANGED, True), (
        "nodes of one chassis may share one"
    )
    assert lab.node(2).name == "r1-01"


def test_a_refused_entry_leaves_no_block(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),), block="rack1", power_account="nobodys"))
    assert not blocks.names(lab.tx)


def test_one_machine_that_is_known_is_told_by_its_name(lab: Lab) -> None:
    enter(lab, KnownMachine("r1-01", (mac(1),)))
    with pytest.raises(Refused, match="that machine is node r1-01"):
        inventory.add(lab.tx, context(lab), machine=KnownMachine("r1-02", (mac(1),)))


def test_a_machine_that_never_reported_is_deleted_where_it_was_set_aside(lab: Lab) -> None:
    for name, set_aside in (
        ("a", lambda: node_flows.retire(lab.tx, context(lab), name="a")),
        ("b", lambda: node_flows.quarantine(lab.tx, context(lab), name="b", reason="smoke")),
    ):
        enter(lab, KnownMachine(name, (mac(ord(name)),)))
        set_aside()
        with pytest.raises(Refused, match="has never reported: delete it, and add it again"):
            node_flows.restore(lab.tx, context(lab), name=name)
        inventory.remove(lab.tx, name=name)
    assert not lab.tx.scalars(select(t.nodes.c.id)).all()


@pytest.mark.parametrize("serial", ["=1+1", "@SUM(A1)", "\x1b[31m12", "+4412", "B5 \u202e 1"])
def test_a_serial_number_is_no_formula_of_a_spreadsheet(lab: Lab, serial: str) -> None:
    [(outcome, about)] = enter(lab, KnownMachine("r1-01", serial=serial))
    assert (outcome, about[:13]) == (REFUSED, "nothing tells")
