"""Processes that stay recognisable: a pid alone may belong to another process by the time it is
used.

A process is named by its pid and its start time (field 22 of /proc/PID/stat, in clock ticks since
the host booted). Before a signal is sent, a pidfd is opened and the start time compared *after*
that, so the signal can only reach the intended process.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified for as long as the host is up."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Return whether the process is running. A zombie is not."""
        found = _stat(self.pid)
        return found is not None and found == (self.start, True)


def identify(pid: int) -> Process | None:
    """Return the process that has `pid` now, or None."""
    found = _stat(pid)
    return Process(pid, found[0]) if found else None


def inside(namespace: str) -> list[Process]:
    """Return every process in the named network namespace; none when there is no such namespace."""
    try:
        wanted = os.stat(NAMESPACES / namespace)
    except FileNotFoundError:
        return []
    found = []
    for pid in pids():
        with suppress(OSError):  # ended, or a zombie: it has left its namespaces
            if os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), wanted):
                found.append(identify(pid))
    return list(filter(None, found))


def pids() -> Iterator[int]:
    """Yield the pids of all processes but this one."""
    own = os.getpid()
    return (int(each) for each in os.listdir("/proc") if each.isdigit() and int(each) != own)


def end(
    processes: Iterable[Process], first: signal.Signals = signal.SIGTERM, grace: float = 2.0
) -> None:
    """End the processes: send them the signal `first`, and SIGKILL to those that still run after
    `grace` seconds. Return when all have ended."""
    opened = [fd for process in processes if (fd := _open(process)) is not None]
    try:
        _signal(opened, first)
        left = _wait(opened, grace)
        _signal(left, signal.SIGKILL)
        _wait(left, 10.0)
    finally:
        for fd in opened:
            os.close(fd)


def _stat(pid: int) -> tuple[int, bool] | None:
    """Return (start time, running) of `pid`; None where there is no such process. The program's
    name, in parentheses, may itself hold spaces and parentheses."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after = text.rpartition(")")[2].split()
    return int(after[19]), after[0] not in "ZX"


def _open(process: Process) -> int | None:
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if process.alive():
        return fd
    os.close(fd)
    return None


def _signal(fds: list[int], number: signal.Signals) -> None:
    for fd in fds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)


def _wait(fds: list[int], seconds: float) -> list[int]:
    """Wait until all processes have ended; return the pidfds of those that still run after
    `seconds`."""
    left, until = list(fds), time.monotonic() + seconds
    while left and (remaining := until - time.monotonic()) > 0:
        poll = select.poll()
        for fd in left:
            poll.register(fd, select.POLLIN)
        ended = {fd for fd, _event in poll.poll(remaining * 1000)}
        left = [fd for fd in left if fd not in ended]
    return left
