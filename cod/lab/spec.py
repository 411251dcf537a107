"""The description of a lab: networks and the machines on them, from a small TOML file or from
counts.

::

    name = "demo"
    address = "10.77.0.1/16"

    [[nodes]]
    name = "n1"
    firmware = "uefi"
    nics = [{ model = "e1000" }, { model = "virtio-net-pci", rom = false }]
    disks = [{ size = "4G", bus = "virtio" }, { size = "4G", bus = "nvme", sector = 4096 }]
    boot = ["nic0", "disk1", "disk0"]

docs/lab explains every key. MACs, the DMI UUID and serial numbers are derived from the names of
the lab and of the node unless the spec sets them, so a lab that is made again has the same
machines.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from cod.model import Refused
from cod.quantity import read_size

FIRMWARE = ("bios", "uefi")
NICS = ("virtio-net-pci", "e1000", "e1000e", "rtl8139", "vmxnet3")
BUSES = ("virtio", "ahci", "nvme", "virtio-scsi", "megasas", "usb")
SECTORS = (512, 4096)
NETBOOT = ("any", "http")
SWITCHES = ("bridge", "ovs")
MACHINES = ("pc", "q35")
ADDRESS = "10.77.0.1/16"
MOST_SERVERS = 3
GALERA_NODES = 3
SMALLEST = 24  # prefix length of a network with hosts and pools of addresses

Part = TypeVar("Part")

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
# namespace of the derived UUIDs; any fixed value will do
_UUIDS = uuid.UUID("5c5f7d0e-2a6b-5b8f-9c53-c0d1ab000000")


@dataclass(frozen=True, slots=True)
class LabNic:
    """A network card of a model of `NICS`.

    rom      whether the card carries its iPXE boot ROM; None: the default of `has_rom`
    network  the name of one of the lab's networks; empty: the server's
    mac      empty: derived
    """

    model: str = "virtio-net-pci"
    rom: bool | None = None
    network: str = ""
    mac: str = ""

    def has_rom(self, firmware: str) -> bool:
        """Return whether the card has a ROM. By default all have, except virtio on UEFI, since OVMF
        has a driver for virtio."""
        return (
            self.rom
            if self.rom is not None
            else firmware == "bios" or not self.model.startswith("virtio")
        )


@dataclass(frozen=True, slots=True)
class LabDisk:
    """A disk of `size` bytes (a sparse file) on a bus of `BUSES`, with sectors of `sector`
    bytes."""

    size: int = 4 << 30
    bus: str = "virtio"
    sector: int = 512


@dataclass(frozen=True, slots=True)
class LabNode:
    """A machine.

    machine    pc or q35; empty: pc for bios, q35 for uefi
    memory     in MiB
    boot       the devices in the order in which the firmware tries them, "nic0" to "disk9"; a
               device that is not listed is not tried; empty: all NICs, then all disks
    boot_kept  (UEFI) QEMU imposes no order: the order in the firmware's variables counts, which
               systems may change
    netboot    (UEFI) "http": HTTP boot alone; "any": PXE, then HTTP boot
    uuid, serial  empty: derived
    """

    name: str
    firmware: str = "bios"
    machine: str = ""
    memory: int = 512
    cpus: int = 1
    nics: tuple[LabNic, ...] = (LabNic(),)
    disks: tuple[LabDisk, ...] = (LabDisk(),)
    boot: tuple[str, ...] = ()
    boot_kept: bool = False
    netboot: str = "any"
    uuid: str = ""
    serial: str = ""

    @property
    def mac(self) -> str:
        """Return the MAC of the NIC that the firmware tries first."""
        return self.nics[self.boot_nic].mac

    @property
    def boot_nic(self) -> int:
        """Return the position of the NIC that the firmware tries first."""
        first = next((device for device in self.boot if device.startswith("nic")), "nic0")
        return int(first[3:])

    @property
    def macs(self) -> tuple[str, ...]:
        """Return the MACs of all NICs, in the spec's order."""
        return tuple(nic.mac for nic in self.nics)


@dataclass(frozen=True, slots=True)
class LabNetwork:
    """A further network of a lab.

    address  of a router with a DHCP relay between this network and the server's, with prefix
             length; empty: a switch without any server or router
    """

    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab. `address` is the address of the server's interface, with prefix length.

    switch     "bridge": the kernel's, one flat network; "ovs": Open vSwitch, whose ports may be put
               into VLANs
    snapshots  a folder: new machines begin in the trampoline, see `cod.lab.snapshots`; empty: every
               machine boots
    servers    number of COD servers, which run on hosts of their own; 0: the lab has none
    galera     the servers share three nodes of MariaDB Galera; otherwise several servers share one
               MariaDB, and a single server has SQLite
    """

    name: str
    nodes: tuple[LabNode, ...]
    address: str = ADDRESS
    networks: tuple[LabNetwork, ...] = ()
    switch: str = "bridge"
    snapshots: str = ""
    servers: int = 0
    galera: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts: servers, then nodes of their database."""
        databases = GALERA_NODES if self.galera else int(self.servers > 1)
        return (
            *(f"s{number + 1}" for number in range(self.servers)),
            *(f"d{number + 1}" for number in range(databases)),
        )

    def node(self, name: str) -> LabNode:
        """Return the node with that name or MAC. Raises `Refused` when there is none."""
        for node in self.nodes:
            if name == node.name or name in node.macs:
                return node
        raise Refused("not_found", f"lab {self.name} has no node {name!r}", "node")


