"""Fetches an image from another server of the site, and checks it against its name.

The image grows in ``<root>/.pull-<digest>``, which is locked by the process that fills it. When a
fetch breaks off, the folder is kept, and the next fetch continues it. The image becomes visible
when every byte was read back and is right.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from cod.images import store, verify
from cod.images.verify import Damaged
from cod.wire import manifest

STALL = 5.0  # seconds without a byte
SPARE = 1 << 28  # bytes of the disk that stay free
_PREFIX = ".pull-"
_BLOCK = 1 << 18


class PullFailed(Exception):
    """The image was not fetched; the sentence says why."""


@dataclass(frozen=True, slots=True)
class ImagePeer:
    """Another server of the site.

    own    this server's address from which the other is reached
    token  opens the image at the other server
    """

    address: str
    port: int
    own: str
    token: str = field(repr=False)


def pull(root: Path, digest: str, peer: ImagePeer, go_on: Callable[[], None]) -> None:
    """Fetch the image `digest` to `root`. `go_on` is called now and then; an exception that it
    raises ends the fetch. Raises `PullFailed`."""
    try:
        with _locked(root / f"{_PREFIX}{digest}") as folder:
            try:
                _fill(folder, digest, peer, go_on)
            except Damaged as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise PullFailed(f"what came from {peer.address} is damaged: {error}") from None
            store.publish(folder, root, digest)
            shutil.rmtree(folder, ignore_errors=True)  # there if the image was there by then
    except (OSError, HTTPException, ValueError) as error:
        raise PullFailed(f"{peer.address}: {error}") from error


def forget(root: Path, needed: Collection[str]) -> None:
    """Remove the partly fetched images that are not `needed` any more, except those that a process
    fills."""
    for folder in root.glob(f"{_PREFIX}*"):
        if folder.name.removeprefix(_PREFIX) not in needed:
            try:
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            except (OSError, PullFailed):
                continue


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise PullFailed("another process fetches it") from None
    finally:
        os.close(lock)


def _fill(folder: Path, digest: str, peer: ImagePeer, go_on: Callable[[], None]) -> None:
    """Fetch an image's missing files, and check the whole image. Raises `Damaged` and
    `PullFailed`."""
    if _fetch(peer, digest, folder / "manifest.json", go_on, manifest.LIMIT):
        stored = verify.read_manifest(folder, digest).stored
        _fetch(peer, digest, folder / "data.zst", go_on, stored)
    elif not _fetch(peer, digest, folder / "file", go_on):
        raise PullFailed(f"{peer.address} does not have it")
    if bad := verify.verify_folder(folder, digest, go_on).bad:
        raise Damaged(bad[0])


def _fetch(
    peer: ImagePeer, digest: str, path: Path, go_on: Callable[[], None], most: int | None = None
) -> bool:
    """Fetch the missing part of a file of at most `most` bytes; return whether the peer has the
    file. Raises `Damaged` and `PullFailed`."""
    connection = HTTPConnection(
        peer.address, peer.port, timeout=STALL, source_address=(peer.own, 0)
    )
    with path.open("ab") as file:
        start = file.tell()
        asked = {"Authorization": f"Bearer {peer.token}"}
        if start:
            asked["Range"] = f"bytes={start}-"
        try:
            connection.request("GET", f"/images/{digest}/{path.name}", headers=asked)
            answer = connection.getresponse()
            if answer.status == 404:
                path.unlink()
                return False
            if answer.status == 416:  # all of it is here; what is wrong with it is found later
                return True
            if answer.status not in (200, 206):
                raise PullFailed(f"{peer.address} answered {answer.status} {answer.reason}")
            if answer.status == 200:
                file.truncate(0)
            left = int(answer.headers.get("Content-Length", "0"))
            whole = left + (start if answer.status == 206 else 0)
            if left < 0 or (most is not None and whole > most):
                raise Damaged(f"{path.name} has {whole} bytes, not {most or 'any number'}")
            if left > shutil.disk_usage(path.parent).free - SPARE:
                raise OSError(errno.ENOSPC, f"no room for {left} bytes more")
            while left:
                go_on()
                data = answer.read1(min(left, _BLOCK))
                if not data:
                    raise PullFailed(f"{peer.address} broke off, {left} bytes before the end")
                file.write(data)
                left -= len(data)
        finally:
            connection.close()
    return True
