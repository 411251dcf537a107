"""The manifest of an image in its served form: what is in `data.zst`, chunk by chunk. JSON; travels
in the ramdisk.

`data.zst` is zstd's seekable format (facebook/zstd, contrib/seekable_format): independent frames of
one chunk each, so `zstd -dc data.zst` gives the whole image back. The manifest lists the chunks
that are not all zeros::

    {"format": "cod-image", "version": 1, "size": 4294967296, "chunk": 1048576, "used": 12582912,
    "stored": 4210337,
     "chunks": [[0, 1048576, 0, 3512, "9a…"], …]}

size    bytes of the raw image; chunk: bytes of every chunk but the last, which may be shorter
used    raw bytes of the listed chunks; stored: bytes of data.zst
chunks  raw offset, raw length, offset and length in data.zst, BLAKE2b-256 (RFC 7693) of those
        compressed bytes, hex; in ascending order
An image is named by the BLAKE2b-256 of its manifest's bytes: whoever knows the name can check
everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO, NamedTuple

from cod.wire.errors import PeerError

FORMAT, VERSION = "cod-image", 1
CHUNK = 1 << 20
LARGEST_CHUNK = 16 << 20
LIMIT = 256 << 20  # bytes of a manifest: enough for two terabytes in use


class BadManifest(PeerError):
    """The document is not a manifest that this version can use; the text says why."""


class Chunk(NamedTuple):
    """One used chunk: its places in the raw image and in data.zst, and the digest of its compressed
    bytes, hex."""

    raw_offset: int
    raw_length: int
    offset: int
    length: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest. Sizes in bytes."""

    size: int
    chunk: int
    used: int
    stored: int
    chunks: Sequence[Chunk]


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return BLAKE2b-256, in hex: the digest of chunks, manifests and plain files."""
    return blake2b(data, digest_size=32).hexdigest()


def digest_of(file: BinaryIO) -> str:
    """Return the digest of the unread rest of `file`."""
    state = blake2b(digest_size=32)
    while block := file.read(CHUNK):
        state.update(block)
    return state.hexdigest()


def chunked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `blocks` of any length as blocks of `CHUNK` bytes; the last may be shorter."""
    pending = bytearray()
    for block in blocks:
        if not pending and len(block) == CHUNK:
            yield block
            continue
        pending += block
        while len(pending) >= CHUNK:
            yield bytes(pending[:CHUNK])
            del pending[:CHUNK]
    if pending:
        yield bytes(pending)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest's bytes; equal manifests give equal bytes."""
    chunks = ",\n".join(json.dumps(chunk, separators=(",", ":")) for chunk in manifest.chunks)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "size": manifest.size,
        "chunk": manifest.chunk,
        "used": manifest.used,
        "stored": manifest.stored,
    }
    return f'{json.dumps(head)[:-1]}, "chunks": [\n{chunks}\n]}}\n'.encode()


def decode(data: bytes) -> Manifest:
    """Return the manifest in `data`. Raises BadManifest, also if its chunks overlap or are not in
    order."""
    try:
        document = json.loads(data)
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise BadManifest(
                f"format {document['format']!r:.40} version {document['version']!r:.20} is not"
                " known"
            )
        chunks = [Chunk(*fields) for fields in document["chunks"]]
        size, chunk, used, stored = (
            int(document[name]) for name in ("size", "chunk", "used", "stored")
        )
        manifest = Manifest(size, chunk, used, stored, chunks)
        _check(manifest)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadManifest(f"not an image manifest ({type(error).__name__})") from None
    return manifest


def _check(manifest: Manifest) -> None:
    if not 0 < manifest.chunk <= LARGEST_CHUNK:
        raise BadManifest(f"chunks of {manifest.chunk} bytes")
    raw, offset, used = 0, 0, 0
    for chunk in manifest.chunks:
        if not (
            raw <= chunk.raw_offset
            and offset <= chunk.offset
            and 0 < chunk.raw_length <= manifest.chunk
            and 0 < chunk.length <= 2 * LARGEST_CHUNK
            and len(chunk.digest) == 64
        ):
            raise BadManifest(f"the chunk at {chunk.raw_offset} is out of place")
        raw, offset = chunk.raw_offset + chunk.raw_length, chunk.offset + chunk.length
        used += chunk.raw_length
    if raw > manifest.size or offset > manifest.stored or used != manifest.used:
        raise BadManifest("its chunks do not fit its sizes")
