"""The folder of images in their served form: one folder for each image, named by its digest,
written once.

``<root>/<digest>/manifest.json`` and ``data.zst`` (see `cod.wire.manifest`), or
``<root>/<digest>/file`` for a kernel or ramdisk that is served as it is. A new image grows in a
temporary folder, is flushed to the disk and renamed, so that nobody ever sees half of it. A
temporary folder is locked by the process that fills it. The locks of ended processes are free, so
`clean` removes exactly what crashes left behind.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = ".new-"
_DIGEST = re.compile("[0-9a-f]{64}")


def private(root: Path) -> None:
    """Make the folder. Other users of the host may not list it, because its digests allow one to
    fetch the images."""
    root.mkdir(parents=True, exist_ok=True)
    if stat.S_IMODE(root.stat().st_mode) & 0o027:
        root.chmod(0o750)


@contextmanager
def new_folder(root: Path) -> Iterator[Path]:
    """Provide a temporary folder under `root`. At the end it is removed, unless it was
    published."""
    private(root)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=root))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def publish(folder: Path, root: Path, digest: str) -> None:
    """Make a filled `folder` the image `digest`. An image of this name that exists already holds
    the same bytes, and is kept."""
    for path in folder.iterdir():
        flush(path)
    folder.chmod(0o755)
    flush(folder)
    target = root / digest
    if not target.exists():
        folder.rename(target)
    flush(root)


def clean(root: Path) -> int:
    """Remove the folders that crashed ingests and removals left; return their number."""
    removed = 0
    for folder in root.glob(f"{_TEMPORARY}*"):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
        except BlockingIOError:
            pass  # somebody is filling it
        finally:
            os.close(lock)
    return removed


def digests(root: Path) -> frozenset[str]:
    return frozenset(path.name for path in root.iterdir() if _DIGEST.fullmatch(path.name))


def remove(root: Path, digest: str) -> None:
    """Remove an image: first rename its folder, so that nobody finds it any more, then delete its
    bytes. An image that does not exist is no error."""
    with new_folder(root) as folder:
        try:
            (root / digest).rename(folder / "removed")
        except FileNotFoundError:
            return
        flush(root)


def flush(path: Path) -> None:
    """Return when the content of the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
