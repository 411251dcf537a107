"""Contents of a machine's disks, as far as COD can tell: the mark of the newest installation,
nothing at all, or something else. Disks are only read.

The mark is in the NoCloud seed that `cprime` has written: the instance id, which is the order's id,
the host name, and the installation, which names the vcluster and the template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from trampoline import partitions
from trampoline.errors import PrimeError
from trampoline.filesystems import fatnames
from trampoline.inventory import Disk

BLANK, OTHER = "blank", "other"
_EDGE = 1 << 20  # bytes at either end in which tables and signatures are
_MARK = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}")
_NAME = re.compile(r"[A-Za-z0-9.-]{1,253}")
_INSTALLATION = re.compile(r"[0-9]{1,18}\.[0-9]{1,18} [0-9a-f]{64}")


@dataclass
class _Readable:
    """An open disk, in the form that `partitions` reads."""

    path: str
    size: int
    sector: int
    file: BinaryIO = field(repr=False)

    def read(self, length: int, offset: int) -> bytes:
        self.file.seek(offset)
        return self.file.read(length)

    def write(self, data: memoryview, offset: int) -> None:
        raise PrimeError(f"{self.path} is only read")


def newest_mark(disks: Sequence[Disk], installation: bool = False) -> str:
    """Return the newest mark of an installation, NODE.GENERATION HOSTNAME, with `installation`
    followed by what the seed says of that; 'blank' if all disks are blank, else 'other'. Raises
    PrimeError when a disk cannot be read."""
    marks: list[str] = []
    blank = True
    for disk in disks:
        try:
            with open(disk.path, "rb") as file:
                device = _Readable(disk.path, disk.size, disk.sector, file)
                marks += _marks(device)
                edges = device.read(_EDGE, 0), device.read(_EDGE, max(disk.size - _EDGE, 0))
        except OSError as error:
            raise PrimeError(f"the disk {disk.path} cannot be read: {error}") from None
        blank = blank and not any(any(edge) for edge in edges)
    if marks:
        newest = max(marks, key=_generation)
        return newest if installation else " ".join(newest.split(" ")[:2])
    return BLANK if blank else OTHER


def _generation(mark: str) -> int:
    return int(mark.partition(" ")[0].partition(".")[2])


def _marks(disk: _Readable) -> Iterator[str]:
    """Yield the marks of the disk's seeds."""
    for start, _size in partitions.places(disk).values():
        found = fatnames.content(
            lambda length, at, start=start: disk.read(length, start + at),  # type: ignore[misc]
            "meta-data",
        )
        try:
            meta = json.loads(found)
            mark, name = str(meta["instance-id"]), str(meta.get("local-hostname", ""))
            installation = str(meta.get("cod-installation", ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        if _MARK.fullmatch(mark):
            named = [mark, name] if _NAME.fullmatch(name) else [mark]
            known = len(named) > 1 and _INSTALLATION.fullmatch(installation)
            yield " ".join([*named, installation] if known else named)
