"""Runs flows in database threads: the only place that begins, commits and rolls back transactions.

``pool.run(flow, *args)`` takes one hop into a thread, opens a transaction, calls ``flow(tx,
*args)``, commits, and takes one hop back: the Deferred fires with the flow's return value, which
therefore exists only after the commit. A flow that raises is rolled back and its exception is
delivered. Deadlocks, locks, lost connections and lost races for a node's row are retried here, and
only here: the flow is run again from the start with the same arguments (ids and times are
arguments). After a commit that failed (perhaps only its answer was lost), a flow of `pool.run_once`
is run again only if the database does not have its work; any other flow has to be one whose second
run does no harm.

``pool.run_together`` is for many small messages: those that wait at the same time share one
transaction and its commit. After a transaction of few messages the next ones gather for a moment,
as a commit costs as much as a message; a message that comes after a pause never waits.

SQLite has one writer thread a process, MariaDB has several. Jobs wait in a priority queue: DHCP (0)
before agents (1) before everything else (5).
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from cod.store.engine import Tx as Tx  # for doors, which name flows' types and may know no store
from cod.store.engine import is_full, is_retryable, of_one_moment
from cod.store.nodes.nodes import Outdated, Stale

P = ParamSpec("P")
T = TypeVar("T")

URGENT, NODES, USUAL = 0, 1, 5
RETRY_FOR = 60.0  # seconds that a flow keeps being retried while the database is away
# times that a flow is run when other flows always change the node first that it has read
RACES = 4
# most flows in one shared transaction, and the seconds after which it takes no further flow: DHCP
# waits for its end, and on SQLite so do the writers of other processes
SHARING, SHARING_FOR = 64, 0.1
# a transaction that fewer messages than `FEW` shared is followed by `REST` seconds in which the
# next ones gather; on a busy server more wait already, and nothing rests
FEW, REST = 8, 0.01

log = logging.getLogger("cod.pool")


def in_transaction(
    engine: Engine, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run `flow` in one transaction in this thread (command line, tests), without retries."""
    with engine.begin() as tx:
        return flow(tx, *args, **kwargs)


@dataclass(slots=True)
class _Call(Generic[T]):
    """A flow with its arguments, and the Deferred for its result.

    committed  returns whether the flow's work is in the database; None: the flow may run twice
    """

    flow: Callable[..., T]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    committed: Callable[[Tx], bool] | None = None
    done: Deferred[T] = field(default_factory=Deferred)
    queued: float = field(default_factory=time.monotonic)

    def run(self, tx: Tx) -> T:
        """Run the flow."""
        return self.flow(tx, *self.args, **self.kwargs)


_AGAIN = object()  # in place of an outcome: the call has to run again, alone


