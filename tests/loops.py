"""Loop devices of files, which end with the process that uses them, however it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def loop_device(file: str | Path, *options: str) -> Iterator[str]:
    """Provide the path of a loop device of `file`. `options`: of losetup."""
    made = subprocess.run(
        ["losetup", "--find", "--show", *options, file], check=True, capture_output=True, text=True
    )
    path = made.stdout.strip()
    held = os.open(path, os.O_RDONLY)
    try:
        # It is held, so the kernel takes it away when the last of its users has closed it.
        subprocess.run(["losetup", "--detach", path], check=True)
        yield path
    finally:
        os.close(held)
