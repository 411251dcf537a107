"""The simulator's process: one at a time, ended at its deadline and with the server."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from cod.childprocess import ChildProcess
from cod.web.api.simulator import SECONDS, Simulator
from cod.web.http.errors import HttpProblem


class Processes(Clock):
    """A reactor whose processes do nothing until a test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[ChildProcess] = []

    def spawnProcess(self, child: ChildProcess, *_: object) -> None:
        child.transport = _Transport(child)
        self.children.append(child)


class _Transport:
    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    def signalProcess(self, name: str) -> None:
        assert name == "KILL"
        self._child.processEnded(Failure(ProcessTerminated(signal=9)))


@pytest.fixture
def reactor() -> Processes:
    return Processes()


@pytest.fixture
def simulator(reactor: Processes) -> Simulator:
    return Simulator(reactor)


def asked(simulator: Simulator) -> tuple[Deferred[Any], list[Any]]:
    """A question, and what comes of it."""
    told: list[Any] = []
    question = Deferred.fromCoroutine(simulator.answer(b"{}"))
    question.addCallbacks(told.append, lambda failure: told.append(failure.value))
    return question, told


def ended(child: ChildProcess, said: bytes) -> None:
    child.outReceived(said)
    child.processEnded(Failure(ProcessDone(0)))


def test_a_second_question_is_refused_until_the_first_is_answered(
    reactor: Processes, simulator: Simulator
) -> None:
    _, first = asked(simulator)
    _, second = asked(simulator)
    (problem,) = second
    assert isinstance(problem, HttpProblem)
    assert (problem.status, problem.wait > 0) == (503, True)
    assert len(reactor.children) == 1
    ended(reactor.children[0], b'{"days": 1}')
    assert first == [{"days": 1}]
    assert reactor.getDelayedCalls() == []
    _, third = asked(simulator)
    assert third == []


def test_a_simulation_ends_at_its_deadline(reactor: Processes, simulator: Simulator) -> None:
    _, told = asked(simulator)
    reactor.advance(SECONDS - 1)
    assert told == []
    reactor.advance(1)
    assert (told[0].status, told[0].field) == (422, "days")
    assert "fewer days" in told[0].detail
    assert asked(simulator)[1] == []


def test_a_simulation_ends_with_the_server(reactor: Processes, simulator: Simulator) -> None:
    _, told = asked(simulator)
    simulator.stop()
    assert told[0].status == 422
    assert reactor.getDelayedCalls() == []


def test_a_simulation_that_fails_tells_no_details(reactor: Processes, simulator: Simulator) -> None:
    _, told = asked(simulator)
    reactor.children[0].errReceived(b"Traceback")
    reactor.children[0].processEnded(Failure(ProcessTerminated(1)))
    assert told[0].status == 500
    assert "Traceback" not in told[0].detail
