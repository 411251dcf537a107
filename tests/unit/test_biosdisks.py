"""What a BIOS says of its disks (EDD), and when that rules a disk out."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.hardware import disk, machine, put
from trampoline import inventory

GIB = 1 << 30
SLOTS = {
    "vda": "pci0000:00/0000:00:03.0/virtio1",
    "sda": "pci0000:00/0000:00:04.0/ata1/host0/target0:0:0/0:0:0:0",
    "sdb": "pci0000:00/0000:00:04.0/ata2/host1/target1:0:0/1:0:0:0",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with one virtio disk of 4 GiB, and two SATA disks of 8 GiB on one controller."""
    machine(tmp_path)
    for name, place in SLOTS.items():
        disk(tmp_path, name, place, (4 if name == "vda" else 8) * GIB // 512)
    return tmp_path


def says(root: Path, number: int, size: int, slot: str = "") -> None:
    """The BIOS has a disk: as /sys/firmware/edd shows it."""
    folder = root / f"sys/firmware/edd/int13_dev{number:02x}"
    put(folder / "raw_data", struct.pack("<HHIIIQH", 30, 0, 0, 0, 0, size // 512, 512) + bytes(48))
    if slot:
        (folder / "pci_dev").symlink_to(root / "sys/devices/pci0000:00" / slot)


def bootable(root: Path) -> set[str]:
    return {found.name for found in inventory.disks(root) if found.bootable}


def test_where_nothing_is_said_everything_may_be(root: Path) -> None:
    assert bootable(root) == set(SLOTS)


def test_a_controller_that_the_bios_does_not_know(root: Path) -> None:
    says(root, 0x80, 4 * GIB, "0000:00:03.0")
    assert bootable(root) == {"vda"}


def test_a_disk_without_a_place_is_told_by_its_size(root: Path) -> None:
    says(root, 0x80, 8 * GIB)
    assert bootable(root) == {"sda", "sdb"}, "two alike: either may be the one"


def test_a_raid_volume_of_another_size_is_on_its_controller(root: Path) -> None:
    says(root, 0x80, 15 * GIB, "0000:00:04.0")
    says(root, 0x81, 4 * GIB - 8225280, "")  # a translation that loses the last cylinder
    assert bootable(root) == set(SLOTS)


def test_a_bios_with_more_disks_than_the_kernel_keeps_rules_none_out(root: Path) -> None:
    for number in range(6):
        says(root, 0x80 + number, GIB, "0000:00:1f.0")
    assert bootable(root) == set(SLOTS)


def test_a_bios_that_has_none_of_the_local_disks_rules_none_out(root: Path) -> None:
    for number, slot in ((0x80, "0000:00:1f.0"), (0x81, "0000:00:1e.0")):
        (root / "sys/devices/pci0000:00" / slot).mkdir()
        says(root, number, 4 * GIB, slot)
    assert bootable(root) == set(SLOTS)


def test_uefi_is_not_asked(root: Path) -> None:
    says(root, 0x80, 4 * GIB, "0000:00:03.0")
    assert bootable(root) == {"vda"}
    (root / "sys/firmware/efi").mkdir()
    assert bootable(root) == set(SLOTS)


def test_only_what_is_unusual_is_reported(root: Path) -> None:
    says(root, 0x80, 4 * GIB, "0000:00:03.0")
    put(root / "sys/devices" / SLOTS["vda"] / "block/vda/queue/logical_block_size", "4096")
    reported = inventory.report(root, "52:54:00:00:00:01", inventory.disks(root)).findall("disk")
    assert {(one.get("name"), one.get("sector"), one.get("bootable")) for one in reported} == {
        ("sda", None, "no"),
        ("sdb", None, "no"),
        ("vda", "4096", None),
    }
