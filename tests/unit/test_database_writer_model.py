"""No two writers, and one again in the end: processes with the real `DatabaseWriter` beside a
cluster whose hosts answer late, hang, refuse, are behind, and do what they were asked long after
nobody waits for it. Time is the model's; its threads are greenlets."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import greenlet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import exc

from cod.core.database import writer as following
from cod.model import DatabaseLease, database_urls
from cod.policy import database_writer as policy
from cod.policy.database_writer import LEASE_SECONDS, NOBODY

HOSTS = "abc"
PHASE, CALM = 5.0, 40.0  # seconds in which the links are the same, and in which all are good
LINKS = ("good", "slow", "late", "cut", "refused", "behind")
PHASES = st.lists(
    st.tuples(*[st.tuples(*[st.sampled_from(LINKS)] * len(HOSTS))] * 2), min_size=1, max_size=8
)


class Model:
    """The time, what happens in it, and the one row of a cluster that has one."""

    def __init__(self, phases: Sequence[Sequence[Sequence[str]]], seed: int) -> None:
        self.now, self.row, self.moves = 1000.0, NOBODY, 0
        self._random, self._order = random.Random(seed), count()
        self._phases, self._was = phases, NOBODY  # the row when the phase began
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._waiting: list[tuple[Callable[[], bool], greenlet.greenlet]] = []
        self._hub = greenlet.getcurrent()
        self.end = self.now + PHASE * len(phases) + CALM
        self.writers = [self._writer(number) for number in range(2)]

    def _writer(self, number: int) -> following.DatabaseWriter:
        urls = database_urls(f"mysql+pymysql://cod@{','.join(HOSTS)}/cod")
        made: Any = following.DatabaseWriter(urls, lambda: self.now + 1000.0 * number)
        made._threads.shutdown()
        made._threads = SimpleNamespace(submit=self.submit)
        made._hosts = {f"{name}:3306": _Host(self, number, at) for at, name in enumerate(HOSTS)}
        return made

    def run(self) -> None:
        for writer in self.writers:
            self.start(self._random.uniform(0.0, 1.0), self._process(writer))
        for number in range(len(self._phases)):
            self.at(number * PHASE, self._begin)
        while self._events and self._events[0][0] <= self.end:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
            while ready := next((each for each in self._waiting if each[0]()), None):
                self._waiting.remove(ready)
                ready[1].switch()
            self.check()

    def check(self) -> None:
        for writer in self.writers:
            if writer._may_write():
                assert (writer._view.host, writer._view.epoch) == (self.row.host, self.row.epoch)

    def at(self, seconds: float, happens: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happens))

    def start(self, seconds: float, thread: Callable[[], None]) -> None:
        self.at(seconds, greenlet.greenlet(thread, self._hub).switch)

    def until(self, ready: Callable[[], bool]) -> None:
        """Have the present thread wait."""
        if not ready():
            self._waiting.append((ready, greenlet.getcurrent()))
            self._hub.switch()

    def sleep(self, seconds: float) -> None:
        self.at(seconds, greenlet.getcurrent().switch)
        self._hub.switch()

    def _begin(self) -> None:
        self._was = self.row

    def _process(self, writer: following.DatabaseWriter) -> Callable[[], None]:
        def go_on() -> None:
            while True:
                writer.step()
                period = policy.RENEWAL_PERIOD if writer._may_write() else following.LOOK_PERIOD
                self.sleep(period + (self._random.random() < 0.1) * self._random.uniform(0.0, 5.0))

        return go_on

    def ask(
        self, process: int, host: int, act: Callable[[], Any], behind: Callable[[], Any]
    ) -> Any:
        """Have a host do something. Raises as the driver does where its answer comes too late."""
        phase = int((self.now - self.end + CALM) // PHASE)
        link = self._phases[phase][process][host] if phase < 0 else "good"
        if link == "refused":
            raise exc.OperationalError(None, None, Exception(2003))
        longest = {"slow": 1.5, "late": 15.0}.get(link, 0.1)
        there, back = (self._random.uniform(0.0, longest) for _ in range(2))
        if link == "cut":
            there = CALM * 10
        found: list[Any] = []
        self.at(there, lambda: found.append((behind if link == "behind" else act)()))
        self.sleep(min(there + back, following.PATIENCE))
        if there + back > following.PATIENCE:
            raise exc.OperationalError(None, None, Exception(2013))
        return found[0]

    # ------------------------------------------------------------ in the store's place

    def lease(self, host: _Host, _: DatabaseLease) -> DatabaseLease:
        lease: DatabaseLease = host.ask(lambda: self.row, lambda: self._was)
        return lease

    def is_writable(self, _: _Host) -> bool:
        return True

    def renew(self, at: _Host, host: str, epoch: int) -> bool:
        def act() -> bool:
            if (host, epoch) != (self.row.host, self.row.epoch):
                return False
            self.row = replace(self.row, beat=self.row.beat + 1)
            return True

        return bool(at.ask(act, bool))

    def take_over(self, at: _Host, host: str, seen: DatabaseLease, seconds: float) -> bool:
        def act() -> bool:
            if (seen.epoch, seen.beat) != (self.row.epoch, self.row.beat):
                return False
            self.row = DatabaseLease(host, seen.epoch + 1, 0, seconds)
            self.moves += 1
            return True

        return bool(at.ask(act, bool))

    # ------------------------------------------------------------ in concurrent.futures' place

    def submit(self, work: Callable[..., Any], *args: Any) -> _Future:
        made = _Future(self)
        self.start(0.0, lambda: made.finish(work(*args)))
        return made

    def wait(self, futures: Sequence[_Future], seconds: float) -> SimpleNamespace:
        end = self.now + seconds
        self.at(seconds, bool)  # after each event it is looked who waits no more
        self.until(lambda: futures[0].done() or self.now >= end)
        return SimpleNamespace(done=[each for each in futures if each.done()])

    def as_completed(self, futures: Iterator[_Future]) -> Iterator[_Future]:
        left = list(futures)
        while left:
            self.until(lambda: any(each.done() for each in left))
            done = next(each for each in left if each.done())
            left.remove(done)
            yield done


class _Future:
    def __init__(self, model: Model) -> None:
        self._model, self._found = model, list[Any]()

    def finish(self, found: object) -> None:
        self._found.append(found)

    def done(self) -> bool:
        return bool(self._found)

    def result(self) -> Any:
        self._model.until(self.done)
        return self._found[0]


class _Host:
    """A host as one process reaches it."""

    def __init__(self, model: Model, process: int, number: int) -> None:
        self._model, self._process, self._number = model, process, number

    @contextmanager
    def begin(self) -> Iterator[_Host]:
        yield self

    def ask(self, act: Callable[[], Any], behind: Callable[[], Any]) -> Any:
        return self._model.ask(self._process, self._number, act, behind)


@pytest.mark.slow
@settings(max_examples=60)
@given(phases=PHASES, seed=st.integers(0, 1 << 30))
def test_no_two_processes_write_at_two_hosts_and_both_write_in_the_end(
    phases: Sequence[Sequence[Sequence[str]]], seed: int
) -> None:
    model: Any = Model(phases, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "store", model)
        patch.setattr(following, "wait", model.wait)
        patch.setattr(following, "as_completed", model.as_completed)
        model.run()
    assert [writer._view.epoch for writer in model.writers] == [model.row.epoch] * 2
    assert model.row.seconds == LEASE_SECONDS
