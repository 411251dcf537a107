"""FAT12, FAT16 and FAT32: the clusters in use, by the allocation table.

Format: Microsoft's FAT specification, 2005. FAT has no journal: after a power cut the table alone
decides, in the copy as in the original.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trampoline.filesystems.content import Content, Extent, Read, joined

FAT12_MOST, FAT16_MOST = 4084, 65524  # clusters
_LABEL = 0x08
_LONG_NAME = 0x0F


class Geometry(NamedTuple):
    """Layout of a FAT file system, in sectors of `sector` bytes. `root`: entries of the root
    folder, 0 for FAT32; `data`: the first sector of cluster 2."""

    sector: int
    per_cluster: int
    reserved: int
    tables: int
    root: int
    total: int
    table: int
    data: int

    @property
    def clusters(self) -> int:
        """Return the number of clusters, which alone decides whether it is FAT12, 16 or 32."""
        return (self.total - self.data) // self.per_cluster


def geometry(boot: bytes) -> Geometry | None:
    """Return the geometry in the boot sector; None if the sector belongs to another kind."""
    if len(boot) < 512 or boot[510:] != b"\x55\xaa" or boot[0] not in (0xEB, 0xE9):
        return None
    sector, per_cluster, reserved, tables, root, small, small_table = struct.unpack_from(
        "<HBHBHHxH", boot, 11
    )
    # numbers that do not fit into 16 bits are in later fields, and the small fields are 0
    total, table = (
        small or struct.unpack_from("<I", boot, 32)[0],
        small_table or struct.unpack_from("<I", boot, 36)[0],
    )
    good = sector in (512, 1024, 2048, 4096) and per_cluster and table and tables in (1, 2)
    if not good:
        return None
    data = reserved + tables * table + -(-root * 32 // sector)
    return Geometry(sector, per_cluster, reserved, tables, root, total, table, data)


def look(read: Read, size: int) -> Content | None:
    """Return the file system of a partition, with its used ranges and label; None if the partition
    has no FAT file system."""
    boot = read(512, 0)
    found = geometry(boot)
    if found is None or found.per_cluster & (found.per_cluster - 1) or not found.reserved:
        return None
    sector, per_cluster, reserved, tables, root, total, table, data = found
    if not data < total or total * sector > size:
        return None
    clusters = found.clusters
    entries = _entries(read(table * sector, reserved * sector), clusters)
    if entries is None:
        return None
    bad = 0xFF7 if clusters <= FAT12_MOST else 0xFFF7 if clusters <= FAT16_MOST else 0x0FFFFFF7
    used = joined(_used(entries, bad, data * sector, per_cluster * sector), total * sector, size)
    start = (reserved + tables * table) * sector if clusters <= FAT16_MOST else data * sector
    return Content(
        "fat", used, _label(boot, read(max(root * 32, per_cluster * sector), start), clusters)
    )


def _entries(table: bytes, clusters: int) -> Sequence[int] | None:
    """Return the table's entries without the first two, which are no clusters; None if the table is
    too short."""
    count = clusters + 2
    if clusters <= FAT12_MOST:
        needed = -(-count * 3 // 2)
        pairs = (table[at : at + 3] for at in range(0, needed, 3))
        values = [
            half
            for pair in pairs
            for half in (
                int.from_bytes(pair, "little") & 0xFFF,
                int.from_bytes(pair, "little") >> 12,
            )
        ]
        return values[2:count] if len(table) >= needed else None
    kind, mask = ("H", 0xFFFF) if clusters <= FAT16_MOST else ("I", 0x0FFFFFFF)
    numbers = array(kind, table[: len(table) // array(kind).itemsize * array(kind).itemsize])
    if len(numbers) < count:
        return None
    return (
        numbers[2:count]
        if mask == 0xFFFF
        else array("I", (number & mask for number in numbers[2:count]))
    )


def _used(entries: Sequence[int], bad: int, data: int, cluster: int) -> Iterator[Extent]:
    """Yield everything before the clusters, and runs of clusters that belong to files. Clusters
    marked bad are left out."""
    yield 0, data
    start = -1
    for number, entry in enumerate(entries):
        if entry and entry != bad:
            start = number if start < 0 else start
        elif start >= 0:
            yield data + start * cluster, data + number * cluster
            start = -1
    if start >= 0:
        yield data + start * cluster, data + len(entries) * cluster


def _label(boot: bytes, root: bytes, clusters: int) -> str:
    """Return the label in the root folder, else the boot sector's, in capitals."""
    for at in range(0, len(root) - 31, 32):
        entry = root[at : at + 32]
        if not entry[0]:
            break
        if entry[0] != 0xE5 and entry[11] & _LABEL and entry[11] != _LONG_NAME:
            return entry[:11].decode("ascii", "replace").strip().upper()
    place = 43 if clusters <= FAT16_MOST else 71
    return boot[place : place + 11].decode("ascii", "replace").strip().upper()
