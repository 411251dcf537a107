"""Have a disk sanitize itself: the bytes of the commands, on stand-ins for disks."""

from __future__ import annotations

import ctypes
import struct

import pytest

from tests.unit.test_nvme import CONTROLLER, Nvme
from trampoline import sanitize


class NvmeDisk(Nvme):
    """A stand-in that sanitizes: at each look at its log it has done a quarter more."""

    def __init__(self, able: int = 0b10, *, ends: int = 1, **more: object) -> None:
        super().__init__(**more)
        struct.pack_into("<I", self.pages[CONTROLLER], 328, able)
        self.ends, self.running, self.quarters, self.action, self.ended = ends, False, 0, 0, 0
        self.orders: list[bytes] = []

    def command(self, request: int, argument: bytearray) -> int:
        if request == 0x2285:
            raise OSError(25, "Inappropriate ioctl for device")
        if request != 0xC0484E41 or argument[0] not in (0x02, 0x84):
            return super().command(request, argument)
        if argument[0] == 0x84:
            self.orders.append(bytes(argument))
            action = argument[40] & 0b111
            self.running = action != 1 and not self.status
            self.action, self.quarters = argument[40], 0
            return self.status
        namespace, address, length, cdw10 = struct.unpack_from("<4xI16xQ4xII", argument)
        assert (namespace, length, cdw10) == (0xFFFFFFFF, 512, 0x81 | 127 << 16)
        state = 2 if self.running else self.ended
        log = struct.pack(
            "<HHI", self.quarters * 16384 if self.running else 0xFFFF, state, self.action
        )
        ctypes.memmove(address, log.ljust(512, b"\0"), 512)
        if self.running:
            self.quarters += 1
            if self.quarters == 4:
                self.running, self.ended = False, self.ends
        return 0


class AtaDisk:
    """A stand-in for an ATA disk behind the kernel's SG_IO."""

    def __init__(self, word: int = 0x9000, *, ends: int = 0x80, flags: int = 0) -> None:
        self.word, self.ends, self.flags = word, ends, flags
        self.quarters = -1  # it is at nothing
        self.commands: list[bytes] = []

    def command(self, request: int, argument: bytearray) -> int:
        if request != 0x2285:
            raise OSError(25, "Inappropriate ioctl for device")
        length, data, cdb, sense = struct.unpack_from("<12xIQQQ", argument)
        command = ctypes.string_at(cdb, argument[8])
        if command[14] == 0xEC:
            assert (command[:7], length) == (bytes([0x85, 8, 0x0E, 0, 0, 0, 1]), 512)
            ctypes.memmove(data, struct.pack("<118xH392x", self.word), 512)
            return 0
        assert (command[:4], command[14], length) == (bytes([0x85, 7, 0x20, 0]), 0xB4, 0)
        if command[4] or command[6]:
            self.commands.append(command)
        if command[4]:
            self.quarters = 0
        running = 0 <= self.quarters < 4
        share = self.quarters * 16384 if running else 0xFFFF
        back = bytearray(14)
        back[:2] = 9, 12
        back[4] = self.flags | (0x40 if running else self.ends if self.quarters == 4 else 0)
        back[7], back[9] = share & 255, share >> 8
        if running and not command[4]:
            self.quarters += 1
        ctypes.memmove(sense, bytes([0x72, 1, 0, 0x1D, 0, 0, 0, 14]) + bytes(back), 22)
        argument[64] = 2
        return 0


def run(disk: object, *, start: bool = True, ata: bool = True) -> tuple[str, list[float], int]:
    """Return how the disk was sanitized, what was told, and how often it was waited for."""
    told: list[float] = []
    waits: list[float] = []
    how = sanitize.sanitize(disk, told.append, start=start, ata=ata, wait=waits.append)
    return how, told, len(waits)


@pytest.mark.parametrize(
    ("able", "cdw10", "how"),
    [
        (0b010, 0b1010, "block erase"),
        (0b111, 0b1010, "block erase"),
        (0b001, 0b1100, "crypto erase"),
    ],
)
def test_an_nvme_disk_sanitizes_itself(able: int, cdw10: int, how: str) -> None:
    disk = NvmeDisk(able)
    assert run(disk) == (f"NVMe Sanitize ({how})", [0.0, 0.25, 0.5, 0.75, 1.0], 4)
    assert disk.orders == [struct.pack("<BBHI32xI20xII", 0x84, 0, 0, 0, cdw10, 10_000, 0)]
    assert disk.formats == []


def test_an_ata_disk_sanitizes_itself() -> None:
    disk = AtaDisk()
    assert run(disk) == ("ATA Sanitize (block erase)", [0.0, 0.25, 0.5, 0.75, 1.0], 4)
    # feature 0012h, count 0010h, "BkEr" in the LBA
    (command,) = disk.commands
    assert command[3:13] == bytes([0, 0x12, 0, 0x10, 0x42, 0x72, 0, 0x45, 0, 0x6B])


def test_an_ata_disk_that_can_only_forget_its_key_does() -> None:
    disk = AtaDisk(0x3000)
    assert run(disk)[0] == "ATA Sanitize (crypto erase)"
    (command,) = disk.commands
    assert command[3:13] == bytes([0, 0x11, 0, 0x10, 0x43, 0x70, 0, 0x79, 0, 0x72])


@pytest.mark.parametrize("start", [True, False])
def test_what_goes_on_after_a_loss_of_power_is_waited_for(start: bool) -> None:
    """The order that began it is gone, or another: nothing else can be done with the disk."""
    nvme = NvmeDisk()
    nvme.running, nvme.quarters, nvme.action = True, 2, 0b1010
    assert run(nvme, start=start) == ("NVMe Sanitize (block erase)", [0.5, 0.75, 1.0], 2)
    ata = AtaDisk()
    ata.quarters = 3
    assert run(ata, start=start) == ("ATA Sanitize", [0.75, 1.0], 1)
    assert (nvme.orders, ata.commands) == ([], [])


def test_nothing_begins_that_nobody_wants() -> None:
    nvme, ata = NvmeDisk(), AtaDisk()
    assert run(nvme, start=False) == run(ata, start=False) == ("", [], 0)
    assert (nvme.orders, ata.commands) == ([], [])


def test_a_failed_one_is_none_and_the_disk_is_used_again() -> None:
    nvme, ata = NvmeDisk(ends=3), AtaDisk(ends=0)
    assert (run(nvme)[0], run(ata)[0]) == ("", "")
    assert [order[40] for order in nvme.orders] == [0b1010, 1]
    assert [(command[4], command[6]) for command in ata.commands] == [(0x12, 0x10), (0, 1)]


@pytest.mark.parametrize(
    "disk",
    [
        NvmeDisk(0b100),  # overwrites itself: no quicker than the kernel
        NvmeDisk(0),
        NvmeDisk(active=(1, 3)),  # another namespace, which may be marked keep
        NvmeDisk(status=0x11C),  # refuses
        AtaDisk(0x8000),
        AtaDisk(0x5000),
        AtaDisk(flags=0x20),  # frozen by the firmware
    ],
)
def test_a_disk_that_cannot_is_left_alone(disk: NvmeDisk | AtaDisk) -> None:
    assert run(disk)[0] == ""
    assert isinstance(disk, NvmeDisk) or disk.commands == []


def test_disks_of_other_buses_are_not_asked_by_ata() -> None:
    assert run(AtaDisk(), ata=False) == ("", [], 0)
