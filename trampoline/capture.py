"""Saves this machine's disk as an image: reads the bytes in use, compresses and sends them. No disk
is written.

The disk is read in chunks (1 MiB, as images are served). A few threads read and compress pieces of
several chunks ahead, and each sends its piece in its turn. Nothing else runs here and nothing is
mounted, so the disk does not change meanwhile: after a broken connection the rest is simply read
again. Chunks that an earlier order has sent are read, compressed and compared by digests, because
the machine may have run since; if they are unchanged, they are not sent again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Protocol

from cod.orders import Deposit, Order
from cod.wire.capture import CHUNKS, heads, pack
from cod.wire.manifest import CHUNK
from trampoline import usage
from trampoline.deposit import Behind, Sender
from trampoline.disks import choose, erasable
from trampoline.errors import PrimeError
from trampoline.fetch import PATIENT, Patience
from trampoline.filesystems.content import Extent
from trampoline.inventory import Disk
from trampoline.pipeline import Meter, Pipeline, Progress, Stopped
from trampoline.source import Source
from trampoline.usage import DiskUsage
from trampoline.zstd import Compressor

_LEVEL = 3  # as images that are added: higher levels take minutes and save little
_MOST_WORKERS = 8
_REWINDS = 8  # times that a server may lose what it had
_ZEROS = bytes(CHUNK)


@dataclass(frozen=True, slots=True)
class Captured:
    """Outcome of a capture: the disk's `path`, bytes of the image, bytes in use that were read,
    bytes sent, seconds."""

    path: str
    size: int
    bytes_written: int
    bytes_sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CapturePiece:
    """Chunks that are sent together. `number`: of the piece; `chunks`: for each chunk its first
    byte, and the extents in use."""

    number: int
    chunks: tuple[tuple[int, tuple[Extent, ...]], ...]


def capture(
    order: Order, disks: Sequence[Disk], progress: Progress, patience: Patience = PATIENT
) -> Captured:
    """Carry out a capture order. Raises PrimeError. No disk is changed in any case."""
    if order.deposit is None:
        raise PrimeError("the order does not say where the capture goes")
    started = time.monotonic()
    # The disk to read. If the disk of the system is not known: the first one that is not empty.
    mine = erasable(disks, order.keep)
    if not order.deposit.least and ":" not in order.disk:
        mine = [disk for disk in mine if _begins(disk)] or mine
    path = choose(order.disk, mine, order.deposit.least, order.sector).path
    with Source(path) as source:
        found = usage.look(source, order.deposit.what)
        sent = _send(found, order.deposit, patience, progress)
    total = sum(_lengths(found))
    return Captured(path, found.copy.size, total, sent, time.monotonic() - started)


def _begins(disk: Disk) -> bool:
    with Source(disk.path) as source:
        return any(source.read(CHUNK, 0))


def _send(found: DiskUsage, deposit: Deposit, patience: Patience, progress: Progress) -> int:
    """Send the image; return the bytes sent. If the server has lost some of it, or another server
    has taken its place, continue from the end of what the server has."""
    parts = [
        {
            "number": part.number,
            "start": part.start,
            "size": part.size,
            "type": part.type,
            "name": part.name[:72],
            "content": part.content.kind,
        }
        for part in found.parts
    ]
    url = deposit.url
    deposit = _resume(found, deposit, patience, progress)
    sent = 0
    for _ in range(_REWINDS):
        sender = Sender(deposit, patience)
        try:
            at = sender.at()
            phase = "capture" if sender.deposit.url == url else "capture anew"
            at = _Pass(found, sender, progress, phase).run(at)
            sender.finish(found.copy.size, at, parts, deposit.what)
            return sent + sender.sent
        except Behind:
            sent += sender.sent
            deposit = sender.deposit
        finally:
            sender.close()
    raise PrimeError("the image server keeps losing what it was sent")


def _resume(found: DiskUsage, deposit: Deposit, patience: Patience, progress: Progress) -> Deposit:
    """Continue from the part that an earlier order has sent, if this part equals the disk's present
    contents. Return the deposit with the server that has answered."""
    sender = Sender(deposit, patience)
    try:
        at, digest = sender.before()
        if at:
            compared = Comparison(sender.close)
            _Pass(found, compared, progress, "compare", at).run(0)
            if compared.digest() == digest:
                sender.adopt(digest)
        return sender.deposit
    finally:
        sender.close()


class Destination(Protocol):
    """A receiver of the pieces of one pass. `close` ends a waiting `put`."""

    def put(self, piece: bytes, at: int, end: int) -> None: ...
    def close(self) -> None: ...


class Comparison:
    """A destination that sends nothing, and computes the digest of the heads of all chunks."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._state = blake2b(digest_size=32)
        self.close = close

    def put(self, piece: bytes, at: int, end: int) -> None:
        self._state.update(heads(piece))

    def digest(self) -> str:
        return self._state.hexdigest()


# ---------------------------------------------------------------- what is in use, in chunks


