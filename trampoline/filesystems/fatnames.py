"""The names of files on a FAT file system, for finding a boot loader. Format: Microsoft's FAT
specification, 2005."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from trampoline.filesystems.content import Read
from trampoline.filesystems.fat import FAT12_MOST, FAT16_MOST, geometry

_FOLDER, _LONG_NAME, _LABEL = 0x10, 0x0F, 0x08
_LARGEST = 1 << 20  # bytes of a folder that are looked at
_MOST = 4096  # files and folders that are looked at
# clusters that are read of all folders in all, as each costs two reads of the disk
_CLUSTERS, _BYTES = 8192, 1 << 24


@dataclass(frozen=True, slots=True)
class _Fat:
    read: Read
    table: int  # where it is, bytes
    bits: int
    data: int  # where cluster 2 is, bytes
    cluster: int  # bytes
    root: tuple[int, int]  # FAT32: (0, first cluster); else (offset, length) of the root folder
    left: Iterator[int]  # an item for each cluster that may still be read

    def chain(self, first: int) -> bytes:
        """Return the contents of a chain of clusters, at most `_LARGEST` bytes, until `left` is
        used up."""
        content, seen, number = bytearray(), set[int](), first
        end = {12: 0xFF7, 16: 0xFFF7, 32: 0x0FFFFFF7}[self.bits]
        while 2 <= number < end and number not in seen and next(self.left, None) is not None:
            seen.add(number)
            content += self.read(self.cluster, self.data + (number - 2) * self.cluster)
            if len(content) > _LARGEST:
                break
            number = self._next(number)
        return bytes(content)

    def _next(self, number: int) -> int:
        at = number * self.bits // 8
        raw = int.from_bytes(self.read(4, self.table + at), "little")
        if self.bits == 12:
            return raw >> (number % 2 * 4) & 0xFFF
        return raw & (0xFFFF if self.bits == 16 else 0x0FFFFFFF)


def below(read: Read, folder: str, depth: int) -> list[str]:
    """Return the paths of the files below a folder of the root, down to `depth` levels; [] if there
    is no such folder.

    read  returns so many bytes at an offset of the file system
    """
    fat = _open(read)
    if fat is None:
        return []
    offset, length = fat.root
    root = fat.chain(length) if not offset else read(length, offset)
    left = iter(range(_MOST))
    return [
        path
        for name, first, is_folder in _entries(root)
        if is_folder and name.lower() == folder.lower()
        for path in _walk(fat, name, first, depth, left)
    ]


def content(read: Read, name: str) -> bytes:
    """Return a file of the root folder, without zeros at its end; b'' if there is none."""
    fat = _open(read)
    if fat is None:
        return b""
    offset, length = fat.root
    root = fat.chain(length) if not offset else read(length, offset)
    for found, first, is_folder in _entries(root):
        if found == name and not is_folder:
            return fat.chain(first).rstrip(b"\0")
    return b""


def _walk(fat: _Fat, path: str, first: int, depth: int, left: Iterator[int]) -> Iterator[str]:
    """Yield the files below a folder, until `left` is used up."""
    for (name, cluster, is_folder), _ in zip(_entries(fat.chain(first)), left, strict=False):
        if not is_folder:
            yield f"{path}/{name}"
        elif depth > 1 and name not in (".", ".."):
            yield from _walk(fat, f"{path}/{name}", cluster, depth - 1, left)


def _open(read: Read) -> _Fat | None:
    boot = read(512, 0)
    found = geometry(boot)
    if found is None:
        return None
    bits = 12 if found.clusters <= FAT12_MOST else 16 if found.clusters <= FAT16_MOST else 32
    place = (0, struct.unpack_from("<I", boot, 44)[0])
    if bits < 32:
        place = ((found.reserved + found.tables * found.table) * found.sector, found.root * 32)
    cluster = found.per_cluster * found.sector
    left = iter(range(min(_CLUSTERS, _BYTES // cluster)))
    table, data = found.reserved * found.sector, found.data * found.sector
    return _Fat(read, table, bits, data, cluster, place, left)


def _entries(folder: bytes) -> Iterator[tuple[str, int, bool]]:
    """Yield (name, first cluster, whether it is a folder) of each entry, with its long name if it
    has one."""
    long: dict[int, str] = {}
    for at in range(0, len(folder) - 31, 32):
        entry = folder[at : at + 32]
        if not entry[0]:
            return
        if entry[0] == 0xE5:
            long.clear()
        # long names precede their entry, last part first; the low bits are the part's number
        elif entry[11] & _LONG_NAME == _LONG_NAME:
            text = (entry[1:11] + entry[14:26] + entry[28:32]).decode("utf-16-le", "replace")
            long[entry[0] & 0x3F] = text.partition("\0")[0].rstrip("\uffff")
        elif not entry[11] & _LABEL:
            base, extension = (
                part.decode("ascii", "replace").rstrip() for part in (entry[:8], entry[8:11])
            )
            short = f"{base}.{extension}" if extension else base
            high, low = struct.unpack_from("<HxxxxH", entry, 20)
            yield (
                "".join(long[n] for n in sorted(long)) or short,
                high << 16 | low,
                bool(entry[11] & _FOLDER),
            )
            long.clear()
        else:
            long.clear()
