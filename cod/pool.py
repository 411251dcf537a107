"""Runs flows in database threads: the only place that begins, commits and rolls back.

``pool.run(flow, *args)`` takes one hop into a thread, opens a transaction, calls ``flow(tx,
*args)``, commits, and takes one hop back: the Deferred fires with the flow's return value, which
therefore exists only after the commit. A flow that raises is rolled back and its exception is
delivered. Deadlocks, locks, lost connections and lost races for a node's row are retried here, and
only here: the flow is run again from the start with the same arguments (ids and times are
arguments), so running it after a commit whose outcome is unknown does no harm.

SQLite has one writer thread a process, MariaDB several. Jobs wait in a priority queue: DHCP (0)
before agents (1) before everything else (5).
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from cod.store.engine import Tx as Tx  # for doors, which name flows' types and may know no store
from cod.store.engine import is_full, is_retryable
from cod.store.nodes import nodes
from cod.store.nodes.nodes import Stale

P = ParamSpec("P")
T = TypeVar("T")

URGENT, NODES, USUAL = 0, 1, 5
RETRY_FOR = 60.0  # seconds that a flow keeps being retried while the database is away
# times that a flow is run when others are always quicker to move the node that it has read
RACES = 4

log = logging.getLogger("cod.pool")


def in_transaction(
    engine: Engine, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run `flow` in one transaction in this thread (command line, tests), without retries."""
    with engine.begin() as tx:
        return flow(tx, *args, **kwargs)


class Pool:
    """A queue of flows and the threads that run them. `reactor` needs only `callFromThread`."""

    def __init__(
        self,
        engine: Engine,
        reactor: Any,
        threads: int | None = None,
        observe: Callable[[str, float, bool], object] | None = None,
    ) -> None:
        """`observe(flow's name, seconds from queue to commit, did it succeed)` is called in the
        database thread."""
        self.engine = engine
        self._observe = observe
        self._reactor = reactor
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = (
            queue.PriorityQueue()
        )
        self._order = itertools.count()
        self._closing = threading.Event()
        count = threads or (1 if engine.dialect.name == "sqlite" else 4)
        self._threads = [
            threading.Thread(target=self._work, name=f"db-{n}", daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """Run `flow(tx, *args, **kwargs)` at the usual priority."""
        return self.run_at(USUAL, flow, *args, **kwargs)

    def run_at(
        self,
        priority: int,
        flow: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Deferred[T]:
        """Run `flow` with a `priority` (0 goes first)."""
        return self._put(priority, self.engine, flow, *args, **kwargs)

    def read(
        self, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """Run a `flow` that only reads: on SQLite it does not hold up the writers of other
        processes."""
        return self._put(USUAL, self.engine.execution_options(reading=True), flow, *args, **kwargs)

    def _put(
        self,
        priority: int,
        engine: Engine,
        flow: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        queued = time.monotonic()

        def job() -> None:
            try:
                value = self._attempt(engine, lambda tx: flow(tx, *args, **kwargs))
            except BaseException:
                self._observed(flow, queued, False)
                self._reactor.callFromThread(done.errback, Failure())
            else:
                self._observed(flow, queued, True)
                self._reactor.callFromThread(done.callback, value)

        self._jobs.put((priority, next(self._order), job))
        return done

    def queued(self) -> int:
        """Return jobs that wait, for the metrics."""
        return self._jobs.qsize()

    @staticmethod
    def is_away(error: BaseException) -> bool:
        """Return whether `error`, raised by a flow, means that the database could not be used,
        rather than a bug."""
        return is_retryable(error) or is_full(error)

    @staticmethod
    def is_full(error: BaseException) -> bool:
        """Return whether `error`, raised by a flow, means that the database's disk is full."""
        return is_full(error)

    @staticmethod
    def is_race(error: BaseException) -> bool:
        """Return whether `error`, raised by a flow, most likely means that another flow changed the
        same rows first."""
        return isinstance(error, Stale | IntegrityError)

    def _observed(self, flow: Any, queued: float, succeeded: bool) -> None:
        if self._observe is not None:
            own = getattr(flow, "func", flow)  # a partial's own function
            name = f"{own.__module__.rpartition('.')[2]}.{getattr(own, '__name__', '?')}"
            try:
                self._observe(name, time.monotonic() - queued, succeeded)
            except (
                Exception
            ):  # counting shall not end the thread, which would be the end of every flow
                log.exception("%s could not be counted", name)

    def close(self) -> None:
        """Finish what is queued, then end the threads. Blocks for at most ten seconds."""
        self._closing.set()
        for _ in self._threads:
            self._jobs.put((99, next(self._order), None))
        for thread in self._threads:
            thread.join(10)
        self.engine.dispose()

    def _attempt(self, engine: Engine, step: Callable[[Tx], T]) -> T:
        give_up = time.monotonic() + RETRY_FOR
        for attempt in itertools.count(1):
            try:
                with engine.begin() as tx:
                    return step(tx)
            except Exception as error:
                lost_race = (
                    isinstance(error, nodes.Stale)
                    and not isinstance(error, nodes.Outdated)
                    and attempt < RACES
                )
                if (
                    not (lost_race or is_retryable(error))
                    or time.monotonic() > give_up
                    or self._closing.is_set()
                ):
                    raise
                pause = min(0.02 * 2**attempt, 1.0)
                log.warning("database: %s; trying again in %.2f s", type(error).__name__, pause)
                self._closing.wait(pause)
        raise AssertionError("unreachable")

    def _work(self) -> None:
        while True:
            _priority, _order, job = self._jobs.get()
            if job is None:
                return
            job()
