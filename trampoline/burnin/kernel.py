"""Observations of the kernel during a test: warnings in its log, and counters of memory errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_WARNING = 4  # syslog(3): the highest level that is kept


class KernelLog:
    """The kernel's log from now on: see Documentation/ABI/testing/dev-kmsg of Linux."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the log; safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def warnings(self) -> list[str]:
        """Return the warnings and errors since the last call."""
        found = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:
                break
            head, _, text = record.decode("utf-8", "replace").partition(";")
            level = head.partition(",")[0]
            # the bits above are the facility
            if level.isdecimal() and int(level) & 7 <= _WARNING:
                found.append(text.partition("\n")[0].strip())
            elif not record:
                break
        return found


def about(lines: list[str], name: str) -> list[str]:
    """Return the lines that name a device."""
    return [line for line in lines if re.search(rf"\b{re.escape(name)}\b", line)]


def hardware_errors(lines: list[str]) -> list[str]:
    """Return the lines about machine checks and memory errors."""
    return [
        line
        for line in lines
        if re.search(r"Hardware Error|\bmce:|Machine check|EDAC .*(CE|UE)\b", line)
    ]


def memory_errors(root: Path) -> Mapping[str, int]:
    """Return counts since boot: corrected and uncorrected memory errors by EDAC, and machine-check
    exceptions. Counters that this machine does not have are left out."""
    counts: dict[str, int] = {}
    for file, name in (("ce_count", "corrected"), ("ue_count", "uncorrected")):
        numbers = [
            int(text)
            for path in sorted((root / "sys/devices/system/edac/mc").glob(f"mc*/{file}"))
            if (text := _read(path)).isdecimal()
        ]
        if numbers:
            counts[name] = sum(numbers)
    if found := re.search(r"^\s*MCE:((?:\s+\d+)+)", _read(root / "proc/interrupts"), re.M):
        counts["machine_checks"] = sum(map(int, found[1].split()))
    return counts


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip("\n")
    except OSError:
        return ""
