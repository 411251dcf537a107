"""Two who take away each other's place at once: on MariaDB one waits for the other, and sees what
became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.core.nodes import transitions
from cod.flows import pruning
from cod.flows.people import people, signin
from cod.model import Refused, Role
from cod.states import NodeEvent
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups, signins
from cod.store.people import people as rows
from tests.store.test_uploads_flow import APART, waiting
from tests.waiting import until

NOW = 1_000_000.0


@pytest.fixture
def two(mariadb_engine: Engine) -> Engine:
    """A database with two administrators, who are the owners of a group."""
    with mariadb_engine.begin() as tx:
        group = groups.add(tx, "physics", NOW)
        for name in ("ann", "bob"):
            rows.set_role(tx, group.id, rows.add(tx, name, NOW, admin=True).id, Role.OWNER)
    return mariadb_engine


def at_once(engine: Engine, first: Callable[[Tx], Any], second: Callable[[Tx], Any]) -> str:
    """What the second is told, which begins before the first has committed; '' where it did what it
    wanted."""
    outcome: list[str] = []

    def other() -> None:
        with engine.begin() as tx:
            try:
                second(tx)
                outcome.append("")
            except Refused as no:
                outcome.append(no.code)

    with engine.begin() as tx:
        first(tx)
        thread = threading.Thread(target=other)
        thread.start()
        until(
            lambda: outcome or waiting(engine),
            "the second waits for a lock, or has done it",
            every=APART,
        )
    thread.join(60)
    return outcome[0]


@pytest.mark.mariadb
def test_of_two_owners_who_go_at_once_one_stays(two: Engine) -> None:
    assert (
        at_once(
            two,
            lambda tx: people.remove(tx, group="physics", user="ann"),
            lambda tx: people.set_role(tx, group="physics", user="bob", role="member"),
        )
        == "conflict"
    )


@pytest.mark.mariadb
def test_of_two_owners_who_are_deleted_at_once_one_stays(two: Engine) -> None:
    with two.begin() as tx:
        rows.add(tx, "eve", NOW, admin=True)
    assert (
        at_once(two, lambda tx: people.delete(tx, "ann"), lambda tx: people.delete(tx, "bob"))
        == "conflict"
    )


@pytest.mark.mariadb
def test_of_two_administrators_who_go_at_once_one_stays(two: Engine) -> None:
    assert (
        at_once(
            two,
            lambda tx: people.change(tx, "ann", {"admin": False}, now=NOW),
            lambda tx: people.change(tx, "bob", {"disabled": True}, now=NOW),
        )
        == "conflict"
    )


@pytest.mark.mariadb
def test_of_two_first_attempts_at_once_both_count(two: Engine) -> None:
    """Else many at once would be as one; and those who come from one place at the same moment in
    each other's way."""
    place, outcome = "address:192.0.2.1", []

    def other() -> None:
        with two.begin() as tx:
            outcome.append(signin.attempt(tx, name="bob", address="192.0.2.1", now=NOW))

    with two.begin() as tx:
        assert signins.counts(tx, [place]).get(place, (0,))[0] == 0
        thread = threading.Thread(target=other)
        thread.start()
        until(
            lambda: outcome or waiting(two),
            "the second waits for a lock, or has done it",
            every=APART,
        )
        signins.put(tx, {place: (1, NOW, NOW)})
    thread.join(60)
    with two.begin() as tx:
        assert (len(outcome), signins.counts(tx, [place])[place][0]) == (1, 2)


@pytest.mark.mariadb
def test_a_machine_that_reports_just_now_is_not_forgotten(two: Engine) -> None:
    with two.begin() as tx:
        node = nodes.add(
            tx,
            name="node-525400000001",
            boot_mac="52:54:00:00:00:01",
            now=1.0,
            cause="x",
            actor="x",
        )
    assert (
        at_once(
            two,
            lambda tx: transitions.move(
                tx, node, NodeEvent.REGISTERED, now=NOW, cause="its first report", actor="x"
            ),
            lambda tx: pruning.forget_machines(tx, NOW),
        )
        == ""
    )
    with two.begin() as tx:
        assert nodes.named(tx, "node-525400000001").state == "registering"
