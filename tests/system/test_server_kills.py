"""`make server-kills` in its smallest form: parts of a server are killed under load, and the check
of its nodes finds nothing; and what is planted it finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from cod.store import tables as t
from tests import server_kills
from tests.server_kills import Outcome, Watch
from tests.system.stand import Stand

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.xdist_group("server-kills")]

KILLS = 3


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with server_kills.made(tmp_path_factory.mktemp("kills"), machines=2) as stand:
        server_kills.begin(stand)
        yield stand


def test_killed_parts_leave_every_history_whole(stand: Stand) -> None:
    outcome = server_kills.run(
        stand, 1, lambda outcome: outcome.kills.total() < KILLS, server_kills.PARTS
    )
    print(outcome)
    assert outcome.violations == []
    assert outcome.kills.total() == KILLS
    assert outcome.looks > KILLS
    assert outcome.disks > 0


def test_a_free_disk_with_data_and_a_row_that_was_changed_are_found(stand: Stand) -> None:
    outcome = Outcome()
    watch = Watch(stand, outcome)
    watch.look()
    assert outcome.violations == []
    with open(stand["m1"].folder / "disk", "r+b") as disk:
        disk.write(b"data")
    for _ in stand.hosts:  # one free disk a look
        watch.look()
    assert outcome.violations == ["node 1: is free and clean, and its disk is not empty"]
    with open(stand["m1"].folder / "disk", "r+b") as disk:
        disk.write(bytes(4))
    with stand.engine.begin() as tx:
        tx.execute(update(t.nodes).where(t.nodes.c.id == 2).values(disk="system"))
        tx.execute(
            update(t.node_history).where(t.node_history.c.id == 1).values(event="registered")
        )
    watch.conclude()
    assert outcome.violations[1:] == [
        "node 2: is inactive with a disk that is system",
        "rows of the history are gone, or have changed",
    ]
