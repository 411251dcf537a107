"""Writes one image to its place on a disk, in one pass: fetching, unpacking, checking and writing
overlap, and nothing is stored.

COD's own images come in chunks (see `cod.wire.manifest`): each is checked before it is written,
damaged ones are fetched again, and empty ones are not sent at all. Foreign images come as one
stream, whose sha256 is known only at its end: a mismatch is found after writing, and leaves a disk
that must not be booted.
"""

from __future__ import annotations

import mmap
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256

from cod.orders import ImageSource
from cod.wire import manifest
from cod.wire.manifest import CHUNK, BadManifest, Manifest
from trampoline.chunkserver import ChunkRing
from trampoline.chunksources import ChunkSources, Packed
from trampoline.errors import OrderError, PrimeError, WayError
from trampoline.fetch import MIRROR_TRIES, Download, Patience, get
from trampoline.pipeline import Meter, Pipeline, Progress
from trampoline.target import Target
from trampoline.zstd import Decompressor, ZstdError

WORKERS = 3  # decompress, check and write; two CPUs and a disk are busy then
_ZERO_STEP = 64 << 20
_ZEROS = bytes(CHUNK)


@dataclass(frozen=True, slots=True)
class Piece:
    """An image and its place: `offset` on the disk, `room` bytes there. `manifest` if it comes in
    chunks."""

    source: ImageSource
    offset: int
    room: int
    manifest: Manifest | None

    @property
    def to_write(self) -> int:
        """Return how many bytes will be written, as far as this is known."""
        return self.manifest.used if self.manifest else self.source.size


@dataclass(slots=True)
class Writing:
    """State that the pieces of one order share.

    zeroed  the disk reads as zeros where nothing was written yet
    sums    digest of each written range by offset, if it will be read back; None otherwise
    ring    keeps chunks that are passed on; None: none are
    took    called with the source of chunks, as in `ChunkSources`
    """

    target: Target
    zeroed: bool
    patience: Patience
    meter: Meter
    progress: Progress
    sums: dict[int, tuple[int, bytes]] | None
    ring: ChunkRing | None = None
    took: Callable[[str], None] = lambda name: None
    fetched: int = 0
    fetched_from_nodes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, data: memoryview, offset: int) -> None:
        """Write `data` and record its digest."""
        self.target.write(data, offset)
        if self.sums is not None:
            self.sums[offset] = (len(data), blake2b(data, digest_size=16).digest())
        self.meter.add(len(data))

    def forget(self, offset: int, length: int, written: Sequence[Piece]) -> None:
        """Allow a range to be written a second time. Data of the pieces `written` in the range are
        not read back. If one of these pieces has written into the range, the range may no longer be
        assumed to read as zeros."""
        self.zeroed = self.zeroed and all(
            piece.manifest is not None
            and not any(
                piece.offset + chunk.raw_offset < offset + length
                and offset < piece.offset + chunk.raw_offset + chunk.raw_length
                for chunk in piece.manifest.chunks
            )
            for piece in written
        )
        if self.sums is not None:
            self.sums = {
                at: (size, digest)
                for at, (size, digest) in self.sums.items()
                if at + size <= offset or at >= offset + length
            }


class Tools(threading.local):
    """Each worker's own page-aligned buffer and decompressor."""

    def __init__(self, size: int) -> None:
        self.buffer = mmap.mmap(-1, size)
        self.view = memoryview(self.buffer)
        self.zstd = Decompressor()


def load_manifest(source: ImageSource, patience: Patience) -> Manifest:
    """Fetch and check an image's manifest. Raises PrimeError."""
    data = _of_mirror(source, patience) if source.mirror else b""
    if manifest.digest(data) != source.digest:
        data = get(f"{source.url}/manifest.json", manifest.LIMIT, patience)
    if manifest.digest(data) != source.digest:
        raise WayError(
            f"bad checksum: the manifest at {source.url} is not the one that was ordered"
        )
    try:
        found = manifest.decode(data)
    except BadManifest as error:
        raise PrimeError(f"the manifest at {source.url} cannot be used: {error}") from None
    if found.size != source.size:
        raise PrimeError(
            f"the image at {source.url} has {found.size} bytes, {source.size} were ordered"
        )
    return found


