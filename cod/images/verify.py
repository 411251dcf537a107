"""Reads a whole stored image back, and checks it against its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from cod.images import seekable
from cod.wire import manifest
from cod.wire.manifest import BadManifest, Chunk, Manifest


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of reading an image: the number of its chunks (with the holes), and a phrase for
    each fault."""

    chunks: int
    bad: tuple[str, ...]


class Damaged(Exception):
    """The image is so damaged that it cannot be checked further; the message is a phrase that says
    why."""


def verify(root: Path, digest: str) -> Checked:
    """Read every byte of the image. Faults are returned, not raised."""
    return verify_folder(root / digest, digest)


def verify_folder(folder: Path, digest: str, go_on: Callable[[], None] = lambda: None) -> Checked:
    """Read every byte of the image in a folder, as `verify` does. `go_on` is called for each chunk;
    an exception that it raises ends the reading."""
    try:
        if (folder / "file").exists():
            with (folder / "file").open("rb") as file:
                sound = manifest.digest_of(file) == digest
            return Checked(1, () if sound else ("its digest is not its name",))
        found = read_manifest(folder, digest)
        with (folder / "data.zst").open("rb") as data:
            frames = seekable.read_seek_table(data)
            return Checked(len(frames), tuple(_faults(data, frames, found, go_on)))
    except Damaged as error:
        return Checked(0, (str(error),))
    except (OSError, ValueError) as error:
        return Checked(0, (f"it cannot be read: {error}",))


def read_manifest(folder: Path, digest: str) -> Manifest:
    """Return the manifest of the image in a folder. Raises `Damaged`."""
    data = (folder / "manifest.json").read_bytes()
    if manifest.digest(data) != digest:
        raise Damaged("its manifest's digest is not its name")
    try:
        return manifest.decode(data)
    except BadManifest as error:
        raise Damaged(f"its manifest: {error}") from None


def _faults(
    data: BinaryIO, frames: list[seekable.Frame], found: Manifest, go_on: Callable[[], None]
) -> Iterator[str]:
    used = {chunk.raw_offset: chunk for chunk in found.chunks}
    raw_offset = offset = 0
    data.seek(0)
    for length, raw_length in frames:
        go_on()
        frame, chunk = data.read(length), used.pop(raw_offset, None)
        if chunk and (chunk.raw_length, chunk.offset, chunk.length) != (raw_length, offset, length):
            yield f"the chunk at {raw_offset} is not where the manifest says"
        elif fault := _fault(frame, raw_length, chunk):
            yield f"the chunk at {raw_offset}: {fault}"
        raw_offset, offset = raw_offset + raw_length, offset + length
    if used or raw_offset != found.size or os.fstat(data.fileno()).st_size != found.stored:
        yield "data.zst and the manifest do not describe the same image"


def _fault(frame: bytes, raw_length: int, chunk: Chunk | None) -> str:
    if chunk and manifest.digest(frame) != chunk.digest:
        return "its digest is wrong"
    try:
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=manifest.LARGEST_CHUNK)
    except zstandard.ZstdError as error:
        return str(error)
    if len(raw) != raw_length:
        return f"it has {len(raw)} bytes, not {raw_length}"
    return "it is not empty, but the manifest leaves it out" if chunk is None and any(raw) else ""
