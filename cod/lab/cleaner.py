"""Cleans up after a process that was killed: ``python -m cod.lab.cleaner``, started by `start`.

A killed process cannot remove what it made. Its cleaner is a process in a session of its own, which
holds one end of a pipe and waits: the kernel closes the other end when the owner ends, however it
ends. Then the cleaner ends the processes that the owner started, and removes its labs and
namespaces. It finds them by these marks:

- processes by their environment: each `start` adds its own mark to the owner's environment, and
  every process that is started later inherits the mark; earlier processes are left alone;
- labs by the names that the owner gave;
- namespaces and further labs by the owner's process id, which is the first number in their names;
- temporary folders by names that begin with `cod`, at most one letter, and that process id.

An owner that ended in order has left nothing, and its cleaner finds nothing.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cod.lab import control, network, record
from cod.lab.processes import NAMESPACES, Process, end, identify, inside, pids

MARKS = "COD_CLEANED_BY"
"""The variable that holds the marks of a process's owners, the outermost first, with colons
between."""
_number = itertools.count()


def start(*labs: str) -> subprocess.Popen[bytes]:
    """Start a cleaner for this process, and for the `labs`, whoever made them. Closing the `stdin`
    of the returned process starts the cleaning."""
    itself = identify(os.getpid())
    assert itself is not None
    mark = f"{itself.pid}.{itself.start}.{next(_number)}"
    command = [sys.executable, "-m", "cod.lab.cleaner", mark, *labs]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, MARKS: "", "PYTHONPATH": root, "COD_LAB_ROOT": str(record.root())}
    cleaner = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    marks = [each for each in os.environ.get(MARKS, "").split(":") if each]
    os.environ[MARKS] = ":".join([*marks, mark])
    return cleaner


def clean(mark: str, labs: Sequence[str]) -> None:
    """End all processes that have the mark; remove the owner's labs, namespaces and temporary
    folders."""
    while left := _marked(mark):
        end(left)
    pid = mark.partition(".")[0]
    named = re.compile(rf"\D*{pid}(?!\d)")
    for lab in {*labs, *filter(named.match, record.names())}:
        control.down(lab)
    for path in NAMESPACES.glob("*") if NAMESPACES.is_dir() else ():
        if named.match(path.name):
            while left := inside(path.name):
                end(left)
            network.remove(path.name)
    for path in Path(tempfile.gettempdir()).glob("cod*"):
        if re.match(rf"cod[a-z]?{pid}(?!\d)", path.name):
            shutil.rmtree(path, ignore_errors=True)


def _marked(mark: str) -> list[Process]:
    found = []
    for pid in pids():
        if _has(pid, mark):
            found += [process for process in [identify(pid)] if process and process.alive()]
    return found


def _has(pid: int, mark: str) -> bool:
    """Return whether the process inherited the mark. The owner itself did not: its environment is
    older than the mark."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return False
    name = MARKS.encode() + b"="
    return any(
        mark.encode() in each.removeprefix(name).split(b":")
        for each in variables
        if each.startswith(name)
    )


def main(mark: str, *labs: str) -> None:
    """Wait for the owner's end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        sys.stdin.buffer.read()
    clean(mark, labs)


if __name__ == "__main__":
    main(*sys.argv[1:])
