"""Writing a file atomically: a crash leaves the old file or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read. The file is on disk when this function returns."""
    new = path.with_name(path.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # it may be there already
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
