"""Formats of image files, recognised by content. A file is opened as a stream of raw bytes that is
safe to read.

Images come from users. A qcow2 file can name other files of the server (backing file, external data
file). Therefore its header is read here, by the qcow2 specification (QEMU, interop/qcow2.txt), and
a file that refers to others is refused before qemu-img opens it. A compressed file can unpack to
any size: the readers give small blocks, and the caller counts them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

from cod.model import Refused

BLOCK = 1 << 20
_PIECE = 1 << 16  # bytes of a gzip file that are read at once
_SILENT = 1 << 18  # bytes of a gzip file, in headers and empty members, that may hold nothing
# largest window of a zstd file, in bytes: enough for the files that `zstd --long` makes
_WINDOW = 1 << 27
_LAST_BYTE = 2**63 - 1  # no disk is larger, and no column of the database takes more

_MAGIC = {b"QFI\xfb": "qcow2", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
FORMATS = ("raw", *_MAGIC.values())
_FOREIGN = {
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"KDMV": "VMDK",
    b"# Disk DescriptorFile": "VMDK",
    b"vhdxfile": "VHDX",
    b"conectix": "VHD",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"<<< ": "VDI",
}


def recognise(head: bytes) -> str:
    """Return which of `FORMATS` a file has, by its first bytes. Raises Refused for other formats
    that are known."""
    for magic, name in _FOREIGN.items():
        if head.startswith(magic):
            known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            raise Refused("invalid", f"this is a {name} file; add it as {known}", "file")
    # a skippable frame: zstd's own containers may start with one
    if re.match(rb"[\x50-\x5f]\x2a\x4d\x18", head):
        return "zstd"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "raw")


def look(head: bytes, length: int, limit: int) -> tuple[str, int]:
    """Return the format of a file of `length` bytes, by its first kilobytes, and the size of the
    image in it in bytes; 0 if they do not tell the size.

    limit  most bytes that the image may have

    Raises Refused for files that are not accepted. Nothing else of the file is read.
    """
    form = recognise(head)
    if form == "qcow2":
        return form, check_qcow2(head, limit)
    size = length if form == "raw" else 0
    if size > limit:
        raise Refused(
            "invalid", f"the image has {size} bytes; at most {limit} are accepted", "file"
        )
    return form, size


def content_of(head: bytes) -> str:
    """Return 'disk' or 'partition', by a raw image's first kilobytes: a disk has a GPT or plausible
    MBR (UEFI 2.10, 5.2)."""
    if head[512:520] == b"EFI PART" or head[4096:4104] == b"EFI PART":
        return "disk"
    entries = [head[446 + 16 * n : 462 + 16 * n] for n in range(4)]
    plausible = all(len(e) == 16 and e[0] in (0, 0x80) and (e[4] or not any(e)) for e in entries)
    return (
        "disk"
        if head[510:512] == b"\x55\xaa" and plausible and any(e[4] for e in entries)
        else "partition"
    )


def check_content(head: bytes) -> None:
    """Raise Refused unless a raw image's first 128 KiB show a partition table, a boot sector or a
    file system."""
    if head[514:518] == b"HdrS" or head.startswith((b"070701", b"070702")):
        raise Refused(
            "invalid",
            "this is a kernel or a RAM disk; add it as one (plain), to be served as it is",
            "file",
        )
    if content_of(head) == "disk" or head[510:512] == b"\x55\xaa":
        return
    if not any(head[at : at + len(magic)] == magic for at, magic in _FILE_SYSTEMS):
        raise Refused(
            "invalid",
            "the file holds no partition table and no file system that is known here; if it is "
            "right all the same, add it as raw",
            "file",
        )


# Magic bytes of the file systems and others that a partition, or a disk without a partition table,
# may hold (libblkid, superblocks/*.c).
_FILE_SYSTEMS = (
    (0, b"XFSB"),
    (0, b"LUKS\xba\xbe"),
    (0, b"hsqs"),
    (0, b"\x45\x3d\xcd\x28"),
    (3, b"NTFS    "),
    (3, b"EXFAT   "),
    (32, b"NXSB"),
    (1080, b"\x53\xef"),
    (1024, b"\xe2\xe1\xf5\xe0"),
    (1024, b"\x10\x20\xf5\xf2"),
    (1024, b"H+"),
    (1024, b"HX"),
    (1040, b"\x7f\x13"),
    (1040, b"\x8f\x13"),
    (1040, b"\x68\x24"),
    (1040, b"\x78\x24"),
    (1048, b"\x5a\x4d"),
    (4086, b"SWAPSPACE2"),
    (65526, b"SWAPSPACE2"),
    (0, b"LABELONE"),
    (512, b"LABELONE"),
    (1024, b"LABELONE"),
    (1536, b"LABELONE"),
    (0, b"\xfc\x4e\x2b\xa9"),
    (4096, b"\xfc\x4e\x2b\xa9"),
    (4120, b"\xc6\x85\x73\xf6"),
    (32768, b"JFS1"),
    (32769, b"CD001"),
    (65588, b"ReIsEr"),
    (65600, b"_BHRfS_M"),
    (512, b"\x57\x45\x56\x82"),
    (9564, b"\x54\x19\x01\x00"),
    (66908, b"\x54\x19\x01\x00"),
    (9564, b"\x19\x01\x54\x19"),
    (66908, b"\x19\x01\x54\x19"),
)


def sector_of(head: bytes) -> int:
    """Return the size of a logical sector, in bytes, that a disk must have for the image; 0 where
    any size will do or is not known.

    Partition tables count in sectors: a GPT's header is in the second sector, and an MBR without a
    GPT is taken to count in sectors of 512 bytes. FAT and NTFS state their sector size, and cannot
    be used on a disk with larger sectors.
    """
    if head[512:520] == b"EFI PART":
        return 512
    if head[4096:4104] == b"EFI PART":
        return 4096
    if content_of(head) == "disk":
        return 512
    sector = int.from_bytes(head[11:13], "little")
    return (
        512
        if head[510:512] == b"\x55\xaa" and head[:1] in (b"\xeb", b"\xe9") and sector == 512
        else 0
    )


def table_of(head: bytes) -> str:
    """Return the kind of a raw image's partition table, by its first 128 KiB: 'gpt', 'mbr', 'full'
    (an MBR whose four primary partitions are taken) or 'none'."""
    if b"EFI PART" in (head[512:520], head[4096:4104]):
        return "gpt"
    if content_of(head) != "disk":
        return "none"
    return "full" if all(head[450 + 16 * n] for n in range(4)) else "mbr"


def end_of(head: bytes) -> int:
    """Return the byte after the last partition of a raw image, by its first 128 KiB; 0 where the
    image has no partition table, the table is not within these 128 KiB, or it names a sector beyond
    any disk."""
    for sector in (512, 4096):
        if head[sector : sector + 8] == b"EFI PART":
            if len(head) < sector + 88:
                return 0
            lba, count, size = struct.unpack_from("<QII", head, sector + 72)
            first = lba * sector
            if not 128 <= size <= 4096 or first + count * size > len(head):
                return 0
            entries = (first + n * size for n in range(count))
            lasts = (
                struct.unpack_from("<Q", head, at + 40)[0] + 1
                for at in entries
                if any(head[at : at + 16])
            )
            end = max(lasts, default=0) * sector
            return end if end <= _LAST_BYTE else 0
    if table_of(head) == "none":
        return 0
    spans = (struct.unpack_from("<II", head, 454 + 16 * n) for n in range(4) if head[450 + 16 * n])
    return max((first + count for first, count in spans), default=0) * 512


# ---------------------------------------------------------------- compressed files


class Source(Protocol):
    """A readable file for `unpack`."""

    def read(self, size: int = -1, /) -> bytes: ...


def unpack(file: Source, form: str) -> Iterator[bytes]:
    """Yield the raw bytes of a gzip or zstd file, in blocks of at most 1 MiB. Raises Refused when
    it is damaged."""
    try:
        yield from _gzip(file) if form == "gzip" else _zstd(file)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, struct.error) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise Refused(
            "invalid", f"the {form} file is damaged or cut short ({error})", "file"
        ) from None


def _gzip(file: Source) -> Iterator[bytes]:
    """Yield the content of the members of a gzip file (RFC 1952), one after the other. The standard
    library's reader would search the whole file for the end of a header."""
    data, silent = file.read(_PIECE), 0
    while data:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            while block := member.decompress(data, BLOCK):
                silent, data = 0, member.unconsumed_tail
                yield block
            silent += len(data) - len(member.unused_data)
            if silent > _SILENT:
                raise Refused("invalid", "the gzip file has a header without end", "file")
            data = b"" if member.eof else file.read(_PIECE)
            if not data and not member.eof:
                raise EOFError("the end is missing")
        data = member.unused_data.lstrip(b"\0")
        while not data and (more := file.read(_PIECE)):
            data = more.lstrip(b"\0")  # padding, as on tapes


