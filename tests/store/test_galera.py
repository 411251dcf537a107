"""A real cluster of MariaDB Galera, which COD writes to at one node at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pymysql
import pytest

from tests.galera import Galera, GaleraNode, needs_galera
from tests.waiting import until

pytestmark = [
    needs_galera,
    pytest.mark.mariadb,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.xdist_group("galera"),
]


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
