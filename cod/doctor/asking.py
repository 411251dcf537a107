"""Questions to devices of the site. They are asked in Twisted's reactor, which runs in a thread of
its own from the first such check on.

A reactor cannot be started a second time, and several checks ask questions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList, DeferredSemaphore
from twisted.internet.process import reapAllProcesses
from twisted.internet.task import LoopingCall
from twisted.internet.threads import blockingCallFromThread

AT_ONCE = 16
REAPING = 0.1  # seconds between looks for children that have ended
PATIENCE = 20.0  # seconds for one answer

T = TypeVar("T")


def answers(
    questions: Sequence[Callable[[Any], Coroutine[Any, Any, T]]],
    *,
    at_once: int = AT_ONCE,
    patience: float = PATIENCE,
    step: Callable[[], object] = lambda: None,
) -> list[T | Exception]:
    """Ask all questions, at most `at_once` at a time. Return the answer to each question, or the
    error in its place. A question is called with the reactor. `step` is called after each answer.
    """
    reactor = _running()
    turns = DeferredSemaphore(at_once)

    def one(question: Callable[[Any], Coroutine[Any, Any, T]]) -> Deferred[T]:
        asked = Deferred.fromCoroutine(question(reactor)).addTimeout(patience, reactor)
        return asked.addBoth(_after, step)

    def all_of_them() -> Deferred[Any]:
        return DeferredList(
            [turns.run(one, question) for question in questions], consumeErrors=True
        )

    results: Any = blockingCallFromThread(reactor, all_of_them)
    return [value if good else value.value for good, value in results]


def _after(answer: T, step: Callable[[], object]) -> T:
    step()
    return answer


@cache
def _running() -> Any:
    from twisted.internet import reactor as the_reactor

    reactor: Any = the_reactor
    if not reactor.running:
        Thread(
            target=reactor.run, kwargs={"installSignalHandlers": False}, name="asking", daemon=True
        ).start()
        # without signals in that thread, a child that ends just after its pipes is not noticed
        reactor.callFromThread(LoopingCall(reapAllProcesses).start, REAPING)
    return reactor