def _zstd(file: Source) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    with decompressor.stream_reader(cast(BinaryIO, file), read_across_frames=True) as stream:
        while block := stream.read(BLOCK):
            yield block


def check_frames(file: BinaryIO, go_on: Callable[[], None] = lambda: None) -> None:
    """Walk over a zstd file's frames and blocks (RFC 8878, section 3.1) to its end. Raises Refused
    if the file is cut short.

    The library's reader takes the end of the file for the end of the data, and so would not notice
    a cut.

    go_on  called for each block; an exception that it raises ends the walk
    """
    size, at = os.fstat(file.fileno()).st_size, 0
    try:
        while 0 <= at < size:
            at = _end_of_frame(file.fileno(), at, go_on)
    except (struct.error, zstandard.ZstdError):
        at = -1
    if at != size:
        raise Refused("invalid", "the zstd file is damaged or cut short", "file")


def _end_of_frame(file: int, at: int, go_on: Callable[[], None]) -> int:
    go_on()
    head = os.pread(file, 18, at)
    (magic,) = struct.unpack_from("<I", head)
    if magic & 0xFFFFFFF0 == 0x184D2A50:
        return at + 8 + int(struct.unpack_from("<I", head, 4)[0])
    has_checksum = zstandard.get_frame_parameters(head).has_checksum
    at += zstandard.frame_header_size(head)
    last = 0
    while not last:
        go_on()
        # past the end: the reserved type
        block = int.from_bytes(os.pread(file, 3, at).ljust(3, b"\xff"), "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        if kind == 3:
            return -1
        at += 3 + (1 if kind == 1 else length)
    return at + (4 if has_checksum else 0)


# ---------------------------------------------------------------- qcow2

# dirty, compression type, extended L2; not: corrupt (2), external data file (4)
_INCOMPATIBLE_KNOWN = 0b11001


def check_qcow2(head: bytes, limit: int) -> int:
    """Return the virtual size of a qcow2 file, from its first 104 bytes. Raises Refused for files
    that must not be opened."""
    if len(head) < 104:
        raise Refused("invalid", "the qcow2 file is cut short", "file")
    version, backing_offset, backing_size, cluster_bits, size, encryption = struct.unpack_from(
        ">IQIIQI", head, 4
    )
    features = struct.unpack_from(">Q", head, 72)[0] if version >= 3 else 0
    if version not in (2, 3):
        raise Refused("invalid", f"qcow2 version {version} is not known", "file")
    # qemu-img would open any file of this host that the header names, and copy it into the image
    if backing_offset or backing_size:
        raise Refused(
            "invalid",
            "the qcow2 file needs a backing file; flatten it with qemu-img convert first",
            "file",
        )
    if features & 4:
        raise Refused(
            "invalid", "the qcow2 file keeps its data in another file; that is not accepted", "file"
        )
    if features & ~_INCOMPATIBLE_KNOWN:
        raise Refused(
            "invalid",
            "the qcow2 file is marked corrupt, or has features that are not known here",
            "file",
        )
    if encryption:
        raise Refused("invalid", "the qcow2 file is encrypted", "file")
    if not 9 <= cluster_bits <= 21:
        raise Refused("invalid", "the qcow2 file's header makes no sense", "file")
    if size > limit:
        raise Refused(
            "invalid", f"the image has {size} bytes; at most {limit} are accepted", "file"
        )
    if not size:
        raise Refused("invalid", "the image in the qcow2 file is empty", "file")
    return int(size)


def measure_qcow2(source: Path, go_on: Callable[[], None] = lambda: None) -> int:
    """Return about how many bytes a checked qcow2 file takes as a sparse raw file. Raises
    Refused."""
    # Measured as qcow2, because as raw qemu-img tells the whole virtual size, with the holes. The
    # qcow2 format itself adds a 4000th.
    output = _run(
        ["qemu-img", "measure", "--output", "json", "-f", "qcow2", "-O", "qcow2"], source, [], go_on
    )
    return int(json.loads(output)["required"])


def convert_qcow2(source: Path, target: Path, go_on: Callable[[], None] = lambda: None) -> None:
    """Write a checked qcow2 file as a sparse raw file. Raises Refused with qemu-img's complaint.

    go_on  called twice a second; an exception that it raises ends the conversion
    """
    _run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw"], source, [target], go_on)


def _run(command: list[str], source: Path, more: list[Path], go_on: Callable[[], None]) -> str:
    """Run qemu-img on `source`; return its output."""
    # -f: the content cannot be taken for another format; a path that begins with a slash is never
    # taken for a protocol or JSON. setpriv: the kernel ends the program if this process is killed.
    paths = [str(path.absolute()) for path in (source, *more)]
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command, *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            printed, error_text = _wait(process, go_on)
        finally:
            process.kill()
    if process.returncode == -signal.SIGKILL:  # as the kernel ends programs for their memory
        raise MemoryError("qemu-img was killed")
    if process.returncode:
        complaint = (error_text.strip().splitlines() or ["no reason given"])[-1].replace(
            str(source.absolute()), "it"
        )
        raise Refused("invalid", f"the qcow2 file cannot be converted: {complaint}", "file")
    return printed


def _wait(process: subprocess.Popen[str], go_on: Callable[[], None]) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            go_on()
