"""Partition tables, GPT (UEFI 2.10, chapter 5) and MBR: reading an image's table, fitting it to the
disk, making a new one.

Sizes and places are bytes outside this file's tables, sectors inside. New partitions are aligned to
1 MiB, and the last MiB of a disk is left to the backup GPT.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from zlib import crc32

from cod.orders import Partition
from trampoline.errors import OrderError

ALIGN = 1 << 20
# Name in templates -> GPT type GUID, MBR type (0: it has none).
TYPES = {
    "linux": ("0FC63DAF-8483-4772-8E79-3D69D8477DE4", 0x83),
    "esp": ("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", 0xEF),
    "bios": ("21686148-6449-6E6F-744E-656564454649", 0),
    "swap": ("0657FD6D-A4AB-43C4-84E5-0933C84B4F4F", 0x82),
    "lvm": ("E6D6D379-F507-44C2-A23C-238F2A3DF928", 0x8E),
    "raid": ("A19D880F-05FC-4D3B-A006-743F0F84911E", 0xFD),
    "data": ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", 0x0C),
}
_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")
_ENTRY = struct.Struct("<16s16sQQQ72s")
_MBR_ENTRY = struct.Struct("<B3sB3sII")
LEGACY_BOOT = 1 << 2  # attribute of a GPT's partition that a BIOS starts (UEFI 2.10, 5.3.3)
_NO_CHS = b"\xfe\xff\xff"  # beyond what cylinders, heads and sectors can say


class Disk(Protocol):
    """A device that a partition table is read from and written to (`target.Target`)."""

    path: str
    size: int
    sector: int

    def read(self, length: int, offset: int) -> bytes: ...
    def write(self, data: memoryview, offset: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """A partition on a disk: `start` and `size` in bytes; `boot`: a BIOS starts the system from
    it."""

    number: int
    start: int
    size: int
    type: str
    name: str
    boot: bool = False


def place(partitions: Sequence[Partition], disk_size: int, reserve: int = 0) -> list[Span]:
    """Return where the partitions of a layout go on a disk, with `reserve` bytes left free behind
    them. Raises PrimeError."""
    at, end = ALIGN, _end(disk_size) - reserve
    spans = []
    for partition in partitions:
        size = _up(partition.size) if partition.size else end - at
        if size < ALIGN or at + size > end:
            raise OrderError(
                f"the disk is too small for the layout: partition {partition.number} does not fit"
            )
        spans.append(
            Span(partition.number, at, size, partition.type, partition.name, partition.boot)
        )
        at += size
    return spans


def least_size(partitions: Sequence[Partition], reserve: int = 0) -> int:
    """Return bytes that a disk must have for `place` to succeed."""
    return 2 * ALIGN + sum(_up(partition.size) or ALIGN for partition in partitions) + reserve


def tail(disk_size: int, size: int) -> int:
    """Return where a partition of `size` bytes at the disk's end starts."""
    return _end(disk_size) - _up(size)


def addressed(disk_size: int, sector: int) -> int:
    """Return how many bytes of a disk an MBR can address."""
    return min(disk_size, 0xFFFFFFFF * sector)


def _up(size: int) -> int:
    return (size + ALIGN - 1) // ALIGN * ALIGN


def _end(disk_size: int) -> int:
    return (disk_size - ALIGN) // ALIGN * ALIGN


# ---------------------------------------------------------------- GPT


