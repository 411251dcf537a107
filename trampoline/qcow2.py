"""The installer 'qcow2': unpacks a qcow2 file while it is fetched, without storing it (QEMU,
interop/qcow2.txt).

The tables say where each cluster of the disk is in the file; they are fetched first, by Range. Then
the file is read once from its start to its end, and each cluster is written as it arrives. The
tables in it are compared with those fetched before, so that the sha256 of the whole file covers
them, too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from cod.wire.manifest import CHUNK
from trampoline import images
from trampoline.errors import PrimeError
from trampoline.fetch import Download
from trampoline.images import Piece, Tools, Writing
from trampoline.pipeline import Pipeline

_OFFSET = 0x00FFFFFFFFFFFE00
_COMPRESSED, _ZERO = 1 << 62, 1
_HEADER = struct.Struct(">4sIQIIQIIQ")


class Run(NamedTuple):
    """`length` bytes of the file at `host` that belong to the disk at `guest`; -1 for a table,
    which is only compared."""

    host: int
    length: int
    guest: int
    packed: bool
    table: bytes = b""


@dataclass(frozen=True, slots=True)
class Tables:
    """Contents of the header and the tables: the sizes of a cluster and of the disk in bytes, and
    the runs in the file's order."""

    cluster: int
    size: int
    runs: list[Run]


def install(piece: Piece, writing: Writing) -> None:
    """Write the disk in the qcow2 file at the piece's URL. Raises PrimeError."""
    tables = read_tables(piece, writing)
    if not writing.zeroed:
        images.zero(writing, [(piece.offset, piece.source.size)])
    tools = Tools(max(CHUNK, tables.cluster))
    download = Download(piece.source.url, writing.patience)

    def produce(put: Callable[[tuple[Run, bytes]], None]) -> None:
        for run, data in _passing(piece, tables, download, writing):
            put((run, data))

    def work(item: tuple[Run, bytes]) -> None:
        run, data = item
        content = _unpack(piece, data, tables.cluster) if run.packed else data
        length = min(len(content), tables.size - run.guest)
        tools.view[:length] = content[:length]
        writing.put(tools.view[:length], piece.offset + run.guest)

    Pipeline(images.WORKERS).run(produce, work, writing.meter, writing.progress, download.close)


# ---------------------------------------------------------------- the tables


def read_tables(piece: Piece, writing: Writing) -> Tables:
    """Fetch the header and all tables. Raises PrimeError unless they belong to a plain qcow2 file
    of the ordered size."""
    head = _fetch(piece, writing, 0, 112)
    magic, version, backing, _, bits, size, crypt, l1_size, l1_at = _HEADER.unpack_from(head)
    features = struct.unpack_from(">Q", head, 72)[0] if version >= 3 else 0
    if (
        magic != b"QFI\xfb"
        or version not in (2, 3)
        or backing
        or crypt
        or features & ~1
        or not 9 <= bits <= 21
    ):
        raise PrimeError(f"{piece.source.url} is not a qcow2 file that can be unpacked here")
    if size != piece.source.size:
        raise PrimeError(
            f"the disk in {piece.source.url} has {size} bytes, {piece.source.size} were ordered"
        )
    cluster = 1 << bits
    if l1_size > size // (cluster * cluster // 8) + 1:
        raise PrimeError(f"the tables of {piece.source.url} make no sense")
    l1 = _fetch(piece, writing, l1_at, 8 * l1_size)
    runs = [Run(0, len(head), -1, False, head), Run(l1_at, len(l1), -1, False, l1)]
    for number, (entry,) in enumerate(struct.iter_unpack(">Q", l1)):
        if at := entry & _OFFSET:
            table = _fetch(piece, writing, at, cluster)
            runs.append(Run(at, cluster, -1, False, table))
            runs += _merged(_clusters(table, number * cluster * cluster // 8, bits, size))
    return Tables(cluster, size, sorted(runs))


def _fetch(piece: Piece, writing: Writing, at: int, length: int) -> bytes:
    data = bytearray(length)
    download = Download(piece.source.url, writing.patience, at, at + length)
    download.fill(memoryview(data))
    download.close()
    return bytes(data)


def _clusters(table: bytes, guest: int, bits: int, size: int) -> Iterator[Run]:
    cluster, split = 1 << bits, 62 - (bits - 8)
    for number, (entry,) in enumerate(struct.iter_unpack(">Q", table)):
        at = guest + number * cluster
        if at >= size:
            return
        if entry & _COMPRESSED:
            host = entry & ((1 << split) - 1)
            sectors = (entry >> split & ((1 << (62 - split)) - 1)) + 1
            yield Run(host, sectors * 512 - host % 512, at, True)
        elif entry & _OFFSET and not entry & _ZERO:
            yield Run(entry & _OFFSET, cluster, at, False)


def _merged(runs: Iterator[Run]) -> Iterator[Run]:
    """Yield runs in which clusters that follow each other both in the file and on the disk are
    merged, up to 1 MiB."""
    last: Run | None = None
    for run in runs:
        if (
            last
            and not (last.packed or run.packed)
            and last.host + last.length == run.host
            and last.guest + last.length == run.guest
            and last.length + run.length <= CHUNK
        ):
            last = last._replace(length=last.length + run.length)
            continue
        if last:
            yield last
        last = run
    if last:
        yield last


# ---------------------------------------------------------------- the file


def _passing(
    piece: Piece, tables: Tables, download: Download, writing: Writing
) -> Iterator[tuple[Run, bytes]]:
    """Yield each run with its bytes while the file arrives. The tables are compared, and the file's
    sha256 is checked."""
    state, window, start = sha256(), bytearray(), 0
    waiting = iter(tables.runs)
    run = next(waiting, None)
    for block in download.blocks():
        state.update(block)
        writing.fetched += len(block)
        window += block
        end = start + len(window)
        # a packed cluster's length is in sectors, so the last one may reach beyond the file's end
        while run and (run.host + run.length <= end or (run.packed and end == download.total)):
            data = bytes(window[run.host - start : run.host + run.length - start])
            if run.guest >= 0:
                yield run, data
            elif data != run.table:  # a request of its own fetched the table before
                raise PrimeError(f"{piece.source.url} changed while it was being fetched")
            run = next(waiting, None)
        keep = min(run.host, end) if run else end
        del window[: keep - start]
        start = keep
    if run:
        raise PrimeError(f"short image: {piece.source.url} ends before its last cluster")
    if state.hexdigest() != piece.source.digest:
        raise PrimeError(
            f"bad checksum: the sha256 of {piece.source.url} is {state.hexdigest()}, "
            f"not {piece.source.digest}"
        )


def _unpack(piece: Piece, data: bytes, cluster: int) -> bytes:
    try:
        content = zlib.decompressobj(-15).decompress(data, cluster)
    except zlib.error as error:
        raise PrimeError(f"the image at {piece.source.url} is damaged ({error})") from None
    if len(content) != cluster:
        raise PrimeError(
            f"the image at {piece.source.url} is damaged (a cluster of {len(content)} bytes)"
        )
    return content
