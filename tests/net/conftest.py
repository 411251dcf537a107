"""A pool in the running reactor, for tests that speak to servers over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from jinja2 import Environment, FileSystemBytecodeCache
from sqlalchemy import Engine
from twisted.python.threadpool import ThreadPool

from cod.model import Site
from cod.pool import Pool
from cod.security import password_hash
from cod.web.portal import render
from tests.net.apiserver import Served, serving


@pytest.fixture(scope="session", autouse=True)
def compiled_templates() -> Iterator[None]:
    """Compile each of the portal's templates once, and not for every server that a test starts; the
    cache's keys are digests of the templates' text."""
    folder = Path(__file__).parents[2] / "build" / "jinja"
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            render,
            "Environment",
            partial(Environment, bytecode_cache=FileSystemBytecodeCache(str(folder))),
        )
        yield


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
    monkeypatch.setattr(
        password_hash, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    )
    password_hash._nobodys.cache_clear()
    yield
    password_hash._nobodys.cache_clear()


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    """An API server on an empty site."""
    with serving(pool, reactor, in_reactor, site) as served:
        yield served
