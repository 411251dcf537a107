"""Rows as records: a field comes from the column of its name, and one that does not is refused at
import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Column, Float, Integer, MetaData, String, Table, create_engine, exc

from cod.model import Node, Refused
from cod.model.records import record
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Mismatch, Rows


@dataclass(frozen=True, slots=True)
class Shelf:
    """A record of a table of this test."""

    id: int
    name: str
    remark: str | None


def table(*more: Column[object]) -> Table:
    return Table(
        "shelves",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("name", String(8), nullable=False, unique=True),
        *more,
        Column("attempts", Integer, nullable=False, default=0),
        Column("claimed_by", String(8)),
        Column("claim_expires", Float),
    )


SHELVES = table(Column("remark", String(80)))


@pytest.fixture
def tx() -> Iterator[Tx]:
    engine = create_engine("sqlite://")
    with engine.begin() as tx:
        SHELVES.create(tx)
        yield tx
    engine.dispose()


def test_a_field_planted_in_table_and_record_comes_out_of_every_method(tx: Tx) -> None:
    rows = Rows(Shelf, SHELVES, noun="shelf")
    made = rows.add(tx, name="a", remark="oak")
    assert made == Shelf(1, "a", "oak")
    rows.insert(tx, [Shelf(2, "b", None)])
    assert rows.get(tx, 1) == rows.known(tx, 1) == rows.named(tx, "a") == made
    assert rows.find(tx, SHELVES.c.remark == "oak") == made
    changed = rows.change(tx, made, remark="elm")
    assert changed == rows.get(tx, 1, lock=True) == Shelf(1, "a", "elm")
    assert rows.every(tx, order=SHELVES.c.id.desc()) == [Shelf(2, "b", None), changed]
    assert rows.read(("before", *rows.values(changed)), 1) == changed


def test_a_record_is_found_by_several_columns(tx: Tx) -> None:
    rows = Rows(Shelf, SHELVES)
    rows.insert(tx, [Shelf(1, "a", "oak"), Shelf(2, "b", "elm")])
    for lock in (False, True):
        assert rows.by(tx, name="b", remark="elm", lock=lock) == Shelf(2, "b", "elm")
        assert rows.by(tx, name="a", remark="elm", lock=lock) is None
    assert rows.by(tx, remark="oak") == Shelf(1, "a", "oak")
    rows.insert(tx, [Shelf(3, "c", "oak")])
    with pytest.raises(exc.MultipleResultsFound):
        rows.by(tx, remark="oak")


def test_what_is_not_there_is_none_or_refused(tx: Tx) -> None:
    rows = Rows(Shelf, SHELVES, noun="shelf")
    assert (rows.get(tx, 1), rows.by_name(tx, "a"), rows.remove(tx, 1)) == (None, None, False)
    with pytest.raises(Refused) as refused:
        rows.named(tx, "a", "shelf")
    assert (refused.value.field, str(refused.value)) == ("shelf", "there is no shelf 'a'")


def test_a_claim_is_won_once_until_it_expires_or_is_shortened(tx: Tx) -> None:
    rows = Rows(Shelf, SHELVES)
    made = rows.add(tx, name="a", remark=None)
    assert rows.claim(tx, 1, "s1", 10.0, 20.0, SHELVES.c.attempts == 0) == made
    assert rows.claim(tx, 1, "s2", 19.0, 30.0) is None
    rows.shorten(tx, "s1", 12.0)
    assert rows.claim(tx, 1, "s2", 12.0, 30.0, SHELVES.c.attempts == 0) is None  # it is 1
    assert rows.claim(tx, 1, "s2", 12.0, 30.0, remark="mine") == Shelf(1, "a", "mine")


class Work(NamedTuple):
    """A record of the same table with its claim."""

    id: int
    remark: str | None
    attempts: int
    claimed_by: str | None


def test_a_claim_that_was_taken_over_settles_nothing(tx: Tx) -> None:
    rows = Rows(Work, SHELVES)
    rows.add(tx, name="a")
    first = rows.claim(tx, 1, "s1", 10.0, 20.0)
    second = rows.claim(tx, 1, "s2", 20.0, 30.0)
    assert first == Work(1, None, 1, "s1")
    assert second == Work(1, None, 2, "s2")
    assert not rows.settle(tx, first, remark="late")
    assert rows.settle(tx, second, remark="done")
    assert rows.get(tx, 1) == Work(1, "done", 2, None)


class Pair(NamedTuple):
    """A record of a table that takes two columns to tell its rows apart."""

    left: int
    right: int


def test_no_row_is_meant_by_half_of_its_key(tx: Tx) -> None:
    pairs = Table(
        "pairs",
        MetaData(),
        Column("left", Integer, primary_key=True),
        Column("right", Integer, primary_key=True),
    )
    pairs.create(tx)
    rows = Rows(Pair, pairs)
    rows.insert(tx, [Pair(1, 1), Pair(1, 2)])
    with pytest.raises(ValueError, match="too many values"):
        rows.remove(tx, 1)
    with pytest.raises(ValueError, match="too many values"):
        rows.set(tx, 1, right=3)
    assert rows.every(tx, order=pairs.c.right) == [Pair(1, 1), Pair(1, 2)]
    assert rows.exists(tx, pairs.c.right == 2)
    assert not rows.exists(tx, pairs.c.right == 3)
    assert rows.count(tx, pairs.c.left == 1) == 2


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((), "Shelf.remark: there is no such column in shelves"),
        ((Column("remark", Integer),), "Shelf.remark is str | None, its column in shelves int or"),
        ((Column("remark", String(8), nullable=False),), "its column in shelves str"),
    ],
)
def test_a_field_without_a_column_that_fits_is_refused(
    columns: tuple[Column[object], ...], said: str
) -> None:
    with pytest.raises(Mismatch, match=said.replace("|", r"\|")):
        Rows(Shelf, table(*columns))


@record(frozen=True, slots=True)
class RemarkedNode(Node):
    """A node with a field more."""

    remark: str = ""


def test_a_remark_on_nodes_takes_a_column_and_a_field() -> None:
    copy = MetaData()
    for table in t.metadata.sorted_tables:
        table.to_metadata(copy)
    nodes = copy.tables["nodes"]
    with pytest.raises(Mismatch, match=re.escape("RemarkedNode.remark: there is no such column")):
        Rows(RemarkedNode, nodes)
    nodes.append_column(Column("remark", String(80), nullable=False, default=""))
    rows = Rows(RemarkedNode, nodes)
    engine = create_engine("sqlite://")
    with engine.begin() as tx:
        copy.create_all(tx)
        values = dict(name="n1", boot_mac="02:00:00:00:00:01", state="new", since=1.0)
        rows.add(tx, **values, disk="foreign", remark="loud fan")
        assert rows.named(tx, "n1").remark == "loud fan"
    engine.dispose()


def test_no_module_of_the_store_lists_a_records_columns_by_hand() -> None:
    store = Path(__file__).resolve().parents[2] / "cod/store"
    listing = re.compile(r"\bfields\(|__dataclass_fields__")
    assert [
        path.name for path in sorted(store.rglob("*.py")) if listing.search(path.read_text())
    ] == []
