"""Answers by key, on both databases: two at once, one that fails, changes that are bound to what
was seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, update

from cod.flows import replies as flow
from cod.model import Refused
from cod.pool import in_transaction
from cod.store import replies, watermarks
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups

pytestmark = pytest.mark.mariadb_always

once = partial(flow.once, key="k", question="q", status=201, body=str, now=5.0)


def bump(tx: Tx) -> int:
    """Count in the site's group how often it was done."""
    tx.execute(update(t.groups).values(priority=t.groups.c.priority + 1))
    return tx.scalar(select(t.groups.c.priority)) or 0


@pytest.fixture
def counted(engine: Engine) -> Callable[[], int]:
    """How often it was done."""
    in_transaction(engine, groups.ensure, "site", 0.0)
    return lambda: in_transaction(engine, lambda tx: tx.scalar(select(t.groups.c.priority)) or 0)


def test_of_two_at_once_the_second_waits_for_the_firsts_answer(
    engine: Engine, counted: Callable[[], int]
) -> None:
    begun, answers = threading.Event(), []

    def slow(tx: Tx) -> Any:
        value = bump(tx)
        begun.set()
        second.join(0.3)  # it cannot end before this transaction has
        return value

    second = threading.Thread(
        target=lambda: (
            begun.wait(60),
            answers.append(in_transaction(engine, lambda tx: once(tx, flow=bump))),
        )
    )
    second.start()
    first = in_transaction(engine, lambda tx: once(tx, flow=slow))
    second.join(60)
    assert (first, answers, counted()) == (1, [flow.Repeated(201, "1")], 1)


def test_what_failed_was_never_asked(engine: Engine, counted: Callable[[], int]) -> None:
    def fails(tx: Tx) -> Any:
        bump(tx)
        raise Refused("conflict", "not now")

    with pytest.raises(Refused):
        in_transaction(engine, lambda tx: once(tx, flow=fails))
    assert counted() == 0
    assert in_transaction(engine, lambda tx: once(tx, flow=bump)) == 1


def test_a_change_of_what_was_seen(engine: Engine, counted: Callable[[], int]) -> None:
    def change(tx: Tx) -> Any:
        return flow.unchanged(
            tx,
            flow=bump,
            holds=lambda tx: tx.scalar(select(t.groups.c.priority)) == 0,
        )

    results: list[Any] = []

    def attempt() -> None:
        try:
            results.append(in_transaction(engine, change))
        except flow.Changed:
            results.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    in_transaction(engine, lambda tx: watermarks.one_at_a_time(tx, "conditions"))
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(map(str, results)) == ["1", "None", "None", "None"]
    assert counted() == 1


def test_old_answers_go(tx: Tx) -> None:
    for key, at in (("a", 1.0), ("b", 9.0)):
        tx.execute(insert(t.replies).values(key=key, question="q", status=200, body="", at=at))
    replies.forget(tx, 5.0)
    assert list(tx.scalars(select(t.replies.c.key))) == ["b"]
