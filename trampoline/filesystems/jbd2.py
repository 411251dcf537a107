"""The journal of ext3 and ext4 (jbd2): the blocks in it that have not been written to their places
yet.

Format: the Linux kernel's Documentation/filesystems/ext4/journal.rst; all numbers are big-endian.
Nothing is replayed. Transactions that were never committed are not distinguished, because an extra
block does no harm here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator

_MAGIC = 0xC03B3998
_DESCRIPTOR, _COMMIT, _SUPER1, _SUPER2, _REVOKE = 1, 2, 3, 4, 5
_64BIT, _CHECKSUM2, _CHECKSUM3 = 0x2, 0x8, 0x10
_KNOWN = 0x1 | _64BIT | 0x4 | _CHECKSUM2 | _CHECKSUM3  # not: fast commits, which log no blocks
_ESCAPED, _SAME_ID, _LAST = 1, 2, 8


class UnknownJournal(Exception):
    """The journal is damaged, or of a kind that this module does not read."""


def logged(
    block: Callable[[int], bytes], count: int, size: int, wanted: Collection[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, content) of those blocks `wanted` that are in the journal, the oldest first.

    block   reads the journal's block of that number; there are `count`, of `size` bytes each
    """
    head = block(0)
    magic, kind, _, length, last, first, sequence, start = struct.unpack_from(">IIIIIIII", head)
    features = struct.unpack_from(">I", head, 0x28)[0] if kind == _SUPER2 else 0
    if magic != _MAGIC or kind not in (_SUPER1, _SUPER2) or length != size or features & ~_KNOWN:
        raise UnknownJournal
    if not 0 < first < last <= count:
        raise UnknownJournal
    if start == 0:
        return  # it was unmounted, or replayed
    way = iter([*range(start, last), *range(first, start)])  # never more than once around
    for at in way:
        data = block(at)
        magic, kind, found = struct.unpack_from(">III", data)
        if (magic, found) != (_MAGIC, sequence):
            return
        if kind == _DESCRIPTOR:
            for number, escaped in _tags(data, features):
                place = next(way, 0)
                if place and number in wanted:
                    content = block(place)
                    yield number, struct.pack(">I", _MAGIC) + content[4:] if escaped else content
        elif kind == _COMMIT:
            sequence += 1
        elif kind != _REVOKE:
            return


def _tags(data: bytes, features: int) -> Iterator[tuple[int, bool]]:
    """Yield, for each block that follows a descriptor, its number, and whether its first word was
    replaced."""
    at = 12
    while at + 8 <= len(data):
        if features & _CHECKSUM3:
            low, flags, high = struct.unpack_from(">III", data, at)
            length = 16
        else:
            low, flags = struct.unpack_from(">I2xH", data, at)
            high = struct.unpack_from(">I", data, at + 8)[0] if features & _64BIT else 0
            length = (12 if features & _64BIT else 8) + (2 if features & _CHECKSUM2 else 0)
        yield low | (high << 32 if features & _64BIT else 0), bool(flags & _ESCAPED)
        at += length + (0 if flags & _SAME_ID else 16)
        if flags & _LAST:
            return
