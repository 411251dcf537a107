"""A commit whose answer was lost: what is committed is not done again, and is answered as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, event, exc, func, select

from cod.flows.people.access import has_run
from cod.pool import Pool
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import audit
from tests.store.test_pool import Calls

pytestmark = pytest.mark.mariadb_always

NOW = 1_795_782_188.1234567  # as time.time() has it: no short binary fraction
LOST = 2013, "Lost connection to server during query"


class LosesAnswers:
    """An engine whose first transactions end without an answer: after their commit, where `losses`
    says True, or before it. They end in `error`."""

    def __init__(self, engine: Engine, losses: list[bool]) -> None:
        self.error = LOST
        self.engine, self.losses, self.dialect = engine, losses, engine.dialect
        self.dispose = engine.dispose

    @contextmanager
    def begin(self) -> Iterator[Tx]:
        loses = self.losses.pop(0) if self.losses else None
        with self.engine.connect() as tx, tx.begin() as transaction:
            yield tx
            if loses is False:
                transaction.rollback()
        if loses is not None:
            raise exc.OperationalError("COMMIT", {}, Exception(*self.error))


def cycle(tx: Tx, node_id: int, run: str, now: float) -> int:
    """Wish a power cycle, and put it down in the audit; return how many wishes there are."""
    node = nodes.get(tx, node_id)
    assert node is not None
    nodes.wish_power(tx, node, "cycle", now)
    audit.add(tx, actor="user:ann", action="node power", run=run, now=now)
    return wishes(tx)


def wishes(tx: Tx) -> int:
    """Return how many power wishes there are."""
    return tx.scalar(select(func.count()).select_from(t.power_actions)) or 0


@pytest.fixture
def ask(engine: Engine) -> Iterator[Callable[..., Any]]:
    """Ask for a power cycle, through a pool that loses the answers of `losses`."""
    calls, losing = Calls(), LosesAnswers(engine, [])
    pool = Pool(losing, calls, threads=1)
    with engine.begin() as tx:
        node = nodes.add(
            tx,
            name="n1",
            boot_mac="52:54:00:00:00:01",
            now=0.0,
            cause="test",
            actor="test",
            state=NodeState.ACTIVE,
            power_driver="lab",
        )

    def asked(run: str, now: float, losses: list[bool], error: tuple[int, str] = LOST) -> Any:
        losing.losses[:], losing.error = losses, error
        evidence = partial(has_run, run=run, now=now)
        return calls.result(pool.run_once(evidence, cycle, node.id, run, now))

    yield asked
    pool.close()


@pytest.mark.parametrize("losses", [[True], [True, True], [False], [False, True], [False, False]])
def test_a_change_is_done_once_whichever_answers_are_lost(
    ask: Callable[..., Any], losses: list[bool]
) -> None:
    assert ask("first", NOW, losses) == 1
    # an honest second request, a minute later or at the same moment, is another one
    assert ask("second", NOW, [True]) == 2
    assert ask("third", NOW + 60, []) == 3


@pytest.mark.parametrize(
    "error",
    [
        (2006, "Server has gone away"),
        (1047, "WSREP has not yet prepared node for application use"),
        (1213, "Deadlock found when trying to get lock"),
    ],
)
@pytest.mark.parametrize("after", [True, False])
def test_whichever_error_a_commit_ends_in_the_database_is_asked(
    ask: Callable[..., Any], error: tuple[int, str], after: bool
) -> None:
    assert ask("first", NOW, [after], error) == 1
    assert ask("second", NOW, []) == 2


def test_a_run_is_looked_for_among_the_changes_of_its_moment_alone(engine: Engine) -> None:
    with engine.begin() as tx:
        for number in range(300):
            audit.add(tx, actor="user:ann", action="a", run=f"{number:032x}", now=NOW + number)
        if engine.dialect.name != "sqlite":
            tx.exec_driver_sql("ANALYZE TABLE audit").all()
        asked: list[Any] = []
        event.listen(tx, "before_cursor_execute", lambda *seen: asked.append(seen[2:4]))
        assert has_run(tx, f"{7:032x}", NOW + 7)
        assert not has_run(tx, f"{7:032x}", NOW + 8)
        statement, values = asked[0]
        explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
        told = str(tx.exec_driver_sql(explain + statement, values).all())
    assert "ix_audit_at" in told, told
