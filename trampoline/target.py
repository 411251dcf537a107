"""The disk that is written: a block device, or a file in its place.

Writes of whole pages bypass the page cache (O_DIRECT) if the disk supports that. The cache has no
use for data that are read once at most, and on a machine with little memory everything would wait
for its flushing.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import struct
from contextlib import suppress

from trampoline.errors import PrimeError

PAGE = mmap.PAGESIZE
BLKRRPART, BLKSSZGET, BLKGETSIZE64 = 0x125F, 0x1268, 0x80081272  # linux/fs.h
BLKDISCARD, BLKZEROOUT = 0x1277, 0x127F
BLKPG, BLKPG_ADD = 0x1269, 1  # linux/blkpg.h
_PUNCH_HOLE = 0x01 | 0x02  # linux/falloc.h: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_libc = ctypes.CDLL(None, use_errno=True)


class Target:
    """An open disk. `size` and `sector` in bytes. Every method raises PrimeError when the disk
    fails."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.is_device = stat.S_ISBLK(os.stat(path).st_mode)
            # O_EXCL: refused while anything is mounted from it or built upon it (open(2))
            if self.is_device:
                os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_EXCL))
            # kept open without O_EXCL: an installer may need one of the partitions exclusively
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._broken("opened", 0, error) from None
        self._direct = -1
        with suppress(OSError):
            self._direct = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        self.size = os.lseek(self._fd, 0, os.SEEK_END)
        self.sector = (
            struct.unpack("i", self.control(BLKSSZGET, bytes(4)))[0] if self.is_device else 512
        )

    def close(self) -> None:
        """Close the device or file. Closing it again does nothing."""
        for descriptor in {self._fd, self._direct} - {-1}:
            os.close(descriptor)
        self._fd = self._direct = -1

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data`, bypassing the cache if its length, `offset` and address are
        multiples of the page size."""
        direct = self._direct >= 0 and not (offset | len(data)) % PAGE
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self._direct if direct else self._fd, data[done:], offset + done)
            except OSError as error:
                if direct and error.errno == 22:  # EINVAL: the disk wants it aligned better
                    direct = False
                    continue
                raise self._broken("written", offset + done, error) from None
            # a short write may have ended inside a page
            direct = direct and not done % PAGE

    def read(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset` from the disk itself, fewer at its end."""
        # otherwise written data would be read back from the page cache, and not from the disk
        with suppress(OSError):
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise self._broken("read", offset, error) from None

    def read_into(self, buffer: mmap.mmap, length: int, offset: int) -> memoryview:
        """Read into `buffer`, bypassing the cache if possible; return the part that was filled."""
        if self._direct < 0 or (length | offset) % PAGE:
            data = self.read(length, offset)
            buffer[: len(data)] = data
            return memoryview(buffer)[: len(data)]
        try:
            count = os.preadv(self._direct, [memoryview(buffer)[:length]], offset)
            return memoryview(buffer)[:count]
        except OSError as error:
            raise self._broken("read", offset, error) from None

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros, by the fastest way that the disk guarantees."""
        try:
            if self.is_device:
                self.control(BLKZEROOUT, struct.pack("QQ", offset, length))
            elif not self.punch(offset, length):
                with mmap.mmap(-1, 1 << 20) as zeros, memoryview(zeros) as view:
                    for at in range(offset, offset + length, 1 << 20):
                        self.write(view[: min(1 << 20, offset + length - at)], at)
        except OSError as error:
            raise self._broken("zeroed", offset, error) from None

    def punch(self, offset: int, length: int) -> bool:
        """Make a range read as zeros, and let the disk release the range's space. Return False if
        the disk does not support both at once."""
        return not _libc.fallocate(
            self._fd, _PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length)
        )

    def discard(self, offset: int, length: int) -> None:
        """Tell a device that the contents of a range are not needed. What the range then reads as
        is the device's choice. Raises OSError."""
        self.control(BLKDISCARD, struct.pack("QQ", offset, length))

    def control(self, request: int, argument: bytes) -> bytes:
        """Carry out an ioctl; return the argument as the kernel left it. Raises OSError."""
        return fcntl.ioctl(self._fd, request, argument)

    def command(self, request: int, argument: bytearray) -> int:
        """Carry out an ioctl; return its result; `argument` is as the kernel left it. Raises
        OSError."""
        returned: int = fcntl.ioctl(self._fd, request, argument)
        return returned

    def flush(self) -> None:
        """Wait until everything is on the medium, not in a cache."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._broken("flushed", 0, error) from None

    def reread_table(self) -> None:
        """Have the kernel read the partition table again; best effort."""
        if self.is_device:
            with suppress(OSError):
                fcntl.ioctl(self._fd, BLKRRPART)

    def show_partition(self, number: int, start: int, size: int) -> None:
        """Have the kernel make a device for a partition, even if it cannot read the table; best
        effort."""
        if self.is_device:
            about = ctypes.create_string_buffer(
                struct.pack("qqi64s64s", start, size, number, b"", b"")
            )
            with suppress(OSError):  # it is there already
                self.control(
                    BLKPG, struct.pack("iiiP", BLKPG_ADD, 0, len(about), ctypes.addressof(about))
                )

    def _broken(self, what: str, offset: int, error: OSError) -> PrimeError:
        return PrimeError(
            f"the disk {self.path} cannot be {what} at byte {offset}: {error.strerror}"
        )