def parse(text: str) -> LabSpec:
    """Return a spec from TOML text. Raises `Refused` with a sentence that names the key."""
    try:
        return from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise Refused("invalid", f"not TOML: {error}") from None


def from_dict(document: Mapping[str, Any]) -> LabSpec:
    """Return a checked and completed spec from the structure of the TOML file, or of `as_dict`."""
    _known(document, LabSpec, "")
    nodes = tuple(
        _node(row, f"nodes[{position}]") for position, row in enumerate(document.get("nodes", ()))
    )
    networks = tuple(_records(document.get("networks", ()), LabNetwork, "networks"))
    spec = LabSpec(
        str(document.get("name", "lab")),
        nodes,
        str(document.get("address", ADDRESS)),
        networks,
        str(document.get("switch", "bridge")),
        str(document.get("snapshots", "")),
        document.get("servers", 0),
        document.get("galera", False),
    )
    return completed(spec)


def as_dict(spec: LabSpec) -> dict[str, Any]:
    """Return the structure that `from_dict` reads."""
    return asdict(spec)


def counted(
    name: str,
    bios: int,
    uefi: int,
    *,
    disk: LabDisk | None = None,
    nic: LabNic | None = None,
    **node: Any,
) -> LabSpec:
    """Return a lab of `bios` + `uefi` machines n1, n2, … (BIOS first), each with one `disk` and one
    `nic`; `node` sets other fields."""
    kinds = ["bios"] * bios + ["uefi"] * uefi
    nics, disks = (nic or LabNic(),), (disk or LabDisk(),)
    nodes = tuple(
        LabNode(f"n{n}", kind, nics=nics, disks=disks, **node)
        for n, kind in enumerate(kinds, start=1)
    )
    return completed(LabSpec(name, nodes))


def completed(spec: LabSpec) -> LabSpec:
    """Return the spec with every derived field filled in. Raises `Refused` for an invalid value."""
    _check(
        _NAME.fullmatch(spec.name),
        "name",
        f"{spec.name!r} is not a name of at most 24 letters, digits and dashes",
    )
    _address(spec.address, "address")
    _one_of(spec.switch, SWITCHES, "switch")
    for network in spec.networks:
        _check(
            _NAME.fullmatch(network.name),
            "networks",
            f"{network.name!r} is not a name of letters, digits, dashes",
        )
        _check(
            network.name != "switch",
            "networks",
            "'switch' is the name of the namespace of the lab's switch",
        )
        if network.address:
            _address(network.address, f"network {network.name}: address")
    known = [network.name for network in spec.networks]
    _check(len(set(known)) == len(known), "networks", "two networks have the same name")
    for node in spec.nodes:
        _check_node(node, known)
    _check_hosts(spec)
    names = [*spec.hosts, *(node.name for node in spec.nodes)]
    _check(
        len(set(names)) == len(names),
        "nodes",
        "two nodes, or a node and a host, have the same name",
    )
    done = replace(spec, nodes=tuple(_identified(spec.name, node) for node in spec.nodes))
    macs = [mac for node in done.nodes for mac in node.macs]
    _check(len(set(macs)) == len(macs), "nodes", "two NICs have the same MAC")
    return done


def size_of(text: str | int) -> int:
    """Return a size in bytes, as `quantity.read_size` does. Raises `Refused` for text that is no
    size."""
    try:
        return read_size(str(text))
    except ValueError as error:
        raise Refused("invalid", f"{text!r} {error}", "size") from None


def _node(row: Mapping[str, Any], where: str) -> LabNode:
    _known(row, LabNode, where)
    _check("name" in row, f"{where}.name", "every node needs a name")
    values = dict(row)
    if "nics" in values:
        values["nics"] = tuple(_records(values["nics"], LabNic, f"{where}.nics"))
    if "disks" in values:
        disks = _records(values["disks"], LabDisk, f"{where}.disks")
        values["disks"] = tuple(replace(disk, size=size_of(disk.size)) for disk in disks)
    if "boot" in values:
        values["boot"] = tuple(map(str, values["boot"]))
    return LabNode(**values)


def _records(rows: Iterable[Mapping[str, Any]], record: type[Part], where: str) -> Iterator[Part]:
    for row in rows:
        _known(row, record, where)
        try:
            yield record(**row)
        except TypeError:
            raise Refused("invalid", "a name is missing", where) from None


