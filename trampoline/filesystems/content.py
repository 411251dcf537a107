"""The contents of a partition, as readers of file systems find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Read = Callable[[int, int], bytes]
"""read(length, offset): bytes of the partition, fewer at its end."""

Extent = tuple[int, int]
"""Bytes [start, end) of the partition."""

_TAIL = 128 << 10  # bytes at a partition's end where md keeps its superblock (formats 0.90 and 1.0)


@dataclass(frozen=True, slots=True)
class Content:
    """Contents of a partition.

    kind     'ext', 'fat', 'swap', the name of another kind, or ''
    used     bytes in use, in ascending order; None: not known, so all of the partition may be
    label    the volume's label in capitals, if it can be read
    changes  bytes that the copy must have in place of the original ones
    """

    kind: str
    used: tuple[Extent, ...] | None = None
    label: str = ""
    changes: tuple[tuple[int, bytes], ...] = ()


def joined(extents: Iterable[Extent], end: int, size: int) -> tuple[Extent, ...]:
    """Return extents of a file system that ends at `end`, sorted, merged and clipped. If its
    partition of `size` bytes is larger, the partition's last bytes are added."""
    tail = [(max(end, size - _TAIL), size)] if end < size else []
    united: list[Extent] = []
    for start, stop in sorted((start, min(stop, end)) for start, stop in extents):
        if start >= stop:
            continue
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(stop, united[-1][1]))
        else:
            united.append((start, stop))
    return (*united, *tail)
