"""A pipeline of threads: one producer, a bounded queue, a few workers, and the caller's thread,
which watches over them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Any, TypeVar

Item = TypeVar("Item")
Progress = Callable[[str, int, int, float], None]

_WINDOW = 5.0  # seconds over which a rate is measured
_TICK = 0.5


class Stopped(Exception):
    """Raised in a pipeline's threads to end them, because another of its threads has failed."""


class Meter:
    """Bytes done of a total, and their rate. Many threads add bytes, one reads. `stopped`: `add`
    raises Stopped."""

    def __init__(self, phase: str, total: int) -> None:
        self.phase, self.total, self.done = phase, total, 0
        self.stopped = False
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._past: deque[tuple[float, int]] = deque([(self._began, 0)])

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
        if self.stopped:
            raise Stopped

    def expect(self, count: int) -> None:
        """Add to the total work that was not known before."""
        with self._lock:
            self.total += count

    def tell(self, progress: Progress) -> None:
        """Call `progress` with the present figures."""
        now = time.monotonic()
        self._past.append((now, self.done))
        while len(self._past) > 2 and self._past[0][0] < now - _WINDOW:
            self._past.popleft()
        then, before = self._past[0]
        # at the end, report the rate of the whole work, not of the seconds since the end
        if self.done >= self.total:
            then, before = self._began, 0
        # failed work is subtracted again, but a rate must not be below zero
        rate = max(0, self.done - before) / max(now - then, 1e-3)
        progress(self.phase, self.done, self.total, rate)


class Pipeline:
    """A pipeline: `produce(put)` runs in one thread and `work(item)` in `workers` others."""

    def __init__(self, workers: int, depth: int = 8) -> None:
        self._workers = workers
        self._queue: Queue[Any] = Queue(depth)
        self._stop = threading.Event()
        self._errors: list[BaseException] = []

    def run(
        self,
        produce: Callable[[Callable[[Item], None]], None],
        work: Callable[[Item], None],
        meter: Meter,
        progress: Progress,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """Run until all items are done. The first exception of any thread, or of `progress`, stops
        all threads and is raised.

        `cancel` must end a wait of the producer for something outside.
        """
        threads = [threading.Thread(target=self._guard, args=(self._produce, produce), daemon=True)]
        threads += [
            threading.Thread(target=self._guard, args=(self._work, work), daemon=True)
            for _ in range(self._workers)
        ]
        try:
            for thread in threads:
                thread.start()
            reported = time.monotonic()
            for thread in threads:
                while thread.is_alive() and not self._stop.is_set():
                    # with short waits, as another thread may have failed
                    thread.join(0.05)
                    if time.monotonic() - reported >= _TICK:
                        reported = time.monotonic()
                        meter.tell(progress)
        finally:
            self._stop.set()
            if any(thread.is_alive() for thread in threads):
                meter.stopped = True
                cancel()  # a thread that waits for a peer looks at no flag
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]
        meter.tell(progress)

    def _guard(self, part: Callable[[Any], None], argument: Any) -> None:
        try:
            part(argument)
        except Stopped:
            pass
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()

    def _produce(self, produce: Callable[[Callable[[Item], None]], None]) -> None:
        produce(self._put)
        for _ in range(self._workers):
            self._put(None)

    def _put(self, item: Any) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=0.1)
            except Full:
                continue
        raise Stopped

    def _work(self, work: Callable[[Item], None]) -> None:
        while not self._stop.is_set():
            try:
                item = self._queue.get(timeout=0.1)
            except Empty:
                continue
            if item is None:
                return
            work(item)
