"""This machine's inventory: reads /proc and /sys, and makes the report's `<node>` element (see
schema/report.rng).

Nothing is opened for writing and no disk is read: partitions are those that the kernel has found.
The roots are arguments, so a tree of files can stand for any machine. Facts that cannot be read are
left out of the document, never guessed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from trampoline import biosdisks, bmc, pci
from trampoline.biosdisks import BiosDisk
from trampoline.bmc import Bmc
from trampoline.lldp import Heard, deaf, readable

# The CPU features that software is built for or needs; the hundred others would only create further
# node types.
FLAGS = frozenset(
    {
        "aes",
        "amx_tile",
        "avx",
        "avx2",
        "avx512_vnni",
        "avx512f",
        "ept",
        "fma",
        "hypervisor",
        "la57",
        "lm",
        "npt",
        "nx",
        "pdpe1gb",
        "rdrand",
        "rdseed",
        "sev",
        "sgx",
        "sha_ni",
        "sse4_2",
        "svm",
        "vmx",
    }
)
SECTOR = 512  # the unit of every size in /sys/block, whatever the disk's own sectors are
LOCAL = frozenset({"ata", "file", "mmc", "nvme", "sas", "scsi", "virtio"})


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as the kernel read it; `start` and `size` in bytes."""

    number: int
    start: int
    size: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk. `path` is where it is opened; `local` says that wipe and prime may touch it; `sector`
    is the size of its logical sectors, bytes; `bootable` is False if the firmware is known not to
    start systems from it; `paths`: how many disks show its WWN."""

    name: str
    path: str
    size: int
    transport: str
    local: bool = True
    rotational: bool = False
    removable: bool = False
    model: str = ""
    serial: str = ""
    wwid: str = ""
    partitions: tuple[Partition, ...] = ()
    sector: int = SECTOR
    bootable: bool = True
    paths: int = 1


@dataclass(frozen=True, slots=True)
class Nic:
    """A wired network interface; `speed` in Mb/s, 0 when unknown; `link` is up, down or unknown."""

    name: str
    mac: str
    driver: str = ""
    link: str = "unknown"
    speed: int = 0


def report(
    root: Path,
    boot_mac: str,
    disks: tuple[Disk, ...],
    heard: Heard = deaf,
    bmcs: Callable[[], Sequence[Bmc]] = bmc.none,
) -> Element:
    """Return the `<node>` element. `root` is the folder that contains proc and sys; `boot_mac` is
    the MAC of the NIC that the machine booted from; `bmcs` returns the addresses of its BMC."""
    node = Element("node", version="1")
    _put(node, "system", system(root))
    _put(
        node,
        "firmware",
        {
            "kind": "uefi" if (root / "sys/firmware/efi").is_dir() else "bios",
            "version": _read(root / "sys/class/dmi/id/bios_version"),
        },
    )
    _put(node, "memory", {"mib": str(memory(root))})
    _add_cpu(node, root)
    wired = nics(root, boot_mac)
    neighbours = heard([nic.name for nic in wired])
    for nic in wired:
        boot = "yes" if nic.mac == boot_mac else "no"
        facts = asdict(nic) | {"speed": str(nic.speed or ""), "boot": boot}
        element = _put(node, "nic", facts)
        if nic.name in neighbours:
            _put(element, "neighbour", neighbours[nic.name]._asdict())
    for disk in disks:
        _add_disk(node, disk)
    devices = pci.devices(root)
    for device in devices:
        _put(node, "pci", {name.rstrip("_"): value for name, value in asdict(device).items()})
    if count := pci.gpus(devices):
        _put(node, "gpu", {"count": str(count)})
    for found in dict.fromkeys([*bmcs(), *bmc.host_interfaces(_smbios(root, 42))][: bmc.MOST]):
        _put(node, "bmc", asdict(found))
    _put(
        node, "kernel", {"release": _read(root / "proc/sys/kernel/osrelease") or os.uname().release}
    )
    return node


# ---------------------------------------------------------------- the machine


def system(root: Path) -> dict[str, str]:
    """Return DMI's names for the machine: uuid, vendor, product, serial; '' for missing ones."""
    dmi = root / "sys/class/dmi/id"
    uuid = _read(dmi / "product_uuid").lower()
    return {
        "uuid": uuid if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) else "",
        "vendor": _read(dmi / "sys_vendor"),
        "product": _read(dmi / "product_name"),
        "serial": _read(dmi / "product_serial"),
        "board": _read(dmi / "board_serial"),
    }