def _of_mirror(source: ImageSource, patience: Patience) -> bytes:
    """Return the image's manifest from the mirror, unchecked; b'' if that fails. Its length is
    limited by the image's size, so that a mirror cannot fill a small node's memory."""
    limit = min(manifest.LIMIT, (1 << 20) + source.size // 1024)
    try:
        return get(f"{source.mirror}/manifest.json", limit, replace(patience, tries=MIRROR_TRIES))
    except PrimeError:
        return b""


def copy(piece: Piece, writing: Writing) -> None:
    """Write the piece unchanged to its place. Raises PrimeError."""
    if piece.manifest:
        _write_chunks(piece, piece.manifest, writing)
    else:
        _write_stream(piece, writing)


# ---------------------------------------------------------------- chunks


def _write_chunks(piece: Piece, found: Manifest, writing: Writing) -> None:
    if not writing.zeroed:
        zero(writing, _holes(found, piece.offset))
    tools = Tools(found.chunk)
    sources = chunk_sources(piece, found, writing)

    def produce(put: Callable[[Packed], None]) -> None:
        for packed in sources.chunks():
            put(packed)

    def work(packed: Packed) -> None:
        unpack_chunk(piece, packed, sources, tools, writing)
        chunk = packed.chunk
        writing.put(tools.view[: chunk.raw_length], piece.offset + chunk.raw_offset)

    Pipeline(WORKERS).run(produce, work, writing.meter, writing.progress, sources.close)
    writing.fetched_from_nodes += sources.fetched_from_nodes


def chunk_sources(
    piece: Piece, found: Manifest, writing: Writing, *, in_order: bool = False
) -> ChunkSources:
    """Return the sources of the piece's chunks."""
    ring, took = writing.ring, writing.took
    return ChunkSources(piece.source, found, writing.patience, ring, took, in_order=in_order)


def unpack_chunk(
    piece: Piece, packed: Packed, sources: ChunkSources, tools: Tools, writing: Writing
) -> None:
    """Check a chunk, fetching it once more if it is damaged, and unpack it into `tools.buffer`.
    Raises PrimeError."""
    chunk, data = packed.chunk, packed.data
    if manifest.digest(data) != chunk.digest:
        data = sources.again(chunk)
        if manifest.digest(data) != chunk.digest:
            raise OrderError(
                f"bad checksum: the chunk at byte {chunk.raw_offset} of the image at"
                f" {piece.source.url} is damaged on its server"
            )
    with writing.lock:
        writing.fetched += len(data)
    if writing.ring:
        writing.ring.put(piece.source.digest, packed.number, data)
    try:
        length = tools.zstd.into(data, tools.buffer)
    except ZstdError as error:
        raise PrimeError(
            f"the chunk at byte {chunk.raw_offset} of {piece.source.url}: {error}"
        ) from None
    if length != chunk.raw_length:
        raise PrimeError(
            f"the chunk at byte {chunk.raw_offset} of {piece.source.url} has a wrong length"
        )


def _holes(found: Manifest, offset: int) -> list[tuple[int, int]]:
    holes, at = [], 0
    for start, length in [*((c.raw_offset, c.raw_length) for c in found.chunks), (found.size, 0)]:
        if start > at:
            holes.append((offset + at, start - at))
        at = start + length
    return holes


def zero(writing: Writing, spans: Sequence[tuple[int, int]]) -> None:
    """Make ranges (offset, length) of the disk read as zeros.

    That may take long on a large disk, so it is reported as a phase of its own: otherwise the node
    would seem stalled, because nothing is written.
    """
    meter = Meter("zero", sum(length for _, length in spans))

    def produce(put: Callable[[tuple[int, int]], None]) -> None:
        for start, length in spans:
            for at in range(start, start + length, _ZERO_STEP):
                put((at, min(_ZERO_STEP, start + length - at)))

    def work(step: tuple[int, int]) -> None:
        writing.target.zero(*step)
        meter.add(step[1])

    Pipeline(1).run(produce, work, meter, writing.progress)


# ---------------------------------------------------------------- streams


def _write_stream(piece: Piece, writing: Writing) -> None:
    tools = Tools(CHUNK)
    download = Download(piece.source.url, writing.patience)

    def produce(put: Callable[[tuple[int, bytes]], None]) -> None:
        at = 0
        for block in stream(piece.source, download, writing):
            put((at, block))
            at += len(block)

    def work(item: tuple[int, bytes]) -> None:
        at, block = item
        if writing.zeroed and (block == _ZEROS[: len(block)]):
            writing.meter.add(len(block))
            return
        tools.view[: len(block)] = block
        writing.put(tools.view[: len(block)], piece.offset + at)

    Pipeline(WORKERS).run(produce, work, writing.meter, writing.progress, download.close)


def stream(source: ImageSource, download: Download, writing: Writing) -> Iterator[bytes]:
    """Yield the raw image in blocks of 1 MiB (the last may be shorter), with its length and
    checksum checked. Raises PrimeError."""
    state = sha256()

    def served() -> Iterator[bytes]:
        for block in download.blocks():
            state.update(block)
            writing.fetched += len(block)
            yield block

    at = 0
    try:
        for block in manifest.chunked(_UNPACK[source.compression](served())):
            at += len(block)
            if at > source.size:
                raise OrderError(
                    f"the image at {source.url} is longer than the {source.size} bytes it should"
                    " have"
                )
            yield block
    except (ZstdError, zlib.error, EOFError) as error:
        raise OrderError(f"the image at {source.url} is damaged or cut short ({error})") from None
    if at < source.size:
        raise OrderError(f"short image: {source.url} has {at} bytes, {source.size} were ordered")
    if state.hexdigest() != source.digest:
        raise OrderError(
            f"bad checksum: the sha256 of {source.url} is {state.hexdigest()}, not {source.digest}"
        )


def _gunzip(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip members one after another (RFC 1952), never more than 1 MiB at a time."""
    member, fresh = zlib.decompressobj(31), True
    for block in blocks:
        data = block
        while data:
            if member.eof:
                data = data.lstrip(b"\0")  # padding
                member, fresh = zlib.decompressobj(31), True
                continue
            out = member.decompress(data, CHUNK)
            fresh = False
            data = member.unconsumed_tail or member.unused_data
            if out:
                yield out
    if not member.eof and not fresh:
        raise EOFError("its end is missing")


_UNPACK: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "raw": lambda blocks: blocks,
    "gzip": _gunzip,
    "zstd": lambda blocks: Decompressor().stream(blocks, CHUNK),
}


# ---------------------------------------------------------------- reading back


def read_back(target: Target, sums: dict[int, tuple[int, bytes]], progress: Progress) -> None:
    """Compare the disk with the digests of the written data. Raises PrimeError at the first
    difference."""
    meter = Meter("verify", sum(length for length, _ in sums.values()))
    tools = Tools(max((length for length, _ in sums.values()), default=CHUNK))

    def produce(put: Callable[[int], None]) -> None:
        for offset in sorted(sums):
            put(offset)

    def work(offset: int) -> None:
        length, wanted = sums[offset]
        data = target.read_into(tools.buffer, length, offset)
        if blake2b(data, digest_size=16).digest() != wanted:
            raise PrimeError(
                f"the disk {target.path} does not hold what was written at byte {offset}"
            )
        meter.add(length)

    Pipeline(WORKERS).run(produce, work, meter, progress)
