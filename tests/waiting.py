"""Waiting for what has no clock of ours to move: other threads, other processes, machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    truth: Callable[[], Any],
    what: str | Callable[[], object] = "what was waited for",
    seconds: float = 60.0,
    every: float = 0.02,
) -> Any:
    """Look every `every` seconds until `truth()` is true; returns it. Fails after `seconds`, saying
    `what`: a sentence, or a function that tells how things are then."""
    end = time.monotonic() + seconds
    while not (value := truth()):
        assert time.monotonic() < end, (
            f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}"
        )
        time.sleep(every)
    return value