@dataclass(frozen=True, slots=True)
class GptEntry:
    """A GPT entry: first and last LBA."""

    type: bytes
    guid: bytes
    first: int
    last: int
    attributes: int
    name: str

    @property
    def count(self) -> int:
        """Return the number of its sectors."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Gpt:
    """A GUID partition table: entries by number. `alternate` is the LBA that the header gives for
    the backup header."""

    guid: bytes
    count: int = 128
    entry_size: int = 128
    entries_at: int = 2
    first_usable: int = 0
    alternate: int = 0
    entries: dict[int, GptEntry] = field(default_factory=dict)

    def add(self, span: Span, disk: Disk) -> Gpt:
        """Return the table with another partition. Raises PrimeError if it would overlap another,
        or if all entries are in use."""
        first, last = span.start // disk.sector, (span.start + span.size) // disk.sector - 1
        if any(first <= entry.last and entry.first <= last for entry in self.entries.values()):
            raise OrderError(
                f"the disk {disk.path} has no room for partition {span.name!r} behind the others"
            )
        if not 0 < span.number <= self.count:
            raise OrderError(
                f"the partition table has {self.count} entries; there is no number {span.number}"
            )
        attributes = LEGACY_BOOT if span.boot and span.type != "bios" else 0
        entry = GptEntry(type_guid(span.type), new_guid(), first, last, attributes, span.name)
        return replace(self, entries=self.entries | {span.number: entry})

    def free_number(self) -> int:
        """Return the first number without a partition; 0 if there is none."""
        return next((n for n in range(1, self.count + 1) if n not in self.entries), 0)

    def write(self, disk: Disk) -> None:
        """Write both copies, fitted to the disk's real end, and the protective MBR's size. The
        backup is written first."""
        sectors = disk.size // disk.sector
        array = self._array()
        taken = -(-len(array) // disk.sector)
        last = sectors - 1
        first_usable = self.first_usable or self.entries_at + taken
        if any(entry.last > last - taken - 1 for entry in self.entries.values()):
            raise OrderError(f"the disk {disk.path} is too small for its partition table")
        common = (first_usable, last - taken - 1, array, disk.sector)
        # a power cut in between leaves the primary table, which firmware reads, as it was
        _put(disk, last - taken, array)
        _put(disk, last, self._header(last, 1, last - taken, *common))
        _put(disk, self.entries_at, array)
        _put(disk, 1, self._header(1, last, self.entries_at, *common))
        _put(disk, 0, _protective(disk.read(disk.sector, 0), sectors))
        if self.alternate not in (0, last):
            # Erase the backup header that an image smaller than the disk has left in the disk's
            # middle.
            inside = any(
                entry.first <= self.alternate <= entry.last for entry in self.entries.values()
            )
            if not inside and disk.read(8, self.alternate * disk.sector) == b"EFI PART":
                _put(disk, self.alternate, bytes(disk.sector))

    def _array(self) -> bytes:
        array = bytearray(self.count * self.entry_size)
        for number, entry in self.entries.items():
            name = entry.name.encode("utf-16-le")[:72]
            _ENTRY.pack_into(
                array,
                (number - 1) * self.entry_size,
                entry.type,
                entry.guid,
                entry.first,
                entry.last,
                entry.attributes,
                name,
            )
        return bytes(array)

    def _header(
        self, at: int, other: int, entries_at: int, first: int, last: int, array: bytes, sector: int
    ) -> bytes:
        def pack(crc: int) -> bytes:
            return _HEADER.pack(
                b"EFI PART",
                0x10000,
                _HEADER.size,
                crc,
                0,
                at,
                other,
                first,
                last,
                self.guid,
                entries_at,
                self.count,
                self.entry_size,
                crc32(array),
            )

        return pack(crc32(pack(0))).ljust(sector, b"\0")


def read_gpt(disk: Disk) -> Gpt | None:
    """Return the primary GPT of a disk; None if it has none, or a damaged one."""
    head = disk.read(disk.sector, disk.sector)
    if len(head) < _HEADER.size or head[:8] != b"EFI PART":
        return None
    fields = _HEADER.unpack_from(head)
    size, crc, (at, alternate, first) = fields[2], fields[3], fields[5:8]
    guid, entries_at, count, entry_size, array_crc = fields[9:]
    if (
        not _HEADER.size <= size <= len(head)
        or at != 1
        or count > 1024
        or not 128 <= entry_size <= 4096
    ):
        return None
    if (
        crc32(head[:16] + bytes(4) + head[20:size]) != crc
        or max(entries_at, alternate, first) > disk.size
    ):
        return None
    array = disk.read(count * entry_size, entries_at * disk.sector)
    if len(array) != count * entry_size or crc32(array) != array_crc:
        return None
    entries = {
        n + 1: _entry(array[n * entry_size :])
        for n in range(count)
        if any(array[n * entry_size :][:16])
    }
    return Gpt(guid, count, entry_size, entries_at, first, alternate, entries)


def _entry(data: bytes) -> GptEntry:
    kind, guid, first, last, attributes, name = _ENTRY.unpack_from(data)
    return GptEntry(
        kind, guid, first, last, attributes, name.decode("utf-16-le", "replace").rstrip("\0")
    )


def _put(disk: Disk, sector: int, data: bytes) -> None:
    disk.write(memoryview(data), sector * disk.sector)


def _protective(sector0: bytes, sectors: int) -> bytes:
    """Return sector 0 with a protective entry over the whole disk. Boot code and the entries of a
    hybrid MBR stay."""
    sector = bytearray(sector0)
    entries = _mbr_entries(sector0)
    place = next((n for n, entry in enumerate(entries) if entry.type == 0xEE), 0)
    if sector0[510:512] != b"\x55\xaa":
        sector[446:512] = bytes(64) + b"\x55\xaa"
    entry = MbrEntry(
        entries[place].flag if entries[place].type == 0xEE else 0,
        0xEE,
        1,
        min(sectors - 1, 0xFFFFFFFF),
    )
    # the start in cylinders, heads and sectors that UEFI 2.10, 5.2.3 prescribes
    sector[446 + 16 * place : 462 + 16 * place] = entry.pack(b"\x00\x02\x00")
    return bytes(sector)


def type_guid(name: str) -> bytes:
    """Return a partition type's GUID as it lies on the disk (its first three fields are
    little-endian)."""
    text = TYPES[name][0] if name in TYPES else name
    raw = bytes.fromhex(text.replace("-", ""))
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]


def type_name(raw: bytes) -> str:
    """Return the name in templates of a partition type's GUID, or else the GUID's text."""
    guid = guid_text(raw)
    return next((name for name, (own, _) in TYPES.items() if own == guid), guid)


def guid_text(raw: bytes) -> str:
    """Return a GUID as people write it, in capitals."""
    text = (raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:16]).hex().upper()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_guid() -> bytes:
    """Return a random GUID (RFC 9562, version 4)."""
    raw = bytearray(os.urandom(16))
    raw[7] = raw[7] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


# ---------------------------------------------------------------- MBR


@dataclass(frozen=True, slots=True)
class MbrEntry:
    """A primary partition: first sector and sectors."""

    flag: int
    type: int
    first: int
    count: int

    def pack(self, start_chs: bytes = _NO_CHS) -> bytes:
        return _MBR_ENTRY.pack(self.flag, start_chs, self.type, _NO_CHS, self.first, self.count)


def _mbr_entries(sector0: bytes) -> list[MbrEntry]:
    found = []
    for n in range(4):
        flag, _, kind, _, first, count = _MBR_ENTRY.unpack_from(sector0, 446 + 16 * n)
        found.append(MbrEntry(flag, kind, first, count))
    return found


def read_mbr(disk: Disk) -> dict[int, MbrEntry]:
    """Return the primary partitions of an MBR by number; {} if sector 0 is empty, or a file
    system's boot sector."""
    sector0 = disk.read(512, 0)
    if sector0[510:] != b"\x55\xaa":
        return {}
    entries = _mbr_entries(sector0)
    if any(entry.flag not in (0, 0x80) for entry in entries):
        return {}
    return {number: entry for number, entry in enumerate(entries, 1) if entry.type and entry.count}


