"""The parts of a disk to capture: its partition map, the bytes in use, and the map of the copy.

NoCloud seeds are left out (partitions with a volume labelled CIDATA, by cprime or anybody), because
they contain the names, keys and passwords of this one node. The copy's partition table does not
have them either. Space between and behind the partitions is not captured; space before the first
one is, because boot loaders are there.

A single partition is captured from its first byte to its last. The map alone consists of the
partition table and the space before the first partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trampoline import partitions
from trampoline.errors import PrimeError
from trampoline.filesystems import detect
from trampoline.filesystems.content import Content, Extent, joined
from trampoline.partitions import ALIGN, TYPES, Disk
from trampoline.source import Overlay, Slice

SEED = "CIDATA"


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """A partition: `start` and `size` in bytes; number 0 is a whole disk without a table. `type` as
    in templates, or a GUID, or an MBR type in hexadecimal."""

    number: int
    start: int
    size: int
    type: str
    name: str
    content: Content

    @property
    def is_seed(self) -> bool:
        """Return whether the partition is a seed, with data for this one node."""
        return self.content.label == SEED


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The parts of a disk that a capture reads.

    parts   partitions of the copy
    copy    the disk with the contents that the copy must have; its size is the image's
    used    bytes to be read, in ascending order; all other bytes of the copy are zeros, except for
            its changes
    """

    parts: tuple[PartitionUsage, ...]
    copy: Overlay
    used: tuple[Extent, ...]


def look(disk: Disk, what: str = "") -> DiskUsage:
    """Read the disk's map and its file systems' tables. Raises PrimeError.

    what  '' for the whole disk, 'map', or a partition's number
    """
    parts = sorted(_parts(disk), key=lambda part: part.start)
    kept = [part for part in parts if not part.is_seed]
    if what.isdecimal():
        return _alone(disk, kept, int(what))
    if what == "map" and not any(part.number for part in kept):
        raise PrimeError(f"the disk {disk.path} has no partitions, and so no map of them")
    filled = [] if what == "map" else kept
    gpt = partitions.read_gpt(disk)
    copy = Overlay(disk, _size(disk, kept, bool(gpt)))
    if gpt:
        numbers = {part.number for part in kept}
        entries = {number: entry for number, entry in gpt.entries.items() if number in numbers}
        replace(gpt, entries=entries, alternate=0).write(copy)
    else:
        for part in parts:
            if part.is_seed and part.number:  # it is the node's own, and no part of an image
                copy.write(memoryview(bytes(16)), 446 + 16 * (part.number - 1))
    for part in filled:
        for at, data in part.content.changes:
            copy.write(memoryview(data), part.start + at)
    return DiskUsage(tuple(kept), copy, joined(_used(parts, filled), copy.size, copy.size))


def _alone(disk: Disk, kept: Sequence[PartitionUsage], number: int) -> DiskUsage:
    """Return the usage of one partition, as if it were a whole disk."""
    part = next((part for part in kept if part.number == number), None)
    if part is None:
        numbers = ", ".join(str(part.number) for part in kept if part.number) or "none"
        raise PrimeError(
            f"the disk {disk.path} has no partition {number} to capture; it has {numbers}"
        )
    copy = Overlay(Slice(disk, part.start, part.size), part.size)
    for at, data in part.content.changes:
        copy.write(memoryview(data), at)
    used = _used_of(part)
    return DiskUsage((part,), copy, joined(used, copy.size, copy.size))


def _used_of(part: PartitionUsage) -> Sequence[Extent]:
    return ((0, part.size),) if part.content.used is None else part.content.used


def _size(disk: Disk, kept: Sequence[PartitionUsage], has_backup: bool) -> int:
    """Return the size of the copy: the smallest that its map allows, so that it fits onto smaller
    disks."""
    end = max((part.start + part.size for part in kept), default=0) + (ALIGN if has_backup else 0)
    return min(-(-max(end, ALIGN) // ALIGN) * ALIGN, disk.size)


def _used(parts: Sequence[PartitionUsage], kept: Sequence[PartitionUsage]) -> Iterator[Extent]:
    yield 0, min((part.start for part in parts), default=0)
    for part in kept:
        for start, stop in _used_of(part):
            yield part.start + start, part.start + stop


# ---------------------------------------------------------------- the map


def _parts(disk: Disk) -> Iterator[PartitionUsage]:
    if gpt := partitions.read_gpt(disk):
        for number, entry in gpt.entries.items():
            start, size = entry.first * disk.sector, entry.count * disk.sector
            yield _part(disk, number, start, size, partitions.type_name(entry.type), entry.name)
    elif mbr := partitions.read_mbr(disk):
        for number, primary in mbr.items():
            start, size = primary.first * disk.sector, primary.count * disk.sector
            named = (name for name, (_, own) in TYPES.items() if own == primary.type)
            yield _part(disk, number, start, size, next(named, f"0x{primary.type:02x}"), "")
    else:
        yield _part(disk, 0, 0, disk.size, "", "")


def _part(disk: Disk, number: int, start: int, size: int, kind: str, name: str) -> PartitionUsage:
    size = max(min(size, disk.size - start), 0)
    content = detect.look(Slice(disk, start, size).read, size)
    return PartitionUsage(number, start, size, kind, name, content)
