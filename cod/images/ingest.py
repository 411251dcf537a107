"""Turns an image file that somebody added into its served form, once (see `cod.wire.manifest` for that form).

One reader, a few compressing threads (zstd and BLAKE2b let go of the interpreter's lock), one writer; never more than a
few chunks in memory, whatever the image's size.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import zstandard

from cod.images import formats, seekable, store
from cod.model import Ingested, Refused
from cod.wire import manifest
from cod.wire.manifest import CHUNK, Chunk, Manifest

Progress = Callable[[int, int], None]
"""progress(done, total): bytes of the added file. Called for each chunk; an exception that it raises ends it all."""

LARGEST = 1 << 42  # bytes of an image, where the caller sets no limit
ROOM = 1 << 30  # bytes that are left for others while a qcow2 file is unpacked
_ZEROS = bytes(CHUNK)
_LEVEL = 3  # higher levels cost the server minutes and save the network little
_HEAD = 8192  # bytes in which formats and partition tables show themselves


def ingest(
    source: Path, root: Path, *, sha256: str = "", plain: bool = False, limit: int = LARGEST,
    threads: int = 0, progress: Progress = lambda done, total: None,
) -> Ingested:
    """Add the file `source` to the images under `root`.

    sha256   what the file's must be; '' if nobody said
    plain    keep it as it is: a kernel or ramdisk of a diskless boot
    limit    bytes that the raw image may have
    threads  that compress; 0: one for each CPU
    Raises Refused when the file is not as promised, or not an image that can be served; OSError when the disk is full.
    """
    with source.open("rb", buffering=0) as file, store.new_folder(root) as folder:
        added = _Added(file, progress)
        if not added.size:
            raise Refused("invalid", "the file is empty", "file")
        form = "plain" if plain else formats.recognise(os.pread(file.fileno(), _HEAD, 0))
        made = _FORMS[form](_Job(source, added, folder, limit, threads or os.cpu_count() or 1))
        if sha256 and added.sha256() != sha256.lower():
            raise Refused("invalid", f"the file's sha256 is {added.sha256()}, not {sha256}", "sha256")
        store.publish(folder, root, made.digest)
    return Ingested(form, made.content, made.size, made.used, made.stored, added.sha256(), made.digest)


class _Added:
    """The file that is added, hashed and counted while it is read from start to end."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self._progress = progress
        self._state = hashlib.sha256()
        self._done = 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.note(data)
        return data

    def note(self, data: bytes) -> None:
        """`data` was read."""
        self._state.update(data)
        self._done += len(data)
        self._progress(self._done, self.size)

    def still(self) -> None:
        """No more was read, but the work goes on."""
        self._progress(self._done, self.size)

    def rest(self) -> None:
        """Read what is left."""
        while self.read(CHUNK):
            pass

    def sha256(self) -> str:
        return self._state.hexdigest()


@dataclass(frozen=True, slots=True)
class _Job:
    source: Path
    added: _Added
    folder: Path
    limit: int
    threads: int


@dataclass(frozen=True, slots=True)
class _Made:
    content: str
    size: int
    used: int
    stored: int
    digest: str


# ---------------------------------------------------------------- one way for each format


def _plain(job: _Job) -> _Made:
    _check_limit(job.added.size, job.limit)
    with (job.folder / "file").open("w+b") as target:
        while data := job.added.read(CHUNK):
            target.write(data)
        target.seek(0)
        digest = manifest.digest_of(target)
    return _Made("file", job.added.size, job.added.size, job.added.size, digest)


def _raw(job: _Job) -> _Made:
    _check_limit(job.added.size, job.limit)
    return _compress(_extents(job.added.file, job.added.note), job)


def _unpacked(job: _Job, form: str) -> _Made:
    if form == "zstd":
        formats.check_frames(job.added.file)
    made = _compress(manifest.chunked(formats.unpack(job.added, form)), job)
    job.added.rest()
    return made


