"""The NoCloud seed: a small FAT file system labelled CIDATA, made without mounting and without
mkfs.

Format: Microsoft FAT specification, 2005 (FAT12 and FAT16), with long names, because "meta-data" is
not an 8.3 name. Labels and file names: cloud-init's NoCloud data source.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

LABEL = b"CIDATA     "
_ROOT_ENTRIES = 512
_FAT12_MOST, _FAT16_MOST = 4084, 65524  # clusters
_LAST = 0xFFFF  # end of a chain; its low 12 bits in FAT12
_DAY = 0x5821  # 2024-01-01: a seed has no use for the time, and equal seeds should be equal


def least_size(files: Mapping[str, str]) -> int:
    """Return the size of a file system for the files, in bytes, a multiple of 1 MiB."""
    needed = sum(len(text.encode()) + 8192 for text in files.values()) + (256 << 10)
    return -(-needed // (1 << 20)) << 20


def build(files: Mapping[str, str], size: int, sector: int = 512) -> bytes:
    """Return a file system of `size` bytes with these files. `sector` is the disk's (512 or 4096).
    Raises ValueError."""
    sectors = size // sector
    root = _ROOT_ENTRIES * 32 // sector
    per_cluster = 1
    while sectors // per_cluster > _FAT16_MOST:
        per_cluster *= 2
    wide = sectors // per_cluster > _FAT12_MOST
    fat_bytes = (sectors // per_cluster + 2) * (4 if wide else 3) // 2 + 1
    fat_sectors = -(-fat_bytes // sector)
    data = 1 + 2 * fat_sectors + root
    cluster = per_cluster * sector
    clusters = (sectors - data) // per_cluster
    # the number of clusters alone, and no label, decides whether it is FAT12 or FAT16
    wide = clusters > _FAT12_MOST

    chain, body = [0xFFF8, _LAST], bytearray()
    directory = bytearray(struct.pack("<11sB10xHHHI", LABEL, 0x08, 0, _DAY, 0, 0))
    for number, (name, text) in enumerate(files.items(), 1):
        content = text.encode()
        count = -(-len(content) // cluster)
        first = len(chain) if count else 0
        chain += [len(chain) + n + 1 for n in range(count - 1)] + [_LAST] * bool(count)
        directory += _names(name, number, first, len(content))
        body += content.ljust(count * cluster, b"\0")
    if len(chain) - 2 > clusters or len(directory) > root * sector:
        raise ValueError("the files do not fit")
    table = (struct.pack(f"<{len(chain)}H", *chain) if wide else _fat12(chain)).ljust(
        fat_sectors * sector, b"\0"
    )
    small = sectors if sectors < 1 << 16 else 0
    head = struct.pack(
        "<3s8sHBHBHHBHHHII",
        b"\xeb\x3c\x90",
        b"COD     ",
        sector,
        per_cluster,
        1,
        2,
        _ROOT_ENTRIES,
        small,
        0xF8,
        fat_sectors,
        63,
        255,
        0,
        0 if small else sectors,
    )
    head += struct.pack(
        "<BBB4s11s8s", 0x80, 0, 0x29, os.urandom(4), LABEL, b"FAT16   " if wide else b"FAT12   "
    )
    boot = (head.ljust(510, b"\0") + b"\x55\xaa").ljust(sector, b"\0")
    return (
        boot + table + table + bytes(directory).ljust(root * sector, b"\0") + bytes(body)
    ).ljust(size, b"\0")


def _fat12(chain: list[int]) -> bytes:
    """Return the table's entries of twelve bits each, two in three bytes."""
    pairs = [link & 0xFFF for link in (*chain, *[0] * (len(chain) % 2))]
    return b"".join(
        (low | high << 12).to_bytes(3, "little")
        for low, high in zip(pairs[::2], pairs[1::2], strict=True)
    )


def _names(name: str, number: int, first: int, size: int) -> bytes:
    """Return a file's directory entries: its long name, last part first, then an unused short
    alias."""
    alias = f"SEED~{number}".ljust(11).encode()
    checksum = 0
    for byte in alias:
        checksum = ((checksum >> 1 | checksum << 7) + byte) & 0xFF
    units = name.encode("utf-16-le") + b"\0\0"
    parts = [units[at : at + 26].ljust(26, b"\xff") for at in range(0, len(name) * 2, 26)]
    entries = b""
    for order in range(len(parts), 0, -1):
        part = parts[order - 1]
        entries += struct.pack(
            "<B10sBBB12sH4s",
            order | (0x40 if order == len(parts) else 0),
            part[:10],
            0x0F,
            0,
            checksum,
            part[10:22],
            0,
            part[22:],
        )
    return entries + struct.pack("<11sB10xHHHI", alias, 0x20, 0, _DAY, first, size)
