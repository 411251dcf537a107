"""`make server-kills` and `make chaos` in their smallest forms: nothing is found; and what is
planted is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from cod.store import tables as t
from cod.store.database import connect
from tests.chaos.checks import Watch
from tests.chaos.faults import FAULTS as KINDS
from tests.chaos.run import ChaosRun
from tests.chaos.site import ChaosSite, running
from tests.galera import needs_galera

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(2),
    pytest.mark.slow,
    pytest.mark.xdist_group("chaos"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

FAULTS = 3
FORGETS = """\
from cod.store import replies

replies.begin = lambda *_: None
replies.keep = lambda *_: None
"""


@pytest.fixture(scope="module")
def one() -> Iterator[ChaosSite]:
    with running(hosts=1, machines=2, database="sqlite") as site:
        yield site


def test_killed_parts_leave_every_history_whole(one: ChaosSite) -> None:
    outcome = ChaosRun(one, 1).run(lambda outcome: len(outcome.story) < FAULTS, ["part"])
    print(outcome)
    assert outcome.violations == []
    assert outcome.faults["part killed"].count == FAULTS
    assert outcome.looks > FAULTS
    assert outcome.disks > 0


def test_a_free_disk_with_data_and_a_row_that_was_changed_are_found(one: ChaosSite) -> None:
    engine = connect(one.database.url)
    with engine.begin() as tx:  # as if both had been used, which the test above need not have done
        tx.execute(update(t.nodes).where(t.nodes.c.id <= len(one.machines)).values(disk="clean"))
    watch = Watch(one.database.url, one.machines)
    watch.look()
    assert watch.violations == []
    with open(one.machines["a1"].folder / "disk", "r+b") as disk:
        disk.write(b"data")
    for _ in one.machines:  # one free disk a look
        watch.look()
    assert watch.violations == ["a1: is free and clean, and its disk is not empty"]
    with open(one.machines["a1"].folder / "disk", "r+b") as disk:
        disk.write(bytes(4))
    with engine.begin() as tx:
        tx.execute(update(t.nodes).where(t.nodes.c.id == 2).values(disk="system"))
        tx.execute(
            update(t.node_history).where(t.node_history.c.id == 1).values(event="registered")
        )
    engine.dispose()
    watch.conclude()
    assert watch.violations[1:] == [
        "node 2: is inactive with a disk that is system",
        "rows of the history are gone, or have changed",
    ]


# the rules: tests/store/test_pool.py, tests/net/test_manager.py, tests/store/test_flows_twice.py
@pytest.mark.nightly
def test_two_servers_lose_nothing_and_give_nothing_twice() -> None:
    with running(hosts=2, machines=4, database="mariadb") as site:
        outcome = ChaosRun(site, 1).run(
            lambda outcome: len(outcome.story) < 2 * FAULTS, ["part", "server", "link"]
        )
    print(outcome)
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@needs_galera
def test_each_fault_on_galera_loses_nothing_and_fences_a_manager() -> None:
    with running(hosts=2, machines=4, database="galera") as site:
        assert site.clocks is not None, "a C compiler makes the servers' clocks"
        # seed 194: its stops outlast the claim, it cuts all links, its clock goes ahead
        outcome = ChaosRun(site, 194).run(
            lambda outcome: len(outcome.story) < len(KINDS), list(KINDS), in_order=True
        )
    print(outcome, *outcome.story, sep="\n")
    assert outcome.violations == []
    assert outcome.acknowledged > 0
    assert [each.count for each in outcome.faults.values()] == [1] * len(KINDS)
    assert outcome.fenced > 0


@pytest.mark.nightly
def test_a_pair_whose_hosts_are_killed_loses_nothing() -> None:
    faults = ["database", "crash", "server", "database"]
    with running(hosts=2, machines=3, database="pair") as site:
        outcome = ChaosRun(site, 7).run(
            lambda outcome: len(outcome.story) < len(faults), faults, in_order=True
        )
    print(outcome, *outcome.story, sep="\n")
    assert outcome.violations == []
    assert outcome.acknowledged > 0


@pytest.mark.nightly
def test_a_server_that_forgets_what_it_has_answered_is_found(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORGETS)
    planted = {"PYTHONPATH": str(tmp_path)}
    with running(hosts=1, machines=2, database="sqlite", environment=planted) as site:
        outcome = ChaosRun(site, 1).run(lambda outcome: len(outcome.story) < 30, ["part"])
    assert outcome.violations
