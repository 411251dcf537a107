"""Erases disks, so that every byte reads as zero. Each disk is erased by the fastest way that can
be trusted.

1. A device that supports *write zeroes* (NVMe Write Zeroes, SCSI WRITE SAME, virtio;
   queue/write_zeroes_max_bytes) gets this command: its standard promises zeros. The device may
   unmap the zeroed blocks (fallocate(2), FALLOC_FL_PUNCH_HOLE), so that a thin disk releases its
   space and an SSD knows its unused blocks; if it refuses that, the kernel writes the zeros
   (BLKZEROOUT). SCSI and NVMe disks need not unmap when they zero. Those that support *discard* get
   this command, too, and are checked as in 2; a disk that then shows data is zeroed once more.
2. A device that supports only *discard* (TRIM, UNMAP) gets this command, but the standards let it
   ignore the command or return old data. The result is accepted only if zeros are read back: the
   first and last 16 MiB completely, where devices may round ranges off, and 2048 samples of 4 KiB,
   one at a random place in each 2048th of the disk. A device that kept a fraction f of its data
   passes with probability (1-f)^2048: one in e^20 for 1 %. If anything but zeros is read, see 3.
3. Everything else is overwritten with zeros (by the kernel, BLKZEROOUT).

All three ways end with such a check, with fewer samples if zeros were promised. A file in place of
a disk is truncated.

If the next holder is of the same group, only tables and signatures are zeroed: both ends of each
disk and of each of its partitions, where partition tables, boot code, LVM, RAID and file systems
have the signatures by which they are recognised. The contents between these stay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cod.orders import Erasure
from trampoline import nvme, sanitize
from trampoline.errors import PrimeError
from trampoline.inventory import Disk
from trampoline.pipeline import Meter, Pipeline, Progress
from trampoline.target import Target

_STEP = 64 << 20
_EDGE, _LONG, _SAMPLE = 16 << 20, 1 << 20, 4 << 10
_ATA = ("ata", "sas")  # buses on which an ATA disk may be
_SECTOR = 512  # of sysfs, whatever the disk's are
_MANY, _FEW = 2048, 64


@dataclass(frozen=True, slots=True)
class Abilities:
    """Commands that a device supports: write zeroes, discard. `unmaps`: write zeroes also frees the
    blocks."""

    zeroes: bool
    discards: bool
    unmaps: bool

    @property
    def passes(self) -> int:
        """Return the number of passes over the device: 2 if it is zeroed, then discarded."""
        return 2 if self.zeroes and self.discards and not self.unmaps else 1


def wipe_all(disks: Sequence[Disk], progress: Progress, purge: bool = False) -> tuple[Erasure, ...]:
    """Erase all of `disks` at the same time; return how, in their order. `purge`: each disk erases
    itself first, if it can (`trampoline.nvme`). Raises PrimeError."""
    if not disks:
        return ()
    able = {disk.path: abilities(disk.path) for disk in disks}
    meter = Meter("wipe", sum(disk.size * able[disk.path].passes for disk in disks))
    erased = dict[str, Erasure]()

    def erase(disk: Disk) -> None:
        began = time.monotonic()
        with Target(disk.path) as target:
            purged = _purge(target, disk, meter, purge)
            method, checked = _erase(target, meter, able[disk.path])
        how, about = f"{purged}, {method}" if purged else method, _about(disk)
        erased[disk.path] = Erasure(*about, how, time.monotonic() - began, checked)

    def produce(put: object) -> None:
        for disk in disks:
            put(disk)  # type: ignore[operator]

    Pipeline(len(disks)).run(produce, erase, meter, progress)
    return tuple(erased[disk.path] for disk in disks)


def _purge(target: Target, disk: Disk, meter: Meter, wanted: bool) -> str:
    """Have a disk erase itself if that is `wanted`; return the method, '' if it did not. A disk
    that is still erasing itself for an earlier order is waited for."""
    if not target.is_device:
        return ""
    done: int | None = None

    def tell(share: float) -> None:
        nonlocal done
        if done is None:
            meter.expect(target.size)
            done = 0
        further = int(share * target.size) - done
        done += further
        meter.add(further)

    how = sanitize.sanitize(target, tell, start=wanted, ata=disk.transport in _ATA)
    if done is not None:
        meter.expect(done - target.size)  # a failed operation does not reach its total
    if not how and wanted and nvme.purge(target):
        how = "NVMe Format"
    return how


def clear_all(disks: Sequence[Disk], progress: Progress) -> tuple[Erasure, ...]:
    """Zero the partition tables and signatures of all of `disks`; return how. Raises PrimeError."""
    spans = {disk.path: _signatures(disk) for disk in disks}
    meter = Meter("wipe", sum(length for each in spans.values() for _, length in each))
    cleared = []
    for disk in disks:
        began = time.monotonic()
        with Target(disk.path) as target:
            for at, length in spans[disk.path]:
                target.zero(at, length)
                meter.add(length)
            meter.tell(progress)
            target.flush()
            for at, length in spans[disk.path]:
                if any(target.read(length, at)):
                    raise PrimeError(
                        f"the disk {target.path} still shows data at byte {at} after its tables"
                        " were erased"
                    )
            target.reread_table()
        seconds = time.monotonic() - began
        checked = sum(length for _, length in spans[disk.path])
        cleared.append(Erasure(*_about(disk), "tables alone", seconds, checked))
    return tuple(cleared)


def _about(disk: Disk) -> tuple[str, str, str, str, int]:
    return disk.name, disk.model, disk.serial, disk.wwid, disk.size


def _signatures(disk: Disk) -> list[tuple[int, int]]:
    """Return the places of a disk's tables and signatures, as (offset, length)."""
    pieces = [(0, disk.size, _EDGE)]
    block = Path("/sys/class/block", os.path.basename(os.path.realpath(disk.path)))
    for partition in block.glob("*/partition"):
        start, size = (_number(partition.with_name(each)) for each in ("start", "size"))
        pieces.append((start * _SECTOR, size * _SECTOR, _LONG))
    ends = []
    for start, size, edge in pieces:
        edge = min(edge, size)
        ends += [(start, edge), (start + size - edge, edge)]
    return ends


