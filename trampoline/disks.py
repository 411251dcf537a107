"""Disks that may be erased, and the one that is primed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from trampoline.errors import OrderError, PrimeError
from trampoline.inventory import Disk


def erasable(disks: Iterable[Disk], keep: Iterable[str]) -> list[Disk]:
    """Return the local disks that no rule in `keep` names, by any of their paths. USB, SAN and
    multipath disks are not local (see inventory)."""
    disks, rules = tuple(disks), tuple(keep)
    named = [disk for disk in disks if any(fits(rule, disk) for rule in rules)]
    # the first of several paths to a disk is local, the others are not
    paths = {disk.wwid for disk in named if disk.paths > 1 and not disk.local}
    return [disk for disk in disks if disk.local and disk not in named and disk.wwid not in paths]


def fits(rule: str, disk: Disk) -> bool:
    """Return whether the rule 'serial:X', 'path:X' or 'model:PATTERN' names this disk."""
    kind, _, value = rule.partition(":")
    if kind == "serial":
        return disk.serial == value
    if kind == "model":
        return fnmatchcase(disk.model, value)
    return kind == "path" and os.path.realpath(value) == os.path.realpath(disk.path)


def choose(rule: str, disks: Sequence[Disk], need: int, sector: int = 0) -> Disk:
    """Return the disk that `rule` picks for `need` bytes: 'first', 'smallest' or 'largest' of those
    that are large enough, 'serial:X' or 'path:X'. `disks` are in the kernel's order. Disks that the
    firmware cannot start systems from are skipped, and disks whose sectors have not `sector` bytes
    (0: any size). Raises PrimeError."""
    named = ":" in rule
    candidates = [disk for disk in disks if fits(rule, disk)] if named else list(disks)
    if not candidates:
        raise PrimeError(
            "no suitable disk:"
            f" {f'none is {rule}' if named else 'the node has no local one to use'}"
        )
    seen = [disk for disk in candidates if disk.bootable]
    if not seen:
        raise PrimeError(
            f"no suitable disk: the machine's BIOS does not offer {_paths(candidates)} to start a"
            " system from; enable the controller's boot support in the firmware's set-up, or name"
            " another disk in the template"
        )
    candidates = [disk for disk in seen if sector in (0, disk.sector)]
    if not candidates:
        raise PrimeError(
            f"no suitable disk: the images are for sectors of {sector} bytes, "
            f"{_paths(seen)} has sectors of {seen[0].sector}"
        )
    enough = [disk for disk in candidates if disk.size >= need]
    if not enough:
        largest = max(candidates, key=lambda disk: disk.size)
        raise OrderError(
            f"the disk is too small: {need} bytes are needed, {largest.path} has {largest.size}"
        )
    if rule == "smallest":
        return min(enough, key=lambda disk: disk.size)
    if rule == "largest":
        return max(enough, key=lambda disk: disk.size)
    return enough[0]


def _paths(disks: Iterable[Disk]) -> str:
    return ", ".join(disk.path for disk in disks)
