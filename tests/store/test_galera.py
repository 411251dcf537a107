"""A real cluster of MariaDB Galera, which COD writes to at one node at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import Connection, Engine, exc

from cod.core.database.writer import connect
from cod.flows.people import people
from cod.model import Refused
from cod.pool import Pool
from cod.store import database
from cod.store import tables as t
from cod.store.people import people as users
from tests.galera import Galera, GaleraNode, needs_galera
from tests.store.test_haproxy import needs_haproxy, proxy_before
from tests.store.test_pool import Calls
from tests.waiting import until

pytestmark = [
    needs_galera,
    pytest.mark.mariadb,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.xdist_group("galera"),
]


ROUNDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Galera]:
    made = Galera(tmp_path_factory.mktemp("galera"))
    yield made
    made.stop()


def count(node: GaleraNode) -> int:
    """Return the rows that the node has; -1 while it is not ready."""
    with suppress(pymysql.Error):
        return len(node.rows("SELECT id FROM kept.rows"))
    return -1


def test_each_node_is_killed_stopped_cut_off_and_comes_back(cluster: Galera) -> None:
    first, second, third = cluster.nodes
    first.execute("CREATE DATABASE kept", "CREATE TABLE kept.rows (id INT PRIMARY KEY)")
    third.kill()
    until(lambda: cluster.size() == 2)
    first.execute("INSERT INTO kept.rows VALUES (1)")
    cluster.start(third)
    until(lambda: count(third) == 1)

    second.freeze()
    until(lambda: first.status("wsrep_cluster_size") == "2")
    first.execute("INSERT INTO kept.rows VALUES (2)")
    second.thaw()
    until(lambda: count(second) == 2)

    first.cut_off()
    until(lambda: first.status("wsrep_cluster_status") == "non-Primary")
    until(lambda: third.status("wsrep_cluster_size") == "2")
    third.execute("INSERT INTO kept.rows VALUES (3)")
    first.join_again()
    until(lambda: count(first) == 3)

    for node in cluster.nodes:
        node.kill()
    cluster.recover()
    until(lambda: cluster.size() == 3)
    assert [count(node) for node in cluster.nodes] == [3, 3, 3]


def test_of_two_who_go_at_two_hosts_at_once_one_stays(cluster: Galera) -> None:
    """A proxy may let servers write at two hosts for a second or two. Locks at one host do not hold
    back a transaction at the other host, if both are certified before either is applied there."""
    hosts = [database.connect(f"mysql+pymysql://root@{host}/people") for host in cluster.hosts[:2]]
    cluster.nodes[0].execute("CREATE DATABASE people CHARACTER SET utf8mb4")
    with hosts[0].begin() as tx:
        t.metadata.create_all(tx)
        for name in ("ann", "bob"):
            users.add(tx, name, 1.0, admin=True)
    left, together = [], threading.Barrier(2)

    def resigns(engine: Engine, name: str) -> None:
        with engine.connect() as tx, suppress(exc.OperationalError, Refused):
            tx.exec_driver_sql("SET SESSION wsrep_sync_wait = 1")
            people.change(tx, name, {"admin": False}, now=1.0)
            together.wait(60)
            tx.commit()

    for _ in range(ROUNDS):
        threads = [
            threading.Thread(target=resigns, args=each)
            for each in zip(hosts, ("ann", "bob"), strict=True)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        with hosts[0].begin() as tx:
            tx.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")  # `admins` writes first
            left.append(users.admins(tx))
            tx.execute(t.users.update().values(admin=True))
    for engine in hosts:
        engine.dispose()
    assert Counter(left) == {1: ROUNDS}


class Server:
    """A server's pool that makes marks, one after another. Each mark has the port of the node where
    it is made, and the number after the highest."""

    def __init__(self, url: str) -> None:
        self.made: list[int] = []
        self.error: Exception | None = None
        self._calls = Calls()
        self._pool = Pool(connect(url), self._calls)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        try:
            while not self._end.is_set():
                self.made.append(self._calls.result(self._pool.run(mark), 120))
        except Exception as error:
            self.error = error

    def makes_more(self) -> None:
        """Wait until it has made marks that it has not begun yet."""
        number = len(self.made) + 2
        until(lambda: self.error or len(self.made) >= number, seconds=120)
        assert self.error is None, self.error

    def close(self) -> None:
        self._end.set()
        self._thread.join(120)
        self._pool.close()


def mark(tx: Connection) -> int:
    tx.exec_driver_sql("UPDATE newest SET id = id + 1")  # the servers' transactions in turn
    number = int(tx.exec_driver_sql("SELECT id FROM newest").scalar_one())
    tx.exec_driver_sql(f"INSERT INTO numbers VALUES ({number}, @@port)")
    return number


def the_writer(cluster: Galera, old: GaleraNode | None = None) -> GaleraNode | None:
    """Return the node that the lease names, as another node than `old` has it."""
    for node in cluster.nodes:
        if node is not old:
            with suppress(pymysql.Error):
                (row,) = node.rows("SELECT host FROM cod.database_lease")
                return next(each for each in cluster.nodes if each.host == row[0])
    return old


def all_go_on(cluster: Galera, old: GaleraNode, servers: list[Server]) -> GaleraNode:
    """Wait until another node than `old` is the writer and all servers write; return it."""
    until(lambda: the_writer(cluster, old) is not old, seconds=120, every=0.2)
    for server in servers:
        server.makes_more()
    found = the_writer(cluster, old)
    assert found is not None
    return found


def make_marks(cluster: Galera, name: str) -> None:
    """Make a database for marks."""
    cluster.nodes[0].execute(
        f"CREATE DATABASE {name} CHARACTER SET utf8mb4",
        f"CREATE TABLE {name}.numbers (id INT PRIMARY KEY, port INT)",
        f"CREATE TABLE {name}.newest (id INT PRIMARY KEY)",
        f"INSERT INTO {name}.newest VALUES (0)",
    )


def test_two_servers_go_on_at_one_node_after_another(cluster: Galera) -> None:
    make_marks(cluster, "cod")
    made = database.connect(f"mysql+pymysql://root@{cluster.hosts[0]}/cod")
    with made.begin() as tx:
        t.metadata.create_all(tx, tables=[t.database_lease])
    made.dispose()
    servers = [Server(cluster.url("cod")) for _ in range(2)]
    for server in servers:
        server.makes_more()

    killed = the_writer(cluster)
    assert killed is not None
    killed.kill()
    stopped = all_go_on(cluster, killed, servers)
    cluster.start(killed)

    # A node hangs in the middle of a transaction, and wakes when another has its lease.
    stale = pymysql.connect(host="127.0.0.1", port=stopped.port, user="root", database="cod")
    stale.cursor().execute("UPDATE newest SET id = -1")
    stopped.freeze()
    cut = all_go_on(cluster, stopped, servers)
    stopped.thaw()
    with pytest.raises(pymysql.Error) as refused:
        stale.commit()
    assert refused.value.args[0] in (1047, 1180, 1213, 2006, 2013)
    until(lambda: stopped.status("wsrep_ready") == "ON" and cluster.size() == 3)

    cut.cut_off()
    all_go_on(cluster, cut, servers)
    with pytest.raises(pymysql.Error) as refused:
        cut.rows("SELECT * FROM cod.numbers")
    assert refused.value.args[0] == 1047
    cut.join_again()
    until(lambda: cluster.size() == 3)

    for server in servers:
        server.makes_more()
        server.close()
    reported = [number for server in servers for number in server.made]
    assert len(reported) == len(set(reported))
    for node in cluster.nodes:
        node.kill()
    cluster.recover()
    (first, *_others) = cluster.nodes
    rows = first.rows("SELECT id, port FROM cod.numbers ORDER BY id")
    assert {number for number, _port in rows} >= set(reported)
    # nobody wrote at two nodes in turn
    (epoch,) = first.rows("SELECT epoch FROM cod.database_lease")[0]
    assert len(list(groupby(rows, lambda row: row[1]))) == epoch == 4


@needs_haproxy
def test_two_servers_behind_haproxy_lose_nothing(cluster: Galera, tmp_path: Path) -> None:
    first, second, third = cluster.nodes
    make_marks(cluster, "behind")
    first.execute("CREATE USER haproxy")

    def all_write_at(*nodes: GaleraNode) -> None:
        """Wait until the newest mark is made at one of these nodes, and all servers make more."""
        newest = "SELECT port FROM behind.numbers ORDER BY id DESC LIMIT 1"
        ports = [node.port for node in nodes]
        until(lambda: third.rows(newest)[0][0] in ports, seconds=120, every=0.2)
        for server in servers:
            server.makes_more()

    with proxy_before(cluster.hosts, tmp_path) as port:
        servers = [Server(f"mysql+pymysql://root@127.0.0.1:{port}/behind") for _ in range(2)]
        for server in servers:
            server.makes_more()
        all_write_at(first)

        first.kill()
        all_write_at(second, third)
        cluster.start(first)
        all_write_at(first)  # which the proxy prefers

        stale = pymysql.connect(host="127.0.0.1", port=first.port, user="root", database="behind")
        stale.cursor().execute("UPDATE newest SET id = -1")
        first.freeze()
        all_write_at(second, third)
        first.thaw()
        with pytest.raises(pymysql.Error) as refused:
            stale.commit()
        assert refused.value.args[0] in (1047, 1180, 1213, 2006, 2013)
        all_write_at(first)

        # the proxy leads to a host that lags: it applies nothing, as during a backup
        led = "SELECT 1 FROM information_schema.processlist WHERE db = 'behind'"
        second.execute("SET GLOBAL wsrep_desync = ON")
        with second.connect() as backup:
            backup.cursor().execute("FLUSH TABLES WITH READ LOCK")
            for server in servers:
                server.makes_more()
            first.kill()
            until(lambda: second.rows(led))
        all_write_at(second, third)
        second.execute("SET GLOBAL wsrep_desync = OFF")
        cluster.start(first)
        first.execute("SET GLOBAL wsrep_desync = ON")
        all_write_at(first)
        first.execute("SET GLOBAL wsrep_desync = OFF")
        for server in servers:
            server.close()

    reported = [number for server in servers for number in server.made]
    assert len(reported) == len(set(reported))
    for node in cluster.nodes:
        rows = node.rows("SET STATEMENT wsrep_sync_wait = 1 FOR SELECT id FROM behind.numbers")
        assert {number for (number,) in rows} >= set(reported)