def _chunks(found: DiskUsage) -> Iterator[tuple[int, tuple[Extent, ...]]]:
    """Yield (first byte, extents in use) of each chunk with bytes in use or changes, in order."""
    changed = [(at, at + len(data)) for at, data in found.copy.changes if at < found.copy.size]
    marks = sorted(
        {at // CHUNK for start, stop in changed for at in range(start - start % CHUNK, stop, CHUNK)}
    )
    mark = iter([*marks, -1])
    due = next(mark)
    for number, spans in _by_chunk(found.used):
        while 0 <= due < number:
            yield due * CHUNK, ()
            due = next(mark)
        if due == number:
            due = next(mark)
        yield number * CHUNK, spans
    while due >= 0:
        yield due * CHUNK, ()
        due = next(mark)


def _by_chunk(used: Sequence[Extent]) -> Iterator[tuple[int, tuple[Extent, ...]]]:
    spans: list[Extent] = []
    here = -1
    for start, stop in used:
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            if number != here and spans:
                yield here, tuple(spans)
                spans = []
            here = number
            spans.append((max(start, number * CHUNK), min(stop, (number + 1) * CHUNK)))
    if spans:
        yield here, tuple(spans)


def _lengths(found: DiskUsage, end: int = 1 << 62) -> Iterator[int]:
    """Yield the length of each chunk that begins before `end`."""
    for at, _ in _chunks(found):
        if at < end:
            yield min(CHUNK, found.copy.size - at)


def _pieces(found: DiskUsage, at: int, end: int = 1 << 62) -> Iterator[CapturePiece]:
    """Yield the pieces from `at`, up to which the server has the image, to `end`."""
    chunks: list[tuple[int, tuple[Extent, ...]]] = []
    number = 0
    for chunk in _chunks(found):
        if at <= chunk[0] < end:
            chunks.append(chunk)
        if len(chunks) == CHUNKS:
            yield CapturePiece(number, tuple(chunks))
            chunks, number = [], number + 1
    if chunks:
        yield CapturePiece(number, tuple(chunks))


class _Pass:
    """One pass over the disk, from the byte up to which the server has the image to `end`, or to
    the disk's end."""

    def __init__(
        self,
        found: DiskUsage,
        to: Destination,
        progress: Progress,
        phase: str = "capture",
        end: int = 1 << 62,
    ) -> None:
        self._found, self._to, self._progress, self._end = found, to, progress, end
        self._meter = Meter(phase, sum(_lengths(found, end)))
        self._tools = _Tools()
        self._turn = threading.Condition()
        self._next = 0  # number of the piece whose turn it is
        self._at = 0

    def run(self, at: int) -> int:
        """Send everything from `at` on; return the byte up to which the server then has the image.
        Raises Behind."""
        self._at = at
        self._meter.done = sum(_lengths(self._found, at))

        def produce(put: Callable[[CapturePiece], None]) -> None:
            for piece in _pieces(self._found, at, self._end):
                put(piece)

        workers = min(os.cpu_count() or 1, _MOST_WORKERS) + 1  # one of them is sending
        Pipeline(workers, workers).run(
            produce, self._work, self._meter, self._progress, self._to.close
        )
        return self._at

    def _work(self, piece: CapturePiece) -> None:
        packed, end = self._packed(piece)
        with self._turn:
            while self._next != piece.number:
                # with a time limit: a worker that fails does not pass its turn on
                self._turn.wait(0.1)
                if self._meter.stopped:
                    raise Stopped
            if packed:
                self._to.put(packed, self._at, end)
                self._at = end
            self._next += 1
            self._turn.notify_all()
        self._meter.add(sum(min(CHUNK, self._found.copy.size - at) for at, _ in piece.chunks))

    def _packed(self, piece: CapturePiece) -> tuple[bytes, int]:
        """Return the bytes to send for a piece (b'' if it is all zeros), and the end of its last
        chunk."""
        packed, end = [], 0
        for at, spans in piece.chunks:
            data = self._read(at, spans)
            if data != _ZEROS[: len(data)]:
                packed.append(pack(at, len(data), self._tools.zstd.frame(data)))
                end = at + len(data)
            if self._meter.stopped:
                raise Stopped
        return b"".join(packed), end

    def _read(self, at: int, spans: Sequence[Extent]) -> bytearray:
        """Return a chunk: the extents in use as they are on the disk, and zeros elsewhere."""
        copy = self._found.copy
        data = bytearray(min(CHUNK, copy.size - at))
        if spans:
            first, last = spans[0][0] - at, spans[-1][1] - at
            data[first:last] = copy.read(last - first, at + first).ljust(last - first, b"\0")
            for (_, before), (after, _) in pairwise(spans):
                data[before - at : after - at] = bytes(after - before)
        copy.put_on(data, at)
        return data


class _Tools(threading.local):
    """Each worker's own compressor."""

    def __init__(self) -> None:
        self.zstd = Compressor(_LEVEL)
