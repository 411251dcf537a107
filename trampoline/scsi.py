"""SCSI commands to a disk, by the kernel's SG_IO, and ATA's registers within their answers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

SG_IO = 0x2285  # scsi/sg.h
_NO_DATA, _FROM_DEVICE = -1, -3
_TIMEOUT = 20_000  # ms

Ioctl = Callable[[int, bytearray], int]


def exchange(ioctl: Ioctl, command: bytes, length: int) -> tuple[bytes, bytes]:
    """Return the sense data and the data of a SCSI command. Raises OSError if the disk does not
    carry it out."""
    data, sense = ctypes.create_string_buffer(max(length, 1)), ctypes.create_string_buffer(64)
    cdb = ctypes.create_string_buffer(command, len(command))
    # struct sg_io_hdr of a 64-bit kernel
    header = bytearray(
        struct.pack(
            "<iiBBHIQQQIIi4xQBBBBHHiII4x",
            ord("S"),
            _FROM_DEVICE if length else _NO_DATA,
            len(command),
            len(sense),
            0,
            length,
            ctypes.addressof(data),
            ctypes.addressof(cdb),
            ctypes.addressof(sense),
            _TIMEOUT,
            *[0] * 12,
        )
    )
    ioctl(SG_IO, header)
    host, driver = struct.unpack_from("<HH", header, 68)
    status = header[64]
    if host or status not in (0, 2) or (length and status):
        raise OSError(5, f"the disk answers with status {status}, host {host}, driver {driver}")
    return sense.raw, data.raw


def registers(sense: bytes) -> bytes | None:
    """Return the ATA status descriptor of sense data (SAT-3 12.2.2.7); None without one."""
    at = 8
    while sense[:1] in (b"\x72", b"\x73") and at + 14 <= min(8 + sense[7], len(sense)):
        if sense[at] == 0x09:
            return sense[at : at + 14]
        at += 2 + sense[at + 1]
    return None
