"""Counts the files of cod/ whose code runs while something is done, in all threads: the rooms that
a reader passes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

COD = str(Path(__file__).resolve().parents[2] / "cod") + "/"


@contextmanager
def files_passed(*run_in: Callable[[Callable[[], object]], object]) -> Iterator[set[str]]:
    """The files of cod/, below it, that are entered while the context lasts.

    run_in  each runs a function in one of the threads that are there already (a profiler's hook is
            a thread's own)
    """
    found: set[str] = set()

    def entered(frame: FrameType, event: str, _arg: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(COD):
            found.add(name.removeprefix(COD))

    for run in run_in:
        run(lambda: sys.setprofile(entered))
    threading.setprofile(entered)  # those that are begun meanwhile
    try:
        yield found
    finally:
        threading.setprofile(None)
        for run in run_in:
            run(lambda: sys.setprofile(None))
