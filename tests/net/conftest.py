"""A running reactor in a thread of its own, for tests that speak to servers over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any, TypeVar

import pytest
from sqlalchemy import Engine
from twisted.internet.threads import blockingCallFromThread

from cod.pool import Pool

T = TypeVar("T")
InReactor = Callable[..., Any]


@pytest.fixture(scope="session")
def reactor() -> Iterator[Any]:
    """The process's reactor, running until the last test is over."""
    from twisted.internet import reactor

    thread = Thread(target=reactor.run, kwargs={"installSignalHandlers": False}, daemon=True)  # type: ignore[attr-defined]
    thread.start()
    yield reactor
    reactor.callFromThread(reactor.stop)  # type: ignore[attr-defined]
    thread.join(10)


@pytest.fixture
def in_reactor(reactor: Any) -> InReactor:
    """Calls a function in the reactor's thread and waits for its result, or for its Deferred's."""
    return lambda function, *args, **kwargs: blockingCallFromThread(reactor, function, *args, **kwargs)


@pytest.fixture
def pool(reactor: Any, engine: Engine) -> Iterator[Pool]:
    """A pool on a fresh database."""
    pool = Pool(engine, reactor)
    yield pool
    pool.close()
