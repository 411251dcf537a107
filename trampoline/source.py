"""The disk that is captured, which is read and never written, and the same disk with a few bytes
changed."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import suppress

from trampoline.errors import PrimeError
from trampoline.partitions import Disk
from trampoline.target import BLKSSZGET


class Source:
    """An open disk, read-only. `size` and `sector` in bytes. Every method raises PrimeError when
    the disk fails."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            is_device = stat.S_ISBLK(os.stat(path).st_mode)
            # O_EXCL: refused while anything is mounted from it or built upon it (open(2))
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_EXCL if is_device else 0))
            self.size = os.lseek(self._fd, 0, os.SEEK_END)
            sector = (
                fcntl.ioctl(self._fd, BLKSSZGET, bytes(4)) if is_device else struct.pack("i", 512)
            )
        except OSError as error:
            raise PrimeError(f"the disk {path} cannot be opened: {error.strerror}") from None
        self.sector = int(struct.unpack("i", sector)[0])

    def read(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, fewer at the disk's end. The page cache does not keep
        them, as nothing is read twice."""
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length and (
                more := os.pread(self._fd, length - len(data), offset + len(data))
            ):
                data += more
        except OSError as error:
            raise PrimeError(
                f"the disk {self.path} cannot be read at byte {offset}: {error.strerror}"
            ) from None
        with suppress(OSError):
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        return data

    def write(self, data: memoryview, offset: int) -> None:
        """Raise PrimeError: a captured disk must not be changed. The method exists for callers that
        read and write disks, so that a mistaken write is refused."""
        raise PrimeError(
            f"{len(data)} bytes were to be written at {offset} to {self.path}, which is only read"
        )

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Slice:
    """The `size` bytes of a disk from `start` on, as a read-only disk."""

    def __init__(self, disk: Disk, start: int, size: int) -> None:
        self.path, self.sector, self.size = disk.path, disk.sector, size
        self._disk, self._start = disk, start

    def read(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, fewer at the end, none outside: a damaged file system
        must not cause reads of a neighbouring partition."""
        length = min(length, self.size - offset)
        return self._disk.read(length, self._start + offset) if length > 0 and offset >= 0 else b""

    def write(self, data: memoryview, offset: int) -> None:
        """Refuse, as the disk does."""
        self._disk.write(data, self._start + offset)


class Overlay:
    """A disk of `size` bytes with the contents of `disk`. Writes are kept in memory, and show in
    later reads."""

    def __init__(self, disk: Disk, size: int) -> None:
        self.path, self.sector, self.size = disk.path, disk.sector, size
        self.changes: list[tuple[int, bytes]] = []
        self._disk = disk

    def read(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, fewer at its end."""
        length = max(min(length, self.size - offset), 0)
        data = bytearray(self._disk.read(length, offset))
        self.put_on(data, offset)
        return bytes(data)

    def write(self, data: memoryview, offset: int) -> None:
        """Record a change."""
        self.changes.append((offset, bytes(data)))

    def put_on(self, data: bytearray, offset: int) -> None:
        """Apply the changes to `data`, which was read at `offset`."""
        for at, change in self.changes:
            first, last = max(at, offset), min(at + len(change), offset + len(data))
            if first < last:
                data[first - offset : last - offset] = change[first - at : last - at]
