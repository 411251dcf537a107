"""Erases disks: afterwards every byte reads as zero. The quickest way that can be trusted, for each
disk.

1. A device that takes *write zeroes* (NVMe Write Zeroes, SCSI WRITE SAME, virtio;
   queue/write_zeroes_max_bytes) is told to: its standard promises zeros. It may unmap what it
   zeroes (fallocate(2), FALLOC_FL_PUNCH_HOLE), so that a thin disk gives its space back and an SSD
   knows which of its blocks are unused; where it refuses that, the kernel sees to the zeros
   (BLKZEROOUT). SCSI and NVMe disks need not unmap when they zero: those that take *discard* are
   told of that as well, and believed as in 2; one that shows data then is zeroed once more.
2. A device that takes only *discard* (TRIM, UNMAP) is told to, but the standards let it ignore that
   or return old data. It is believed only if zeros are read back: the first and last 16 MiB whole,
   where ranges that the device rounds off lie, and 2048 samples of 4 KiB, one at a random place in
   each 2048th of the disk. A device that kept a fraction f of its data passes with probability
   (1-f)^2048: one in e^20 for 1 %. If anything but zeros shows, see 3.
3. Everything else is overwritten with zeros (by the kernel, BLKZEROOUT).

All three ways end with a look, with fewer samples where zeros were promised. A file that stands for
a disk is truncated.

Where the next holder is to be of the same group, only tables and signatures are zeroed: both ends
of each disk and of each of its partitions, where partition tables, boot code, LVM, RAID and file
systems have what they are recognised by. What lies between stays.
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
    """Commands that a device takes: write zeroes, discard. `unmaps`: write zeroes also frees the
    blocks."""

    zeroes: bool
    discards: bool
    unmaps: bool

    @property
    def passes(self) -> int:
        """Return how often the device is gone through: 2 where it is zeroed, then discarded."""
        return 2 if self.zeroes and self.discards and not self.unmaps else 1


def wipe_all(disks: Sequence[Disk], progress: Progress, purge: bool = False) -> tuple[Erasure, ...]:
    """Erase all of `disks` at the same time; returns how, in their order. `purge`: each erases
    itself first, where it can (`trampoline.nvme`). Raises PrimeError."""
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
    """Have a disk erase itself where that is `wanted`; returns how, '' if it did not. A disk that
    is at that, as an order before this one wanted, is waited for."""
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
        meter.expect(done - target.size)  # what failed comes to no end
    if not how and wanted and nvme.purge(target):
        how = "NVMe Format"
    return how


def clear_all(disks: Sequence[Disk], progress: Progress) -> tuple[Erasure, ...]:
    """Zero the partition tables and signatures of all of `disks`; returns how. Raises
    PrimeError."""
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
    """Return where a disk has tables and signatures, as offsets and lengths."""
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
    """Erase a disk; returns the method, and how many bytes were read back."""
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
    """Return what the kernel says that the device at `path` can do."""
    name = os.path.basename(os.path.realpath(path))
    queue = Path("/sys/class/block", name, "queue")
    return Abilities(
        zeroes=_number(queue / "write_zeroes_max_bytes") > 0,
        discards=_number(queue / "discard_max_bytes") > 0,
        unmaps=not name.startswith(("sd", "nvme")),
    )


def _zero(target: Target, count: Callable[[int], None], *, unmap: bool) -> str:
    """Zero everything; returns the method. `unmap`: the device may unmap what it zeroes, while it
    takes that."""
    for at in range(0, target.size, _STEP):
        length = min(_STEP, target.size - at)
        unmap = unmap and target.punch(at, length)
        if not unmap:
            target.zero(at, length)
        count(length)
    return "write zeroes" if unmap else "overwrite"


def _discard(target: Target, count: Callable[[int], None]) -> bool:
    """Discard everything; True if the disk is empty then."""
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
    """Return where a look at the edges and `samples` random places finds anything but zeros; None
    if nowhere."""
    zeros = bytes(_LONG)
    for at, length in _spans(target.size, samples):
        data = target.read(length, at)
        if data != zeros[: len(data)]:
            return at
    return None


def _spans(size: int, samples: int) -> list[tuple[int, int]]:
    """Return what a look reads of a disk of `size` bytes, as offsets and lengths."""
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