def memory(root: Path) -> int:
    """Return the installed memory in MiB: the modules' sizes in SMBIOS, or else the memory that the
    kernel has, which is a little less."""
    # Memory devices: DSP0134 7.18, size at 0x0C, extended size at 0x1C.
    if installed := sum(
        _device_size(device) for device in _smbios(root, 17) if len(device) >= 0x0E
    ):
        return installed
    found = re.search(r"^MemTotal:\s+(\d+) kB", _raw(root / "proc/meminfo"), re.M)
    return max(int(found[1]) // 1024, 1) if found else 1


def _smbios(root: Path, kind: int) -> Iterator[bytes]:
    """Yield the formatted parts of the SMBIOS structures of one type (DSP0134 6.1)."""
    try:
        table = (root / "sys/firmware/dmi/tables/DMI").read_bytes()
    except OSError:
        return
    at = 0
    while at + 4 <= len(table) and table[at + 1] >= 4:
        end = table.find(b"\0\0", at + table[at + 1])  # the strings that follow end in two zeros
        if end < 0:
            return
        if table[at] == kind:
            yield table[at : at + table[at + 1]]
        at = end + 2


def _device_size(device: bytes) -> int:
    size = int.from_bytes(device[0x0C:0x0E], "little")
    if size == 0x7FFF and len(device) >= 0x20:
        return int.from_bytes(device[0x1C:0x20], "little") & 0x7FFFFFFF
    if size in (0, 0xFFFF):  # empty socket, unknown
        return 0
    return (size & 0x7FFF) // 1024 if size & 0x8000 else size


def _add_cpu(node: Element, root: Path) -> None:
    text = _raw(root / "proc/cpuinfo")
    fields = dict(re.findall(r"^(\S.*?)\s*:\s*(.*)$", text, re.M))
    model = readable(fields.get("model name", ""))
    cpu = _put(
        node,
        "cpu",
        {
            "count": str(len(re.findall(r"^processor\s*:", text, re.M)) or 1),
            "sockets": str(len(set(re.findall(r"^physical id\s*:\s*(\d+)", text, re.M))) or 1),
            "model": model,
            "mhz": str(_mhz(root, model, fields.get("cpu MHz", "")) or ""),
            "arch": os.uname().machine,
        },
    )
    for flag in sorted(FLAGS & set(fields.get("flags", "").split())):
        SubElement(cpu, "flag").text = flag


def _mhz(root: Path, model: str, measured: str) -> int:
    """Return the CPU's nominal clock. The kernel's measurement varies with load and from boot to
    boot, and would put equal machines into different types, so it is the last choice, and rounded.
    SMBIOS: DSP0134 7.5, current speed at 0x16."""
    if sold := re.search(r"@ ([\d.]+)GHz", model):
        return round(float(sold[1]) * 1000)
    if limit := _read(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"):
        return _number(limit) // 1000
    if speeds := [
        int.from_bytes(cpu[0x16:0x18], "little") for cpu in _smbios(root, 4) if len(cpu) >= 0x18
    ]:
        return speeds[0]
    return int(round(float(measured), -2)) if re.fullmatch(r"[\d.]+", measured) else 0


# ---------------------------------------------------------------- network


def nics(root: Path, boot_mac: str) -> list[Nic]:
    """Return wired interfaces, by name: hardware interfaces, and the one with the MAC that the
    machine booted from, which is added if it is missing."""
    net = root / "sys/class/net"
    found = [_nic(path) for path in sorted(net.iterdir())] if net.is_dir() else []
    wired = [
        nic
        for nic, real in found
        if nic.mac == boot_mac or (real and re.fullmatch(r"\w\w(:\w\w){5}", nic.mac))
    ]
    return wired if any(nic.mac == boot_mac for nic in wired) else [*wired, Nic("boot", boot_mac)]


def _nic(path: Path) -> tuple[Nic, bool]:
    """Return an interface, and whether it is wired hardware."""
    carrier = _read(path / "carrier")  # reading it fails while the interface is down
    speed, driver = _number(_read(path / "speed")), path / "device/driver"
    nic = Nic(
        path.name,
        _read(path / "address").lower(),
        driver.resolve().name if driver.exists() else "",
        {"1": "up", "0": "down"}.get(carrier, "unknown"),
        speed if carrier == "1" and 0 < speed < 0xFFFFFFFF else 0,
    )
    ethernet = _read(path / "type") == "1"  # ARPHRD_ETHER
    return nic, ethernet and (path / "device").exists() and not (path / "wireless").exists()


# ---------------------------------------------------------------- disks


def disks(root: Path, same_wwn: str = "refuse") -> tuple[Disk, ...]:
    """Return every disk with a medium in it, by name. Disks with the same WWN are a volume with
    several paths, or disks with a copied WWN: none of them is local ('refuse'), or the first of
    each WWN is ('paths'), or all are ('disks')."""
    block = root / "sys/block"
    paths = block.iterdir() if block.is_dir() else ()
    names = sorted(paths, key=lambda path: (len(path.name), path.name))  # sdb before sdaa
    bios = None if (root / "sys/firmware/efi").is_dir() else biosdisks.listed(root)
    found = [_disk(path, bios) for path in names if _is_disk(path)]
    # If EDD names none of the present disks (some BIOSes report other controllers' devices), it is
    # ignored: otherwise no disk could be primed.
    if not any(disk.local and disk.bootable for disk in found):
        found = [replace(disk, bootable=True) for disk in found]
    count = Counter(disk.wwid for disk in found if disk.wwid)
    first = {disk.wwid: disk for disk in reversed(found)}
    return tuple(
        replace(
            disk,
            local=disk.local
            and (same_wwn == "disks" or (same_wwn == "paths" and first[disk.wwid] is disk)),
            paths=count[disk.wwid],
        )
        if count[disk.wwid] > 1
        else disk
        for disk in found
    )


def file_disk(path: Path) -> Disk:
    """Return a regular file that stands for a disk in tests."""
    return Disk(path.name, str(path), path.stat().st_size, "file", serial=path.name)


def _is_disk(path: Path) -> bool:
    """Return whether the device is hardware (no loop, ram, md, dm), no optical or floppy drive, not
    hidden (one path of a multipath NVMe disk), and has a medium inside."""
    return (
        (path / "device").exists()
        and not re.match(r"sr\d|fd\d|mmcblk\d+(boot|rpmb)", path.name)
        and _read(path / "hidden") != "1"
        and _number(_read(path / "size")) > 0
    )


def _disk(path: Path, bios: Sequence[BiosDisk] | None) -> Disk:
    transport, removable = _transport(path), _read(path / "removable") == "1"
    device = path / "device"
    size = _number(_read(path / "size")) * SECTOR
    return Disk(
        name=path.name,
        path=f"/dev/{path.name.replace('!', '/')}",  # the kernel writes cciss/c0d0 so
        size=size,
        transport=transport,
        local=transport in LOCAL and not removable and _read(path / "ro") != "1",
        rotational=_read(path / "queue/rotational") == "1",
        removable=removable,
        model=_read(device / "model"),
        serial=_read(path / "serial") or _read(device / "serial") or _page_80(device),
        wwid=_read(path / "wwid") or _read(device / "wwid"),
        partitions=tuple(sorted(_partitions(path), key=lambda partition: partition.number)),
        sector=_number(_read(path / "queue/logical_block_size")) or SECTOR,
        bootable=biosdisks.starts(path, size, bios),
    )


def _transport(path: Path) -> str:
    """Return the bus that the disk is attached to, from its place in the device tree. The first
    match counts: a USB bridge has an ATA disk behind it, and is still USB."""
    place = str(path.resolve())
    if "/nvme" in place:
        network = _read(path / "device/transport") or _read(path / "device/device/transport")
        return "nvme" if network in ("", "pcie", "apple-nvme") else "nvmeof"
    marks = (
        ("/usb", "usb"),
        ("/session", "iscsi"),
        ("/rport-", "fc"),
        ("/end_device-", "sas"),
        ("/ata", "ata"),
        ("/virtio", "virtio"),
        ("/mmc", "mmc"),
        ("/host", "scsi"),
    )
    return next((name for mark, name in marks if re.search(rf"{mark}\d", place)), "unknown")


def _page_80(device: Path) -> str:
    """Return the unit serial number page (SPC-4 7.8.18): four bytes of header, then text."""
    try:
        return readable((device / "vpd_pg80").read_bytes()[4:].decode("ascii", "replace"))
    except OSError:
        return ""


def _partitions(path: Path) -> list[Partition]:
    found = []
    for part in path.iterdir():
        if (part / "partition").is_file():
            name = re.search(r"^PARTNAME=(.*)$", _raw(part / "uevent"), re.M)
            start, size = (_number(_read(part / key)) * SECTOR for key in ("start", "size"))
            found.append(
                Partition(
                    _number(_read(part / "partition")),
                    start,
                    size,
                    readable(name[1]) if name else "",
                )
            )
    return found


def _add_disk(node: Element, disk: Disk) -> None:
    yes = {True: "yes", False: "no"}
    element = _put(
        node,
        "disk",
        {
            "name": disk.name,
            "size": str(disk.size),
            "transport": disk.transport,
            "local": yes[disk.local],
            "rotational": yes[disk.rotational],
            "removable": yes[disk.removable],
            "model": disk.model,
            "serial": disk.serial,
            "wwid": disk.wwid,
            # Values that nearly every disk has are left out, so that known machines keep their
            # types.
            "sector": "" if disk.sector == SECTOR else str(disk.sector),
            "bootable": "" if disk.bootable else "no",
            "paths": "" if disk.paths == 1 else str(disk.paths),
        },
    )
    for part in disk.partitions:
        _put(element, "partition", {name: str(value) for name, value in asdict(part).items()})


# ---------------------------------------------------------------- files


def _put(parent: Element, tag: str, attributes: dict[str, str]) -> Element:
    """Return a child with those of `attributes` that are not empty."""
    return SubElement(parent, tag, {key: value for key, value in attributes.items() if value})


def _raw(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # absent, or the kernel says that it does not know (EINVAL, EOPNOTSUPP)
        return ""


def _read(path: Path) -> str:
    return readable(_raw(path))


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d+", text) else 0