def _qcow2(job: _Job) -> _Made:
    formats.check_qcow2(os.pread(job.added.file.fileno(), _HEAD, 0), job.limit)
    job.added.rest()
    raw = job.folder / "raw"
    formats.convert_qcow2(job.source, raw, partial(_still, job))
    with raw.open("rb", buffering=0) as file:
        made = _compress(_extents(file, lambda data: None), job)
    raw.unlink()
    return made


def _still(job: _Job) -> None:
    """What is small as a qcow2 file may be anything as a disk: it shall not take the last room, which others need."""
    if shutil.disk_usage(job.folder).free < ROOM:
        raise Refused("invalid", "the server's disk has no room for what the qcow2 file becomes", "file")
    job.added.still()


_FORMS: dict[str, Callable[[_Job], _Made]] = {
    "plain": _plain,
    "raw": _raw,
    "gzip": lambda job: _unpacked(job, "gzip"),
    "zstd": lambda job: _unpacked(job, "zstd"),
    "qcow2": _qcow2,
}


def _check_limit(size: int, limit: int) -> None:
    if size > limit:
        raise Refused("invalid", f"the image has more than {limit} bytes, the most that is accepted", "file")


# ---------------------------------------------------------------- chunks in, frames out


def _extents(file: BinaryIO, note: Callable[[bytes], None]) -> Iterator[bytes]:
    """A raw file chunk by chunk; its holes are not read. `note` is told all bytes in order."""
    size = os.fstat(file.fileno()).st_size
    data_at = -1
    for at in range(0, size, CHUNK):
        length = min(CHUNK, size - at)
        if data_at < at:
            data_at = _next_data(file, at, size)
        chunk = os.pread(file.fileno(), length, at) if data_at < at + length else _ZEROS[:length]
        if len(chunk) != length:
            raise Refused("invalid", "the file became shorter while it was read", "file")
        note(chunk)
        yield chunk


def _next_data(file: BinaryIO, at: int, size: int) -> int:
    try:
        return os.lseek(file.fileno(), at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole up to the end
            return at
        return size


def _compress(chunks: Iterable[bytes], job: _Job) -> _Made:
    """Write data.zst and manifest.json into the job's folder."""
    frames: list[seekable.Frame] = []
    used: list[Chunk] = []
    head = b""
    size = offset = 0
    with (job.folder / "data.zst").open("wb") as data:
        for length, frame, digest, start in _frames(chunks, job.threads):
            head = head or start
            if digest:
                used.append(Chunk(size, length, offset, len(frame), digest))
            data.write(frame)
            frames.append((len(frame), length))
            size, offset = size + length, offset + len(frame)
            _check_limit(size, job.limit)
        data.write(seekable.seek_table(frames))
        stored = data.tell()
    found = Manifest(size, CHUNK, sum(chunk.raw_length for chunk in used), stored, used)
    text = manifest.encode(found)
    (job.folder / "manifest.json").write_bytes(text)
    if (inner := formats.recognise(head)) != "raw":
        raise Refused("invalid", f"a {inner} file inside another: add the inner one", "file")
    return _Made(formats.content_of(head), size, found.used, stored, manifest.digest(text))


_Frame = tuple[int, bytes, str, bytes]  # raw length, compressed, digest ('' for zeros), the chunk's first bytes


def _frames(chunks: Iterable[bytes], threads: int) -> Iterator[_Frame]:
    """Each chunk compressed, in order, by `threads` threads that run a few chunks ahead."""
    ahead: deque[Future[_Frame]] = deque()
    with ThreadPoolExecutor(threads, "compress") as pool:
        for chunk in chunks:
            ahead.append(pool.submit(_frame, chunk))
            if len(ahead) > 4 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _zstd(chunk: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(chunk)


_ZERO_FRAME = _zstd(_ZEROS)


def _frame(chunk: bytes) -> _Frame:
    length = len(chunk)
    if chunk == _ZEROS[:length] if length < CHUNK else chunk == _ZEROS:
        return length, _ZERO_FRAME if length == CHUNK else _zstd(chunk), "", chunk[:_HEAD]
    frame = _zstd(chunk)
    return length, frame, manifest.digest(frame), chunk[:_HEAD]