def _known(row: Mapping[str, Any], record: Any, where: str) -> None:
    for key in row.keys() - {field.name for field in fields(record)}:
        raise Refused("invalid", f"unknown key {key!r}", f"{where}.{key}".lstrip("."))


def _check(holds: object, field: str, sentence: str) -> None:
    if not holds:
        raise Refused("invalid", sentence, field)


def _one_of(value: object, words: Sequence[object], field: str) -> None:
    _check(value in words, field, f"{value!r} is not one of {', '.join(map(str, words))}")


def _address(text: str, field: str) -> None:
    try:
        ipaddress.IPv4Interface(text)
    except ValueError:
        raise Refused(
            "invalid", f"{text!r} is not an IPv4 address with prefix length", field
        ) from None


def _check_hosts(spec: LabSpec) -> None:
    _check(
        type(spec.servers) is int and 0 <= spec.servers <= MOST_SERVERS,
        "servers",
        f"{spec.servers!r} is not a number of servers from 0 to {MOST_SERVERS}",
    )
    _check(type(spec.galera) is bool, "galera", f"{spec.galera!r} is not true or false")
    if not spec.servers:
        _check(not spec.galera, "galera", "a Galera cluster is for servers: say how many")
        return
    own = ipaddress.IPv4Interface(spec.address)
    _check(
        own.network.prefixlen <= SMALLEST and int(own.ip) - int(own.network.network_address) == 1,
        "address",
        f"a lab with servers has the first address of a network of /{SMALLEST} or more",
    )
    relayed = [network.name for network in spec.networks if network.address]
    _check(not relayed, "networks", "a lab with servers of its own has no relays")


def _check_node(node: LabNode, networks: Sequence[str]) -> None:
    where = f"node {node.name}"
    _check(
        _NAME.fullmatch(node.name),
        "name",
        f"{node.name!r} is not a name of letters, digits and dashes",
    )
    _one_of(node.firmware, FIRMWARE, f"{where}: firmware")
    _one_of(node.machine, ("", *MACHINES), f"{where}: machine")
    _one_of(node.netboot, NETBOOT, f"{where}: netboot")
    _check(
        128 <= node.memory <= 65536,
        f"{where}: memory",
        f"{node.memory} MiB is not between 128 and 65536",
    )
    _check(1 <= node.cpus <= 64, f"{where}: cpus", f"{node.cpus} is not between 1 and 64")
    _check(1 <= len(node.nics) <= 10, f"{where}: nics", "a machine has 1 to 10 NICs")
    _check(len(node.disks) <= 10, f"{where}: disks", "a machine has 10 disks at most")
    for nic in node.nics:
        _one_of(nic.model, NICS, f"{where}: nics")
        _one_of(nic.network, ("", *networks), f"{where}: nics: network")
    for disk in node.disks:
        _one_of(disk.bus, BUSES, f"{where}: disks")
        _one_of(disk.sector, SECTORS, f"{where}: disks: sector")
        _check(
            disk.sector == 512 or disk.bus != "ahci",
            f"{where}: disks: sector",
            "QEMU's SATA disks have sectors of 512 bytes",
        )
        _check(
            disk.size % disk.sector == 0 and disk.size >= 1 << 20,
            f"{where}: disks",
            f"{disk.size} is no size for a disk",
        )
    _check(len(set(node.boot)) == len(node.boot), f"{where}: boot", "a device is listed twice")
    for device in node.boot:
        _one_of(device, _devices(node), f"{where}: boot")
    _check(
        node.firmware == "uefi" or not (node.boot_kept or node.netboot == "http"),
        where,
        "boot_kept and netboot are for UEFI",
    )
    _check(
        not (node.boot and node.boot_kept),
        f"{where}: boot",
        "an order is imposed or kept, not both",
    )


def _devices(node: LabNode) -> list[str]:
    """Return the names of the node's devices: "nic0" …, "disk0" …"""
    return [f"nic{n}" for n in range(len(node.nics))] + [f"disk{n}" for n in range(len(node.disks))]


def _identified(lab: str, node: LabNode) -> LabNode:
    """Derive MACs in QEMU's own range, UUID and serial number from the names."""
    digest = hashlib.sha256(f"{lab}/{node.name}".encode()).digest()
    derived = uuid.uuid5(_UUIDS, f"{lab}/{node.name}")
    return replace(
        node,
        machine=node.machine or ("q35" if node.firmware == "uefi" else "pc"),
        nics=tuple(_with_mac(f"{lab}/{node.name}", nic, n) for n, nic in enumerate(node.nics)),
        boot=node.boot or (() if node.boot_kept else tuple(_devices(node))),
        uuid=node.uuid or str(derived),
        serial=node.serial or f"LAB{digest[3:8].hex().upper()}",
    )


def _with_mac(node: str, nic: LabNic, position: int) -> LabNic:
    digest = hashlib.sha256((f"{node}/{position}" if position else node).encode()).digest()
    return replace(
        nic, mac=(nic.mac or "52:54:00:" + ":".join(f"{byte:02x}" for byte in digest[:3])).lower()
    )
