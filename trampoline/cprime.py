"""cprime: makes a node's disk what an order says. See the functions `prime` and `wipe`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cod.model import Order
from trampoline.errors import PrimeError
from trampoline.inventory import Disk

Progress = Callable[[str, int, int, float], None]
"""progress(phase, done, total, rate): bytes, bytes, bytes per second. Called in the caller's thread at least each
second; phase is 'wipe', 'write', 'verify' or 'install'. An exception that it raises ends the work and is passed on."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was done: the target's `path`, bytes written to it, bytes fetched, seconds in each phase."""

    path: str
    bytes_written: int
    bytes_fetched: int
    wipe_seconds: float
    write_seconds: float
    verify_seconds: float


def prime(order: Order, disks: Sequence[Disk], progress: Progress) -> Written:
    """Carry out a prime order: wipe if it says so, write, verify, personalise. Raises PrimeError."""
    raise PrimeError("not there yet")


def wipe(order: Order, disks: Sequence[Disk], progress: Progress) -> int:
    """Erase all local disks that the order does not keep; returns the bytes erased. Raises PrimeError."""
    raise PrimeError("not there yet")
