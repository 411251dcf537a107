"""The names by which a system finds a volume: labels and UUIDs of file systems, LUKS and swap, and
names of LVM's volume groups.

Only superblocks are read: ext2 to ext4, XFS, Btrfs, FAT, swap, LUKS, and LVM2's physical volumes.
The insides of a volume group, an array or an encrypted volume are not read. All bytes may have been
written by anybody, so nothing else is assumed about them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from trampoline.filesystems.content import Read

Name = tuple[str, str]
"""What kind of name it is ('label', 'UUID', 'volume group', 'partition UUID'), and the name."""

# magic, and its offset; offsets of the UUID and of the label, and the label's length
_SUPERBLOCKS = (
    (b"\x53\xef", 0x438, 0x468, 0x478, 16),  # ext: Linux, fs/ext4/ext4.h
    (b"XFSB", 0, 32, 108, 12),  # Linux, fs/xfs/libxfs/xfs_format.h
    (b"_BHRfS_M", 0x10040, 0x10020, 0x1012B, 256),  # include/uapi/linux/btrfs_tree.h
    (b"SWAPSPACE2", 4086, 0x40C, 0x41C, 16),  # include/linux/swap.h
)
# FAT's file system type, and the offsets of it, of the volume's number and of its label (EFI FAT32,
# 1.03)
_FAT = ((b"FAT32", 82, 67, 71), (b"FAT", 54, 39, 43))
_NO_LABEL = ("", "NO NAME")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_GROUP = re.compile(rb"([A-Za-z0-9+_.-]{1,127}) \{")


def look(read: Read) -> Iterator[Name]:
    """Yield the names of the volume that begins at byte 0 of `read`."""
    for magic, at, uuid, label, length in _SUPERBLOCKS:
        if read(len(magic), at) == magic:
            digits = read(16, uuid).hex()
            groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            yield from _named("-".join(groups), read(length, label))
    for kind, at, number, label in _FAT:
        if read(len(kind), at) == kind and read(2, 510) == b"\x55\xaa":
            text = read(4, number)[::-1].hex().upper()
            yield from _named(f"{text[:4]}-{text[4:]}", read(11, label))
            break
    if read(6, 0) == b"LUKS\xba\xbe":  # LUKS2 On-Disk Format 1.1, 2.1; the UUID is text
        second = read(2, 6) == b"\0\2"
        yield from _named(_text(read(40, 168)), read(48, 24) if second else b"")
    yield from (("volume group", name) for name in _groups(read))


def _named(uuid: str, label: bytes) -> Iterator[Name]:
    if re.search("[1-9A-Fa-f]", uuid) and (_UUID.fullmatch(uuid) or len(uuid) == 9):
        yield "UUID", uuid
    if (text := _text(label)) not in _NO_LABEL:
        yield "label", text


def _text(field: bytes) -> str:
    """Return a field's text up to its first zero, without characters that cannot be printed."""
    text = field.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(c for c in text if c.isprintable()).strip()[:100]


def _groups(read: Read) -> Iterator[str]:
    """Yield the name of the volume group that a physical volume belongs to. LVM2,
    lib/format_text/layout.h: a label in one of the first four sectors points to the metadata areas,
    whose newest text begins with the group's name."""
    for at in range(0, 2048, 512):
        label = read(512, at)
        if label[:8] == b"LABELONE" and label[24:32] == b"LVM2 001":
            break
    else:
        return
    header = int.from_bytes(label[20:24], "little")
    lists = label[header + 40 :]
    places = list(struct.iter_unpack("<QQ", lists[: len(lists) // 16 * 16]))
    ends = [n for n, place in enumerate(places) if place == (0, 0)][:2]
    if len(ends) < 2:
        return
    for start, _ in places[ends[0] + 1 : ends[1]]:
        area = read(48, start)
        if area[4:20] == b" LVM2 x[5A%r0N*>":
            if found := _GROUP.match(read(130, start + int.from_bytes(area[40:48], "little"))):
                yield found[1].decode()
            return
