"""The file of an upload while it is written: by one writer at a time, which computes its sha256
meanwhile.

Everything here blocks, for as long as the disk takes: callers are threads, one at a time for each
file. The writer's lock is the kernel's (flock), so it ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

SLICE = 1 << 26  # bytes that are read again in one go, so that a thread is soon free for others
HEAD = 8192  # bytes in which formats show themselves
_BLOCK = 1 << 20
_CATCH_UP = 4  # bytes read again for each byte that comes, while the sum is behind


class UploadBusy(Exception):
    """Another writer has the file."""


class Sum:
    """sha256 of a file's first `done` bytes. The bytes after them are read when there is time."""

    def __init__(self) -> None:
        self.done = 0
        self._state = hashlib.sha256()

    def add(self, data: memoryview, at: int) -> None:
        """Add `data`, which was written at `at`, to the sum if it directly follows the summed
        bytes."""
        if at == self.done:
            self._state.update(data)
            self.done += len(data)

    def follow(self, file: int, end: int, most: int = SLICE) -> bool:
        """Read at most `most` of the bytes before `end` that are not in the sum yet, and add them;
        return whether the sum reaches `end`."""
        until = min(end, self.done + most)
        while self.done < until:
            block = os.pread(file, min(_BLOCK, until - self.done), self.done)
            if not block:
                raise OSError("the file became shorter while it was read")
            self.add(memoryview(block), self.done)
        return self.done == end

    def copy(self) -> Sum:
        other = Sum()
        other.done, other._state = self.done, self._state.copy()
        return other

    def hexdigest(self) -> str:
        """Return the sha256 of the first `done` bytes."""
        return self._state.hexdigest()


class Incoming:
    """The file at `path`, locked for writing; created if it does not exist. Raises UploadBusy, or
    OSError.

    sum  sum of its beginning that is known from before, or a new sum
    end  position of the next bytes
    """

    def __init__(self, path: Path, known: Sum | None = None) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self.sum, self.end = path, known or Sum(), 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise UploadBusy from None
        self.length = os.fstat(self._file).st_size
        if self.length:
            self.flush()  # what a process that died has written: now it is on the disk
        else:
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def start(self, offset: int) -> None:
        """Go on from `offset`; the bytes after it are dropped."""
        if offset < self.length:
            os.ftruncate(self._file, offset)
        if self.sum.done > offset:
            self.sum = Sum()
        self.end = self.length = offset

    def write(self, pieces: Iterable[bytes]) -> None:
        """Append the pieces. Raises OSError when the disk is full; the bytes written before that
        count."""
        rest = memoryview(b"".join(pieces))
        budget = _CATCH_UP * len(rest)
        while rest:
            count = os.pwrite(self._file, rest, self.end)
            self.sum.add(rest[:count], self.end)
            self.end += count
            rest = rest[count:]
        self.sum.follow(self._file, self.end, budget)

    def back(self, offset: int, known: Sum) -> None:
        """Drop the bytes that were written from `offset` on; `known` is a copy of the sum at that
        position."""
        os.ftruncate(self._file, offset)
        self.end, self.sum = offset, known

    def flush(self) -> None:
        """Return when everything written is on the disk."""
        os.fdatasync(self._file)

    def sum_up(self) -> bool:
        """Add more bytes to the sum if it is behind; return whether it reaches the end."""
        return self.sum.follow(self._file, self.end)

    def head(self) -> bytes:
        return os.pread(self._file, HEAD, 0)

    def close(self) -> None:
        os.close(self._file)


def boot_id() -> str:
    """Return the kernel's id of this boot of the host; '' where it tells none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:36]
    except OSError:
        return ""
