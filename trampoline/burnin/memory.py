"""Tests memory: nearly all free memory is filled with patterns and compared, again and again until
the time is over.

The pattern at a place depends on the place, so that a fault of address lines shows as well as a
fault of a cell. In each round all memory is written before any is compared, so that cells have to
hold their contents for a while. ctypes calls memmove and memcmp without the interpreter's lock, so
each CPU tests its part at the memory's own speed. Memory in use by the kernel and this program is
not tested.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cod.orders import TestResult
from trampoline.burnin import kernel
from trampoline.burnin.pace import ENDLESS, Pace, Worker, watch
from trampoline.pipeline import Progress

MIB = 1 << 20
_CHUNK = 32 * MIB
_RESERVE, _SHARE = 96 * MIB, 0.04  # left for the kernel and the agent: the larger of the two
_MOST_THREADS = 32
_MOST_FAULTS = 4  # that a thread tells
# bytes by which each MiB's pattern is shifted from the MiB before: 65 lines of a cache
_STRIDE = 4160
_COMPLEMENT = bytes(range(255, -1, -1))
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, slots=True)
class MemoryFault:
    """A byte that did not hold its value. `physical`: its address in the machine, None if not
    known."""

    wrote: int
    read: int
    physical: int | None

    def __str__(self) -> str:
        place = (
            "at an unknown address"
            if self.physical is None
            else f"at physical address {self.physical:#x}"
        )
        return f"{place}: wrote {self.wrote:#04x}, read {self.read:#04x}"


def run(
    seconds: float, root: Path, progress: Progress, log: kernel.KernelLog, most: int | None = None
) -> TestResult:
    """Test the free memory for so many seconds, `most` bytes of it at most."""
    before = kernel.memory_errors(root)
    size = _available(root)
    chunks = max((min(size, most) if most is not None else size) // _CHUNK, 1)
    pace = Pace("memory", ENDLESS, seconds)
    threads = min(os.cpu_count() or 1, _MOST_THREADS, chunks)
    each, rest = divmod(chunks, threads)
    parts = [_Part(each + (number < rest), pace) for number in range(threads)]
    workers = [Worker(f"memory {number}", part.run) for number, part in enumerate(parts)]
    watch(workers, pace, progress)
    faults = [fault for part in parts for fault in part.faults]
    # memory with ECC corrects what a comparison would find: the kernel's counters show it
    after = kernel.memory_errors(root)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    differed = sum(part.count for part in parts)
    complaints = [f"{differed} bytes differed, the first {faults[0]}"] if faults else []
    complaints += [
        f"{count} {_COUNTED[name]} during the test" for name, count in grown.items() if count > 0
    ]
    complaints += kernel.hardware_errors(log.warnings())[:2]
    tested = sum(part.tested for part in parts)
    if not tested and not complaints:
        return TestResult("memory", "", "", "skipped", "there was no time to test any of it")
    figures = {
        "tested_mib": tested / MIB,
        "rounds": float(min(part.rounds for part in parts)),
        "faults": float(len(faults)),
        "seconds": pace.elapsed(),
    } | {key: float(n) for key, n in after.items()}
    return TestResult(
        "memory",
        f"{tested // MIB} MiB",
        "",
        "failed" if complaints else "passed",
        "; ".join(complaints),
        figures,
    )


_COUNTED = {
    "corrected": "corrected memory errors",
    "uncorrected": "memory errors that could not be corrected",
    "machine_checks": "machine checks",
}


def _available(root: Path) -> int:
    """Return the bytes of memory that may be tested."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.M)
    except OSError:
        found = None
    free = int(found[1]) * 1024 if found else 0
    return max(free - max(_RESERVE, int(free * _SHARE)), 0)


class _Part:
    """One thread's part of the memory test: the chunks that it fills, and the faults in them."""

    def __init__(self, chunks: int, pace: Pace) -> None:
        self.faults: list[MemoryFault] = []
        self.count = self.rounds = self.tested = 0
        self._chunks, self._pace = chunks, pace

    def run(self, step: Callable[[], None]) -> None:
        """Fill and compare until the time is over. Memory that has been filled by then is
        compared."""
        held: list[_Chunk] = []
        unit = b""
        try:
            while not self._pace.over() and self.count < _MOST_FAULTS:
                # each bit is 0 and 1
                unit = unit.translate(_COMPLEMENT) if self.rounds % 2 else os.urandom(MIB)
                pattern = _Pattern(unit)
                written = 0
                for number in range(self._chunks):
                    if self._pace.over():
                        break
                    if number == len(held):
                        held.append(_Chunk())
                    held[number].fill(pattern, number)
                    written += 1
                    self._pace.add(_CHUNK)
                    step()
                for number in range(written if not self._pace.stopped else 0):
                    self._note(held[number].compare(pattern, number))
                    self._pace.add(_CHUNK)
                    step()
                self.tested = max(self.tested, written * _CHUNK)
                self.rounds += written == self._chunks
        finally:
            for chunk in held:
                chunk.close()

    def _note(self, found: list[MemoryFault]) -> None:
        self.count += len(found)
        self.faults += found[: _MOST_FAULTS - len(self.faults)]


class _Pattern:
    """The written bytes: a MiB, shifted from place to place."""

    def __init__(self, unit: bytes) -> None:
        self.bytes = unit + unit
        self._buffer = ctypes.create_string_buffer(self.bytes, len(self.bytes))
        self.address = ctypes.addressof(self._buffer)

    def at(self, number: int, unit: int) -> int:
        """Return the offset in `bytes` at which the pattern of a MiB begins."""
        return (number * (_CHUNK // MIB) + unit) * _STRIDE % MIB


class _Chunk:
    """Memory under test."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = (ctypes.c_char * _CHUNK).from_buffer(self._map)
        self._address = ctypes.addressof(self._view)

    def close(self) -> None:
        del self._view
        self._map.close()

    def fill(self, pattern: _Pattern, number: int) -> None:
        """Write the pattern of the chunk `number`."""
        for unit in range(_CHUNK // MIB):
            _libc.memmove(
                self._address + unit * MIB, pattern.address + pattern.at(number, unit), MIB
            )

    def compare(self, pattern: _Pattern, number: int) -> list[MemoryFault]:
        """Return the first few bytes that differ from the pattern of the chunk `number`."""
        found: list[MemoryFault] = []
        for unit in range(_CHUNK // MIB):
            start = pattern.at(number, unit)
            if _libc.memcmp(self._address + unit * MIB, pattern.address + start, MIB):
                read = ctypes.string_at(self._address + unit * MIB, MIB)
                wrote = pattern.bytes[start : start + MIB]
                for at in range(MIB):
                    if read[at] != wrote[at]:
                        found.append(
                            MemoryFault(
                                wrote[at], read[at], _physical(self._address + unit * MIB + at)
                            )
                        )
                    if len(found) >= _MOST_FAULTS:
                        return found
        return found


def _physical(address: int) -> int | None:
    """Return the physical address of an address of this process; None if the kernel does not tell
    it: Documentation/admin-guide/mm/pagemap.rst of Linux."""
    with suppress(OSError), open("/proc/self/pagemap", "rb") as pages:
        pages.seek(address // mmap.PAGESIZE * 8)
        (entry,) = struct.unpack("<Q", pages.read(8))
        frame = entry & ((1 << 55) - 1)
        # bit 63: the page is in memory; without CAP_SYS_ADMIN the kernel tells frame 0
        if entry >> 63 and frame:
            return int(frame * mmap.PAGESIZE + address % mmap.PAGESIZE)
    return None
