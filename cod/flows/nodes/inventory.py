"""Machines that an administrator enters before COD has seen them, one by one or as a list.

An entry names a machine by its name, its MACs, its UUID and its serial number. An entry that fits
no node becomes a node in state expected, which is adopted when the machine boots from the network
for the first time (`core.nodes.enrolment.adopt`, `policy.hardware.identity`). An entry that fits a
node changes that node's settings. If the node's machine has asked for an address and not reported,
the node becomes expected, too. Facts that a machine has reported are never changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cod.choices import PowerDriverKind
from cod.core.nodes import node_settings, selection, transitions
from cod.model import (
    Effect,
    EnteredMachine,
    EntryOutcome,
    FlowContext,
    KnownMachine,
    Node,
    NodeView,
    Refused,
    Result,
    Site,
    Who,
    mac_of,
)
from cod.policy.hardware import identity
from cod.policy.nodes import power
from cod.policy.people import names
from cod.states import UNREPORTED, NodeEvent, NodeState
from cod.store import lists, views
from cod.store.engine import Tx, trial
from cod.store.nodes import blocks, nodes

_SETTINGS = (
    *("name", "block", "position", "tags"),
    *("power_driver", "power_address", "power_account"),
)
_SAID = {
    "name": "name",
    "block_id": "block",
    "rack_position": "position",
    "tags": "tags",
    "power_driver": "power driver",
    "power_address": "power address",
    "power_account": "power account",
    "uuid": "UUID",
    "serial": "serial number",
    "boot_mac": "boot MAC",
}
_KINDS = ("name", "MAC", "UUID", "serial number")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DELETED = UNREPORTED | {NodeState.QUARANTINED, NodeState.RETIRED}
MOST = 100_000  # nodes that are listed at once
_Mark = tuple[str, str]
"""A kind of `_KINDS`, and its value."""


def add(tx: Tx, context: FlowContext, *, machine: KnownMachine) -> NodeView:
    """Add a node for an expected machine, and return it. Raises `Refused`, also if the machine fits
    a node."""
    known = _Inventory(tx, [_normal(machine)]).find(_normal(machine))
    if known is not None:
        raise Refused("conflict", f"that machine is node {known.name} already", "name")
    [entered] = enter(tx, context, machines=[machine]).value
    if entered.outcome is EntryOutcome.REFUSED:
        raise Refused("invalid", entered.about)
    return views.nodes(tx, name=machine.name)[0]


def remove(tx: Tx, *, name: str) -> None:
    """Delete a node whose machine has never reported. Raises `Refused`."""
    node = nodes.named(tx, name, lock=True)
    if not may_be_deleted(node):
        raise Refused(
            "conflict",
            f"node {name} has reported, and its history stays: retire it, do not delete it",
            "name",
        )
    nodes.forget(tx, [node.id])


def may_be_deleted(node: Node) -> bool:
    """Return whether nothing is lost with the node: its machine has never reported."""
    return node.state in _DELETED and node.reported_at is None


def listed(tx: Tx, *, names: str, where: str, who: Who, now: float) -> list[KnownMachine]:
    """Return the known machines of the nodes that `names` and the filter `where` select, by name;
    of all nodes if both are empty. Retired nodes are left out. Raises `Refused`."""
    if not names.strip() and not where.strip():
        return lists.machines(tx, None)
    chosen = selection.selected(tx, names, where, who, now, MOST)
    for _, why in chosen.missing:
        raise Refused("not_found", why, "names")
    return lists.machines(tx, [node_id for node_id, _ in chosen.nodes])


def check(
    tx: Tx, context: FlowContext, *, machines: Sequence[KnownMachine]
) -> Sequence[EnteredMachine]:
    """Return the changes that `enter` would make with the machines, and change nothing."""
    with trial(tx):
        return _enter(tx, context, machines)


def digest(entered: Sequence[EnteredMachine]) -> str:
    """Return a digest of the outcomes that `check` or `enter` returned: equal outcomes have the
    same digest."""
    outcomes = [(one.name, one.outcome.value, one.about) for one in entered]
    return hashlib.sha256(json.dumps(outcomes).encode()).hexdigest()


def enter(
    tx: Tx, context: FlowContext, *, machines: Sequence[KnownMachine], checked: str | None = None
) -> Result[Sequence[EnteredMachine]]:
    """Add or change a node for each machine; return the outcomes in the order of the machines. A
    refused machine does not affect the others.

    checked  the `digest` of the outcomes that `check` showed: if the outcomes would be others by
             now, nothing is changed, and `Refused` is raised. None: they are not compared
    """
    entered = _enter(tx, context, machines)
    if checked is not None and checked != digest(entered):
        raise Refused(
            "conflict",
            "the machines have changed since you looked: look again at what would change",
            "checked",
        )
    return Result(entered, (Effect("wake", "manager"),))


def _enter(tx: Tx, context: FlowContext, machines: Sequence[KnownMachine]) -> list[EnteredMachine]:
    normal = [_checked(machine) for machine in machines]
    inventory = _Inventory(tx, [one for one in normal if isinstance(one, KnownMachine)])
    block_id = cache(blocks.ensure)  # racks are few
    added: list[tuple[dict[str, Any], Sequence[str]]] = []
    entered: list[EnteredMachine] = []
    for machine in normal:
        if isinstance(machine, EnteredMachine):
            entered.append(machine)
            continue
        try:
            node = inventory.find(machine)
            settings = {key: getattr(machine, key) for key in _SETTINGS}
            columns = node_settings.columns(tx, settings, context.site, block_id)
        except Refused as refused:
            entered.append(_refused(machine, refused))
            continue
        if node is None:
            added.append((_row(machine, context.site) | columns, machine.macs))
            entered.append(EnteredMachine(machine.name, EntryOutcome.ADDED))
        else:
            entered.append(_change(tx, context, inventory, node, machine, columns))
    if added:
        cause = f"entered by {context.actor}"
        nodes.add_expected(tx, added, now=context.now, cause=cause, actor=context.actor)
    return entered


class _Inventory:
    """The nodes that entries may fit, by what identifies a machine: ('MAC', '52:54:…')."""

    def __init__(self, tx: Tx, machines: Sequence[KnownMachine]) -> None:
        """Read the nodes, locked."""
        marks = [mark for machine in machines for mark in _marks(machine)]
        of = {kind: sorted({text for each, text in marks if each == kind}) for kind in _KINDS}
        by_mac = nodes.by_macs(tx, of["MAC"])
        others = nodes.known_as(tx, of["name"], of["UUID"], of["serial number"])
        ids = {node.id for node in (*by_mac.values(), *others)}
        self._nodes = {node.id: node for node in nodes.lock(tx, ids)}
        awaited = [node.id for node in self._nodes.values() if node.state in UNREPORTED]
        self._unasked = nodes.unasked_macs(tx, awaited)
        self._ids: defaultdict[_Mark, list[int]] = defaultdict(list)
        for mac, node in by_mac.items():
            self._ids["MAC", mac].append(node.id)
        for node in self._nodes.values():
            for kind, text in (
                ("name", node.name),
                ("UUID", node.uuid),
                ("serial number", node.serial),
            ):
                if text is not None:
                    self._ids[kind, text].append(node.id)
        self.blocks = blocks.names(tx)
        self._entries: dict[_Mark, KnownMachine] = {}
        self._found: dict[int, KnownMachine] = {}

    def macs_to_add(self, machine: KnownMachine) -> list[str]:
        """Return the entry's MACs that no node has."""
        return [mac for mac in machine.macs if ("MAC", mac) not in self._ids]

    def macs_to_remove(self, node: Node, machine: KnownMachine) -> list[str]:
        """Return the MACs of an expected node that the entry, which names MACs, does not have, and
        by which no machine has asked."""
        known = self._unasked.get(node.id, ()) if machine.macs else ()
        return [mac for mac in known if mac not in machine.macs]

    def find(self, machine: KnownMachine) -> Node | None:
        """Return the node that the entry fits; None if it describes a new machine. Raises
        `Refused`."""
        marks = _marks(machine)
        for mark in marks:
            other = self._entries.setdefault(mark, machine)
            # makers give one serial number to all nodes of a chassis: MAC and UUID tell more
            weak = mark[0] == "serial number" and all(x.macs or x.uuid for x in (machine, other))
            if other is not machine and not weak:
                raise Refused("invalid", f"the {' '.join(mark)} is in two entries", "name")
        found: defaultdict[int, list[_Mark]] = defaultdict(list)
        for mark in marks:
            for id_ in self._ids.get(mark, ()):
                found[id_].append(mark)
        more = {id_: by for id_, by in found.items() if by[0][0] != "serial number"}
        fits = {id_: by[-1] for id_, by in (more or found).items()}
        if len(fits) > 1:
            each = (f"{self._nodes[id_].name} by {' '.join(mark)}" for id_, mark in fits.items())
            raise Refused("conflict", f"it fits several nodes: {', '.join(each)}", "name")
        hardware = marks[1:]
        if not fits and not hardware:
            raise Refused(
                "invalid",
                "nothing tells which machine it is: name a MAC, a UUID or a serial number",
                "macs",
            )
        if not fits:
            return None
        [(node_id, mark)] = fits.items()
        node = self._nodes[node_id]
        if self._found.setdefault(node_id, machine) is not machine:
            taken = self._found[node_id].name
            raise Refused("conflict", f"it fits the node that entry {taken} fits", "name")
        if node.state == NodeState.RETIRED:
            why = f"it is node {node.name}, which is retired: restore that node"
            raise Refused("conflict", why, "name")
        if mark[0] == "name" and hardware and node.state != NodeState.EXPECTED:
            raise Refused(
                "conflict",
                f"node {node.name} is another machine: it has the MAC {node.boot_mac}, and neither"
                f" {' nor '.join(' '.join(each) for each in hardware)}",
                "name",
            )
        return node


