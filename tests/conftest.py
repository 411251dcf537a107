"""Fixtures shared by all tests: a database with the current schema, a transaction in it, a site, a running reactor."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import Engine
from twisted.internet.threads import blockingCallFromThread

from cod.model import Policy, Site, Subnet
from cod.store import tables
from cod.store.engine import Tx, connect

settings.register_profile("cod", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("cod")

SUBNET = Subnet(
    name="lab",
    network="10.77.0.0/16",
    server="10.77.0.1",
    boot_pool=("10.77.1.0", "10.77.4.255"),
    block_pool=("10.77.128.0", "10.77.255.255"),
    block_size=64,
    router="10.77.0.1",
    interface="br0",
)


@pytest.fixture
def site() -> Site:
    """A site with one subnet, open to new machines, approving them by itself."""
    return Site(name="test", domain="cod.test", subnets=(SUBNET,), policy=Policy(auto_approve=True))


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with every table, to be copied: making tables costs more than most tests."""
    path = tmp_path_factory.mktemp("empty") / "cod.db"
    engine = connect(f"sqlite:///{path}")
    tables.metadata.create_all(engine)
    engine.dispose()  # the last connection folds the write-ahead log into the file
    return path


@pytest.fixture
def engine(tmp_path: Path, empty_sqlite: Path) -> Iterator[Engine]:
    """A fresh SQLite database with every table."""
    shutil.copy(empty_sqlite, tmp_path / "cod.db")
    engine = connect(f"sqlite:///{tmp_path}/cod.db")
    yield engine
    engine.dispose()


@pytest.fixture
def tx(engine: Engine) -> Iterator[Tx]:
    """A transaction that is committed when the test passes its end."""
    with engine.begin() as tx:
        yield tx


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
def in_reactor(reactor: Any) -> Callable[..., Any]:
    """Calls a function in the reactor's thread and waits for its result, or for its Deferred's."""
    return lambda function, *args, **kwargs: blockingCallFromThread(reactor, function, *args, **kwargs)
