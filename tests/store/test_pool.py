"""The pool: one transaction a flow, results after the commit, retries of what may be retried and of
nothing else."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, exc, select, text
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from cod.pool import RACES, Pool
from cod.states import NodeState
from cod.store import claims, database, tables
from cod.store import tables as t
from cod.store.engine import Tx, is_lost
from cod.store.mariadb import connections
from cod.store.nodes import nodes
from tests import cutlinks
from tests.mariadb import UNSYNCED, MariaDB
from tests.waiting import until

pytestmark = pytest.mark.mariadb_always


class Calls:
    """A reactor as far as the pool needs one: runs what threads hand over when the test asks, and
    calls when `clock` is moved."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[Callable[[], None]] = queue.Queue()
        self.clock = Clock()
        self.callLater = self.clock.callLater

    def callFromThread(self, f: Callable[..., None], *args: Any) -> None:
        self.waiting.put(lambda: f(*args))

    def result(self, deferred: Deferred[Any], timeout: float = 30.0) -> Any:
        """Run handed-over calls until `deferred` has fired; return its value or raise its error."""
        found: list[Any] = []
        deferred.addBoth(found.append)
        while not found:
            self.waiting.get(timeout=timeout)()
        if hasattr(found[0], "raiseException"):
            found[0].raiseException()
        return found[0]


def add_node(tx: Tx, name: str) -> str:
    nodes.add(
        tx, name=name, boot_mac=f"52:54:00:00:00:{len(name):02x}", now=1.0, cause="", actor="test"
    )
    return name


@pytest.fixture
def calls() -> Calls:
    return Calls()


def names(tx: Tx) -> list[str]:
    return [node.name for node in nodes.every(tx)]


def test_the_result_exists_only_after_the_commit(engine: Engine, calls: Calls) -> None:
    pool = Pool(engine, calls)
    assert calls.result(pool.run(add_node, "a")) == "a"
    with engine.connect() as other:
        assert other.scalar(select(t.nodes.c.state)) == NodeState.NEW
    pool.close()


def test_a_flow_that_raises_is_rolled_back_and_heard(engine: Engine, calls: Calls) -> None:
    def broken(tx: Tx) -> None:
        add_node(tx, "a")
        raise KeyError("bug")

    pool = Pool(engine, calls)
    with pytest.raises(KeyError):
        calls.result(pool.run(broken))
    assert calls.result(pool.run(names)) == []
    pool.close()


def test_urgent_flows_go_first(engine: Engine, calls: Calls) -> None:
    order: list[str] = []
    started, go = threading.Event(), threading.Event()

    def slow(tx: Tx) -> None:
        started.set()
        go.wait(60)

    pool = Pool(engine, calls, threads=1)
    pool.run(slow)
    started.wait(60)
    last = pool.run(lambda tx: order.append("usual"))
    pool.run_at(0, lambda tx: order.append("dhcp"))
    assert pool.queued() == 2
    go.set()
    calls.result(last)
    assert order == ["dhcp", "usual"]
    pool.close()


def test_a_deadlock_is_tried_again_with_the_same_arguments(engine: Engine, calls: Calls) -> None:
    tries: list[str] = []

    def unlucky(tx: Tx, name: str) -> str:
        tries.append(name)
        add_node(tx, name)
        if len(tries) < 3:
            raise exc.OperationalError("UPDATE", {}, Exception(1213, "Deadlock found"))
        return name

    pool = Pool(engine, calls)
    assert calls.result(pool.run(unlucky, "a")) == "a"
    assert calls.result(pool.run(names)) == ["a"]
    assert tries == ["a"] * 3
    pool.close()


def test_what_cannot_be_counted_is_done_all_the_same(engine: Engine, calls: Calls) -> None:
    """The counters are files: on a full disk counting fails, and the thread has to live on."""

    def full(name: str, seconds: float, succeeded: bool) -> None:
        raise OSError(28, "No space left on device")

    pool = Pool(engine, calls, threads=1, observe=full)
    assert calls.result(pool.run(add_node, "a")) == "a"
    with pytest.raises(exc.IntegrityError):
        calls.result(pool.run(add_node, "a"))
    assert calls.result(pool.read(names)) == ["a"]
    pool.close()


@pytest.mark.parametrize(
    ("error", "quicker", "times"),
    [(nodes.Stale, 2, 3), (nodes.Stale, 99, RACES), (nodes.Outdated, 2, 1)],
)
def test_a_lost_race_is_run_again_a_few_times_but_an_old_plan_is_not(
    engine: Engine, calls: Calls, error: type[nodes.Stale], quicker: int, times: int
) -> None:
    tries: list[int] = []

    def raced(tx: Tx) -> str:
        tries.append(1)
        if len(tries) <= quicker:
            raise error(1, 7)
        return "done"

    pool = Pool(engine, calls)
    if times > quicker:
        assert calls.result(pool.run(raced)) == "done"
    else:
        with pytest.raises(error):
            calls.result(pool.run(raced))
    assert len(tries) == times
    pool.close()


def test_a_violated_constraint_is_not_tried_again(engine: Engine, calls: Calls) -> None:
    tries: list[int] = []

    def twice(tx: Tx) -> None:
        tries.append(1)
        add_node(tx, "a")
        add_node(tx, "a")

    pool = Pool(engine, calls)
    with pytest.raises(exc.IntegrityError):
        calls.result(pool.run(twice))
    assert len(tries) == 1
    pool.close()


