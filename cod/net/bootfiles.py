"""The boot root: finds the files that names from the network mean, and opens each once for all its
readers.

Both file servers, TFTP and HTTP, use this module, so that one place decides what may be read:
regular files below the root. A name is a path below the root, as in a chroot (a leading slash means
the root itself: some PXE ROMs send one). Symbolic links are followed when they stay below the root.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

LONGEST_NAME = 512
MOST_INSIDE = 1000  # files that are remembered as being below a root

_Identity = tuple[int, int, int, int, int]


class NoSuchFile(Exception):
    """A name means no file that may be read: there is none, it is no regular file, or it lies
    outside the root."""


class OpenFile:
    """An open file, closed when the last reader drops it. Readers use offsets, never the file
    position.

    `identity` changes when the file is replaced or written to; `etag` is a strong validator (RFC
    9110) made of it.
    """

    __slots__ = ("__weakref__", "_map", "fd", "identity", "size")

    def __init__(self, fd: int, about: os.stat_result) -> None:
        self.fd = fd
        self.size = about.st_size
        self.identity = _identity(about)
        self._map: mmap.mmap | None = None

    @property
    def etag(self) -> str:
        return '"{:x}-{:x}-{:x}"'.format(*self.identity[1:])

    def view(self) -> bytes | memoryview:
        """Return the content, mapped. Hand it to the kernel only: if the file is truncated
        meanwhile, a system call fails with EFAULT where Python would die of SIGBUS."""
        if self.size == 0:
            return b""
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ)
        return memoryview(self._map)

    def read(self) -> bytes:
        """Return the content, copied."""
        return os.pread(self.fd, self.size, 0)

    def __del__(self) -> None:
        os.close(self.fd)


class BootFiles:
    """The files below `root`. Readers of the same file at the same time share one `OpenFile`."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._open: WeakValueDictionary[_Identity, OpenFile] = WeakValueDictionary()
        self._inside: OrderedDict[_Identity, None] = OrderedDict()  # the last opened last

    def open(self, name: str) -> OpenFile:
        """Return the file of that name. Raises `NoSuchFile`."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if not parts or ".." in parts or len(name) > LONGEST_NAME or "\\" in name or "\0" in name:
            raise NoSuchFile(name)
        try:
            path = os.path.join(self.root, *parts)
            identity = _identity(os.stat(path))
            known = self._open.get(identity)
            if known is None and identity in self._inside:
                known = self._open_again(path, identity)
            return known or self._open_new(path)
        except (OSError, ValueError) as error:
            raise NoSuchFile(name) from error

    def _open_again(self, path: str, identity: _Identity) -> OpenFile | None:
        """Return the file if it has that identity and is below the root, as when it was opened
        before; else None. This saves finding out where the path leads, which takes several times as
        long as opening the file."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        about = os.fstat(fd)
        if _identity(about) != identity or not self._holds(fd):
            os.close(fd)
            return None
        return self._opened(fd, about)

    def _open_new(self, path: str) -> OpenFile:
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self.root):
            raise NoSuchFile(path)
        # O_NONBLOCK: a FIFO must not stop the server. Where the descriptor really points is asked
        # of the kernel, so that a link swapped in since `realpath` gains nothing.
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or not self._holds(fd):
            os.close(fd)
            raise NoSuchFile(str(real))
        return self._opened(fd, about)

    def _holds(self, fd: int) -> bool:
        """Return whether the open file is below the root, as the kernel says."""
        return os.readlink(f"/proc/self/fd/{fd}").startswith(f"{self.root}/")

    def _opened(self, fd: int, about: os.stat_result) -> OpenFile:
        identity = _identity(about)
        self._inside[identity] = None
        self._inside.move_to_end(identity)
        if len(self._inside) > MOST_INSIDE:
            self._inside.popitem(last=False)
        opened = self._open[identity] = OpenFile(fd, about)
        return opened


def _identity(about: os.stat_result) -> _Identity:
    # the time of change differs for a file that was moved, or that has got another file's number
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
