"""The pool's reads, and what its observer is told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from cod.flows.people import groups
from cod.pool import Pool
from cod.store.database import connect
from cod.store.engine import Tx
from tests.store.test_pool import Calls


def fail(tx: Tx) -> None:
    raise LookupError


def test_the_observer_hears_of_every_flow_by_its_own_name(engine: Engine) -> None:
    seen: list[tuple[str, bool]] = []

    def observe(flow: str, seconds: float, succeeded: bool) -> None:
        assert seconds >= 0
        seen.append((flow, succeeded))

    calls = Calls()
    pool = Pool(engine, calls, observe=observe)
    calls.result(pool.run(groups.every))
    calls.result(pool.read(partial(groups.every)))
    with pytest.raises(LookupError):
        calls.result(pool.run(fail))
    pool.close()
    assert seen == [
        ("groups.every", True),
        ("groups.every", True),
        ("test_pool_watched.fail", False),
    ]


def test_on_sqlite_a_read_does_not_wait_for_a_writer_elsewhere(
    empty_sqlite: Path, tmp_path: Path
) -> None:
    """A long listing in one process must not hold up DHCP in another, nor the other way round."""
    path = tmp_path / "cod.db"
    path.write_bytes(empty_sqlite.read_bytes())
    engine, other = connect(f"sqlite:///{path}"), connect(f"sqlite:///{path}")
    calls = Calls()
    pool = Pool(engine, calls)
    with other.begin() as writer:
        writer.execute(text("INSERT INTO groups (name, priority, created_at) VALUES ('a', 0, 0)"))
        # SQLite would wait for the writer for 30 s
        assert calls.result(pool.read(groups.every), timeout=25) == []
    assert [group.name for group in calls.result(pool.read(groups.every))] == ["a"]
    pool.close()
    other.dispose()
