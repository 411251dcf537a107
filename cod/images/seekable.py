"""zstd's seekable format: independent frames, then a table of their sizes in a skippable frame.

Source: facebook/zstd, contrib/seekable_format/zstd_seekable_compression_format.md, version 0.1.0,
without checksums in the table (the manifest has stronger ones). A decoder that does not know the
format skips the table.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import BinaryIO

_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_ENTRY, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")

Frame = tuple[int, int]
"""A frame's compressed and decompressed length."""


def seek_table(frames: Sequence[Frame]) -> bytes:
    """Return the table that is written after the frames."""
    entries = b"".join(_ENTRY.pack(*frame) for frame in frames)
    head = struct.pack("<II", _SKIPPABLE, len(entries) + _FOOTER.size)
    return head + entries + _FOOTER.pack(len(frames), 0, _SEEKABLE)


def read_seek_table(file: BinaryIO) -> list[Frame]:
    """Return the table of a file in the seekable format. Raises ValueError if the file has no
    table, or one that does not fit the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _FOOTER.size, 0))
    tail = file.read(_FOOTER.size)
    if len(tail) < _FOOTER.size:
        raise ValueError("too short for a seek table")
    count, descriptor, magic = _FOOTER.unpack(tail)
    length = count * _ENTRY.size + _FOOTER.size
    if magic != _SEEKABLE or descriptor != 0 or length + 8 > size:
        raise ValueError("no seek table at its end")
    file.seek(size - length - 8)
    if struct.unpack("<II", file.read(8)) != (_SKIPPABLE, length):
        raise ValueError("its seek table is damaged")
    frames = list(_ENTRY.iter_unpack(file.read(length - _FOOTER.size)))
    if sum(frame[0] for frame in frames) + length + 8 != size:
        raise ValueError("its frames and its seek table do not fit together")
    return [(frame[0], frame[1]) for frame in frames]
