"""Flows that share a transaction: one commit for all, and a flow that raises harms itself alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, exc, text
from twisted.internet.defer import Deferred, gatherResults

import cod.pool
from cod.flows.boot import script
from cod.model import BootPlan, Site, SiteRef
from cod.net.bootdocs import BootDocs
from cod.pool import FEW, REST, SHARING, URGENT, Pool
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.mariadb import UNSYNCED, MariaDB
from tests.store.test_pool import Calls, add_node, names

pytestmark = pytest.mark.mariadb_always


class Held:
    """A pool whose only thread is busy until `go`: what is asked for meanwhile waits together.

    commits  how many there have been since
    """

    def __init__(self, engine: Engine) -> None:
        self.calls, self.commits = Calls(), 0
        self.pool = Pool(engine, self.calls, threads=1)
        self._engine, self._go = engine, threading.Event()
        begun = threading.Event()

        def busy(tx: Tx) -> None:
            begun.set()
            self._go.wait(60)

        self._busy = self.pool.read(busy)
        assert begun.wait(60)
        event.listen(engine, "commit", self._count)

    def _count(self, _: object) -> None:
        self.commits += 1

    def go(self, *asked: Deferred[Any]) -> list[Any]:
        """Let the thread work; return what came of each: its value, or its error."""
        together = gatherResults([each.addErrback(lambda failure: failure.value) for each in asked])
        self._go.set()
        self.calls.result(self._busy)
        found: list[Any] = self.calls.result(together)
        self.commits -= 1  # of what kept the thread busy
        return found

    def close(self) -> None:
        event.remove(self._engine, "commit", self._count)
        self.pool.close()


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a few flows may take longer than a transaction is shared for."""
    monkeypatch.setattr(cod.pool, "SHARING_FOR", 600.0)


@pytest.fixture
def held(engine: Engine) -> Iterator[Held]:
    held = Held(engine)
    yield held
    held.close()


def added(engine: Engine) -> list[str]:
    with engine.connect() as tx:
        return names(tx)


def broken(tx: Tx) -> None:
    add_node(tx, "undone")
    raise KeyError("bug")


def test_what_waits_shares_one_commit_in_the_order_of_asking(held: Held) -> None:
    order: list[str] = []

    def note(tx: Tx, name: str) -> str:
        order.append(name)
        return add_node(tx, name)

    asked = [held.pool.run_together(note, "x" * length) for length in range(1, 6)]
    assert held.pool.queued() >= len(asked)
    assert held.go(*asked) == order == ["x" * length for length in range(1, 6)]
    assert held.commits == 1


def test_a_flow_that_raises_harms_itself_alone(held: Held, engine: Engine) -> None:
    run = held.pool.run_together
    first, second, third = held.go(run(add_node, "a"), run(broken), run(add_node, "bb"))
    assert (first, third) == ("a", "bb")
    assert isinstance(second, KeyError)
    assert added(engine) == ["a", "bb"]
    assert held.commits == 1


def test_a_lost_race_is_run_again_alone(held: Held, engine: Engine) -> None:
    tries: list[int] = []

    def raced(tx: Tx) -> str:
        tries.append(1)
        add_node(tx, "bb")
        if len(tries) < 4:
            raise nodes.Stale(1, 7)
        return "won"

    run = held.pool.run_together
    assert held.go(run(add_node, "a"), run(raced), run(add_node, "ccc")) == ["a", "won", "ccc"]
    assert added(engine) == ["a", "bb", "ccc"]
    assert held.commits == 2


def test_an_old_plan_is_refused_at_once(held: Held, engine: Engine) -> None:
    def outdated(tx: Tx) -> None:
        raise nodes.Outdated(1, 7)

    first, second = held.go(held.pool.run_together(add_node, "a"), held.pool.run_together(outdated))
    assert first == "a"
    assert isinstance(second, nodes.Outdated)
    assert held.commits == 1


def test_after_a_deadlock_each_runs_again_alone(held: Held, engine: Engine) -> None:
    """The database has undone all of it: none may be lost, and none done twice."""
    tries: list[int] = []

    def unlucky(tx: Tx) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise exc.OperationalError("UPDATE", {}, Exception(1213, "Deadlock found"))
        return add_node(tx, "bb")

    run = held.pool.run_together
    assert held.go(run(add_node, "a"), run(unlucky), run(add_node, "ccc")) == ["a", "bb", "ccc"]
    assert added(engine) == ["a", "bb", "ccc"]
    assert held.commits == 3


