"""Erases disks: afterwards every byte reads as zero. The quickest way that can be trusted, for each
disk.

1. A device that takes *write zeroes* (NVMe Write Zeroes, SCSI WRITE SAME, virtio;
   queue/write_zeroes_max_bytes) is told to: its standard promises zeros.
2. A device that takes *discard* (TRIM, UNMAP) is told to, but the standards let it ignore that or
   return old data. It is believed only if zeros are read back: the first and last 16 MiB whole,
   where ranges that the device rounds off lie, and 2048 samples of 4 KiB, one at a random place in
   each 2048th of the disk. A device that kept a fraction f of its data passes with probability
   (1-f)^2048: one in e^20 for 1 %. If anything but zeros shows, see 3.
3. Everything else is overwritten with zeros (by the kernel, BLKZEROOUT).

All three ways end with a look, with fewer samples where zeros were promised. A file that stands for
a disk is truncated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trampoline.crew import Crew, Meter, Progress
from trampoline.errors import PrimeError
from trampoline.inventory import Disk
from trampoline.target import Target

_STEP = 64 << 20
_EDGE, _LONG, _SAMPLE = 16 << 20, 1 << 20, 4 << 10
_MANY, _FEW = 2048, 64


def wipe_all(disks: Sequence[Disk], progress: Progress) -> int:
    """Erase all of `disks` at the same time; the bytes erased. Raises PrimeError."""
    if not disks:
        return 0
    meter = Meter("wipe", sum(disk.size for disk in disks))

    def erase(disk: Disk) -> None:
        with Target(disk.path) as target:
            _erase(target, meter)

    def produce(put: object) -> None:
        for disk in disks:
            put(disk)  # type: ignore[operator]

    Crew(len(disks)).run(produce, erase, meter, progress)
    return meter.done


def _erase(target: Target, meter: Meter) -> None:
    if not target.is_device:
        os.truncate(target.path, 0)
        os.truncate(target.path, target.size)
        meter.add(target.size)
        return
    queue = Path("/sys/class/block", os.path.basename(os.path.realpath(target.path)), "queue")
    promised = _number(queue / "write_zeroes_max_bytes") > 0
    if promised or not (_number(queue / "discard_max_bytes") and _discard(target, meter)):
        for at in range(0, target.size, _STEP):
            length = min(_STEP, target.size - at)
            target.zero(at, length)
            meter.add(length)
    target.flush()
    if (found := data_at(target, _FEW)) is not None:
        raise PrimeError(
            f"the disk {target.path} still shows data at byte {found} after it was erased"
        )
    target.reread_table()


def _discard(target: Target, meter: Meter) -> bool:
    """Discard everything; True if the disk is empty then."""
    before = meter.done
    try:
        for at in range(0, target.size, _STEP):
            target.discard(at, min(_STEP, target.size - at))
            meter.add(min(_STEP, target.size - at))
        target.flush()
        if data_at(target, _MANY) is None:
            return True
    except OSError:
        pass  # it says that it can, and cannot
    meter.add(before - meter.done)
    return False


def data_at(target: Target, samples: int) -> int | None:
    """Return where a look at the edges and `samples` random places finds anything but zeros; None
    if nowhere."""
    spans = [(at, _LONG) for at in range(0, min(_EDGE, target.size), _LONG)]
    spans += [(at, _LONG) for at in range(max(0, target.size - _EDGE), target.size, _LONG)]
    stratum = max(target.size // samples, _SAMPLE)
    for start in range(0, target.size, stratum):
        spans.append(
            (start + int.from_bytes(os.urandom(8), "big") % stratum // _SAMPLE * _SAMPLE, _SAMPLE)
        )
    zeros = bytes(_LONG)
    for at, length in spans:
        data = target.read(length, at)
        if data != zeros[: len(data)]:
            return at
    return None


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
