"""What a test leaves behind, which would harm the next one: threads that go on, and changes of the
whole process.

Looked at from the test's own beginning, when its fixtures are there, to the moment when they are
gone again. What a fixture of a module or of the run has made is thus nobody's; but a thread that a
test has begun ends with it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field

LASTING = ("PoolThread-twisted.internet.reactor", "(process_request_thread)")
"""In the names of threads that a test may cause and others go on using: the reactor's own, and of
servers in fixtures, which end with the connection."""
PATIENCE = 30.0  # seconds for a thread that was told to end; nobody waits where there is none


def process() -> dict[str, object]:
    """What all tests of a process share, by its name."""
    variables = dict(os.environ)
    variables.pop("PYTEST_CURRENT_TEST", None)  # pytest's own
    return {
        "the root logger's level": logging.getLogger().level,
        "the working directory": os.getcwd(),
        "the environment": variables,
    }


@dataclass
class Before:
    """How things are when a test begins, and when it ends with its fixtures still there."""

    threads: set[threading.Thread] = field(default_factory=lambda: set(threading.enumerate()))
    begun: dict[str, object] = field(default_factory=process)
    ended: dict[str, object] = field(default_factory=dict)

    def left(self, patience: float = PATIENCE) -> list[str]:
        """What there is that was not there before, now that the fixtures are gone: names.
        `patience`: seconds."""
        now = process()
        changed = [
            name
            for name, value in now.items()
            if value == self.ended.get(name, value) != self.begun[name]
        ]
        end = time.monotonic() + patience
        while (alive := self._alive()) and time.monotonic() < end:
            time.sleep(0.01)
        return changed + [f"the thread {thread.name!r}" for thread in alive]

    def _alive(self) -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self.threads and not any(name in thread.name for name in LASTING)
        ]
