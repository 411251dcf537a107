"""A rack of equal machines reports at once."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine, event

from cod.pool import in_transaction
from cod.store.engine import Tx
from cod.store.nodes import types


@pytest.mark.mariadb
def test_equal_machines_that_report_at_once_make_one_type(mariadb_engine: Engine) -> None:
    """Both look before either has written: the second finds out by the unique key, and takes what
    is there."""
    both_looked = threading.Barrier(2, timeout=60)
    waited: set[int] = set()

    @event.listens_for(mariadb_engine, "before_cursor_execute")
    def meet(_c: object, _cur: object, statement: str, *_more: object) -> None:
        me = threading.get_ident()
        if statement.startswith("INSERT INTO node_types") and me not in waited:
            waited.add(me)
            both_looked.wait()

    made: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(in_transaction(mariadb_engine, types.of, "<node/>", 1.0).id)
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    event.remove(mariadb_engine, "before_cursor_execute", meet)
    assert len(made) == 2
    assert made[0] == made[1]


def test_a_name_that_an_administrator_took_is_no_obstacle(tx: Tx) -> None:
    first = types.of(tx, "<node/>", 1.0)
    types.change(tx, first.id, name=f"type{first.id + 1}")
    second = types.of(tx, "<node><memory mib='1'/></node>", 1.0)
    assert second.id != first.id
    assert second.name.startswith("type-")