def _refused(machine: KnownMachine, refused: Refused) -> EnteredMachine:
    return EnteredMachine(machine.name, EntryOutcome.REFUSED, refused.sentence)


def _checked(machine: KnownMachine) -> KnownMachine | EnteredMachine:
    """Return the entry in the form of `_normal`, or, if it is refused, the outcome."""
    try:
        return _normal(machine)
    except Refused as refused:
        return _refused(machine, refused)


def _normal(machine: KnownMachine) -> KnownMachine:
    """Return the entry in COD's notation, without a UUID or serial number that makers give to many
    machines. Raises `Refused`."""
    macs: list[str] = []
    for text in machine.macs:
        mac = mac_of(text)
        if mac is None:
            raise Refused("invalid", f"{text!r} is no MAC: write 52:54:00:00:00:01", "macs")
        macs += [mac] if mac not in macs else []
    uuid = machine.uuid.lower() if machine.uuid else None
    if uuid is not None and not _UUID.fullmatch(uuid):
        raise Refused("invalid", f"{machine.uuid!r} is no UUID", "uuid")
    if machine.block:
        names.check_label(machine.block, "block")
    driver = machine.power_driver
    if driver is not None and driver not in PowerDriverKind.names():
        known = ", ".join(PowerDriverKind)
        raise Refused("invalid", f"{driver!r} is no power driver: {known}", "power_driver")
    return replace(
        machine,
        macs=tuple(macs),
        uuid=uuid if identity.is_unique(uuid) else None,
        serial=identity.serial_of(machine.serial),
    )


