"""Boot code that starts a system from a partition of a layout on a BIOS machine: it is written into
the disk's first sector.

There are three kinds:

- For an MBR's partition, the code finds the active partition in the table and starts its first
  sector, as usual, so that a later change of the active partition takes effect.
- For a GPT's partition of type bios with GRUB's core image (grub-mkimage's, for i386-pc), the
  partition's first sector is loaded to the address that GRUB expects, and the list of blocks at
  that sector's end is set to the place of the rest.
- For any other partition of a GPT, its first sector is started, as an MBR's would be.

A started first sector is loaded to 0:7c00, with the BIOS's number of the disk in DL and DS:SI at
the partition's entry of an MBR (for a GPT, an imitated one). In a FAT or NTFS file system, the
count of hidden sectors is set to the place of its partition.
"""

from __future__ import annotations

import struct

from cod.wire import realmode
from trampoline.errors import PrimeError
from trampoline.partitions import Disk, Span

SPACE = 440  # bytes of boot code in front of an MBR's signature
_COPY = 0x600  # where the code moves itself
_GRUB_SEGMENT, _GRUB_LOADED = 0x820, 0x8000

_CODE = """
fa 31c0 8ed8 8ec0 8ed0 bc007c fb fc   cli; ds = es = ss = 0; sp = 0x7c00; sti; cld
89e6 bf0006 b90001 f3a5               copy 256 words from 0x7c00 to 0x600
ea >main 0000                         go on there
main:
"""
_ACTIVE = """
bebe07 b90400                         si = the first entry of the table; cx = 4
find: 803c80 74 ^active               is it the active one?
83c610 e2 ^find                       the next
be >none eb ^say
active: 668b4408 66a3 >lba            eax = its first sector; the packet's sector
5652                                  push si; push dx
"""
_FIXED = """
be >entry 5652                        si = the entry; push si; push dx
"""
_START = """
be >packet b442 cd13 5a 5e            int 0x13, ah = 0x42: read; pop dx; pop si
72 ^failed
813efe7d55aa 75 ^failed               has it a boot signature?
ea007c0000                            start it
"""
_GRUB = """
52 be >packet b442 cd13 5a            push dx; int 0x13, ah = 0x42: read; pop dx
72 ^failed
be >packet                            si = a packet that GRUB may use; the byte before it is 1: by LBA
ea00800000                            start it
"""
_TROUBLE = """
failed: be >bad
say: ac 84c0 74 ^end                  next character; zero ends the text
b40e bb0700 cd10 eb ^say              int 0x10, ah = 0xe
end: cd18                             int 0x18: nothing to start here
f4 eb ^end
"""
_NONE, _BAD = b"COD: no active partition\r\n\0", b"COD: the partition cannot be started\r\n\0"


def install(disk: Disk, span: Span, table: str) -> None:
    """Make the disk start from the partition `span`, whose image is written. `table`: 'gpt' or
    'mbr'.

    Raises PrimeError if the partition contains nothing that can be started.
    """
    if disk.sector != 512:
        return  # no BIOS starts from such a disk: see trampoline.biosdisks
    first = span.start // 512
    head = bytearray(disk.read(512, span.start))
    start, count, segment = struct.unpack_from("<QHH", head, 500)
    # The first sector of GRUB's core image ends with a list of blocks for segment 0x820.
    grub = bool(start and count) and segment == _GRUB_SEGMENT
    if grub:
        struct.pack_into("<Q", head, 500, first + 1)
    elif head[510:] != b"\x55\xaa":
        raise PrimeError(
            f"partition {span.number} is to start the system, but its image has neither a boot"
            " sector nor GRUB's core image at its beginning"
        )
    elif head[0] in (0xEB, 0xE9) and head[11:13] == b"\0\x02":
        # a FAT or NTFS with sectors of 512 bytes
        struct.pack_into("<I", head, 28, first & 0xFFFFFFFF)
    disk.write(memoryview(bytes(head)), span.start)
    disk.write(memoryview(code(first, table, grub) + disk.read(512, 0)[SPACE:]), 0)


def code(first: int, table: str, grub: bool) -> bytes:
    """Return the boot code that starts the partition at sector `first` (for an MBR: the active
    one). It has `SPACE` bytes."""
    where = _GRUB_LOADED if grub else realmode.LOADED
    data = {
        "mode": b"\1",
        "packet": struct.pack("<BBHHH", 16, 0, 1, where, 0),
        "lba": struct.pack("<Q", first),
        "bad": _BAD,
    }
    if grub:
        whole = realmode.assemble(_CODE + _GRUB + _TROUBLE, data, _COPY)
    elif table == "mbr":
        whole = realmode.assemble(
            _CODE + _ACTIVE + _START + _TROUBLE, data | {"none": _NONE}, _COPY
        )
    else:
        entry = struct.pack(
            "<B3sB3sII",
            0x80,
            b"\xfe\xff\xff",
            0xED,
            b"\xfe\xff\xff",
            first & 0xFFFFFFFF,
            0xFFFFFFFF,
        )
        whole = realmode.assemble(
            _CODE + _FIXED + _START + _TROUBLE, data | {"entry": entry}, _COPY
        )
    if len(whole) > SPACE:
        raise PrimeError(
            f"{len(whole)} bytes of boot code do not fit in front of the partition table"
        )
    return whole.ljust(SPACE, b"\0")
