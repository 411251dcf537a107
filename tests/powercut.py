"""A disk whose power is cut: what was written and not flushed is lost, all of it or some.

`CutDisk` is an ext4 file system of the kernel on a loop device, whose file is served by this module
as a program, by FUSE. The program keeps each written block in memory, as a disk keeps it in its
cache, until the file system orders a flush. At the cut the program ends: each block that was not
flushed is written or lost by a draw, and every later request fails. The next `on` mounts what is
left, as a host does that starts again.

All of it is in a mount namespace of its own, and ends with the processes in there.
"""

from __future__ import annotations

import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists() or not Path("/dev/loop-control").exists(),
    reason="mounting needs root, and a kernel with FUSE and loop devices",
)

BLOCK = 4096
LARGEST = 1 << 17  # bytes of one request
HOLDS = "echo; exec cat"  # until its standard input ends
_INIT, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _FSYNC = 26, 3, 4, 14, 15, 16, 20
_DONE = (18, 25)  # RELEASE, FLUSH: nothing is to do
_UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
_ENOSYS = 38


class CutDisk:
    """A disk of `size` bytes in `folder`, mounted at `root` while its power is on."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir()
        self._image, self._file = folder / "image", folder / "disk"
        self.root = folder / "root"
        self.root.mkdir()
        self._file.touch()
        with self._image.open("wb") as image:
            image.truncate(size)
        subprocess.run(
            ["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(BLOCK), self._image], check=True
        )
        self._program: subprocess.Popen[str] | None = None
        self._holder: subprocess.Popen[str] | None = None

    def on(self) -> list[str]:
        """Mount the disk; return the words before a command that is to see it."""
        self._holder = _start("unshare", "--mount", "--propagation", "private", "sh", "-c", HOLDS)
        _said(self._holder)
        inside = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]
        # The kernel waits for the program when it unmounts the file system. So the program is in
        # another mount namespace: its own end would unmount that before its descriptor is closed.
        fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={fuse},rootmode=100000,user_id=0,group_id=0"
        mount = [*inside, "mount", "--internal-only", "-t", "fuse", "-o", options]
        subprocess.run([*mount, "cutdisk", self._file], check=True, pass_fds=[fuse])
        command = (sys.executable, "-m", "tests.powercut", str(self._image), str(fuse))
        self._program = _start(*command, pass_fds=[fuse])
        os.close(fuse)
        subprocess.run([*inside, "mount", "-o", "loop", self._file, self.root], check=True)
        return inside

    def cut(self, requests: int, seed: int) -> float:
        """Cut the power after so many further requests of the file system; return the monotonic
        clock of that moment, in seconds."""
        assert self._program is not None
        assert self._program.stdin is not None
        self._program.stdin.write(f"{requests} {seed}\n")
        self._program.stdin.flush()
        return float(_said(self._program))

    def off(self) -> None:
        """End what serves and mounts the disk, after what has used it has ended."""
        for process in (self._program, self._holder):
            if process is not None:
                process.communicate()


def _start(*command: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        pass_fds=pass_fds,
    )


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


class Served:
    """The file of a disk, as FUSE serves it. `cache`: blocks that were written and not flushed."""

    def __init__(self, image: str, fuse: int) -> None:
        self._image, self._fuse = os.open(image, os.O_RDWR), fuse
        self._size = os.fstat(self._image).st_size
        self.cache: dict[int, bytes] = {}
        self.left: int | None = None  # writes and flushes before the cut
        self.seed = 0

    def serve(self) -> bool:
        """Answer a request of the kernel; return False at the cut, which comes before it."""
        asked = os.read(self._fuse, LARGEST + BLOCK)
        _, kind, number = struct.unpack_from("=IIQ", asked)
        if kind in (_WRITE, _FSYNC) and self.left is not None:
            if not self.left:
                return False
            self.left -= 1
        if kind not in _UNANSWERED:
            self._answer(number, self._done(kind, asked))
        return True

    def _done(self, kind: int, asked: bytes) -> bytes | int:
        if kind == _INIT:
            return struct.pack(
                "=IIIIHHIIHHI28x", 7, 31, LARGEST, 1 << 5, 16, 12, LARGEST, 1, 0, 0, 0
            )
        if kind in (_GETATTR, _SETATTR):
            times = (0,) * 6
            numbers = (0o100600, 1, 0, 0, 0, BLOCK, 0)
            inode = struct.pack("=6Q3I7I", 1, self._size, self._size // 512, *times, *numbers)
            return struct.pack("=QII", 3600, 0, 0) + inode
        if kind == _OPEN:
            return struct.pack("=QII", 0, 0, 0)
        if kind == _READ:
            at, size = struct.unpack_from("=QI", asked, 48)
            blocks = (self._read(each) for each in range(at - at % BLOCK, at + size, BLOCK))
            return b"".join(blocks)[at % BLOCK :][:size]
        if kind == _WRITE:
            at, size = struct.unpack_from("=QI", asked, 48)
            self._write(at, asked[80 : 80 + size])
            return struct.pack("=II", size, 0)
        if kind == _FSYNC:
            self.flush()
            return b""
        return b"" if kind in _DONE else -_ENOSYS

    def _answer(self, number: int, answer: bytes | int) -> None:
        error, body = (answer, b"") if isinstance(answer, int) else (0, answer)
        os.write(self._fuse, struct.pack("=IiQ", 16 + len(body), error, number) + body)

    def _read(self, at: int) -> bytes:
        return self.cache.get(at) or os.pread(self._image, BLOCK, at)

    def _write(self, at: int, data: bytes) -> None:
        while data:
            start = at % BLOCK
            block = self._read(at - start)
            piece, data = data[: BLOCK - start], data[BLOCK - start :]
            self.cache[at - start] = block[:start] + piece + block[start + len(piece) :]
            at += len(piece)

    def flush(self) -> None:
        """Write what is in the cache."""
        for at, block in self.cache.items():
            os.pwrite(self._image, block, at)
        self.cache.clear()

    def lose(self, rng: random.Random) -> None:
        """Lose each block of the cache by a draw; write the others."""
        share = rng.choice((0.0, 0.5, 1.0))
        self.cache = {at: block for at, block in self.cache.items() if rng.random() >= share}
        self.flush()


def main(image: str, fuse: int) -> None:
    """Serve the disk until its power is cut or the standard input ends."""
    served = Served(image, fuse)
    while True:
        ready, _, _ = select.select([fuse, 0], [], [])
        if 0 in ready:
            if not (line := os.read(0, 100)):
                break
            served.left, served.seed = map(int, line.split())
        elif not served.serve():
            print(time.monotonic(), flush=True)
            served.lose(random.Random(served.seed))
            break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
