"""Services that look periodically for work (`cod.periodic.Claimer`), with a moved clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from cod.periodic import Claimer
from cod.pool import Pool

PERIOD = 5.0


class Looks(Claimer):
    """Looks end when `looks[n]` fires; each begins the work that waits in `work`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, Pool, logging.getLogger("looks"), "looking", PERIOD)
        self.looks: list[Deferred[None]] = []
        self.work: list[Deferred[None]] = []

    async def look(self) -> None:
        """Wait for the test, then begin what waits."""
        self.looks.append(Deferred())
        await self.looks[-1]
        for work in self.work:
            self.begin(self._do(work))
        self.work = []

    async def _do(self, work: Deferred[None]) -> None:
        await work


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looks(clock: Clock) -> Looks:
    service = Looks(clock)
    service.startService()
    return service


def fired(deferred: Deferred[Any]) -> bool:
    """Return whether the result of `deferred` is there."""
    results: list[object] = []
    deferred.addCallback(results.append)
    return bool(results)


def test_looks_at_the_start_and_each_period(clock: Clock, looks: Looks) -> None:
    assert len(looks.looks) == 1
    looks.looks[0].callback(None)
    clock.advance(PERIOD - 0.1)
    assert len(looks.looks) == 1
    clock.advance(0.1)
    assert len(looks.looks) == 2


def test_a_wake_looks_at_once(looks: Looks) -> None:
    looks.looks[0].callback(None)
    looks.wake()
    assert len(looks.looks) == 2


def test_wakes_during_a_look_make_one_more_after_it(clock: Clock, looks: Looks) -> None:
    looks.wake()
    looks.wake()
    clock.advance(PERIOD)
    assert len(looks.looks) == 1, "never two looks at a time"
    looks.looks[0].callback(None)
    assert len(looks.looks) == 2
    looks.looks[1].callback(None)
    assert len(looks.looks) == 2


def test_wakes_during_a_look_that_a_wake_began(clock: Clock, looks: Looks) -> None:
    looks.looks[0].callback(None)
    looks.wake()
    looks.wake()
    clock.advance(PERIOD)
    assert len(looks.looks) == 2
    looks.looks[1].callback(None)
    assert len(looks.looks) == 3
    looks.looks[2].callback(None)
    clock.advance(PERIOD)
    assert len(looks.looks) == 4


def test_a_failing_look_is_logged_and_looks_go_on(
    clock: Clock, looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    looks.wake()
    looks.looks[0].errback(ValueError("broken"))
    assert "looking: broken" in caplog.text
    assert len(looks.looks) == 2, "the wake is not lost"
    looks.looks[1].errback(IntegrityError("", {}, ValueError("collision")))
    assert "collision" not in caplog.text
    clock.advance(PERIOD)
    assert len(looks.looks) == 3
    looks.looks[2].callback(None)
    looks.wake()
    assert len(looks.looks) == 4


def test_stop_waits_for_the_look_and_for_what_it_has_begun(clock: Clock, looks: Looks) -> None:
    first, second = Deferred[None](), Deferred[None]()
    looks.work = [first]
    looks.looks[0].callback(None)
    looks.work = [second]
    looks.wake()
    stopped = looks.stopService()
    looks.wake()
    looks.looks[1].callback(None)
    first.callback(None)
    assert not fired(stopped), "what the last look has claimed is carried out"
    second.errback(ValueError("the work's own trouble"))
    assert fired(stopped)
    clock.advance(2 * PERIOD)
    looks.wake()
    assert len(looks.looks) == 2
    assert not clock.getDelayedCalls()


def test_looks_again_when_it_was_stopped_and_started(looks: Looks) -> None:
    looks.looks[0].callback(None)
    assert fired(looks.stopService())
    looks.startService()
    assert len(looks.looks) == 2
    looks.looks[1].callback(None)
    looks.wake()
    assert len(looks.looks) == 3
