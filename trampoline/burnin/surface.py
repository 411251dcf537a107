"""Tests disks: their surfaces, in stretches that are evenly spread however short the time is, and
their health reports (`health`).

The stretches follow van der Corput's sequence: whenever the test ends, the tested stretches are
evenly spread over the disk, and the result names their share. A disk that may be written is tested
in groups of stretches: each group is written, flushed, read back, compared and left as zeros. Each
written page contains its own place on the disk, so that a write to a wrong place is noticed like a
lost write. Other disks are only read. Reads and writes bypass the kernel's cache, and a group is as
large as the caches of common drives. All disks are tested at the same time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from cod.orders import TestResult
from trampoline.burnin import health, kernel
from trampoline.burnin.pace import Pace, Worker, watch
from trampoline.errors import PrimeError
from trampoline.inventory import Disk
from trampoline.pipeline import Progress
from trampoline.source import Source
from trampoline.target import PAGE, Target

STRETCH = 16 << 20
_GROUP = 16  # stretches
_MOST_ERRORS = 8  # after which a disk is not tested further
_ZONES = ("begin", "middle", "end")
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def run(
    disks: Sequence[tuple[Disk, bool]],
    seconds: float,
    progress: Progress,
    log: kernel.KernelLog,
) -> list[TestResult]:
    """Test disks for so many seconds. `disks`: each, and whether it may be written."""
    if not disks:
        return [TestResult("disk", "", "", "skipped", "the machine has no local disk")]
    before = {disk.name: health.read(disk.path, disk.transport) for disk, _ in disks}
    log.warnings()  # what was there before is not the test's
    pace = Pace("disk", sum(disk.size for disk, _ in disks), seconds)
    surfaces = [Surface(disk, write, pace) for disk, write in disks]
    workers = [Worker(f"disk {surface.disk.name}", surface.run) for surface in surfaces]
    watch(workers, pace, progress)
    lines = log.warnings()
    return [
        _result(surface, worker, before[surface.disk.name], lines)
        for surface, worker in zip(surfaces, workers, strict=True)
    ]


def _result(
    surface: Surface, worker: Worker, before: dict[str, float], lines: Sequence[str]
) -> TestResult:
    disk = surface.disk
    after = {} if worker.stuck else health.read(disk.path, disk.transport)
    faults = [*surface.errors[:2]]
    if len(surface.errors) > 2:
        faults.append(f"{len(surface.errors)} errors in all")
    faults += ["it has not answered for two minutes"] if worker.stuck else []
    faults += [worker.error] if worker.error else []
    faults += health.complaints(before, after)
    faults += kernel.about(list(lines), disk.name)[:2]
    kind = "nvme" if disk.transport == "nvme" else "hdd" if disk.rotational else "ssd"
    part = f"{disk.name} (serial {disk.serial})" if disk.serial else disk.name
    figures = surface.figures() | {f"smart_{name}": value for name, value in after.items()}
    if not surface.tested and not faults:
        return TestResult(
            "disk", part, kind, "skipped", "there was no time to test any of it", figures
        )
    about = "; ".join(faults) or (
        "" if surface.write else "read only: its disks hold data, or are marked keep"
    )
    return TestResult("disk", part, kind, "failed" if faults else "passed", about, figures)


def spread(count: int) -> Iterator[int]:
    """Yield each number from 0 to `count` - 1 once, in an order in which the first numbers are
    always evenly spread."""
    bits = max(count - 1, 0).bit_length()
    for number in range(1 << bits):
        place = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if place < count:
            yield place


class Surface:
    """The test of one disk. `errors` are sentences; `tested` counts bytes."""

    def __init__(self, disk: Disk, write: bool, pace: Pace) -> None:
        self.disk, self.write = disk, write
        self.errors: list[str] = []
        self.tested = 0
        self._pace = pace
        # bytes, seconds
        self._spent = {way: {zone: [0.0, 0.0] for zone in _ZONES} for way in ("read", "write")}

    def run(self, step: Callable[[], None]) -> None:
        """Test until the time is over, the whole disk is tested, or there are too many errors."""
        stretches = (place * STRETCH for place in spread(-(-self.disk.size // STRETCH)))
        try:
            if self.write:
                self._write_all(stretches, step)
            else:
                self._read_all(stretches, step)
        except PrimeError as error:
            self.errors.append(str(error))

    def figures(self) -> dict[str, float]:
        """Return the measurements: MB/s on the whole disk and in each third of it, and the tested
        share."""
        found = {
            "tested_percent": 100.0 * self.tested / max(self.disk.size, 1),
            "tested_bytes": float(self.tested),
            "errors": float(len(self.errors)),
            "written": float(self.write),
        }
        for way, zones in self._spent.items():
            whole = [sum(values) for values in zip(*zones.values(), strict=True)]
            if whole[1]:
                found[f"{way}_mb_s"] = whole[0] / whole[1] / 1e6
            for zone, (count, seconds) in zones.items():
                if seconds:
                    found[f"{way}_{zone}_mb_s"] = count / seconds / 1e6
        return found

    def _over(self) -> bool:
        return self._pace.over() or len(self.errors) >= _MOST_ERRORS

    def _length(self, at: int) -> int:
        return min(STRETCH, self.disk.size - at)

    def _timed(self, way: str, at: int, began: float) -> None:
        spent = self._spent[way][_ZONES[min(at * 3 // max(self.disk.size, 1), 2)]]
        spent[0] += self._length(at)
        spent[1] += time.monotonic() - began

    def _read_all(self, stretches: Iterator[int], step: Callable[[], None]) -> None:
        with Source(self.disk.path) as source:
            for at in stretches:
                if self._over():
                    return
                began = time.monotonic()
                try:
                    source.read(self._length(at), at)
                except PrimeError as error:
                    self.errors.append(str(error))
                else:
                    self._timed("read", at, began)
                self._count(at, step)

    def _write_all(self, stretches: Iterator[int], step: Callable[[], None]) -> None:
        with (
            Target(self.disk.path) as target,
            mmap.mmap(-1, STRETCH) as pattern,
            mmap.mmap(-1, STRETCH) as back,
        ):
            pattern[:] = os.urandom(1 << 20) * (STRETCH >> 20)
            while not self._over() and (group := list(islice(stretches, _GROUP))):
                written = [
                    at for at in group if not self._over() and self._put(target, pattern, at, step)
                ]
                try:
                    target.flush()
                except PrimeError as error:
                    self.errors.append(str(error))
                for at in written:
                    self._compare(target, pattern, back, at)
                    step()
                for at in written:  # also where the test was ended: as it was found
                    target.zero(at, self._length(at))
                    self._count(at, step)
            target.flush()

    def _put(self, target: Target, pattern: mmap.mmap, at: int, step: Callable[[], None]) -> bool:
        began = time.monotonic()
        length = self._length(at)
        _address_pages(pattern, at, length)
        with memoryview(pattern) as view, view[:length] as part:
            try:
                target.write(part, at)
            except PrimeError as error:
                self.errors.append(str(error))
                self._count(at, step)
                return False
        self._timed("write", at, began)
        step()
        return True

    def _compare(self, target: Target, pattern: mmap.mmap, back: mmap.mmap, at: int) -> None:
        length = self._length(at)
        began = time.monotonic()
        try:
            with target.read_into(back, length, at) as got:
                count = len(got)
        except PrimeError as error:
            self.errors.append(str(error))
            return
        self._timed("read", at, began)
        _address_pages(pattern, at, length)
        wrong = _first_difference(pattern, back, count)
        if count < length or wrong is not None:
            place = at + (count if wrong is None else wrong)
            self.errors.append(
                f"the disk {self.disk.path} does not hold what was written at byte {place}"
            )

    def _count(self, at: int, step: Callable[[], None]) -> None:
        self.tested += self._length(at)
        self._pace.add(self._length(at))
        step()


def _address_pages(pattern: mmap.mmap, at: int, length: int) -> None:
    """Write into each page its place on the disk."""
    for page in range(0, length - 7, PAGE):
        struct.pack_into("<Q", pattern, page, at + page)


def _first_difference(one: mmap.mmap, other: mmap.mmap, length: int) -> int | None:
    """Return the offset of the first difference within `length` bytes; None if there is none."""
    with memoryview(one) as left, memoryview(other) as right:
        first, second = (
            ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in (left, right)
        )
        if not _libc.memcmp(first, second, length):
            return None
        for page in range(0, length, PAGE):
            if left[page : page + PAGE].tobytes() != right[page : page + PAGE].tobytes():
                return next(page + at for at in range(PAGE) if left[page + at] != right[page + at])
    return None
