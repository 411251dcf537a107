"""A disk's own health report (SMART), read by the kernel's pass-through, without another program.

NVMe disks are asked for the SMART log page (NVM Express Base Specification 2.0, 5.16.1.3), ATA
disks for SMART RETURN STATUS and SMART READ DATA (ACS-3) by ATA PASS-THROUGH (SAT-3). SCSI disks
that do not understand these are asked for the informational exceptions log page (SPC-4 7.3.8). The
report of a disk that answers none of them is empty: {}.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from trampoline import nvme, scsi

_TIMEOUT = 20_000  # milliseconds
# ATA attributes whose raw values count defects, by their ids.
_ATTRIBUTES = {
    5: "reallocated_sectors",
    9: "power_on_hours",
    187: "uncorrectable_errors",
    197: "pending_sectors",
    198: "offline_uncorrectable",
    199: "interface_errors",
}
DEFECTS = (
    "media_errors",
    "reallocated_sectors",
    "uncorrectable_errors",
    "pending_sectors",
    "offline_uncorrectable",
)


def read(path: str, transport: str) -> dict[str, float]:
    """Return the disk's report, by name; 'failing' is 1 if the disk reports that it is failing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        if transport == "nvme":
            return _nvme(descriptor)
        found = _ata(descriptor) if transport in ("ata", "sas", "scsi") else {}
        return found or (_scsi(descriptor) if transport in ("sas", "scsi") else {})
    except OSError:
        return {}
    finally:
        os.close(descriptor)


def complaints(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return, as phrases, the faults that the disk reports after a test: that it is failing, and
    defects that were not reported before."""
    found = ["the disk says that it is failing (SMART)"] if after.get("failing") else []
    return found + [
        f"{after[name] - before[name]:.0f} more {name.replace('_', ' ')} than before the test"
        " (SMART)"
        for name in DEFECTS
        if after.get(name, 0.0) > before.get(name, after.get(name, 0.0))
    ]


class _NvmeDisk:
    def __init__(self, descriptor: int) -> None:
        self.command = partial(fcntl.ioctl, descriptor)


def _nvme(descriptor: int) -> dict[str, float]:
    page = ctypes.create_string_buffer(512)
    # Get Log Page of all namespaces: page 2 (SMART), 128 words of four bytes, counted from 0
    smart, disk = 2 | 127 << 16, _NvmeDisk(descriptor)
    if nvme.admin(disk, 0x02, 0xFFFFFFFF, cdw10=smart, timeout=_TIMEOUT, page=page):
        return {}  # the disk refuses, and left the page as it was
    raw = page.raw

    def counter(at: int) -> float:
        return float(int.from_bytes(raw[at : at + 16], "little"))

    # The warning about the temperature (bit 1) is left out, as its cause may be the room.
    celsius = max(int.from_bytes(raw[1:3], "little") - 273, 0)
    return {
        "failing": float(bool(raw[0] & ~0x02)),
        "temperature_c": float(celsius),
        "spare_percent": float(raw[3]),
        "used_percent": float(raw[5]),
        "power_on_hours": counter(128),
        "media_errors": counter(160),
    }


def _ata(descriptor: int) -> dict[str, float]:
    status, _ = _sg(descriptor, _pass_through(0xDA, 3, 0x20), 0)
    registers = scsi.registers(status)
    # SMART RETURN STATUS answers in LBA Mid and High: unchanged if the disk is well
    if registers is None or (registers[9], registers[11]) not in ((0x4F, 0xC2), (0xF4, 0x2C)):
        return {}
    found = {"failing": float((registers[9], registers[11]) == (0xF4, 0x2C))}
    with suppress(OSError):
        _, data = _sg(descriptor, _pass_through(0xD0, 4, 0x0E), 512)
        for at in range(2, 2 + 30 * 12, 12):
            if name := _ATTRIBUTES.get(data[at]):
                # four of the raw value's six bytes: vendors keep other things in the upper two
                found[name] = float(int.from_bytes(data[at + 5 : at + 9], "little"))
            elif data[at] == 194:
                found["temperature_c"] = float(data[at + 5])
    return found


def _pass_through(feature: int, protocol: int, flags: int) -> bytes:
    """Return ATA PASS-THROUGH (16) with the SMART command; `flags`: 0x20 requests the registers
    back, 0x0E reads data."""
    blocks = 1 if flags & 0x02 else 0
    return bytes(
        [0x85, protocol << 1, flags, 0, feature, 0, blocks, 0, 0, 0, 0x4F, 0, 0xC2, 0, 0xB0, 0]
    )


def _scsi(descriptor: int) -> dict[str, float]:
    _, page = _sg(descriptor, bytes([0x4D, 0, 0x40 | 0x2F, 0, 0, 0, 0, 1, 0, 0]), 256)
    if page[0] & 0x3F != 0x2F:
        return {}
    return {"failing": float(page[8] == 0x5D), "temperature_c": float(page[10])}


def _sg(descriptor: int, command: bytes, length: int) -> tuple[bytes, bytes]:
    return scsi.exchange(partial(fcntl.ioctl, descriptor), command, length)