def _erase(target: Target, meter: Meter, able: Abilities) -> tuple[str, int]:
    """Erase a disk; return the method, and how many bytes were read back."""
    if not target.is_device:
        os.truncate(target.path, 0)
        os.truncate(target.path, target.size)
        meter.add(target.size)
        return "truncate", 0
    if not able.zeroes and able.discards and _discard(target, meter.add):
        method = "discard"
    else:
        method = _zero(target, meter.add, unmap=able.zeroes)
        if able.passes > 1:
            if _discard(target, meter.add):
                method += ", discard"
            else:
                method = _zero(target, meter.add, unmap=False)
    target.flush()
    if (found := data_at(target, _FEW)) is not None:
        raise PrimeError(
            f"the disk {target.path} still shows data at byte {found} after it was erased"
        )
    target.reread_table()
    looked = _spans(target.size, _MANY if "discard" in method else _FEW)
    return method, min(target.size, sum(length for _, length in looked))


def abilities(path: str) -> Abilities:
    """Return the abilities that the kernel reports for the device at `path`."""
    name = os.path.basename(os.path.realpath(path))
    queue = Path("/sys/class/block", name, "queue")
    return Abilities(
        zeroes=_number(queue / "write_zeroes_max_bytes") > 0,
        discards=_number(queue / "discard_max_bytes") > 0,
        unmaps=not name.startswith(("sd", "nvme")),
    )


def _zero(target: Target, count: Callable[[int], None], *, unmap: bool) -> str:
    """Zero the whole device; return the method. `unmap`: let the device unmap the zeroed blocks, as
    long as it supports that."""
    for at in range(0, target.size, _STEP):
        length = min(_STEP, target.size - at)
        unmap = unmap and target.punch(at, length)
        if not unmap:
            target.zero(at, length)
        count(length)
    return "write zeroes" if unmap else "overwrite"


def _discard(target: Target, count: Callable[[int], None]) -> bool:
    """Discard the whole device; return whether it is empty then."""
    done = 0
    try:
        for at in range(0, target.size, _STEP):
            length = min(_STEP, target.size - at)
            target.discard(at, length)
            done += length
            count(length)
        target.flush()
        if data_at(target, _MANY) is None:
            return True
    except OSError:
        pass  # it says that it can, and cannot
    count(-done)
    return False


def data_at(target: Target, samples: int) -> int | None:
    """Return the first place, among the edges and `samples` random places, with anything but zeros;
    None if there is none."""
    zeros = bytes(_LONG)
    for at, length in _spans(target.size, samples):
        data = target.read(length, at)
        if data != zeros[: len(data)]:
            return at
    return None


def _spans(size: int, samples: int) -> list[tuple[int, int]]:
    """Return the (offset, length) of the places that such a check reads on a disk of `size`
    bytes."""
    spans = [(at, _LONG) for at in range(0, min(_EDGE, size), _LONG)]
    spans += [(at, _LONG) for at in range(max(0, size - _EDGE), size, _LONG)]
    stratum = max(size // samples, _SAMPLE)
    for start in range(0, size, stratum):
        spans.append(
            (start + int.from_bytes(os.urandom(8), "big") % stratum // _SAMPLE * _SAMPLE, _SAMPLE)
        )
    return spans


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
