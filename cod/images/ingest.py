"""Turns an image file that somebody added into its served form, once (see `cod.wire.manifest` for
that form).

There are one reader, a few threads that compress (zstd and BLAKE2b release the interpreter's lock)
and one writer; never more than a few chunks are in memory, whatever the image's size.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import zstandard

from cod.images import formats, seekable, store
from cod.model import Ingested, Refused
from cod.wire import manifest
from cod.wire.manifest import CHUNK, Chunk, Manifest

Progress = Callable[[int, int], None]
"""progress(done, total): bytes of the added file. Called for each chunk; an exception that it
raises ends it all."""

ROOM = 1 << 30  # bytes of the disk that are left for others
_ZEROS = bytes(CHUNK)
_LEVEL = 3  # higher levels cost the server minutes and save the network little
_HEAD = 1 << 17  # bytes in which formats, partition tables and file systems show themselves
_TEMPORARY = 1 << 30  # bytes that the smallest qcow2 file may take while it is converted
_DATA = 1 << 34  # bytes of data, which cost time and no room, that the smallest file may stand for
_PACE = 1 << 22  # bytes of the added file for each of which there is a second more


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Limits of taking in one file.

    size       bytes of the image
    stored     bytes of its served form; None: the disk decides
    expansion  bytes of data, or of the disk during the conversion, that are allowed for each byte
               of the file; `_DATA` and `_TEMPORARY` are allowed on top, for small files
    seconds    for a small file; a large one has more
    """

    size: int = 1 << 42
    stored: int | None = None
    expansion: int = 100
    seconds: float = 3600.0


