"""An image that is no operating system: odd partitions and boot code of its own, which says hello
on the serial port.

COD must carry it like any other: it knows nothing of what is inside. BIOS only. The boot code
prints a line, reads a sector of its second partition through the BIOS and prints the text it finds
there, so the line is whole only if both the first sector and the partition came through.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from cod.wire import realmode
from images import disk
from images.disk import MIB, ImagePartition

VERSION = "1"
SIZE = 192  # MiB
PARTS = (
    ImagePartition("one", 16, "63"),
    ImagePartition("two", 8, "27"),
    ImagePartition("three", 32, "6f"),
    ImagePartition("four", 64, "db"),
)
FILLED = 3  # MiB at the start of each partition that are not empty
MESSAGE = (
    f"opaque: image=opaque version={VERSION} hello from my own boot code, and partition two says: "
)
PARTITION_TEXT = "all bits arrived"

_READ = 0x7E00  # where the boot code reads its second sector
_CODE = """
fa 31c0 8ed8 8ec0 8ed0 bc007c fb fc        cli; ax = ds = es = ss = 0; sp = 0x7c00; sti; cld
52                                         push dx                  the BIOS gives its number of this drive in dl
bafb03 b080 ee                             out 0x3fb, 0x80          COM1: the divisor is to be set:
baf803 b001 ee baf903 b000 ee              out 0x3f8, 1; 0x3f9, 0   115200 baud
bafb03 b003 ee                             out 0x3fb, 3             8 bits, no parity, 1 stop
be >message e8 ~print                      print the message
5a be >packet b442 cd13                    pop dx; int 0x13, ah = 0x42: extended read
72 ^failed                                 jc failed
be007e e8 ~print                           print what was read
halt: f4 eb ^halt                          for ever
failed: be >trouble e8 ~print eb ^halt
print: ac 84c0 74 ^done                    next character; zero ends the text
50 bafd03                                  push ax; dx = line status register
busy: ec a820 74 ^busy                     wait until the transmitter is empty
baf803 58 ee eb ^print                     send it
done: c3
"""


def make(path: Path) -> dict[str, object]:
    """Write the image to `path`; returns facts beyond its size."""
    disk.create(path, SIZE, "dos", PARTS)
    begin = disk.starts(PARTS)
    for start, part in zip(begin, PARTS, strict=True):
        disk.put(path, _filling(part.name), start * MIB)
    disk.put(path, PARTITION_TEXT.encode() + b"\r\n\0", begin[1] * MIB)
    code = boot_code(begin[1] * MIB // 512)
    with open(path, "r+b") as file:
        file.write(code)
    return {"version": VERSION, "digest": hashlib.sha256(code).hexdigest()}


def boot_code(sector: int) -> bytes:
    """Return the boot sector's code; it reads the text at `sector`."""
    data = {
        "packet": struct.pack("<BBHHHQ", 16, 0, 1, _READ, 0, sector),
        "message": MESSAGE.encode() + b"\0",
        "trouble": b"cannot read partition two\r\n\0",
    }
    whole = realmode.assemble(_CODE, data)
    if len(whole) > 440:
        raise RuntimeError(
            f"{len(whole)} bytes of boot code do not fit in front of the partition table"
        )
    return whole


def _filling(name: str) -> bytes:
    """Return bytes that look like nothing, the same each time."""
    return hashlib.shake_256(f"opaque {name}".encode()).digest(FILLED * MIB)
