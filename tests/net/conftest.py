"""A pool in the running reactor, for tests that speak to servers over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.pool import Pool


@pytest.fixture
def pool(reactor: Any, engine: Engine) -> Iterator[Pool]:
    """A pool on a fresh database."""
    pool = Pool(engine, reactor)
    yield pool
    pool.close()