@pytest.mark.mariadb
def test_flows_wait_for_a_database_that_was_killed(
    mariadb: MariaDB, mariadb_engine: Engine, calls: Calls
) -> None:
    pool = Pool(mariadb_engine, calls)
    calls.result(pool.run(lambda tx: tx.execute(text("SELECT 1")).scalar()))
    mariadb.kill()
    asked = [pool.run(lambda tx, n=n: n + (tx.scalar(text("SELECT 1")) or 0)) for n in range(3)]
    mariadb.start("--innodb-flush-log-at-trx-commit=0", *UNSYNCED)
    assert [calls.result(deferred, 120) for deferred in asked] == [1, 2, 3]
    pool.close()


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_full_disk_is_told_from_a_bug_and_flows_go_on_when_there_is_room(
    engine: Engine, calls: Calls
) -> None:
    def limit(tx: Tx, pages: int) -> None:
        tx.exec_driver_sql(f"PRAGMA max_page_count = {pages}")  # SQLite's own ENOSPC

    def fill(tx: Tx) -> None:
        for n in range(1000):
            add_node(tx, "x" * n)

    pool = Pool(engine, calls, threads=1)
    calls.result(pool.run(limit, 1))  # as few as there are
    with pytest.raises(exc.OperationalError, match="disk is full") as full:
        calls.result(pool.run(fill))
    assert Pool.is_full(full.value)
    assert Pool.is_away(full.value)
    calls.result(pool.run(limit, 2**30))
    assert calls.result(pool.run(add_node, "a")) == "a"
    pool.close()


@pytest.mark.mariadb
@pytest.mark.parametrize("lost", ["question", "answer"])
def test_flows_leave_a_connection_whose_link_was_cut(
    mariadb: MariaDB, calls: Calls, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """TCP repeats a question for a quarter of an hour, and waits for an answer for two hours."""
    monkeypatch.setattr(connections, "SILENT", 1)
    holder = mariadb.connect()
    holder.cursor().execute(f"SELECT GET_LOCK('{lost}', 0)")  # of this test alone
    lines: list[socket.socket] = []

    def ask(tx: Tx) -> int:
        lines.append(tx.connection.dbapi_connection._sock)
        if len(lines) > 1:
            return len(lines)
        if lost == "question":
            cutlinks.cut(lines[0])
        return int(tx.exec_driver_sql(f"SELECT GET_LOCK('{lost}', 600)").scalar_one())

    def is_asked() -> bool:
        rows = holder.cursor()
        waiting = "SELECT id FROM information_schema.processlist WHERE state = 'User lock'"
        return bool(rows.execute(waiting))

    pool = Pool(database.connect(mariadb.url("cut")), calls, threads=1)
    done = pool.run(ask)
    if lost == "answer":
        until(is_asked)
        cutlinks.cut(lines[0])
    holder.cursor().execute(f"DO RELEASE_LOCK('{lost}')")
    assert calls.result(done) == 2
    pool.close()
    holder.close()


def test_a_connection_whose_link_is_cut_while_it_is_made_is_left_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Show that the host's greeting is not waited for for two hours."""
    monkeypatch.setattr(connections, "SILENT", 1)
    with socket.create_server(("127.0.0.1", 0)) as host, ThreadPoolExecutor() as thread:
        url = f"mysql+pymysql://cod@127.0.0.1:{host.getsockname()[1]}/cod"
        made = thread.submit(database.connect(url).connect)
        line, _ = host.accept()
        cutlinks.cut(line)
        try:
            with pytest.raises(exc.OperationalError):
                made.result(30)
        finally:
            cutlinks.mend(line)
            line.close()


@pytest.mark.mariadb
def test_the_host_ends_idle_connections_and_none_is_used_then(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB would keep a connection for eight hours whose server it cannot reach any more."""
    monkeypatch.setattr(database, "IDLE", 2)
    engine, asking = database.connect(mariadb.url("idle")), mariadb.connect()
    with engine.connect() as tx:
        first = tx.exec_driver_sql("SELECT connection_id()").scalar_one()
    there = f"SELECT id FROM information_schema.processlist WHERE id = {first}"
    until(lambda: not asking.cursor().execute(there), "the connection is ended")
    with engine.connect() as tx:
        assert tx.exec_driver_sql("SELECT connection_id()").scalar_one() != first
    engine.dispose()
    asking.close()


@pytest.mark.mariadb
@pytest.mark.parametrize("owner", ["a", "another, so that nothing is written"])
def test_a_host_that_hangs_in_a_transaction_lets_others_go_on(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """The database frees the rows, written or only locked, and refuses the commit of a host that
    wakes."""
    monkeypatch.setattr(database, "ABANDONED", 1)
    hangs, goes_on = (database.connect(mariadb.url("abandoned")) for _ in range(2))
    with goes_on.begin() as tx:
        tables.metadata.create_all(tx, [t.claims])
        claims.hold(tx, "manager", "a", 0.0, 10.0)
    with hangs.connect() as sleeper:
        transaction = sleeper.begin()
        claims.hold(sleeper, "manager", owner, 1.0, 10.0)
        with goes_on.begin() as tx:
            tx.exec_driver_sql("SET innodb_lock_wait_timeout = 20")
            over = claims.find(tx, "manager")
            assert claims.hold(tx, "manager", "b", 100.0, 10.0, over=over)
        with pytest.raises(exc.DBAPIError) as refused:
            transaction.commit()
    assert is_lost(refused.value)
    for each in (hangs, goes_on):
        each.dispose()
