"""Machines as trees of files: what /proc and /sys look like on them, for tests of the inventory and
of whole agents."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

UUID = "4c4c4544-0042-3510-8054-b4c04f4e3232"


def put(path: Path, content: str | bytes = "") -> None:
    """A file with the folders above it; text gets the newline that the kernel writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def machine(
    root: Path,
    *,
    uuid: str = UUID,
    cpus: int = 2,
    mib: int = 2048,
    model: str = "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz",
    mhz: float = 2095.074,
    flags: str = "fpu vme lm nx aes vmx avx2",
) -> Path:
    """A machine without NICs and disks; returns `root`."""
    for name, value in (
        ("product_uuid", uuid.upper()),
        ("sys_vendor", "Dell Inc."),
        ("product_name", "PowerEdge R640"),
        ("product_serial", "B5TN222"),
        ("board_serial", "CN7016346K00A1"),
    ):
        put(root / "sys/class/dmi/id" / name, value)
    put(root / "proc/meminfo", f"MemTotal:       {mib * 1024} kB\nMemFree:        1 kB")
    put(
        root / "proc/cpuinfo",
        "\n\n".join(
            f"processor\t: {cpu}\nmodel name\t: {model}\ncpu MHz\t\t: {mhz}\nphysical id\t:"
            f" {cpu % 2}\nflags\t\t: {flags}"
            for cpu in range(cpus)
        ),
    )
    put(root / "proc/cmdline", "quiet")
    put(root / "proc/sys/kernel/osrelease", "6.1.0-56-amd64")
    (root / "sys/class/net").mkdir(parents=True)
    (root / "sys/block").mkdir(parents=True)
    return root


def nic(
    root: Path,
    name: str,
    mac: str,
    *,
    driver: str = "",
    carrier: str | None = "1",
    speed: str = "1000",
    wireless: bool = False,
) -> None:
    """A NIC; `driver` '' makes it one without hardware. The kernel refuses to tell a NIC's carrier
    while it is down."""
    folder = root / "sys/class/net" / name
    put(folder / "address", mac)
    put(folder / "type", "1")
    put(folder / "speed", speed)
    if carrier is not None:
        put(folder / "carrier", carrier)
    if driver:
        device = root / "sys/devices/pci0000:00" / name
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        device.mkdir(parents=True)
        (device / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
        (folder / "device").symlink_to(device)
    if wireless:
        (folder / "wireless").mkdir()


def pci(
    root: Path,
    slot: str,
    class_: str,
    ids: str,
    *,
    board: str = "0000:0000",
    driver: str = "",
    virtual: bool = False,
) -> None:
    """A function of a PCI device; `ids` and `board` are 'vendor:device'."""
    device = root / "sys/bus/pci/devices" / slot
    vendor, _, number = ids.partition(":")
    subvendor, _, subdevice = board.partition(":")
    for name, value in (
        ("class", class_),
        ("vendor", vendor),
        ("device", number),
        ("subsystem_vendor", subvendor),
        ("subsystem_device", subdevice),
    ):
        put(device / name, f"0x{value}")
    if driver:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    if virtual:
        put(device / "physfn/vendor", "0x0000")


def disk(
    root: Path,
    name: str,
    place: str,
    sectors: int,
    files: Mapping[str, str | bytes] | None = None,
    partitions: tuple[tuple[int, int, int, str], ...] = (),
) -> None:
    """A disk at `place` in the device tree (which says what bus it is on); `files` as in
    /sys/block/NAME.

    partitions  (number, start, size, name), in sectors of 512 bytes
    """
    device = root / "sys/devices" / place
    folder = device / "block" / name
    for file, content in {
        "size": str(sectors),
        "removable": "0",
        "ro": "0",
        **(files or {}),
    }.items():
        if not file.startswith("device/"):
            put(folder / file, content)
        else:
            put(device / file.removeprefix("device/"), content)
    for number, start, size, label in partitions:
        part = folder / f"{name}{'p' if name[-1].isdigit() else ''}{number}"
        put(part / "partition", str(number))
        put(part / "start", str(start))
        put(part / "size", str(size))
        put(
            part / "uevent",
            f"DEVTYPE=partition\nPARTN={number}" + (f"\nPARTNAME={label}" if label else ""),
        )
    (folder / "device").symlink_to(device)
    (root / "sys/block" / name).symlink_to(folder)


def memory_device(mib: int) -> bytes:
    """An SMBIOS memory device (type 17) of that size, with one string, as in
    /sys/firmware/dmi/tables/DMI."""
    size = mib if mib < 0x7FFF else 0x7FFF
    body = bytes([17, 0x28, 0, 0]) + bytes(8) + size.to_bytes(2, "little") + bytes(14)
    return body + (mib if size == 0x7FFF else 0).to_bytes(4, "little") + bytes(8) + b"DIMM A1\0\0"


def host_interface(address: bytes, kind: int = 0x40, protocol: int = 4, family: int = 1) -> bytes:
    """A structure of type 42 with a Redfish service."""
    own = bytes(16) + bytes((1, 1)) + bytes((169, 254, 0, 2)).ljust(16, b"\0") + bytes(16)
    service = bytes((1, family)) + address.ljust(16, b"\0") + bytes(16) + struct.pack("<HI", 443, 0)
    record = own + service + b"\0"
    device = bytes((2, 1, 2, 3, 4))  # a USB device, by its ids
    body = bytes((kind, len(device))) + device + b"\2" + b"\2\1x"
    body += bytes((protocol, len(record))) + record
    return bytes((42, 4 + len(body), 0, 42)) + body
