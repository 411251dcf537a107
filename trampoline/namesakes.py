"""Volumes of a machine's other disks that have the same name as a volume that was just written.

A system finds its root, its data and its seed by labels, UUIDs and names of volume groups. If a
kept disk has the same names, as after an earlier installation of the same image, the system may
start from that disk, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cod.orders import Namesake
from trampoline import partitions
from trampoline.errors import PrimeError
from trampoline.filesystems import names
from trampoline.inventory import Disk
from trampoline.source import Slice, Source

MOST = 20  # that are told of a machine


def look(target: partitions.Disk, disk: Disk, disks: Sequence[Disk]) -> tuple[Namesake, ...]:
    """Return the names on `target`, which is `disk`, that others of `disks` have, too. Best effort:
    a disk that cannot be read counts as having none."""
    try:
        own = set(_names(target, ()))
    except PrimeError:
        return ()
    found = []
    for other in disks:
        another_path = other.wwid and other.wwid == disk.wwid and not other.local
        if other.path == disk.path or another_path:
            continue
        spans = [(part.start, part.size) for part in other.partitions]
        try:
            with Source(other.path) as source:
                same = sorted(own.intersection(_names(source, spans)))
        except PrimeError:  # it has failed, or is an empty drive
            continue
        about = f"{other.name} (serial {other.serial})" if other.serial else other.name
        found += [Namesake(kind, name, about[:200]) for kind, name in same]
    return tuple(found[:MOST])


def _names(disk: partitions.Disk, spans: Sequence[tuple[int, int]]) -> Iterator[names.Name]:
    """Yield the names on a disk. `spans`: start and size in bytes of the partitions that the kernel
    has found, which include the logical partitions of an MBR."""
    places = {(0, disk.size), *spans}
    if table := partitions.read_gpt(disk):
        for entry in table.entries.values():
            yield "partition UUID", partitions.guid_text(entry.guid).lower()
            places.add((entry.first * disk.sector, entry.count * disk.sector))
    elif mbr := partitions.read_mbr(disk):
        signature = partitions.signature(disk.read(512, 0))
        for number, primary in mbr.items():
            if signature:
                yield "partition UUID", f"{signature:08x}-{number:02x}"
            places.add((primary.first * disk.sector, primary.count * disk.sector))
    for start, size in sorted(places):
        yield from names.look(Slice(disk, start, min(size, disk.size - start)).read)
