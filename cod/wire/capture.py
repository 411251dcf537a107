"""The pieces in which a captured disk is sent to the image server. Travels in the ramdisk.

A piece is the body of one request. For each of its chunks it has a head (raw offset, raw length,
length of the frame, BLAKE2b-256 of the frame) and the chunk as one zstd frame. Chunks are those of
the manifest (`cod.wire.manifest`): they begin at multiples of `CHUNK` and have this length, except
for the last of a disk. They are sent in ascending order, and chunks of zeros are not sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from cod.wire.errors import PeerError
from cod.wire.manifest import CHUNK, digest

HEAD = struct.Struct("<QII32s")
CHUNKS = 8  # of a piece at most; a piece is one request, whose answer is awaited
LARGEST = CHUNKS * (HEAD.size + 2 * CHUNK)  # bytes of a piece; zstd makes nothing twice as long
LAST_WORD = 1 << 20  # bytes of the request that ends a capture


class BadPiece(PeerError, ValueError):
    """The bytes are not a piece; the text says why."""


class Sent(NamedTuple):
    """A chunk of a piece: its place on the disk, its frame, and the frame's digest as sent, hex."""

    raw_offset: int
    raw_length: int
    digest: str
    frame: bytes


def pack(raw_offset: int, raw_length: int, frame: bytes) -> bytes:
    """Return one chunk of a piece."""
    return HEAD.pack(raw_offset, raw_length, len(frame), bytes.fromhex(digest(frame))) + frame


def heads(body: bytes) -> bytes:
    """Return only the heads of a piece's chunks, which identify the piece."""
    return b"".join(
        HEAD.pack(each.raw_offset, each.raw_length, len(each.frame), bytes.fromhex(each.digest))
        for each in unpack(body)
    )


def unpack(body: bytes) -> Iterator[Sent]:
    """Yield the chunks of a piece; their digests are not checked. Raises `BadPiece` if the piece is
    cut short."""
    at = 0
    while at < len(body):
        if len(body) - at < HEAD.size:
            raise BadPiece("it is cut short")
        raw_offset, raw_length, length, found = HEAD.unpack_from(body, at)
        at += HEAD.size
        if len(body) - at < length:
            raise BadPiece("it is cut short")
        yield Sent(raw_offset, raw_length, found.hex(), body[at : at + length])
        at += length