def has_mbr(disk: Disk) -> bool:
    """Return whether the disk has an MBR with partitions."""
    return bool(read_mbr(disk))


def places(disk: Disk) -> dict[int, tuple[int, int]]:
    """Return the places of the partitions in a disk's table, by number: (first byte, bytes)."""
    table = read_gpt(disk)
    entries: Mapping[int, GptEntry | MbrEntry] = table.entries if table else read_mbr(disk)
    return {
        number: (entry.first * disk.sector, entry.count * disk.sector)
        for number, entry in entries.items()
        if 0 < entry.count <= disk.size // disk.sector - entry.first
    }


@dataclass(frozen=True, slots=True)
class EspPlace:
    """An EFI system partition: its number, first sector and sectors. Firmware identifies it by its
    GUID (GPT) or by the disk's signature (MBR), sixteen bytes each; the other is empty."""

    number: int
    first: int
    count: int
    guid: bytes
    signature: bytes


def esp(disk: Disk) -> EspPlace | None:
    """Return the first EFI system partition that lies on the disk; None if there is none."""
    if table := read_gpt(disk):
        places = [
            EspPlace(number, entry.first, entry.count, entry.guid, b"")
            for number, entry in sorted(table.entries.items())
            if type_name(entry.type) == "esp"
        ]
    elif mbr := read_mbr(disk):
        signed = disk.read(444, 0)[440:].ljust(16, b"\0")
        places = [
            EspPlace(number, entry.first, entry.count, b"", signed)
            for number, entry in mbr.items()
            if entry.type == TYPES["esp"][1]
        ]
    else:
        return None
    sectors = disk.size // disk.sector
    return next(
        (place for place in places if place.first > 0 < place.count <= sectors - place.first), None
    )