def _marks(machine: KnownMachine) -> list[_Mark]:
    """Return the names and hardware marks that identify the machine, its name first."""
    return [
        ("name", machine.name),
        *(("MAC", mac) for mac in machine.macs),
        *([("UUID", machine.uuid)] if machine.uuid else []),
        *([("serial number", machine.serial)] if machine.serial else []),
    ]


def _row(machine: KnownMachine, site: Site) -> dict[str, Any]:
    """Return the columns of a new node, with its power driver by the site's rules. The entry's own
    settings replace these columns."""
    mac = next(iter(machine.macs), "")
    driver, address, account = power.rule_for(site.power, machine.name, mac)
    return {
        "name": machine.name,
        "uuid": machine.uuid,
        "serial": machine.serial,
        "block_id": None,
        "rack_position": None,
        "tags": "",
        "power_driver": driver,
        "power_address": address,
        "power_account": account,
    }


def _difference(label: str, before: str | None, after: str | None) -> str:
    """Say what changes: 'block r11 → r12', 'no tags', 'position 17'."""
    was, now = (before or "").strip(), (after or "").strip()
    if was and now:
        return f"{label} {was} → {now}"
    return f"{label} {now}" if now else f"no {label}"


def _change(
    tx: Tx,
    context: FlowContext,
    inventory: _Inventory,
    node: Node,
    machine: KnownMachine,
    columns: dict[str, Any],
) -> EnteredMachine:
    """Change the node's settings to those of the entry, and, while its machine has not reported,
    also its hardware marks."""
    more: list[str] = []
    less: list[str] = []
    changes: list[str] = []
    if node.state == NodeState.NEW and node.reported_at is None:
        node = transitions.move(
            tx,
            node,
            NodeEvent.ENTERED,
            now=context.now,
            cause=f"entered by {context.actor}",
            actor=context.actor,
        )
        changes.append("expected")
    if node.state == NodeState.EXPECTED:
        hardware = {
            "uuid": machine.uuid,
            "serial": machine.serial,
            "boot_mac": next(iter(machine.macs), None),
        }
        columns = columns | {key: value for key, value in hardware.items() if value is not None}
        more = inventory.macs_to_add(machine)
        less = inventory.macs_to_remove(node, machine)
    changed = {key: value for key, value in columns.items() if getattr(node, key) != value}
    block = {"block_id": (inventory.blocks.get(node.block_id or 0), machine.block)}
    both = {key: (getattr(node, key), value) for key, value in changed.items()} | block
    changes += [_difference(label, *both[key]) for key, label in _SAID.items() if key in changed]
    for mac in more:
        nodes.add_mac(tx, node.id, mac)
    nodes.remove_macs(tx, less)
    node_settings.change(tx, node, changed)
    changes += [f"MAC {mac}" for mac in more] + [f"no MAC {mac}" for mac in less]
    outcome = EntryOutcome.CHANGED if changes else EntryOutcome.UNCHANGED
    return EnteredMachine(machine.name, outcome, ", ".join(changes))
