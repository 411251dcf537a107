"""Detection of a partition's contents, and of its bytes in use.

ext2, ext3 and ext4, FAT, and swap can be read. Any other partition, and any file system that its
reader does not fully know, counts as wholly in use: its empty parts are found by reading.
"""

from __future__ import annotations

from trampoline.filesystems import ext, fat
from trampoline.filesystems.content import Content, Read

_PAGE = 4096
_SWAP = (b"SWAPSPACE2", b"SWAP-SPACE")
_SUSPENDED = (b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0", b"LINHIB0001")
# kinds without a reader of their used ranges: (name, offset of the magic, magic); kinds with a UUID
# or a label are in `names`, too, with the places of these
_KINDS = (
    ("xfs", 0, b"XFSB"),
    ("ntfs", 3, b"NTFS    "),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("lvm", 512, b"LABELONE"),
    ("luks", 0, b"LUKS\xba\xbe"),
    ("exfat", 3, b"EXFAT   "),
    ("iso9660", 0x8001, b"CD001"),
)


def look(read: Read, size: int) -> Content:
    """Return the content of a partition of `size` bytes: its kind, used ranges and label."""
    for reader in (_swap, ext.look, fat.look):
        found = reader(read, size)
        if found is not None:
            return found
    kind = next((name for name, at, magic in _KINDS if read(len(magic), at) == magic), "")
    label = read(32, 0x8028).decode("ascii", "replace").strip().upper() if kind == "iso9660" else ""
    return Content(kind, label=label)


def _swap(read: Read, size: int) -> Content | None:
    """Read a swap area, whose first page has its magic and its name. Swapped-out memory is
    worthless after the machine's end. So is the image of a suspended machine, which the copy must
    not resume from."""
    magic = read(10, _PAGE - 10)
    if magic in _SWAP:
        return Content("swap", ((0, _PAGE),))
    if magic in _SUSPENDED:
        return Content("swap", ((0, _PAGE),), changes=((_PAGE - 10, _SWAP[0]),))
    return None
