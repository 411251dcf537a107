"""Identity of hardware: the meaning of a report for the identity of the node that sent it. Pure.

MACs key nodes. A machine has proven one MAC (the boot secret minted for it); the others, and the
DMI UUID, are its own word. So a report may add a NIC to its node, but never take one from a machine
that has reported itself: that is a conflict, and the report is refused. Two cases look like it and
are harmless:

- a NIC of the machine asked DHCP before the machine ever reported, and was taken for a machine of
  its own: such a *shadow* (state new, no report) is absorbed;
- the machine boots from a NIC that was put in after its last report: the session's node is then the
  shadow, and the node with the same UUID takes it over, if that node is not alive elsewhere and is
  expected in the trampoline. Where no MAC confirms it, that is doubtful: it does not stand for an
  approval.

An administrator may have entered a machine before it was seen (state expected), by any of MAC, UUID
and serial number. A shadow that one of these fits is that machine, unless another of them speaks
against it: then an administrator has to say which machine it is.

UUIDs are not trusted to be unique: vendors have shipped the same for every board. Known ones are
ignored, and so is one that another living node has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from cod.choices import NodeLabel
from cod.model import Node
from cod.states import NodeState

_BOGUS = frozenset(
    {  # left in by board makers' tools
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "02000300-0400-0500-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
        "01020304-0506-0708-090a-0b0c0d0e0f10",
        "11111111-2222-3333-4444-555555555555",
    }
)
_NO_SERIALS = frozenset(
    {  # left in by board makers' tools, in lower case
        "default string",
        "to be filled by o.e.m.",
        "system serial number",
        "serial number",
        "not specified",
        "not applicable",
        "none",
        "n/a",
        "0123456789",
        "123456789",
        "1234567890",
        "empty",
        "unknown",
    }
)
# A machine's own word, which people read in terminals and spreadsheets: no text that these act on.
_SERIAL = re.compile(r"[0-9A-Za-z./#][ -~]{0,63}")
_AWAITED = (NodeState.OFF, NodeState.TRAMPOLINE, NodeState.REGISTERING, NodeState.EXPECTED)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Identity in a report: DMI UUID and serial number of the system (None if absent or
    known-bogus), MACs sorted, 'bios' or 'uefi'; and the labels that people find it by."""

    uuid: str | None
    macs: tuple[str, ...]
    firmware: str
    serial: str | None = None
    labels: frozenset[tuple[NodeLabel, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Joining:
    """Consequences of a report for identities: `uuid` to record, shadows to `absorb` into the node,
    an `heir` that takes the node over, or a refusal.

    doubtful  nothing but the UUID speaks for the heir: it may be another machine, whose maker gave
              both the same
    refused   a sentence, '' when the report is accepted; nothing else counts then
    """

    uuid: str | None = None
    absorb: tuple[int, ...] = ()
    heir: int | None = None
    doubtful: bool = False
    refused: str = ""


def is_unique(uuid: str | None) -> bool:
    """Return whether this DMI UUID can tell machines apart. Some makers leave a constant in it, or
    one digit all through."""
    return uuid is not None and len(set(uuid) - {"-"}) > 1 and uuid not in _BOGUS


def serial_of(text: str | None) -> str | None:
    """Return the serial number of a system, without spaces around it; None if it cannot tell
    machines apart."""
    serial = (text or "").strip()
    bogus = serial.lower() in _NO_SERIALS or len(set(serial)) < 2
    return None if bogus or not _SERIAL.fullmatch(serial) else serial


def read(report: str) -> Hardware:
    """Return what identifies a machine, from a hardware report (XML, valid against
    schema/report.rng)."""
    root = ElementTree.fromstring(report)
    system, firmware = root.find("system"), root.find("firmware")
    uuid = None if system is None else system.get("uuid")
    macs = {nic.attrib["mac"] for nic in root.iterfind("nic")}
    return Hardware(
        uuid if is_unique(uuid) else None,
        tuple(sorted(macs)),
        "bios" if firmware is None else firmware.attrib["kind"],
        None if system is None else serial_of(system.get("serial")),
        frozenset(_labels(root)),
    )


def _labels(root: ElementTree.Element) -> Iterator[tuple[NodeLabel, str]]:
    """Yield the labels in a report by which people look for a node: serial numbers of its parts,
    its BMC, its switch port. Lower case, because databases differ in whether case counts."""
    numbers = [disk.get("serial") for disk in root.iterfind("disk")]
    numbers += [system.get("board") for system in root.iterfind("system")]
    for number in numbers:
        if serial := serial_of(number):
            yield NodeLabel.PART, serial.lower()
    for bmc in root.iterfind("bmc"):
        yield NodeLabel.BMC, bmc.attrib["address"]
        if mac := bmc.get("mac"):
            yield NodeLabel.BMC, mac
    nics = sorted(root.iterfind("nic"), key=lambda nic: nic.get("boot") != "yes")
    near = next((each for nic in nics for each in nic.iterfind("neighbour")), None)
    if near is not None and _SERIAL.fullmatch(near.attrib["switch"]):
        yield NodeLabel.SWITCH, near.attrib["switch"].lower()


def join(
    node: Node,
    mac: str,
    hardware: Hardware,
    owners: Mapping[str, Node],
    twins: Collection[Node],
    connected: Collection[int],
) -> Joining:
    """Return what `node`'s report means.

    mac        the MAC that the session proved
    owners     nodes that own the reported MACs
    twins      other nodes with the same UUID, and expected ones with the same serial number
    connected  ids among these that have an open session
    """
    if mac not in hardware.macs:
        return Joining(
            refused=f"the report does not contain {mac}, which sent it: it is of another machine"
        )
    others = {owner.id: owner for owner in owners.values() if owner.id != node.id}
    claimed = [owner for owner in others.values() if not _is_shadow(owner)]
    alike = {each.id: each for each in (*twins, *filter(_is_expected, claimed))}
    # a twin that is heard elsewhere is another machine with the same UUID
    heirs = [
        each
        for each in alike.values()
        if each.state in _AWAITED
        and each.id not in connected
        and not (_is_expected(each) and _contradicts(each, hardware, owners))
    ]
    if _is_shadow(node) and len(heirs) == 1 and all(owner.id == heirs[0].id for owner in claimed):
        heir = heirs[0]
        # An expected machine has no approval yet that another could use.
        doubtful = not claimed and not _is_expected(heir)
        return Joining(hardware.uuid, (node.id, *(others.keys() - {heir.id})), heir.id, doubtful)
    if claimed:
        whose = ", ".join(
            f"{mac} ({owner.name})" for mac, owner in sorted(owners.items()) if owner in claimed
        )
        return Joining(refused=f"{node.name} reports MACs that belong to other machines: {whose}")
    same = [twin for twin in twins if twin.uuid == hardware.uuid]
    return Joining(None if same else hardware.uuid, tuple(others))


def unexpected(node: Node, mac: str, hardware: Hardware) -> list[tuple[str, str, str]]:
    """Return what of an expected node its machine, which proved `mac`, does not have: what it is,
    of the node, as reported. DHCP adds a MAC to the node for a UUID, which anybody can send."""
    card = [] if node.boot_mac in hardware.macs else [("MAC", node.boot_mac, mac)]
    return card + _unlike(node, hardware)


def _unlike(node: Node, hardware: Hardware) -> list[tuple[str, str, str]]:
    """Return which of UUID and serial number differ: what it is, of the node, as reported."""
    both = (
        ("UUID", node.uuid, hardware.uuid),
        ("serial number", node.serial, hardware.serial),
    )
    return [(what, was, is_) for what, was, is_ in both if was and is_ and was != is_]


def _contradicts(node: Node, hardware: Hardware, owners: Mapping[str, Node]) -> bool:
    """Return whether what was entered of an expected machine speaks against the report."""
    has_macs = node.boot_mac != ""
    mentioned = any(owner.id == node.id for owner in owners.values())
    return (has_macs and not mentioned) or bool(_unlike(node, hardware))


def _is_expected(node: Node) -> bool:
    return node.state == NodeState.EXPECTED


def _is_shadow(node: Node) -> bool:
    return node.state == NodeState.NEW and node.reported_at is None
