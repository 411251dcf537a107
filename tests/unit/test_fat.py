"""FAT's allocation table: entries of each width, and a table that is too short for its clusters."""

from __future__ import annotations

import struct

import pytest

from trampoline.filesystems import fat

SECTOR = 512


def partition(clusters: int, table_sectors: int, entries: bytes) -> bytes:
    """Return a FAT with clusters of a sector, one table and no root folder's place."""
    total = 1 + table_sectors + clusters
    head = struct.pack("<HBHBHHBH", SECTOR, 1, 1, 1, 0, 0, 0xF8, table_sectors)
    boot = (b"\xeb\x3c\x90COD     " + head).ljust(32, b"\0") + struct.pack("<I", total)
    sector = boot.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"
    table = entries.ljust(table_sectors * SECTOR, b"\0")
    return sector + table + bytes(clusters * SECTOR)


@pytest.mark.parametrize(("missing", "known"), [(0, True), (1, False)])
def test_a_table_has_an_entry_for_each_cluster(missing: int, known: bool) -> None:
    """A table that ends with its last cluster's entry is whole; one cluster more, and it is not."""
    sectors = 17
    clusters = sectors * SECTOR // 2 - 2 + missing
    entries = struct.pack("<4H", 0xFFF8, 0xFFFF, 0, 0xFFFF)
    data = partition(clusters, sectors, entries)
    found = fat.look(lambda length, at: data[at : at + length], len(data))
    assert (found is not None) == known
    if found is not None:
        start = (1 + sectors) * SECTOR
        assert found.used == ((0, start), (start + SECTOR, start + 2 * SECTOR))