def test_a_commit_that_is_not_confirmed_is_made_again_with_the_same_arguments(
    held: Held, engine: Engine
) -> None:
    cut: list[int] = []

    def put(tx: Tx, name: str) -> str:
        """Add the node unless it is there, so that running this once more does no harm."""
        return name if nodes.by_name(tx, name) else add_node(tx, name)

    def lose(connection: object) -> None:
        if not cut:
            cut.append(1)
            raise exc.OperationalError("COMMIT", {}, Exception(2013, "Lost connection"))

    asked = [held.pool.run_together(put, name) for name in ("a", "bb")]
    event.listen(engine, "commit", lose)
    try:
        assert held.go(*asked) == ["a", "bb"]
    finally:
        event.remove(engine, "commit", lose)
    assert added(engine) == ["a", "bb"]


def test_a_long_queue_lets_urgent_flows_through(held: Held) -> None:
    order: list[str] = []

    def first(tx: Tx, number: str) -> None:
        order.append(number)
        asked.append(held.pool.run_at(URGENT, lambda tx: order.append("urgent")))

    asked = [held.pool.run_together(first, "first")]
    asked += [
        held.pool.run_together(lambda tx, number: order.append(number), str(number))
        for number in range(SHARING)
    ]
    held.go(*asked)
    assert order == ["first", *map(str, range(SHARING - 1)), "urgent", str(SHARING - 1)]


@pytest.mark.mariadb
def test_they_wait_for_a_database_that_was_killed(mariadb: MariaDB, mariadb_engine: Engine) -> None:
    held = Held(mariadb_engine)
    asked = [
        held.pool.run_together(lambda tx, n: n + (tx.scalar(text("SELECT 1")) or 0), n)
        for n in range(3)
    ]
    mariadb.kill()
    mariadb.start("--innodb-flush-log-at-trx-commit=0", *UNSYNCED)
    assert held.go(*asked) == [1, 2, 3]
    held.close()


def test_a_boot_script_goes_before_what_people_ask(
    held: Held, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def unchanged(tx: Tx, *_: object) -> BootPlan:
        ran.append("script")
        return BootPlan("none", "a reason")

    monkeypatch.setattr(script, "unchanged", unchanged)
    usual = held.pool.run(lambda tx: ran.append("usual"))
    docs = BootDocs(held.pool, SiteRef(site), lambda: 0.0)
    held.go(usual, docs.ipxe("52:54:00:00:00:01", "10.77.1.1"))
    assert ran == ["script", "usual"]


def test_what_comes_soon_after_a_few_shares_the_next_transaction(
    held: Held, engine: Engine
) -> None:
    assert held.go(held.pool.run_together(add_node, "a")) == ["a"]
    soon = [held.pool.run_together(add_node, name) for name in ("bb", "ccc")]
    held.calls.result(held.pool.read(names))  # the thread had nothing else to do
    assert added(engine) == ["a"]
    before = held.commits
    held.calls.clock.advance(REST)
    assert held.calls.result(gatherResults(soon)) == ["bb", "ccc"]
    assert held.commits == before + 1


def test_after_many_the_next_transaction_does_not_wait(held: Held, engine: Engine) -> None:
    many = ["n" * (number + 1) for number in range(FEW)]
    held.go(*(held.pool.run_together(add_node, name) for name in many))
    held.calls.result(held.pool.run_together(add_node, "late" * FEW))
    assert len(added(engine)) == FEW + 1


def test_what_gathers_when_the_pool_closes_is_done(held: Held, engine: Engine) -> None:
    held.go(held.pool.run_together(add_node, "a"))
    held.pool.run_together(add_node, "bb")
    held.pool.close()
    assert added(engine) == ["a", "bb"]


def test_a_flow_that_comes_as_the_last_transaction_ends_is_queued_once(
    held: Held, engine: Engine
) -> None:
    """The thread may be interrupted wherever it holds no lock. A second shared transaction would
    find nothing, and end the thread."""
    late: list[Deferred[str]] = []

    class Interrupted:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            if not held.pool._sharing and not late:
                late.append(held.pool.run_together(add_node, "late" * FEW))

    lock, held.pool._gathering = held.pool._gathering, Interrupted()  # type: ignore[assignment]
    held.go(*(held.pool.run_together(add_node, "n" * (number + 1)) for number in range(FEW)))
    held.calls.result(late[0])
    assert len(held.calls.result(held.pool.read(names))) == FEW + 1
