"""Which files of `cod/` a message passes: those with functions that are entered in the reactor's
and the database's threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from cod.pool import Pool
from cod.store.engine import Tx

HOUSE = str(Path(__file__).resolve().parents[2] / "cod") + "/"


@contextmanager
def files_passed(in_reactor: Callable[..., Any], pool: Pool) -> Iterator[set[str]]:
    """Collect the files that are entered in the reactor and in a database of one thread, by their
    paths in `cod/`."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOUSE):
            passed.add(frame.f_code.co_filename.removeprefix(HOUSE))

    def watch(_tx: Tx, hook: Callable[[FrameType, str, object], None] | None) -> None:
        sys.setprofile(hook)

    in_reactor(pool.run, watch, note)
    in_reactor(sys.setprofile, note)
    try:
        yield passed
    finally:
        in_reactor(sys.setprofile, None)
        in_reactor(pool.run, watch, None)
