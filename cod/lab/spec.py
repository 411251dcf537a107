"""What a lab consists of: a bridge with an address and machines on it, from a small TOML file or from counts.

::

    name = "demo"
    address = "10.77.0.1/16"

    [[nodes]]
    name = "n1"
    firmware = "uefi"                              # bios | uefi
    nic = "virtio-net-pci"                         # or e1000
    memory = 512                                   # MiB
    disks = [{ size = "4G", bus = "virtio" }]      # virtio | ahci | nvme

Whatever identifies a machine (MAC, DMI UUID, serial numbers) is derived from the names of the lab and of the node, so
the same lab made again is the same machines.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cod.model import Refused

FIRMWARE = ("bios", "uefi")
NICS = ("virtio-net-pci", "e1000")
BUSES = ("virtio", "ahci", "nvme")
MACHINES = ("pc", "q35")
ADDRESS = "10.77.0.1/16"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
_SIZE = re.compile(r"(\d+)([KMGT]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UUIDS = uuid.UUID("5c5f7d0e-2a6b-5b8f-9c53-c0d1ab000000")  # any fixed value: it keeps these UUIDs apart from others'


@dataclass(frozen=True, slots=True)
class LabDisk:
    """A disk of `size` bytes (a sparse file) on a bus: virtio, ahci or nvme."""

    size: int = 4 << 30
    bus: str = "virtio"


@dataclass(frozen=True, slots=True)
class LabNode:
    """A machine. `memory` in MiB; empty `machine`: pc for bios, q35 for uefi; empty identities are derived."""

    name: str
    firmware: str = "bios"
    nic: str = "virtio-net-pci"
    machine: str = ""
    memory: int = 512
    cpus: int = 1
    disks: tuple[LabDisk, ...] = (LabDisk(),)
    mac: str = ""
    uuid: str = ""
    serial: str = ""


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab. `address` is the bridge's, with prefix length: the server's side of the network."""

    name: str
    nodes: tuple[LabNode, ...]
    address: str = ADDRESS

    def node(self, name: str) -> LabNode:
        """The node with that name or MAC; `Refused` when there is none."""
        for node in self.nodes:
            if name in (node.name, node.mac):
                return node
        raise Refused("not_found", f"lab {self.name} has no node {name!r}", "node")


def parse(text: str) -> LabSpec:
    """A spec from TOML text; `Refused` with a sentence that names the key."""
    try:
        return from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise Refused("invalid", f"not TOML: {error}") from None


def from_dict(document: Mapping[str, Any]) -> LabSpec:
    """A checked and completed spec from the TOML's (or `as_dict`'s) structure."""
    _known(document, LabSpec, "")
    rows = document.get("nodes", ())
    nodes = tuple(_node(row, f"nodes[{position}]") for position, row in enumerate(rows))
    return completed(LabSpec(str(document.get("name", "lab")), nodes, str(document.get("address", ADDRESS))))


def as_dict(spec: LabSpec) -> dict[str, Any]:
    """The structure that `from_dict` reads."""
    return asdict(spec)


def counted(name: str, bios: int, uefi: int, *, disk: LabDisk | None = None, **node: Any) -> LabSpec:
    """A lab of `bios` + `uefi` like machines n1, n2, … (BIOS first), each with one `disk`; `node` sets other fields."""
    kinds = ["bios"] * bios + ["uefi"] * uefi
    disks = (disk or LabDisk(),)
    nodes = tuple(LabNode(f"n{n}", kind, disks=disks, **node) for n, kind in enumerate(kinds, start=1))
    return completed(LabSpec(name, nodes))


def completed(spec: LabSpec) -> LabSpec:
    """The spec with every derived field filled in; `Refused` when something in it cannot be."""
    _check(_NAME.fullmatch(spec.name), "name", f"{spec.name!r} is not a name of at most 24 letters, digits and dashes")
    try:
        ipaddress.IPv4Interface(spec.address)
    except ValueError:
        raise Refused("invalid", f"{spec.address!r} is not an IPv4 address with prefix length", "address") from None
    for node in spec.nodes:
        _check_node(node)
    names = [node.name for node in spec.nodes]
    _check(len(set(names)) == len(names), "nodes", "two nodes have the same name")
    done = replace(spec, nodes=tuple(_identified(spec.name, node) for node in spec.nodes))
    macs = [node.mac for node in done.nodes]
    _check(len(set(macs)) == len(macs), "nodes", "two nodes have the same MAC")
    return done


def size_of(text: str | int) -> int:
    """Bytes from ``4G``, ``512M`` or a number; `Refused` for anything else."""
    match = _SIZE.fullmatch(str(text).upper())
    if not match:
        raise Refused("invalid", f"{text!r} is not a size such as 4G", "size")
    return int(match[1]) * _UNITS[match[2]]


def _node(row: Mapping[str, Any], where: str) -> LabNode:
    _known(row, LabNode, where)
    _check("name" in row, f"{where}.name", "every node needs a name")
    values = dict(row)
    if "disks" in values:
        for disk in values["disks"]:
            _known(disk, LabDisk, f"{where}.disks")
        default = LabDisk()
        values["disks"] = tuple(
            LabDisk(size_of(disk.get("size", default.size)), disk.get("bus", default.bus)) for disk in values["disks"])
    return LabNode(**values)


def _known(row: Mapping[str, Any], record: type, where: str) -> None:
    for key in row.keys() - {field.name for field in fields(record)}:
        raise Refused("invalid", f"unknown key {key!r}", f"{where}.{key}".lstrip("."))


def _check(holds: object, field: str, sentence: str) -> None:
    if not holds:
        raise Refused("invalid", sentence, field)


def _check_node(node: LabNode) -> None:
    where = f"node {node.name}"
    _check(_NAME.fullmatch(node.name), "name", f"{node.name!r} is not a name of letters, digits and dashes")
    _check(node.firmware in FIRMWARE, f"{where}: firmware", f"{node.firmware!r} is not one of {', '.join(FIRMWARE)}")
    _check(node.nic in NICS, f"{where}: nic", f"{node.nic!r} is not one of {', '.join(NICS)}")
    _check(node.machine in ("", *MACHINES), f"{where}: machine", f"{node.machine!r} is not one of pc, q35")
    _check(128 <= node.memory <= 65536, f"{where}: memory", f"{node.memory} MiB is not between 128 and 65536")
    _check(1 <= node.cpus <= 64, f"{where}: cpus", f"{node.cpus} is not between 1 and 64")
    for disk in node.disks:
        _check(disk.bus in BUSES, f"{where}: disks", f"{disk.bus!r} is not one of {', '.join(BUSES)}")
        _check(disk.size % 512 == 0 and disk.size >= 1 << 20, f"{where}: disks", f"{disk.size} is no size for a disk")


def _identified(lab: str, node: LabNode) -> LabNode:
    """MAC in QEMU's own range, UUID and serial number from the names."""
    digest = hashlib.sha256(f"{lab}/{node.name}".encode()).digest()
    derived = uuid.uuid5(_UUIDS, f"{lab}/{node.name}")
    return replace(
        node,
        machine=node.machine or ("q35" if node.firmware == "uefi" else "pc"),
        mac=(node.mac or "52:54:00:" + ":".join(f"{byte:02x}" for byte in digest[:3])).lower(),
        uuid=node.uuid or str(derived),
        serial=node.serial or f"LAB{digest[3:8].hex().upper()}",
    )