def signature(sector0: bytes) -> int:
    """Return the disk signature in a first sector; 0 if there is none, or if the sector has no boot
    signature (0x55AA)."""
    return int.from_bytes(sector0[440:444], "little") if sector0[510:512] == b"\x55\xaa" else 0


def sign(disk: Disk, others: Mapping[int, str]) -> int:
    """Make sure that the disk has a signature that none of `others` has, and return it; 0 if the
    disk has no boot sector.

    others  paths of the machine's other disks, by their signatures

    A disk with a GPT may get any signature, as its partitions are known by GUIDs. The signature of
    an MBR is part of its partitions' names, so an existing one is kept. Raises PrimeError if an
    MBR's signature is also another disk's.
    """
    sector0 = disk.read(disk.sector, 0)
    if sector0[510:512] != b"\x55\xaa":
        return 0
    own = signature(sector0)
    if own and own in others and read_gpt(disk) is None:
        raise OrderError(
            f"the image's disk signature {own:08x} is that of {others[own]} too, so the BIOS could"
            " not tell them apart; give one of them another (sfdisk --disk-id)"
        )
    if own and own not in others:
        return own
    while not own or own in others:
        own = int.from_bytes(os.urandom(4), "little")
    disk.write(memoryview(sector0[:440] + own.to_bytes(4, "little") + sector0[444:]), 0)
    return own


def new_mbr(disk: Disk) -> None:
    """Write an empty MBR with a random disk signature."""
    sector0 = bytes(440) + os.urandom(4) + bytes(66) + b"\x55\xaa"
    _put(disk, 0, sector0.ljust(disk.sector, b"\0"))


def add_to_mbr(disk: Disk, span: Span) -> int:
    """Add a primary partition (span.number 0: in the first free slot); return its number. Raises
    PrimeError."""
    sector0 = disk.read(disk.sector, 0)
    entries = _mbr_entries(sector0)
    first, count = span.start // disk.sector, span.size // disk.sector
    free = [n for n, entry in enumerate(entries) if not entry.type]
    slot = span.number - 1 if span.number else next(iter(free), -1)
    if slot not in free:
        raise OrderError(
            f"the partition table of {disk.path} has no free slot for partition {span.name!r}"
        )
    if any(e.type and first < e.first + e.count and e.first < first + count for e in entries):
        raise OrderError(
            f"the disk {disk.path} has no room for partition {span.name!r} behind the others"
        )
    if first + count > 0xFFFFFFFF:
        raise OrderError(f"the disk {disk.path} is too large for an MBR partition at its end")
    kind = TYPES.get(span.type, ("", 0))[1]
    if not kind:
        raise OrderError(f"an MBR has no partition type {span.type}")
    entry = MbrEntry(0x80 if span.boot else 0, kind, first, count).pack()
    disk.write(memoryview(sector0[: 446 + 16 * slot] + entry + sector0[462 + 16 * slot :]), 0)
    return slot + 1
