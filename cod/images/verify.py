"""Reads a stored image back, all of it, and checks it against its name."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import zstandard

from cod.images import seekable
from cod.wire import manifest
from cod.wire.manifest import BadManifest, Chunk, Manifest


class Damaged(Exception):
    """A stored image is not what its name promises; the text says what is wrong."""


def verify(root: Path, digest: str) -> int:
    """Read every byte of the image, used chunks and holes; returns how many. Raises Damaged."""
    folder = root / digest
    try:
        if (folder / "file").exists():
            return _verify_plain(folder / "file", digest)
        found = read_manifest(root, digest)
        with (folder / "data.zst").open("rb") as data:
            return _verify_data(data, found)
    except OSError as error:
        raise Damaged(f"it cannot be read: {error}") from None


def read_manifest(root: Path, digest: str) -> Manifest:
    """The manifest of an image. Raises Damaged, or OSError."""
    data = (root / digest / "manifest.json").read_bytes()
    if manifest.digest(data) != digest:
        raise Damaged("its manifest's digest is not its name")
    try:
        return manifest.decode(data)
    except BadManifest as error:
        raise Damaged(f"its manifest: {error}") from None


def _verify_plain(path: Path, digest: str) -> int:
    with path.open("rb") as file:
        found = manifest.digest_of(file)
    if found != digest:
        raise Damaged("its digest is not its name")
    return path.stat().st_size


def _verify_data(data: BinaryIO, found: Manifest) -> int:
    try:
        frames = seekable.read_seek_table(data)
    except ValueError as error:
        raise Damaged(f"data.zst: {error}") from None
    used = {chunk.raw_offset: chunk for chunk in found.chunks}
    raw_offset = offset = 0
    data.seek(0)
    for length, raw_length in frames:
        _verify_frame(data.read(length), raw_offset, offset, raw_length, used.pop(raw_offset, None))
        raw_offset, offset = raw_offset + raw_length, offset + length
    if used or raw_offset != found.size or data.seek(0, 2) != found.stored:
        raise Damaged("data.zst and the manifest do not describe the same image")
    return found.stored


def _verify_frame(frame: bytes, raw_offset: int, offset: int, raw_length: int, chunk: Chunk | None) -> None:
    if chunk and (chunk.raw_length, chunk.offset, chunk.length) != (raw_length, offset, len(frame)):
        raise Damaged(f"the chunk at {raw_offset} is not where the manifest says")
    if chunk and manifest.digest(frame) != chunk.digest:
        raise Damaged(f"the chunk at {raw_offset} has a wrong digest")
    try:
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=manifest.LARGEST_CHUNK)
    except zstandard.ZstdError as error:
        raise Damaged(f"the chunk at {raw_offset}: {error}") from None
    if len(raw) != raw_length or (chunk is None and any(raw)):
        raise Damaged(f"the chunk at {raw_offset} does not hold what the manifest says")
