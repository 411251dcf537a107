"""Runs `cod` and counts its statements and commits: ``python -m cod.lab.storm.counted FOLDER
WORDS...`` runs ``cod WORDS...``.

Each process that the program forks has a file of its own in FOLDER, named by its process id, with
two 64-bit numbers, which may be read at any time. BEGIN is not counted, nor is the end of a
transaction that only reads.
"""

from __future__ import annotations

import itertools
import mmap
import os
import runpy
import struct
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

_CELLS = struct.Struct("2Q")


class Counters:
    """This process's counts of statements and commits, kept in its file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._statements, self._commits = itertools.count(1), itertools.count(1)
        with open(self._folder / str(os.getpid()), "wb+") as file:
            file.truncate(_CELLS.size)
            self._cells = memoryview(mmap.mmap(file.fileno(), _CELLS.size)).cast("Q")

    def statement(self, _connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        """Count a statement."""
        if not text.startswith("BEGIN"):
            self._cells[0] = next(self._statements)

    def commit(self, connection: Any) -> None:
        """Count a commit."""
        if not connection.get_execution_options().get("reading"):
            self._cells[1] = next(self._commits)


def read(folder: Path, pid: int) -> tuple[int, int]:
    """Return the numbers of statements and commits of a process; zeros when it has counted none
    yet."""
    try:
        statements, commits = _CELLS.unpack((folder / str(pid)).read_bytes())
    except (OSError, struct.error):
        return 0, 0
    return statements, commits


def main() -> None:
    """Start to count, and run `cod`."""
    counters = Counters(Path(sys.argv[1]))
    event.listen(Engine, "before_cursor_execute", counters.statement)
    event.listen(Engine, "commit", counters.commit)
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("cod", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
