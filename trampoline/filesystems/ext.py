"""ext2, ext3 and ext4: the blocks in use, by the groups' bitmaps.

Format: the Linux kernel's Documentation/filesystems/ext4. A machine that was switched off while the
file system was mounted has its newest changes only in the journal
(Documentation/filesystems/ext4/journal.rst): the bitmaps on the disk may then show a block as free
that a file uses after the next mount. So the journal is read, too, and a block counts as used if
its bitmap on the disk or any copy of this bitmap in the journal says so. The disk is captured as it
is, with its journal, which the next mount of the copy replays as on the original.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from trampoline.filesystems import jbd2
from trampoline.filesystems.content import Content, Extent, Read, joined

_SUPER = 1024  # where it is, and how long
_RECOVER, _META_BG, _64BIT = 0x4, 0x10, 0x80
# filetype, extents, mmp, flex_bg, ea_inode, dirdata, csum_seed, largedir, inline_data, encrypt,
# casefold
_KNOWN = (
    0x2
    | _RECOVER
    | 0x40
    | _64BIT
    | 0x100
    | 0x200
    | 0x400
    | 0x1000
    | 0x2000
    | 0x4000
    | 0x8000
    | 0x10000
    | 0x20000
)
_SPARSE, _BIGALLOC, _CHECKSUMS = 0x1, 0x200, 0x10 | 0x400
_SPARSE2 = 0x200
_UNINITIALISED = 2
_EXTENTS, _DEEPEST = 0x80000, 6
_MOST_GROUPS = 1 << 22  # 512 TiB at 128 MiB each


@dataclass(frozen=True, slots=True)
class Super:
    """The fields of the superblock that tell places. Sizes are in blocks, except `block` and the
    two named bytes."""

    block: int
    blocks: int
    first: int
    per_group: int
    inodes_per_group: int
    inode_bytes: int
    descriptor_bytes: int
    reserved: int
    journal: int
    compat: int
    incompat: int
    ro_compat: int
    backups: tuple[int, int]

    @property
    def groups(self) -> int:
        """Return how many groups there are."""
        return -(-(self.blocks - self.first) // self.per_group)

    @property
    def descriptors(self) -> int:
        """Return how many blocks the table of group descriptors has."""
        return -(-self.groups * self.descriptor_bytes // self.block)

    @property
    def inode_blocks(self) -> int:
        """Return how many blocks a group's inode table has."""
        return -(-self.inodes_per_group * self.inode_bytes // self.block)

    def has_backup(self, group: int) -> bool:
        """Return whether the group begins with a superblock."""
        if self.compat & _SPARSE2:
            return group == 0 or group in self.backups
        return (
            not self.ro_compat & _SPARSE
            or group <= 1
            or any(_is_power(group, base) for base in (3, 5, 7))
        )


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """A group's descriptor: block numbers, flags."""

    bitmap: int
    inode_bitmap: int
    inode_table: int
    flags: int


def look(read: Read, size: int) -> Content | None:
    """Return the file system of a partition, with its used ranges and label; None if the partition
    has no ext file system."""
    data = read(_SUPER, _SUPER)
    if len(data) < _SUPER or data[0x38:0x3A] != b"\x53\xef":
        return None
    label = data[0x78:0x88].rstrip(b"\0").decode("utf-8", "replace").upper()
    try:
        about = _super(data, size)
        return Content("ext", joined(_used(read, about), about.blocks * about.block, size), label)
    except (UnknownFilesystem, jbd2.UnknownJournal, struct.error):
        return Content("ext", None, label)


class UnknownFilesystem(Exception):
    """The file system is damaged, or of a kind that is not read here: all of it counts as in
    use."""


def _super(data: bytes, size: int) -> Super:
    wide = bool(_u32(data, 0x60) & _64BIT)
    found = Super(
        block=1024 << min(_u32(data, 0x18), 16),
        blocks=_u32(data, 4) | (_u32(data, 0x150) << 32 if wide else 0),
        first=_u32(data, 0x14),
        per_group=_u32(data, 0x20),
        inodes_per_group=_u32(data, 0x28),
        inode_bytes=_u16(data, 0x58) if _u32(data, 0x4C) else 128,
        descriptor_bytes=_u16(data, 0xFE) if wide else 32,
        reserved=_u16(data, 0xCE),
        journal=_u32(data, 0xE0),
        compat=_u32(data, 0x5C),
        incompat=_u32(data, 0x60),
        ro_compat=_u32(data, 0x64),
        backups=(_u32(data, 0x24C), _u32(data, 0x250)),
    )
    sane = (
        found.block <= 65536
        and 0 < found.per_group <= 8 * found.block
        and found.first < found.blocks
        and found.blocks * found.block <= size
        and 32 <= found.descriptor_bytes <= 1024
        and 128 <= found.inode_bytes <= found.block
        and found.inodes_per_group <= 8 * found.block
    )
    if (
        not sane
        or found.incompat & ~_KNOWN
        or found.ro_compat & _BIGALLOC
        or found.groups > _MOST_GROUPS
    ):
        raise UnknownFilesystem
    return found


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _used(read: Read, about: Super) -> Iterator[Extent]:
    block = about.block
    length, wide = about.descriptor_bytes, about.descriptor_bytes >= 64
    table = read(about.groups * length, (about.first + 1) * about.block)
    groups = []
    for at in range(0, about.groups * length, length):
        bitmap, inodes, nodes, flags = struct.unpack_from("<III6xH", table, at)
        high = struct.unpack_from("<III", table, at + 32) if wide else (0, 0, 0)
        groups.append(
            BlockGroup(bitmap | high[0] << 32, inodes | high[1] << 32, nodes | high[2] << 32, flags)
        )
    logged = _logged(read, about, groups)
    yield 0, (about.first + 1) * block
    for number, group in enumerate(groups):
        first = about.first + number * about.per_group
        yield from (
            (at * block, (at + count) * block)
            for at, count in (
                (group.bitmap, 1),
                (group.inode_bitmap, 1),
                (group.inode_table, about.inode_blocks),
            )
        )
        if about.has_backup(number):
            yield first * block, (first + 1 + about.descriptors + about.reserved) * block
        made = not (group.flags & _UNINITIALISED and about.ro_compat & _CHECKSUMS)
        bitmaps = ([_block(read, block, group.bitmap)] if made else []) + logged.get(
            group.bitmap, []
        )
        for start, stop in runs(bitmaps, min(about.per_group, about.blocks - first)):
            yield (first + start) * block, (first + stop) * block


def runs(bitmaps: list[bytes], count: int) -> Iterator[tuple[int, int]]:
    """Yield runs [start, stop) of bits that are set in any of `bitmaps`, among the first `count`
    bits."""
    bits = 0
    for bitmap in bitmaps:
        bits |= int.from_bytes(bitmap, "little")
    bits &= (1 << count) - 1
    for found in re.finditer("1+", bin(bits)[:1:-1]):
        yield found.span()


def _block(read: Read, block: int, number: int) -> bytes:
    data = read(block, number * block)
    if len(data) != block:
        raise UnknownFilesystem
    return data


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1


# ---------------------------------------------------------------- the journal


def _logged(read: Read, about: Super, groups: list[BlockGroup]) -> dict[int, list[bytes]]:
    """Return bitmaps in the journal that may not have reached their places yet, by block number."""
    if not about.incompat & _RECOVER:
        return {}
    if not about.journal:
        raise UnknownFilesystem  # it is on another disk
    places = list(_file(read, about, groups, about.journal))
    wanted = {group.bitmap for group in groups} | {about.first}
    logged: dict[int, list[bytes]] = {}
    for number, data in jbd2.logged(
        lambda at: _block(read, about.block, places[at]), len(places), about.block, wanted
    ):
        logged.setdefault(number, []).append(data)
    for data in logged.pop(about.first, []):
        # The file system may have been enlarged just before: the new groups are not known here.
        super_ = data[_SUPER if about.block > _SUPER else 0 :]
        if (
            _u32(super_, 4) | (_u32(super_, 0x150) << 32 if about.incompat & _64BIT else 0)
        ) != about.blocks:
            raise UnknownFilesystem
    return logged


def _file(read: Read, about: Super, groups: list[BlockGroup], inode: int) -> Iterator[int]:
    """Yield the block numbers of a file, in order."""
    group, index = divmod(inode - 1, about.inodes_per_group)
    if group >= len(groups):
        raise UnknownFilesystem
    place = groups[group].inode_table * about.block + index * about.inode_bytes
    data = read(128, place)
    size = -(-_u32(data, 4) // about.block)
    reader = _extents if _u32(data, 0x20) & _EXTENTS else _indirect
    for number, _ in zip(reader(read, about, data[0x28:0x64]), range(size), strict=False):
        yield number


def _extents(read: Read, about: Super, node: bytes) -> Iterator[int]:
    magic, count, _, level = struct.unpack_from("<HHHH", node)
    if magic != 0xF30A or level > _DEEPEST:
        raise UnknownFilesystem
    for number in range(count):
        at = 12 + 12 * number
        if level:
            low, high = struct.unpack_from("<4xIH", node, at)
            yield from _extents(read, about, _block(read, about.block, low | high << 32))
        else:
            length, high, low = struct.unpack_from("<4xHHI", node, at)
            first = low | high << 32
            yield from range(first, first + (length if length <= 32768 else length - 32768))


def _indirect(read: Read, about: Super, blocks: bytes) -> Iterator[int]:
    numbers = struct.unpack("<15I", blocks)
    yield from numbers[:12]
    for depth, number in enumerate(numbers[12:]):
        yield from _tree(read, about, number, depth)


def _tree(read: Read, about: Super, number: int, depth: int) -> Iterator[int]:
    if number:
        for each in struct.unpack(f"<{about.block // 4}I", _block(read, about.block, number)):
            if depth:
                yield from _tree(read, about, each, depth - 1)
            else:
                yield each
