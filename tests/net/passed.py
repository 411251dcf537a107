"""Counts the files of cod/ whose code runs while something is done, in all threads: the rooms that
a reader passes; and the calls in each."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cod.pool import Pool

Threads = tuple[Callable[[Callable[[], object]], object], ...]

COD = str(Path(__file__).resolve().parents[2] / "cod") + "/"


@contextmanager
def files_passed(*run_in: Callable[[Callable[[], object]], object]) -> Iterator[Counter[str]]:
    """Provide the calls in each file of cod/, named below it, that is entered meanwhile.

    run_in  each runs a function in one of the threads that are there already (a profiler's hook is
            a thread's own)
    """
    found: Counter[str] = Counter()

    def entered(frame: FrameType, event: str, _arg: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(COD):
            found[name.removeprefix(COD)] += 1

    for run in run_in:
        run(lambda: sys.setprofile(entered))
    threading.setprofile(entered)  # those that are begun meanwhile
    try:
        yield found
    finally:
        threading.setprofile(None)
        for run in run_in:
            run(lambda: sys.setprofile(None))


@pytest.fixture
def threads_at_work(in_reactor: Callable[..., Any], pool: Pool) -> Threads:
    """What runs a function in the reactor's thread, and in the pool's."""
    return (in_reactor, lambda work: in_reactor(pool.run, lambda tx: work()))
