"""Statements that are made once: what comes out is what SQLAlchemy's own execution gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    event,
    exc,
    literal,
    select,
    text,
    union_all,
    update,
)

from cod.store.engine import Prepared, Tx, inserting
from cod.store.tables.base import Words

SHELVES = Table(
    "prepared_shelves",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("name", String(20), unique=True, nullable=False),
    Column("open", Boolean, nullable=False, default=True),
    Column("label", LargeBinary),
    Column("days", Words(40)),
)
_c = SHELVES.c
ALL = Prepared(select(SHELVES).order_by(_c.id))
NAMED = Prepared(select(_c.id).where(_c.name.in_(bindparam("names", expanding=True))))
ROW: dict[str, Any] = {"name": "a", "label": b"\x00'%", "days": ("mon", "sun")}


@pytest.fixture
def tx(engine: Engine) -> Iterator[Tx]:
    SHELVES.create(engine)
    try:
        with engine.begin() as tx:
            yield tx
    finally:
        SHELVES.drop(engine)


def test_values_are_stored_and_read_as_their_columns_have_them(tx: Tx) -> None:
    first = inserting(SHELVES).add(tx, ROW)
    more = [ROW | {"name": "it's 100 %", "open": False, "days": ()}, ROW | {"name": "c"}]
    assert (
        inserting(SHELVES).write_all(tx, [each | {"open": each["name"] == "c"} for each in more])
        == 2
    )
    found = ALL.rows(tx)
    assert found == [tuple(row) for row in tx.execute(select(SHELVES).order_by(_c.id))]
    assert found[0] == (first, "a", True, b"\x00'%", ("mon", "sun"))
    assert [row[1:3] for row in found[1:]] == [("it's 100 %", False), ("c", True)]
    change = Prepared(update(SHELVES).where(_c.name == bindparam("of_name")))
    assert change.write(tx, {"open": False, "days": ("tue",), "of_name": "a"}) == 1
    assert change.write(tx, {"open": False, "of_name": "a"}) == 1, "also where nothing is new"
    assert change.write(tx, {"open": False, "of_name": "b"}) == 0
    assert ALL.rows(tx)[0][2:] == (False, b"\x00'%", ("tue",))


def test_lists_are_of_any_length(tx: Tx) -> None:
    inserting(SHELVES).write_all(tx, [ROW | {"name": name} for name in "abc"])
    for names in ([], ["b"], ["a", "c", "nobody", "'"]):
        expected = [ord(name) - 96 for name in names if name in "abc"]
        assert [row[0] for row in NAMED.rows(tx, {"names": names})] == expected
    both = union_all(
        select(literal("own"), _c.name).where(_c.name.in_(["b", "c"]), _c.open),
        select(literal("said"), _c.name).where(_c.name == bindparam("name"), _c.name.in_(["a"])),
    )
    assert Prepared(both).rows(tx, {"name": "a"}) == [("own", "b"), ("own", "c"), ("said", "a")]


def test_of_one_row_there_is_one(tx: Tx) -> None:
    inserting(SHELVES).write_all(tx, [ROW | {"name": name} for name in "ab"])
    assert NAMED.row(tx, {"names": ["b"]}) == (2,)
    assert (NAMED.row(tx, {"names": ["c"]}), NAMED.value(tx, {"names": ["c"]})) == (None, None)
    assert NAMED.value(tx, {"names": ["a", "b"]}) == 1
    with pytest.raises(exc.MultipleResultsFound):
        NAMED.row(tx, {"names": ["a", "b"]})


def test_a_value_that_nobody_gives_is_missed(tx: Tx) -> None:
    with pytest.raises(KeyError, match="names"):
        NAMED.rows(tx)


def test_listeners_are_told_and_may_write_another_statement(engine: Engine, tx: Tx) -> None:
    told: list[tuple[str, bool]] = []

    def other(_tx: Any, _cursor: Any, said: str, values: Any, _context: Any, many: bool) -> Any:
        told.append((said.split()[0], many))
        return said.replace("prepared_shelves.name", "'x'", 1), values

    event.listen(tx, "before_cursor_execute", other, retval=True)
    inserting(SHELVES).write_all(tx, [ROW])
    assert [row[1] for row in ALL.rows(tx)] == ["x"]
    assert told == [("INSERT", True), ("SELECT", False)]


def test_errors_are_sqlalchemys_and_its_listeners_hear_of_them(engine: Engine, tx: Tx) -> None:
    heard: list[str] = []
    event.listen(engine, "handle_error", lambda context: heard.append(context.statement))
    inserting(SHELVES).add(tx, ROW)
    with pytest.raises(exc.IntegrityError, match="INSERT INTO prepared_shelves") as refused:
        inserting(SHELVES).add(tx, ROW)
    assert refused.value.orig is not None
    assert [each.split()[0] for each in heard] == ["INSERT"]


def test_a_transaction_begins_with_the_first_statement(engine: Engine, tx: Tx) -> None:
    tx.commit()
    with contextlib.suppress(exc.InvalidRequestError), engine.connect() as other:
        assert ALL.rows(other) == []
        assert other.in_transaction()


@pytest.mark.mariadb
def test_a_connection_that_is_gone_is_not_used_again(mariadb_engine: Engine) -> None:
    with mariadb_engine.connect() as other, mariadb_engine.connect() as tx:
        own = tx.scalar(text("SELECT CONNECTION_ID()"))
        other.exec_driver_sql(f"KILL {own}")
        with pytest.raises(exc.OperationalError) as lost:
            Prepared(select(literal(1))).rows(tx)
        assert lost.value.connection_invalidated
        tx.rollback()
        assert Prepared(select(literal(1))).rows(tx) == [(1,)]
        assert tx.scalar(text("SELECT CONNECTION_ID()")) != own
