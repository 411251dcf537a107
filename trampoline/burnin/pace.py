"""The time and the progress of a test; its worker threads, and the watch over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from trampoline.pipeline import Progress

ENDLESS = 1 << 60  # bytes of a test that goes on until its time is over
_TICK = 0.5  # seconds between signs of progress
# seconds without progress after which a thread is given up: a disk may hang in the kernel for ever
_STUCK = 120.0
_LAST = 10.0  # seconds that threads have to end when the order is replaced


class Pace:
    """The bytes that a test has done, and its time. Many threads add bytes; one reports."""

    def __init__(self, phase: str, total: int, seconds: float) -> None:
        self.phase, self.total, self.seconds = phase, max(total, 1), seconds
        self.stopped = False
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._done = 0

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count

    @property
    def done(self) -> int:
        return self._done

    def elapsed(self) -> float:
        """Return the seconds since the test began."""
        return time.monotonic() - self._began

    def over(self) -> bool:
        """Return whether no further step may begin."""
        return self.stopped or self.elapsed() >= self.seconds

    def tell(self, progress: Progress) -> None:
        """Report the test's progress. If its time does not suffice for all, the total is the
        estimated number of bytes at its end."""
        elapsed = max(self.elapsed(), 1e-3)
        reached = int(self._done * max(self.seconds / elapsed, 1.0))
        progress(
            self.phase,
            self._done,
            max(min(self.total, reached), self._done, 1),
            self._done / elapsed,
        )


class Worker:
    """A thread of a test. `work(step)` must call `step` after each piece of work. An OSError
    becomes `error`."""

    def __init__(self, name: str, work: Callable[[Callable[[], None]], None]) -> None:
        self.name, self.error, self.stuck = name, "", False
        self.stepped = time.monotonic()
        self._work = work
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._work(self._step)
        except Exception as error:
            # an error in one part must not end the tests of the others
            self.error = f"{type(error).__name__}: {error}"

    def _step(self) -> None:
        self.stepped = time.monotonic()


def watch(workers: Sequence[Worker], pace: Pace, progress: Progress, stuck: float = _STUCK) -> None:
    """Run the workers until all have ended or are stuck. An exception of `progress` ends them and
    is raised."""
    try:
        for worker in workers:
            worker.thread.start()
        reported = 0.0
        while waiting := [
            worker for worker in workers if worker.thread.is_alive() and not worker.stuck
        ]:
            waiting[0].thread.join(0.05)
            now = time.monotonic()
            for worker in waiting:
                worker.stuck = now - worker.stepped >= stuck and worker.thread.is_alive()
            if now - reported >= _TICK:
                reported = now
                pace.tell(progress)
    except BaseException:
        pace.stopped = True
        until = time.monotonic() + _LAST
        for worker in workers:
            with suppress(RuntimeError):  # it was never started
                worker.thread.join(max(until - time.monotonic(), 0.0))
        raise
    pace.tell(progress)
