"""Installation of an image at its place: copied, unpacked from qcow2, or by a program of its own
(see `orders.ImageSource`).

Such a program is a static executable, fetched into memory and checked. It is run with the device's
path as its argument and the unpacked image on standard input. Exit status 0 is success; otherwise
the last line of its standard error is the reason.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from hashlib import sha256

from trampoline import images, qcow2
from trampoline.chunksources import ChunkSources
from trampoline.errors import PrimeError
from trampoline.fetch import Download, get
from trampoline.images import Piece, Tools, Writing
from trampoline.pipeline import Pipeline
from trampoline.target import Target

_LIMIT = 256 << 20  # bytes of a program
_APPEARS = 10.0  # seconds that a partition's device may take to appear


def install(piece: Piece, writing: Writing) -> None:
    """Install the piece at its place. Raises PrimeError."""
    if piece.source.installer == "copy":
        images.copy(piece, writing)
    elif piece.source.installer == "qcow2":
        qcow2.install(piece, writing)
    else:
        _run(piece, writing)


def _run(piece: Piece, writing: Writing) -> None:
    program = _load(piece, writing)
    errors = os.memfd_create("errors")
    device = _device(piece, writing.target)
    download = (
        images.chunk_sources(piece, piece.manifest, writing, in_order=True)
        if piece.manifest
        else Download(piece.source.url, writing.patience)
    )
    process = subprocess.Popen(
        [f"/proc/self/fd/{program}", device],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        pass_fds=[program],
        bufsize=0,
    )

    def produce(put: Callable[[bytes], None]) -> None:
        for block in _raw(piece, download, writing):
            put(block)

    def work(block: bytes) -> None:
        _feed(process, block)
        writing.meter.add(len(block))

    def cancel() -> None:
        download.close()
        process.kill()

    try:
        Pipeline(1).run(produce, work, writing.meter, writing.progress, cancel)
        assert process.stdin
        process.stdin.close()
        if process.wait():
            raise PrimeError(_failed(piece, process.returncode, errors))
    except BrokenPipeError:
        raise PrimeError(_failed(piece, process.wait(), errors)) from None
    finally:
        process.kill()
        process.wait()
        os.close(errors)
        os.close(program)


def _feed(process: subprocess.Popen[bytes], block: bytes) -> None:
    assert process.stdin
    view = memoryview(block)
    while view:
        view = view[process.stdin.write(view) :]


def _load(piece: Piece, writing: Writing) -> int:
    """Return a descriptor of the program as a file in memory, read-only, because a file that is
    open for writing cannot be run."""
    program = get(piece.source.installer, _LIMIT, writing.patience)
    if sha256(program).hexdigest() != piece.source.installer_digest:
        raise PrimeError(
            f"bad checksum: the installer {piece.source.installer} is not the one that was ordered"
        )
    writable = os.memfd_create("installer", 0)
    with os.fdopen(writable, "wb", closefd=False) as file:
        file.write(program)
    os.fchmod(writable, 0o700)
    readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
    os.close(writable)
    return readable


def _device(piece: Piece, target: Target) -> str:
    if piece.source.target == "disk":
        return target.path
    joint = "p" if target.path[-1].isdigit() else ""
    path = f"{target.path}{joint}{piece.source.target}"
    deadline = time.monotonic() + _APPEARS
    while not os.path.exists(path):
        if not target.is_device or time.monotonic() > deadline:
            raise PrimeError(
                f"the device {path} of partition {piece.source.target} does not appear"
            )
        time.sleep(0.05)
    return path


def _raw(piece: Piece, download: Download | ChunkSources, writing: Writing) -> Iterator[bytes]:
    """Yield the whole image, unpacked, in order."""
    if isinstance(download, Download):
        yield from images.stream(piece.source, download, writing)
        return
    assert piece.manifest
    tools, at = Tools(piece.manifest.chunk), 0
    for packed in download.chunks():
        chunk = packed.chunk
        yield from _zeros(chunk.raw_offset - at)
        images.unpack_chunk(piece, packed, download, tools, writing)
        yield bytes(tools.view[: chunk.raw_length])
        at = chunk.raw_offset + chunk.raw_length
    writing.fetched_from_nodes += download.fetched_from_nodes
    yield from _zeros(piece.manifest.size - at)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        step = min(count, 1 << 20)
        yield bytes(step)
        count -= step


def _failed(piece: Piece, status: int, errors: int) -> str:
    text = (
        os.pread(errors, 1 << 16, max(os.fstat(errors).st_size - (1 << 16), 0))
        .decode("utf-8", "replace")
        .strip()
    )
    reason = text.splitlines()[-1][:300] if text else "it gave no reason"
    return f"the installer {piece.source.installer} failed with status {status}: {reason}"
