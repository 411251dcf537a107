"""Identity of hardware: the node that a hardware report belongs to. Pure.

Nodes are identified by MACs. A machine has proven one MAC (by the boot secret made for it). Its
other MACs and its DMI UUID are only claims. So a report may add a NIC to its node, but never take a
NIC from a machine that has reported before: that is a conflict, and the report is refused. Two
cases look like a conflict and are harmless:

- A NIC of the machine asked DHCP before the machine's first report, and was taken for a separate
  machine. Such a *shadow* (state new, no report) is absorbed.
- The machine boots from a NIC that was added after its last report. The session's node is then the
  shadow, and the node with the same UUID takes it over, if that node has no other session and is
  expected in the trampoline. If no MAC confirms that both are one machine, the result is doubtful,
  and the node's approval does not cover it.

An administrator may have entered a machine before it was seen (state expected), by MAC, UUID or
serial number. A shadow with one of these identifiers is that machine, unless another identifier
contradicts. Then an administrator has to say which machine it is.

UUIDs may not be unique: some vendors have shipped the same UUID on every board. Such UUIDs are
ignored if they are known, and so is a UUID that another living node has.
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
# People read serial numbers in terminals and spreadsheets: allow no text that these interpret.
_SERIAL = re.compile(r"[0-9A-Za-z./#][ -~]{0,63}")
_AWAITED = (NodeState.OFF, NodeState.TRAMPOLINE, NodeState.REGISTERING, NodeState.EXPECTED)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The identity that a report claims.

    uuid      DMI UUID of the system; None: absent or known not to be unique
    macs      sorted MACs of all NICs
    firmware  'bios' or 'uefi'
    serial    serial number of the system; None: absent or known not to be unique
    labels    further numbers and addresses by which people look for the node
    """

    uuid: str | None
    macs: tuple[str, ...]
    firmware: str
    serial: str | None = None
    labels: frozenset[tuple[NodeLabel, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Joining:
    """The consequences of a report for the identities of nodes.

    uuid      UUID to record; None: none
    absorb    ids of the shadows to absorb into the node (or into the heir)
    heir      id of the node that takes over the session's node; None: none does
    doubtful  only the UUID connects the heir with the report: it may be another machine with the
              same UUID
    refused   why the report is refused, a sentence, without other consequences; '': it is accepted
    """

    uuid: str | None = None
    absorb: tuple[int, ...] = ()
    heir: int | None = None
    doubtful: bool = False
    refused: str = ""


def is_unique(uuid: str | None) -> bool:
    """Return whether a DMI UUID can identify a machine: it is no known constant of a vendor, and
    does not repeat one digit."""
    return uuid is not None and len(set(uuid) - {"-"}) > 1 and uuid not in _BOGUS


def serial_of(text: str | None) -> str | None:
    """Return the serial number of a system, without spaces around it; None if it cannot identify a
    machine."""
    serial = (text or "").strip()
    bogus = serial.lower() in _NO_SERIALS or len(set(serial)) < 2
    return None if bogus or not _SERIAL.fullmatch(serial) else serial


def read(report: str) -> Hardware:
    """Return the identity in a hardware report (XML, valid against schema/report.rng)."""
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
    addresses of its BMC, its switch. They are in lower case, because some databases compare text
    without regard to case and some with it."""
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
    """Return the consequences of a report that `node` has sent.

    mac        the MAC that the session proved
    owners     the node that has a reported MAC, by MAC; MACs of no node are missing
    twins      other nodes with the same UUID, and expected nodes with the same serial number
    connected  ids of the nodes in `owners` and `twins` that have an open session
    """
    if mac not in hardware.macs:
        return Joining(
            refused=f"the report does not contain {mac}, which sent it: it is of another machine"
        )
    others = {owner.id: owner for owner in owners.values() if owner.id != node.id}
    claimed = [owner for owner in others.values() if not _is_shadow(owner)]
    alike = {each.id: each for each in (*twins, *filter(_is_expected, claimed))}
    # a twin with a session of its own is another machine with the same UUID
    heirs = [
        each
        for each in alike.values()
        if each.state in _AWAITED
        and each.id not in connected
        and not (_is_expected(each) and _contradicts(each, hardware, owners))
    ]
    if _is_shadow(node) and len(heirs) == 1 and all(owner.id == heirs[0].id for owner in claimed):
        heir = heirs[0]
        # an expected machine has no approval yet that another machine could misuse
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
    """Return the differences between an expected node and the report of its machine, which proved
    `mac`: (attribute, value of the node, reported value). The MAC may differ because DHCP adds a
    MAC to the node by a UUID, which any host can send."""
    card = [] if node.boot_mac in hardware.macs else [("MAC", node.boot_mac, mac)]
    return card + _unlike(node, hardware)


def _unlike(node: Node, hardware: Hardware) -> list[tuple[str, str, str]]:
    """Return the differences in UUID and serial number: (attribute, value of the node, reported
    value)."""
    both = (
        ("UUID", node.uuid, hardware.uuid),
        ("serial number", node.serial, hardware.serial),
    )
    return [(what, was, is_) for what, was, is_ in both if was and is_ and was != is_]


def _contradicts(node: Node, hardware: Hardware, owners: Mapping[str, Node]) -> bool:
    """Return whether the data entered for an expected machine contradict the report."""
    has_macs = node.boot_mac != ""
    mentioned = any(owner.id == node.id for owner in owners.values())
    return (has_macs and not mentioned) or bool(_unlike(node, hardware))


def _is_expected(node: Node) -> bool:
    return node.state == NodeState.EXPECTED


def _is_shadow(node: Node) -> bool:
    return node.state == NodeState.NEW and node.reported_at is None
