"""Disks from which a machine's BIOS can start a system, as the BIOS reported before Linux started
(EDD).

/sys/firmware/edd/int13_dev80 and so on: one folder for each disk that the BIOS has, with its size
in sectors of `raw_data`'s sector size, and the PCI device that it is attached to, if the BIOS tells
it. The kernel reads the facts of six disks and the signatures of sixteen, so the list is incomplete
for a machine with more than six disks.

A disk is excluded only if the BIOS certainly cannot start it. The BIOS's number of the disk is not
used: it may change at the next start, and `cod.wire.diskloader` finds the disk by its signature.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST = 6  # EDDMAXNR of the kernel: disks that it keeps facts of
_CAPPED = 0xFFFFFFFF  # sectors that a BIOS says at most, if it counts in 32 bits


@dataclass(frozen=True, slots=True)
class BiosDisk:
    """A disk of the BIOS: its size in bytes, 0 if not told; the PCI device that it is attached to
    (0000:00:04.0), or ""."""

    size: int
    pci: str


def listed(root: Path) -> tuple[BiosDisk, ...] | None:
    """Return the disks of the BIOS; None if the list may be incomplete. `root` is the folder that
    contains sys."""
    edd = root / "sys/firmware/edd"
    folders = sorted(edd.glob("int13_dev*")) if edd.is_dir() else []
    if not folders or len(folders) >= _MOST:
        return None
    return tuple(BiosDisk(_size(folder), _pci(folder)) for folder in folders)


def starts(disk: Path, size: int, known: Sequence[BiosDisk] | None) -> bool:
    """Return whether the BIOS may start a system from the disk with that folder in /sys/block;
    False only if it certainly cannot.

    size  of the disk, in bytes
    """
    if known is None:
        return True
    place = disk.resolve().parts
    return any(one.pci in place if one.pci else _same(one.size, size) for one in known)


def _same(reported: int, size: int) -> bool:
    """Return whether a disk of `size` bytes can have the size `reported` by the BIOS. Controllers
    and translations round."""
    return (
        not reported
        or reported >= _CAPPED * 512
        or abs(reported - size) <= max(size // 100, 16 << 20)
    )


def _size(folder: Path) -> int:
    try:
        raw = (folder / "raw_data").read_bytes()
    except OSError:
        return 0
    if len(raw) < 26:
        return 0
    sectors, each = struct.unpack_from("<QH", raw, 16)  # EDD 3.0, result buffer of function 48h
    return int(sectors * each)


def _pci(folder: Path) -> str:
    link = folder / "pci_dev"
    return link.resolve().name if link.exists() else ""