class Pool:
    """A queue of flows and the threads that run them. `reactor` needs only `callFromThread` and
    `callLater`."""

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
        self._gathered: deque[_Call[Any]] = deque()  # they wait for the next shared transaction
        self._gathering = threading.Lock()
        self._sharing = False  # a shared transaction is queued, under way, or followed by a rest
        self._resting = False
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
        return self._put(priority, self.engine, _Call(flow, args, kwargs))

    def run_once(
        self,
        committed: Callable[[Tx], bool],
        flow: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Deferred[T]:
        """Run `flow` like `run`, but not again when its commit succeeded and only the answer was
        lost. Then `committed(tx)` is called: it returns whether the flow's work is in the
        database."""
        return self._put(USUAL, self.engine, _Call(flow, args, kwargs, committed))

    def run_together(
        self, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """Run `flow` like `run_at(NODES)`, in one transaction with other flows that wait, in the
        order of the calls. Only one such transaction is under way at a time.

        A flow that raises affects only itself: its changes are undone, those of the others are
        committed. No Deferred fires before the commit.
        """
        call = _Call(flow, args, kwargs)
        with self._gathering:
            self._gathered.append(call)
            if not self._sharing:
                self._share_more()
        return call.done

    def read(
        self, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """Run a `flow` that only reads: on SQLite it does not hold up the writers of other
        processes."""
        return self.read_at(USUAL, flow, *args, **kwargs)

    def read_at(
        self,
        priority: int,
        flow: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Deferred[T]:
        """Run a `flow` like `read`, with a `priority` (0 goes first)."""
        reading = self.engine.execution_options(reading=True)
        return self._put(priority, reading, _Call(flow, args, kwargs))

    def snapshot(
        self, flow: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """Run a `flow` like `read`, with everything that it reads being of one moment."""
        return self._put(USUAL, of_one_moment(self.engine), _Call(flow, args, kwargs))

    def _put(self, priority: int, engine: Engine, call: _Call[T]) -> Deferred[T]:
        def job() -> None:
            try:
                value = self._attempt(engine, call.run, call.committed)
            except BaseException:
                self._observed(call, False)
                self._reactor.callFromThread(call.done.errback, Failure())
            else:
                self._observed(call, True)
                self._reactor.callFromThread(call.done.callback, value)

        self._jobs.put((priority, next(self._order), job))
        return call.done

    def queued(self) -> int:
        """Return the number of jobs that wait, for the metrics."""
        return self._jobs.qsize() + len(self._gathered)

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

    def _observed(self, call: _Call[Any], succeeded: bool) -> None:
        if self._observe is not None:
            own = getattr(call.flow, "func", call.flow)  # a partial's own function
            name = f"{own.__module__.rpartition('.')[2]}.{getattr(own, '__name__', '?')}"
            try:
                self._observe(name, time.monotonic() - call.queued, succeeded)
            except Exception:
                # an error in counting must not end the thread, for then no flow would run any more
                log.exception("%s could not be counted", name)

    def close(self) -> None:
        """Finish what is queued, then end the threads. Blocks for at most ten seconds."""
        with self._gathering:
            self._closing.set()
        self._end_rest()
        for _ in self._threads:
            self._jobs.put((99, next(self._order), None))
        for thread in self._threads:
            thread.join(10)
        self.engine.dispose()

    def _attempt(
        self, engine: Engine, step: Callable[[Tx], T], committed: Callable[[Tx], bool] | None = None
    ) -> T:
        give_up = time.monotonic() + RETRY_FOR
        unsure: list[T] = []  # what the flow returned, while nobody knows whether it is committed
        for attempt in itertools.count(1):
            ended: list[T] = []
            try:
                with engine.begin() as tx:
                    if unsure and committed is not None and committed(tx):
                        return unsure[0]
                    unsure = []
                    ended.append(step(tx))
                return ended[0]
            except Exception as error:
                if ended:
                    unsure = ended
                again = is_retryable(error) or (_lost_race(error) and attempt < RACES)
                if not again or time.monotonic() > give_up or self._closing.is_set():
                    raise
                pause = min(0.02 * 2**attempt, 1.0)
                log.warning("database: %s; trying again in %.2f s", type(error).__name__, pause)
                self._closing.wait(pause)
        raise AssertionError("unreachable")

    def _share(self) -> None:
        """Run the waiting flows in one shared transaction; queue the next such transaction, after a
        rest if the flows were few.

        If the transaction as a whole fails, each flow runs again alone, and is retried like any
        other flow.
        """
        calls = [self._gathered.popleft()]
        failed = False
        try:
            try:
                with self.engine.begin() as tx:
                    outcomes = self._run_all(tx, calls, _Call.run)
            except Exception as error:
                if is_retryable(error):
                    raise
                with self.engine.begin() as tx:
                    outcomes = self._run_all(tx, calls, _run_in_savepoint)
        except BaseException as error:
            log.warning("database: %s; trying again one by one", type(error).__name__)
            failed = True  # those that were not begun have waited
            outcomes = [_AGAIN] * len(calls)
        with self._gathering:
            rests = not failed and len(calls) < FEW and not self._closing.is_set()
            self._resting = rests
            if not rests:
                self._share_more()
        if rests:
            self._reactor.callFromThread(self._reactor.callLater, REST, self._end_rest)
        ended = []
        for call, outcome in zip(calls, outcomes, strict=True):
            if outcome is _AGAIN:
                self._put(NODES, self.engine, call)
            else:
                self._observed(call, not isinstance(outcome, Failure))
                ended.append((call.done, outcome))
        self._reactor.callFromThread(_tell, ended)

    def _end_rest(self) -> None:
        with self._gathering:
            if self._resting:
                self._resting = False
                self._share_more()

    def _share_more(self) -> None:
        """Queue a shared transaction if flows wait for one. The caller holds `_gathering`."""
        self._sharing = bool(self._gathered)
        if self._sharing:
            self._jobs.put((NODES, next(self._order), self._share))

    def _run_all(
        self, tx: Tx, calls: list[_Call[Any]], run: Callable[[_Call[Any], Tx], Any]
    ) -> list[Any]:
        """Run `calls`, and then the flows that wait, which are added to `calls`; return all
        outcomes."""
        until = time.monotonic() + SHARING_FOR
        outcomes = [run(call, tx) for call in calls]
        while self._gathered and len(calls) < SHARING and time.monotonic() < until:
            calls.append(self._gathered.popleft())
            outcomes.append(run(calls[-1], tx))
        return outcomes

    def _work(self) -> None:
        while True:
            _priority, _order, job = self._jobs.get()
            if job is None:
                return
            job()


def _lost_race(error: Exception) -> bool:
    """Return whether another flow changed the node first that this flow had read."""
    return isinstance(error, Stale) and not isinstance(error, Outdated)


def _run_in_savepoint(call: _Call[Any], tx: Tx) -> Any:
    """Run the call's flow in a savepoint. Return its result; if it fails, undo its changes and
    return the Failure, or `_AGAIN` after a lost race."""
    savepoint = tx.begin_nested()
    try:
        value = call.run(tx)
    except Exception as error:
        if is_retryable(error):
            raise  # the database may have undone the whole transaction
        savepoint.rollback()
        return _AGAIN if _lost_race(error) else Failure()
    savepoint.commit()
    return value


def _tell(ended: Sequence[tuple[Deferred[Any], Any]]) -> None:
    for done, outcome in ended:
        if isinstance(outcome, Failure):
            done.errback(outcome)
        else:
            done.callback(outcome)
