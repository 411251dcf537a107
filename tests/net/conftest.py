"""A pool in the running reactor, for tests that speak to servers over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import Engine
from twisted.python.threadpool import ThreadPool

from cod import passwords
from cod.model import Site
from cod.pool import Pool
from tests.net.apiserver import Served, serving


@pytest.fixture
def pool(reactor: Any, engine: Engine) -> Iterator[Pool]:
    """A pool on a fresh database."""
    pool = Pool(engine, reactor)
    yield pool
    pool.close()


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    """Threads for what blocks."""
    pool = ThreadPool(0, 2)
    pool.start()
    yield pool
    pool.stop()


@pytest.fixture
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Passwords that cost little: for tests that are about something else."""
    monkeypatch.setattr(passwords, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    passwords._nobodys.cache_clear()
    yield
    passwords._nobodys.cache_clear()


@pytest.fixture
def served(pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site) -> Iterator[Served]:
    """An API server on an empty site."""
    with serving(pool, reactor, in_reactor, site) as served:
        yield served
