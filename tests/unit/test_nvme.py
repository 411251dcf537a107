"""Have an NVMe disk erase itself: the bytes of the commands, on a stand-in."""

from __future__ import annotations

import ctypes
import struct

import pytest

from trampoline import nvme

LIST, CONTROLLER, NAMESPACE = 2, 1, 0


class Nvme:
    """A stand-in for an NVMe disk: it answers Identify, and keeps what it is told to format."""

    def __init__(self, *, active: tuple[int, ...] = (3,), status: int = 0) -> None:
        self.pages = {kind: bytearray(4096) for kind in (NAMESPACE, CONTROLLER, LIST)}
        self.pages[CONTROLLER][256] = 0b10
        struct.pack_into(f"<{len(active)}I", self.pages[LIST], 0, *active)
        self.status = status
        self.formats: list[bytes] = []

    def command(self, request: int, argument: bytearray) -> int:
        if request == 0x4E40:
            return 3
        assert (request, len(argument)) == (0xC0484E41, 72)
        address, length, cdw10 = (
            int.from_bytes(argument[24:32], "little"),
            *struct.unpack_from("<II", argument, 36),
        )
        if argument[0] == 0x06:
            assert length == 4096
            assert int.from_bytes(argument[4:8], "little") == (3 if cdw10 == NAMESPACE else 0)
            ctypes.memmove(address, bytes(self.pages[cdw10]), length)
            return 0
        self.formats.append(bytes(argument))
        return self.status


@pytest.mark.parametrize(
    ("flbas", "dps", "cdw10"),
    [
        (0, 0, 0x200),
        (1, 0, 0x201),
        (0x12, 0, 0x212),  # metadata at the end of each sector
        (0, 0x0A, 0x200 | 0x0A << 5),  # protection type 2, in the first bytes
        (0x61, 0, 0x3201),  # the fiftieth format
    ],
)
def test_a_format_keeps_sectors_and_protection(flbas: int, dps: int, cdw10: int) -> None:
    disk = Nvme()
    disk.pages[NAMESPACE][26], disk.pages[NAMESPACE][29] = flbas, dps
    assert nvme.purge(disk)
    (told,) = disk.formats
    assert told == struct.pack("<BBHI32xI20xII", 0x80, 0, 0, 3, cdw10, 240_000, 0)


@pytest.mark.parametrize(
    ("fna", "cmic", "active", "formats"),
    [
        (0b000, 0, (3, 4), 1),
        (0b001, 0, (3,), 1),
        (0b001, 0, (3, 4), 0),
        (0b010, 0, (1, 3), 0),
        (0b010, 0b10, (3,), 0),
        (0b000, 0b10, (3,), 1),
        (0b100, 0, (3, 4), 1),
    ],
)
def test_no_other_namespace_is_erased(
    fna: int, cmic: int, active: tuple[int, ...], formats: int
) -> None:
    """Other namespaces may be marked keep, and are wiped by themselves where they are not."""
    disk = Nvme(active=active)
    disk.pages[CONTROLLER][524], disk.pages[CONTROLLER][76] = fna, cmic
    assert nvme.purge(disk) == bool(formats)
    assert len(disk.formats) == formats


def test_a_disk_that_cannot_format_is_left_alone() -> None:
    disk = Nvme()
    disk.pages[CONTROLLER][256] = 0b101
    assert not nvme.purge(disk)
    assert disk.formats == []


def test_a_format_that_fails_is_none() -> None:
    assert not nvme.purge(Nvme(status=0x2002))


def test_a_disk_that_is_no_nvme_is_none() -> None:
    class Other:
        def command(self, request: int, argument: bytearray) -> int:
            raise OSError(25, "Inappropriate ioctl for device")

    assert not nvme.purge(Other())
