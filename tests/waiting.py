"""Waiting for what has no clock of ours to move: other threads, other processes, machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cod.client import ApiError, Client, Unreachable


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


def answers(socket: Path) -> bool:
    """Return whether a server's API answers at its socket, which is there before it listens."""
    try:
        with Client(str(socket)) as client:
            return bool(client.get("/health")["ok"])
    except (ApiError, Unreachable):
        return False
