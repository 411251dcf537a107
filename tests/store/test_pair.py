"""A semi-synchronous pair whose primary fails again and again, whose replica is promoted, and whose
old primary comes back as the replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.mariadb import MariaDB
from tests.pair import Pair
from tests.store.test_galera import Server
from tests.waiting import until

pytestmark = [
    pytest.mark.mariadb,
    pytest.mark.slow,
    pytest.mark.nightly,
]

ROUNDS = 3


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


def marks(server: MariaDB) -> set[int]:
    with server.connect() as made, made.cursor() as cursor:
        cursor.execute("SELECT id FROM cod.numbers")
        return {number for (number,) in cursor.fetchall()}


def test_two_servers_go_on_at_each_host_of_a_pair_in_turn(pair: Pair) -> None:
    pair.first.execute(
        "CREATE TABLE cod.numbers (id INT PRIMARY KEY, port INT)",
        "CREATE TABLE cod.newest (id INT PRIMARY KEY)",
        "INSERT INTO cod.newest VALUES (0)",
    )
    servers = [Server(pair.url) for _ in range(2)]

    def reported() -> list[int]:
        return [number for server in servers for number in server.made]

    for _ in range(ROUNDS):
        for server in servers:
            server.makes_more()
        pair.primary.kill()
        before = reported()
        old = pair.primary
        pair.promote()
        assert marks(pair.primary) >= set(before)
        for server in servers:
            server.makes_more()
        pair.rejoin(old)
        with pytest.raises(pymysql.Error) as refused:
            pymysql.connect(host="127.0.0.1", port=old.port, user="cod").cursor().execute(
                "INSERT INTO cod.newest VALUES (1)"
            )
        assert refused.value.args[0] == 1290

    for server in servers:
        server.makes_more()
        server.close()
    assert len(reported()) == len(set(reported()))
    assert marks(pair.primary) >= set(reported())
    until(lambda: marks(pair.replica) == marks(pair.primary))
