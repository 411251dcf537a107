"""A database of two hosts, a primary and its semi-synchronous replica: the server follows the lease
to the one that takes over, and commits nothing at the one that has come back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, exc, text

from cod.core.database import writer as database_writer
from cod.core.database.hosts import DatabaseHosts
from cod.core.database.writer import DatabaseWriter, connect
from cod.doctor.checks import database as doctor
from cod.doctor.checks import servers
from cod.doctor.finding import BAD, WARNING, Context
from cod.flows import servers as presence
from cod.model import HostPart, Site, database_urls
from cod.policy.database_writer import LEASE_SECONDS, NOBODY
from cod.pool import Pool, in_transaction
from cod.site.load import Settings
from cod.site.tables import ApiTable, ServerTable
from cod.store import database, schema
from cod.store import servers as store_servers
from cod.store.engine import LOST, NoWriter, Tx, code, is_retryable
from cod.store.mariadb.writer import lease, renew
from tests.mariadb import UNSYNCED, MariaDB
from tests.pair import Pair
from tests.ports import free_port
from tests.store.test_pool import Calls, add_node, names
from tests.waiting import until

pytestmark = [pytest.mark.mariadb, pytest.mark.mariadb_always]


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that answers late, on a busy machine, is not a host that is gone."""
    monkeypatch.setattr(database_writer, "PATIENCE", 60.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    found = Pair(tmp_path_factory.mktemp("pair"))
    yield found
    found.stop()


def done_at(server: MariaDB, flow: Callable[..., Any], **values: object) -> Any:
    """Return what a flow returns at this host."""
    engine = database.connect(f"mysql+pymysql://root@127.0.0.1:{server.port}/cod")
    try:
        return in_transaction(engine, flow, **values)
    finally:
        engine.dispose()


def nodes_at(server: MariaDB) -> list[str]:
    return list(done_at(server, names))


def test_the_doctor_names_a_replica_that_lags(pair: Pair) -> None:
    part = HostPart("a", "web", ("10.77.0.1",), "0.1", "0043", 0.0, 100.0, "key")

    def behind() -> list[str]:
        found = doctor._hosts(database_urls(pair.url))
        return [each.found for each in found if "behind" in each.found]

    done_at(pair.first, presence.renew, part=part)
    until(lambda: done_at(pair.second, store_servers.every) == [part])
    pair.second.execute("STOP SLAVE SQL_THREAD")
    done_at(pair.first, presence.renew, part=replace(part, seen_at=190.0))
    assert behind() == [f"{pair.hosts[1]} is 1 min 30 s behind the newest of the other hosts"]
    found = DatabaseHosts(database_urls(pair.url)).look()
    assert [(each.name, each.role, each.behind) for each in found] == [
        (pair.hosts[0], "primary", 0.0),
        (pair.hosts[1], "replica", 90.0),
    ]
    pair.second.execute("START SLAVE SQL_THREAD")
    until(lambda: not behind())


def test_the_server_follows_the_lease_and_never_goes_back(pair: Pair) -> None:
    clock, calls = Clock(), Calls()
    first, second = pair.hosts
    writer = DatabaseWriter(database_urls(pair.url), clock)
    pool = Pool(database.connect(pair.url, writer=writer), calls)
    writer.step()
    assert writer.where() == (first, 1)
    assert calls.result(pool.run(add_node, "a")) == "a"

    pair.first.kill()
    clock.now += LEASE_SECONDS  # the replica is read-only: nobody has promoted it
    writer.step()
    with pytest.raises(NoWriter):
        writer.confirm((first, 1))
    pair.promote()
    writer.step()
    with pytest.raises(NoWriter, match="as far as this server can see"):
        writer.confirm((second, 2))
    clock.now += LEASE_SECONDS
    writer.step()
    assert writer.where() == (second, 2)
    assert calls.result(pool.run(add_node, "bb")) == "bb"
    assert sorted(calls.result(pool.read(names))) == ["a", "bb"]

    pair.start_first()  # as it was, and ready to be written to
    other = DatabaseWriter(database_urls(pair.url), clock)  # another server's
    other.step()
    assert other.where() == (second, 2)
    pair.second.kill()
    clock.now += 10 * LEASE_SECONDS
    writer.step()
    with pytest.raises(NoWriter):
        writer.confirm((first, 1))
    assert nodes_at(pair.first) == ["a"]
    other.close()
    pool.close()


def test_a_transaction_that_loses_sight_of_the_writer_does_not_commit(
    mariadb: MariaDB, mariadb_engine: Engine
) -> None:
    clock = Clock()
    url = f"mysql+pymysql://root@127.0.0.1:{mariadb.port},127.0.0.1:{free_port()}/store"
    writer = DatabaseWriter(database_urls(url), clock)
    engine = database.connect(url, writer=writer)
    writer.step()

    def late(tx: Tx) -> None:
        add_node(tx, "late")
        clock.now += LEASE_SECONDS / 2  # the process was stopped meanwhile

    with pytest.raises(NoWriter):
        in_transaction(engine, late)
    writer.step()
    assert "late" not in in_transaction(engine, names)
    engine.dispose()


def test_a_renewal_is_committed_without_a_further_word(
    mariadb: MariaDB, mariadb_engine: Engine
) -> None:
    """A process that is cut off right after it leaves the row free, which all others renew."""
    url = f"mysql+pymysql://root@127.0.0.1:{mariadb.port},127.0.0.1:{free_port()}/store"
    writer = DatabaseWriter(database_urls(url), Clock())
    writer.step()
    host, epoch = writer.where()

    def beat() -> int:
        found = in_transaction(mariadb_engine, lease, NOBODY)
        assert found is not None
        return found.beat

    def renewed(tx: Tx) -> int:
        assert renew(tx, host, epoch)
        return beat()

    before = beat()
    assert writer._at(host, renewed) == before + 1
    writer.close()


STOPS = """
import os, signal, sys
from sqlalchemy import event
from cod.core.database.writer import connect
from cod.pool import in_transaction
from cod.store.engine import code
from tests.store.test_pool import add_node

engine, stopped = connect(sys.argv[1]), False

def stop(tx):
    global stopped
    stopped = True
    print(*tx.info["told"], flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def late(tx):
    query = "SELECT @@idle_write_transaction_timeout, CONNECTION_ID()"
    tx.info["told"] = tx.exec_driver_sql(query).one()
    add_node(tx, "stopped")

event.listen(engine, "commit", stop)  # after the writer was confirmed
while not stopped:  # on a busy machine the writer may be found, or confirmed, too late
    try:
        in_transaction(engine, late)
    except Exception as error:
        said = code(error)
    else:
        said = "committed"
print(said, flush=True)
os._exit(0)
"""
"""A process that stops between its look at the lease and its COMMIT."""
CONNECTIONS = text("SELECT id FROM information_schema.processlist")


def connections(tx: Tx) -> list[int]:
    return list(tx.scalars(CONNECTIONS))


def test_a_process_that_is_stopped_before_its_commit_does_not_commit_when_it_wakes(
    mariadb: MariaDB, mariadb_engine: Engine
) -> None:
    """The host ends its transaction before another host may be the writer."""
    url = f"mysql+pymysql://root@127.0.0.1:{mariadb.port},127.0.0.1:{free_port()}/store"
    command = [sys.executable, "-c", STOPS, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stopped:
        try:
            assert stopped.stdout is not None
            seconds, own = stopped.stdout.readline().split()
            assert float(seconds) < LEASE_SECONDS / 2
            until(lambda: int(own) not in in_transaction(mariadb_engine, connections))
            stopped.send_signal(signal.SIGCONT)
            assert int(stopped.stdout.readline()) in LOST
        finally:
            stopped.kill()
    assert "stopped" not in in_transaction(mariadb_engine, names)


def test_a_server_and_a_command_find_the_writer_and_find_it_again(
    mariadb: MariaDB, mariadb_engine: Engine
) -> None:
    """By the thread, in real time; the host that is preferred does not answer."""
    url = f"mysql+pymysql://root@127.0.0.1:{free_port()},127.0.0.1:{mariadb.port}/store"
    calls = Calls()
    pool = Pool(connect(url), calls)
    assert calls.result(pool.run(add_node, "kept"), 120) == "kept"
    mariadb.stop()  # what it has not written to its disk yet would be lost if it was killed
    asked = pool.run(names)
    mariadb.start("--innodb-flush-log-at-trx-commit=0", *UNSYNCED)
    assert "kept" in calls.result(asked, 120)
    command = Pool(connect(url), calls)
    assert "kept" in calls.result(command.run(names), 120)
    command.close()
    pool.close()
    mariadb_engine.dispose()  # its connections ended with the server


def test_the_doctor_names_the_writer_and_the_host_that_does_not_answer(
    mariadb: MariaDB, mariadb_engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = f"127.0.0.1:{free_port()}"
    url = f"mysql+pymysql://root@{gone},127.0.0.1:{mariadb.port}/store"
    monkeypatch.setattr(schema, "check", lambda engine: "")
    settings = Settings(Path("site.toml"), ServerTable(database=url), ApiTable())
    context = Context(site, settings, None, 0.0, True)
    silent, unsafe, good = doctor.findings(context)
    assert silent.state == WARNING
    assert silent.found.startswith(f"{gone} does not answer: ")
    assert (unsafe.state, "innodb_flush_log_at_trx_commit=0" in unsafe.found) == (WARNING, True)
    assert f", its writer is 127.0.0.1:{mariadb.port}" in good.found
    assert list(servers.findings(context)) == []
    monkeypatch.setattr(database_writer, "WAIT", 0.0)
    elsewhere = ServerTable(database=f"mysql+pymysql://root@{gone},127.0.0.2:1/store")
    nowhere = replace(settings, server=elsewhere)
    *_, bad = doctor.findings(replace(context, settings=nowhere))
    assert (bad.state, "the database has no writer" in bad.found) == (BAD, True)


def test_a_node_without_a_quorum_is_left_for_another_connection(mariadb: MariaDB) -> None:
    """Behind a proxy a new connection leads to another node."""
    engine = database.connect(mariadb.url("quorum"))
    used = []

    def ask(tx: Tx, number: int = 0) -> None:
        used.append(tx.exec_driver_sql("SELECT CONNECTION_ID()").scalar())
        if number:
            tx.exec_driver_sql(f"SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = {number}")

    for number in (1205, 1213, 1047, 1180):
        with pytest.raises(exc.OperationalError) as caught:
            in_transaction(engine, ask, number)
        assert code(caught.value) == number
        assert is_retryable(caught.value)
    in_transaction(engine, ask)
    assert used[0] == used[1] == used[2]
    assert len(set(used[2:])) == 3
    engine.dispose()