def ingest(
    source: Path,
    root: Path,
    *,
    sha256: str = "",
    plain: bool = False,
    raw: bool = False,
    limits: IngestLimits = IngestLimits(),
    threads: int = 0,
    progress: Progress = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> Ingested:
    """Add the file `source` to the images under `root`.

    sha256   expected sha256 of the file; '' if nobody named one
    plain    keep the file as it is: a kernel or ramdisk of a diskless boot
    raw      also accept an image in which neither a partition table nor a file system is recognised
    threads  number of threads that compress; 0: one for each CPU
    clock    monotonic time in seconds

    Raises Refused when the file has another sha256, or is not an image that can be served; OSError
    when the disk is full.
    """
    with source.open("rb", buffering=0) as file, store.new_folder(root) as folder:
        added = _Added(file, _in_time(progress, clock, limits.seconds))
        if not added.size:
            raise Refused("invalid", "the file is empty", "file")
        form = "plain" if plain else formats.recognise(os.pread(file.fileno(), _HEAD, 0))
        made = _FORMS[form](
            _Job(source, added, folder, limits, raw, threads or os.cpu_count() or 1)
        )
        if sha256 and added.sha256() != sha256.lower():
            raise Refused(
                "invalid", f"the file's sha256 is {added.sha256()}, not {sha256}", "sha256"
            )
        store.publish(folder, root, made.digest)
    return replace(made, format=form, sha256=added.sha256())


def _in_time(progress: Progress, clock: Callable[[], float], seconds: float) -> Progress:
    """Return a function that calls `progress`, and raises Refused when the time is over."""
    begun = clock()

    def go_on(done: int, total: int) -> None:
        progress(done, total)
        if clock() - begun > seconds + total / _PACE:
            raise Refused(
                "invalid",
                f"the file was not taken in within {seconds + total / _PACE:.0f} s",
                "file",
            )

    return go_on


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
        self._state.update(data)
        self._done += len(data)
        self._progress(self._done, self.size)

    def still(self) -> None:
        """Report that the work goes on, although nothing more was read."""
        self._progress(self._done, self.size)

    def rest(self) -> None:
        while self.read(CHUNK):
            pass

    def sha256(self) -> str:
        return self._state.hexdigest()


@dataclass(frozen=True, slots=True)
class _Job:
    source: Path
    added: _Added
    folder: Path
    limits: IngestLimits
    raw: bool
    threads: int

    def may_stand_for(self, least: int) -> int:
        """Return how many bytes the file may unpack to: `least`, and more by its size."""
        return self.limits.expansion * self.added.size + least


# ---------------------------------------------------------------- one way for each format


def _plain(job: _Job) -> Ingested:
    _check_limits(job, job.added.size, job.added.size)
    _check_room(job, job.added.size, "the file")
    with (job.folder / "file").open("w+b") as target:
        while data := job.added.read(CHUNK):
            target.write(data)
        target.seek(0)
        digest = manifest.digest_of(target)
    return Ingested("", "file", job.added.size, job.added.size, job.added.size, "", digest)


def _raw(job: _Job) -> Ingested:
    _check_limits(job, job.added.size, 0)  # before hours are spent: a raw file's size is known
    return _compress(_extents(job.added.file, job.added.note), job)


def _unpacked(job: _Job, form: str) -> Ingested:
    if form == "zstd":
        formats.check_frames(job.added.file, job.added.still)
    made = _compress(manifest.chunked(formats.unpack(job.added, form)), job)
    job.added.rest()
    return made


def _qcow2(job: _Job) -> Ingested:
    formats.check_qcow2(os.pread(job.added.file.fileno(), _HEAD, 0), job.limits.size)
    job.added.rest()
    raw = job.folder / "raw"
    _check_conversion(job, formats.measure_qcow2(job.source, job.added.still))

    def go_on() -> None:
        # a small qcow2 file may become a disk of any size, whatever was measured before
        taken = raw.stat().st_blocks * 512 if raw.exists() else 0
        _check_conversion(job, taken, taken)
        job.added.still()

    formats.convert_qcow2(job.source, raw, go_on)
    with raw.open("rb", buffering=0) as file:
        made = _compress(_extents(file, lambda data: None), job)
    raw.unlink()
    return made


def _check_conversion(job: _Job, size: int, taken: int = 0) -> None:
    """Check that the converted qcow2 file may take `size` bytes of this disk; `taken` of them are
    written already. Raises Refused."""
    if size > (most := job.may_stand_for(_TEMPORARY)):
        raise Refused(
            "invalid",
            f"the qcow2 file of {job.added.size} bytes would take {size} bytes of the server's "
            f"disk; at most {most} are granted",
            "file",
        )
    _check_room(job, size - taken, "what the qcow2 file becomes")


def _check_room(job: _Job, more: int, what: str) -> None:
    """Raise Refused where the disk would have less than `ROOM` left after `more` bytes."""
    if shutil.disk_usage(job.folder).free < ROOM + more:
        raise Refused("invalid", f"the server's disk has no room for {what}", "file")


_FORMS: dict[str, Callable[[_Job], Ingested]] = {
    "plain": _plain,
    "raw": _raw,
    "gzip": lambda job: _unpacked(job, "gzip"),
    "zstd": lambda job: _unpacked(job, "zstd"),
    "qcow2": _qcow2,
}


def _check_limits(job: _Job, size: int, stored: int, used: int = 0) -> None:
    """Raise Refused if the part of the image read so far exceeds a limit.

    size    bytes of the disk image
    stored  bytes of the served form
    used    bytes of data that the file unpacks to
    """
    limits = job.limits
    if size > limits.size:
        raise Refused(
            "invalid",
            f"the image has more than {limits.size} bytes, the most that is accepted",
            "file",
        )
    if limits.stored is not None and stored > limits.stored:
        raise Refused(
            "quota",
            f"the image takes more than the {limits.stored} bytes that its group has left; delete "
            "some images, or ask for a larger quota",
            "size",
        )
    if used > (most := job.may_stand_for(_DATA)):
        raise Refused(
            "invalid",
            f"the file of {job.added.size} bytes unpacks to more than {most} bytes of data",
            "file",
        )


# ---------------------------------------------------------------- chunks in, frames out


def _extents(file: BinaryIO, note: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield a raw file chunk by chunk. Its holes are not read. `note` is called with all bytes, in
    order."""
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


def _compress(chunks: Iterable[bytes], job: _Job) -> Ingested:
    """Write data.zst and manifest.json into the job's folder."""
    frames: list[seekable.Frame] = []
    used: list[Chunk] = []
    coming = iter(chunks)
    first = next(coming, b"")
    content = _content(first[:_HEAD], job.raw)
    size = offset = in_use = 0
    look_at = 0  # bytes written at which the disk's free space is looked at next
    with (job.folder / "data.zst").open("wb") as data:
        for length, frame, digest in _frames(chain([first], coming), job.threads):
            if digest:
                used.append(Chunk(size, length, offset, len(frame), digest))
                in_use += length
            data.write(frame)
            frames.append(_ZERO if frame is _ZERO_FRAME else (len(frame), length))
            size, offset = size + length, offset + len(frame)
            _check_limits(job, size, offset, in_use)
            job.added.still()
            if offset >= look_at:
                look_at = offset + _LOOK
                _check_room(job, 0, "the image")
        data.write(seekable.seek_table(frames))
        stored = data.tell()
    _check_limits(job, size, stored)
    found = Manifest(size, CHUNK, in_use, stored, used)
    text = manifest.encode(found)
    (job.folder / "manifest.json").write_bytes(text)
    head = first[:_HEAD]
    return Ingested(
        "",
        content,
        size,
        found.used,
        stored,
        "",
        manifest.digest(text),
        formats.sector_of(head),
        formats.table_of(head),
        formats.end_of(head),
    )


def _content(head: bytes, raw: bool) -> str:
    """Return the kind of an image with that beginning: 'disk' or 'partition'. Raises Refused where
    it is neither."""
    if not head:
        raise Refused("invalid", "the image in the file is empty", "file")
    if (inner := formats.recognise(head)) != "raw":
        raise Refused("invalid", f"a {inner} file inside another: add the inner one", "file")
    if not raw:
        formats.check_content(head)
    return formats.content_of(head)


_Frame = tuple[int, bytes, str]  # raw length, compressed, digest ('' for zeros)


def _frames(chunks: Iterable[bytes], threads: int) -> Iterator[_Frame]:
    """Yield each chunk compressed, in order, by `threads` threads that run a few chunks ahead."""
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
# one object for all empty chunks: an image may have millions of them
_ZERO: seekable.Frame = (len(_ZERO_FRAME), CHUNK)
_LOOK = 1 << 26  # bytes that are written between looks at the disk's room


def _frame(chunk: bytes) -> _Frame:
    length = len(chunk)
    if chunk == _ZEROS[:length] if length < CHUNK else chunk == _ZEROS:
        return length, _ZERO_FRAME if length == CHUNK else _zstd(chunk), ""
    frame = _zstd(chunk)
    return length, frame, manifest.digest(frame)
