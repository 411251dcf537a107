"""A captured disk while it is uploaded: an image in its served form that grows in a folder of its
own, which nobody sees until the image is published.

Chunks arrive compressed, in order, in pieces (`cod.wire.capture`). Each chunk is checked (its
digest, and that it unpacks to the length that it states) and appended to ``data.zst``; its head is
appended to ``chunks``. After a crash the server goes on where it was: chunks that are not in both
files, or have another digest, are cut off, and the agent is told where the rest ends. The folder is
locked by the process that fills it. A later order of the same node may take the folder over
(`hand_over`).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path

import zstandard

from cod.images import formats, seekable, store
from cod.images.ingest import ROOM
from cod.model import CaptureLimits, Ingested, Refused
from cod.wire import capture, manifest
from cod.wire.capture import HEAD, BadPiece
from cod.wire.manifest import CHUNK, Chunk, Manifest

_PREFIX = ".capture-"
_ORDER = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}")
_FLUSH = 256 << 20  # bytes after which the disk is waited for: the end must not have it all to do
_EMPTY = zstandard.ZstdCompressor(level=3).compress(bytes(CHUNK))
_HOLE = 4096  # empty frames written at once
_UNLIMITED = CaptureLimits(disk=2**63, room=None)


class CaptureBusy(Exception):
    """Another process is filling the folder."""


class NoRoom(Exception):
    """The disk has no room for more of a capture beside what is left for others. The message is a
    sentence."""


class Deposit:
    """The capture of one order. Must not be used by several threads at once. Every method may raise
    OSError."""

    def __init__(self, root: Path, order: str) -> None:
        """Begin the capture, or go on with it. Raises `CaptureBusy`."""
        self.folder = folder_of(root, order)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._lock = _locked(self.folder)
        try:
            self._resume()
        except BaseException:  # else it would be busy as long as this process runs
            os.close(self._lock)
            raise

    def _resume(self) -> None:
        self._data = (self.folder / "data.zst").open("a+b", buffering=0)
        self._notes = (self.folder / "chunks").open("a+b", buffering=0)
        self._chunks: list[Chunk] = []
        self._offset = self._flushed = 0  # in data.zst
        notes = os.pread(self._notes.fileno(), os.fstat(self._notes.fileno()).st_size, 0)
        whole = len(notes) - len(notes) % HEAD.size
        for raw_offset, raw_length, length, found in HEAD.iter_unpack(notes[:whole]):
            offset = self._offset + _holes(self.at, raw_offset) * len(_EMPTY)
            if manifest.digest(os.pread(self._data.fileno(), length, offset)) != found.hex():
                break  # the machine went down before it was on the disk
            self._chunks.append(Chunk(raw_offset, raw_length, offset, length, found.hex()))
            self._offset = offset + length
        self._notes.truncate(len(self._chunks) * HEAD.size)
        self._data.truncate(self._offset)

    @property
    def at(self) -> int:
        """Return the byte of the disk up to which its content has arrived; the next piece begins
        here or later."""
        last = self._chunks[-1] if self._chunks else None
        return last.raw_offset + last.raw_length if last else 0

    @property
    def heads(self) -> str:
        """Return the digest of the heads of all chunks, which identifies the disk's content up to
        `at`."""
        notes = self._notes.fileno()
        return manifest.digest(os.pread(notes, len(self._chunks) * HEAD.size, 0))

    def close(self) -> None:
        for file in (self._data, self._notes):
            file.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def hand_over(self, order: str) -> None:
        """Make this the deposit of a later order, which must have none yet. Raises `Refused` and
        OSError."""
        folder = folder_of(self._root, order)
        self.folder.rename(folder)
        self.folder = folder

    # ------------------------------------------------------------ growing

    def add(self, body: bytes, limits: CaptureLimits = _UNLIMITED) -> int:
        """Append a piece as a whole and return `at`. Raises `Refused`, and appends nothing, where
        the piece is damaged, out of place or beyond a limit, and `NoRoom`."""
        try:
            sent = list(capture.unpack(body))
        except BadPiece as error:
            why = f"the body is no piece of a capture: {error}"
            raise Refused("invalid", why, "body") from None
        at, stored = self.at, self._offset
        for each in sent:
            if (
                at % CHUNK
                or each.raw_offset % CHUNK
                or each.raw_offset < at
                or not 0 < each.raw_length <= CHUNK
            ):
                raise Refused("invalid", f"the chunk at {each.raw_offset} is out of place", "body")
            if manifest.digest(each.frame) != each.digest:
                raise Refused(
                    "invalid", f"the chunk at {each.raw_offset} was damaged on its way", "body"
                )
            _unpacked(each.frame, each.raw_length)
            stored += _holes(at, each.raw_offset) * len(_EMPTY) + len(each.frame)
            at = each.raw_offset + each.raw_length
        _check(limits, at, stored)
        self._check_room(stored)
        for each in sent:
            self._fill(each.raw_offset)
            chunk = Chunk(
                each.raw_offset, each.raw_length, self._offset, len(each.frame), each.digest
            )
            self._write(each.frame)
            self._notes.write(HEAD.pack(*chunk[:2], chunk.length, bytes.fromhex(each.digest)))
            self._chunks.append(chunk)
        if self._offset - self._flushed > _FLUSH:
            os.fdatasync(self._data.fileno())
            self._flushed = self._offset
        return self.at

    def _check_room(self, stored: int) -> None:
        """Raise NoRoom unless the disk has room for an image of `stored` bytes."""
        free = shutil.disk_usage(self.folder).free
        if free < ROOM + stored - self._offset:
            raise NoRoom(
                "the image server's disk has no room for more of the capture:"
                f" {free / (1 << 30):.1f} GiB are free, of which {ROOM / (1 << 30):g} GiB are left"
                " for others"
            )

    def _fill(self, upto: int) -> None:
        """Add frames for the holes before `upto`, so that data.zst unpacks to the whole disk."""
        holes = _holes(self.at, upto)
        while holes > 0:
            step = min(holes, _HOLE)
            self._write(_EMPTY * step)
            holes -= step

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._data.write(view) :]
        self._offset += len(data)

    # ------------------------------------------------------------ the end

    def seal(self, size: int, limits: CaptureLimits = _UNLIMITED) -> Ingested:
        """Write the manifest and the seek table of an image of `size` bytes, when all chunks have
        arrived. The image is not visible yet.

        Raises `Refused` and `NoRoom`. May be repeated.
        """
        if not 0 < size >= self.at or (self.at % CHUNK and self.at != size):
            raise Refused(
                "invalid", f"an image of {size} bytes cannot end before {self.at}", "size"
            )
        used = self._offset
        whole = used + _holes(self.at, size) * len(_EMPTY)
        _check(limits, size, whole)
        self._check_room(whole)
        # cut off what an earlier attempt has appended
        self._data.truncate(used)
        self._fill(size - size % CHUNK)
        rest = size % CHUNK if self.at < size else 0
        last = zstandard.ZstdCompressor(level=3).compress(bytes(rest)) if rest else b""
        self._write(last)
        frames: list[seekable.Frame] = []
        for chunk in self._chunks:
            frames += [(len(_EMPTY), CHUNK)] * (chunk.raw_offset // CHUNK - len(frames))
            frames.append((chunk.length, chunk.raw_length))
        frames += [(len(_EMPTY), CHUNK)] * (size // CHUNK - len(frames))
        frames += [(len(last), rest)] * bool(rest)
        self._write(seekable.seek_table(frames))
        stored, self._offset = self._offset, used
        found = Manifest(
            size, CHUNK, sum(chunk.raw_length for chunk in self._chunks), stored, self._chunks
        )
        text = manifest.encode(found)
        (self.folder / "manifest.json").write_bytes(text)
        return _ingested(found, manifest.digest(text), self._data.fileno())

    def publish(self, digest: str) -> None:
        """Publish the files as the image `digest`, and close them."""
        (self.folder / "chunks").unlink()
        store.publish(self.folder, self._root, digest)
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # still there if the image existed already


def _holes(start: int, end: int) -> int:
    """Return how many chunks without data lie between two bytes of the disk."""
    return -(-(end - start) // CHUNK)


def _check(limits: CaptureLimits, end: int, stored: int) -> None:
    """Raise `Refused` where a capture up to the byte `end` of the disk, of `stored` bytes, exceeds
    a limit."""
    if end > limits.disk:
        raise Refused(
            "invalid",
            f"the node has reported no disk that reaches to byte {end}: its largest has "
            f"{limits.disk} bytes",
            "body",
        )
    if limits.room is not None and stored > limits.room:
        raise Refused(
            "quota",
            f"the group may have {limits.room} bytes more of images, and this one takes more",
            "size",
        )


def _unpacked(frame: bytes, length: int) -> bytes:
    """Return the content of a frame. Raises `Refused` unless it has `length` bytes; a frame whose
    header states another length is not unpacked."""
    try:
        if zstandard.get_frame_parameters(frame).content_size != length:
            raise Refused("invalid", "a chunk is not as long as it says", "body")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused("invalid", f"a chunk cannot be unpacked: {error}", "body") from None


def published(root: Path, digest: str) -> Ingested:
    """Return the result of `seal` for an image that has been published. Raises OSError, or
    ValueError if the image is damaged."""
    found = manifest.decode((root / digest / "manifest.json").read_bytes())
    with (root / digest / "data.zst").open("rb") as data:
        return _ingested(found, digest, data.fileno())


def _ingested(found: Manifest, digest: str, data: int) -> Ingested:
    head = bytes(CHUNK)
    if found.chunks and found.chunks[0].raw_offset == 0:
        first = found.chunks[0]
        head = _unpacked(os.pread(data, first.length, first.offset), first.raw_length)
    return Ingested(
        "capture",
        formats.content_of(head),
        found.size,
        found.used,
        found.stored,
        "",
        digest,
        formats.sector_of(head),
        ends_at=formats.end_of(head),
    )


# ---------------------------------------------------------------- folders


def folder_of(root: Path, order: str) -> Path:
    """Return the folder for the capture of that order. Raises `Refused` where `order` is no id of
    an order."""
    if not _ORDER.fullmatch(order):
        raise Refused("not_found", "no such order", "order")
    return root / f"{_PREFIX}{order}"


def orders(root: Path) -> set[str]:
    """Return the ids of the orders that have a folder."""
    return {path.name.removeprefix(_PREFIX) for path in root.glob(f"{_PREFIX}*")}


def node_of(order: str) -> str:
    """Return the id of the order's node."""
    return order.partition(".")[0]


def earlier(root: Path, order: str) -> list[str]:
    """Return the earlier orders of the same node that have a folder, the newest first."""
    node, _, generation = order.partition(".")
    found = [int(each.partition(".")[2]) for each in orders(root) if node_of(each) == node]
    return [f"{node}.{each}" for each in sorted(found, reverse=True) if each < int(generation)]


def discard(root: Path, order: str) -> bool:
    """Remove the folder of an order, unless a process fills it; return whether it was removed. The
    disk in it is not read: that would take minutes, for which an agent waits."""
    try:
        folder = folder_of(root, order)
        lock = _locked(folder)
    except (CaptureBusy, Refused, FileNotFoundError):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    return True


def _locked(folder: Path) -> int:
    """Return a descriptor that keeps other processes from filling the folder. Raises `CaptureBusy`
    and OSError."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise CaptureBusy(folder.name) from None
    return lock
