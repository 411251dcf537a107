"""Rows of a table as records of a class.

A field of a record is read from the column of the same name, so a new plain column is named in its
table, its migration and its record, and nowhere else in the store. `Rows` compares record and table
when it is made, which is at import, and raises `Mismatch` if they disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import chain
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from sqlalchemy import (
    ClauseElement,
    Column,
    ColumnElement,
    Dialect,
    FromClause,
    Select,
    Table,
    Update,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import mysql, sqlite

from cod.model import Refused
from cod.store.engine import (
    NOTHING,
    Among,
    Key,
    Prepared,
    Row,
    Tx,
    Values,
    inserting,
    rows_among,
    run,
    slices,
)

Record = TypeVar("Record")
Order = ColumnElement[Any] | tuple[ColumnElement[Any], ...]


class Mismatch(Exception):
    """A record has a field for which its table has no column, or a column of another type."""


class Rows(Generic[Record]):
    """The rows of a table as records of one class: a dataclass or a NamedTuple.

    columns  the columns of the record's fields, in the fields' order; `select` reads them
    width    number of the columns; `names`: names of the fields
    values   returns the values of a record, in that order

    Methods with `key` are for tables whose primary key is one column. Methods with `lock` lock the
    rows until the transaction ends.
    """

    def __init__(
        self,
        record: type[Record],
        table: Table,
        *,
        noun: str = "",
        name: str = "name",
        elsewhere: Mapping[str, ColumnElement[Any]] | None = None,
        source: FromClause | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Find the columns of the record's fields.

        noun       the word for a row, in errors about a missing one
        name       the column of the row's name
        elsewhere  the columns of fields that are not of the table, from `source`, which joins the
                   table with others
        without    the record's last fields that are not read

        Raises `Mismatch`.
        """
        self._record: Callable[..., Record] = record
        self._table, self._noun = table, noun
        foreign = elsewhere or {}
        kinds = get_type_hints(record)
        names = [field for field in kinds if field not in without]
        self.columns = [
            foreign[field] if field in foreign else _column(table, record, field, kinds[field])
            for field in names
        ]
        self.width = len(self.columns)
        self.names, self.values = names, attrgetter(*names)
        self._places = {name: place for place, name in enumerate(names)}
        self.select: Select[Any] = select(*self.columns)
        if source is not None:
            self.select = self.select.select_from(source)
        self._locked = table if source is not None else None  # the only table locked in a join
        self._look_ups: dict[tuple[str | bool, ...], Prepared] = {}
        self._name = name

    @cached_property
    def _key(self) -> Column[Any]:
        """The column of the primary key. Raises ValueError if the key has several columns."""
        [column] = self._table.primary_key
        return column

    @cached_property
    def _all_locked(self) -> Prepared:
        """The locking SELECT of the rows with the keys in the parameter `keys`."""
        among = self.select.where(Among(self._key, "keys")).order_by(self._key)
        return Prepared(among.with_for_update(of=self._locked))

    @cached_property
    def _update_by_key(self) -> Update:
        """The UPDATE of the row whose key is the parameter `of_key`."""
        return update(self._table).where(self._key == bindparam("of_key"))

    @cached_property
    def _set_by_key(self) -> Prepared:
        return Prepared(self._update_by_key)

    @cached_property
    def _delete_by_key(self) -> Prepared:
        """The DELETE of the row whose key is the parameter `of_key`."""
        return Prepared(delete(self._table).where(self._key == bindparam("of_key")))

    def _look_up(self, tx: Tx, values: Values, lock: bool) -> Row | None:
        """Return the row with these values; its statement is made once for the columns."""
        found = self._look_ups.get((lock, *values))
        if found is None:
            query = self.select.where(*(self._table.c[name] == bindparam(name) for name in values))
            found = Prepared(query.with_for_update(of=self._locked) if lock else query)
            self._look_ups[lock, *values] = found
        return found.row(tx, values)

    # ------------------------------------------------------------ reading

    def read(self, row: Any, start: int = 0) -> Record:
        """Return the record whose columns begin at `start` of a row."""
        return self._record(*row[start : start + self.width])

    def with_rest(self, row: Any) -> tuple[Record, Sequence[Any]]:
        """Return the record that a row begins with, and the row's other values."""
        return self._record(*row[: self.width]), row[self.width :]

    def all(self, tx: Tx, query: Select[Any] | Prepared, values: Values = NOTHING) -> list[Record]:
        """Return the records that `query`, made of `select`, finds with the parameters `values`."""
        record = self._record
        if isinstance(query, Prepared):
            return [record(*row) for row in query.rows(tx, values)]
        return [record(*row) for row in tx.execute(query, values).all()]  # faster than row by row

    def every(
        self,
        tx: Tx,
        *where: ColumnElement[bool],
        order: Order = (),
        limit: int | None = None,
        lock: bool = False,
    ) -> list[Record]:
        """Return the records of the rows that meet all conditions, in that order."""
        query = self.select.where(*where).limit(limit)
        query = query.order_by(*order) if isinstance(order, tuple) else query.order_by(order)
        return self.all(tx, query.with_for_update(of=self._locked) if lock else query)

    def among(
        self,
        tx: Tx,
        column: ColumnElement[Any],
        values: Iterable[Key],
        *where: ColumnElement[bool],
    ) -> list[Record]:
        """Return the records whose `column` has one of any number of values, and that meet all
        conditions."""
        rows = rows_among(tx, self.select.where(*where), column, values)
        return [self._record(*row) for row in rows]

    def find(
        self, tx: Tx, *where: ColumnElement[bool], order: Order = (), lock: bool = False
    ) -> Record | None:
        """Return the first record that meets all conditions; None if there is none."""
        return next(iter(self.every(tx, *where, order=order, limit=1, lock=lock)), None)

    def lock(self, tx: Tx, keys: Iterable[int]) -> list[Record]:
        """Return the records with those keys, by key, with their rows locked."""
        return [
            one
            for part in slices(sorted(keys))
            for one in self.all(tx, self._all_locked, {"keys": part})
        ]

    def get(self, tx: Tx, key: int | str, *, lock: bool = False) -> Record | None:
        """Return the record with that key; None if there is none."""
        row = self._look_up(tx, {self._key.name: key}, lock)
        return None if row is None else self._record(*row)

    def known(self, tx: Tx, key: int | str, *, lock: bool = False) -> Record:
        """Return the record with that key. The record must exist, as another row refers to it."""
        row = self._look_up(tx, {self._key.name: key}, lock)
        assert row is not None
        return self._record(*row)

    def numbered(self, tx: Tx, number: int, field: str = "id", *, lock: bool = False) -> Record:
        """Return the record with that number; raises `Refused` as `named` does."""
        found = self.get(tx, number, lock=lock)
        if found is None:
            raise Refused("not_found", f"there is no {self._noun} {number}", field)
        return found

    def by(self, tx: Tx, *, lock: bool = False, **values: Any) -> Record | None:
        """Return the record with these values, none of them null, in columns that are unique
        together; None if there is none."""
        row = self._look_up(tx, values, lock)
        return None if row is None else self._record(*row)

    def by_name(self, tx: Tx, name: str, *, lock: bool = False) -> Record | None:
        """Return the record of that name; None if there is none."""
        row = self._look_up(tx, {self._name: name}, lock)
        return None if row is None else self._record(*row)

    def exists(self, tx: Tx, *where: ColumnElement[bool]) -> bool:
        """Return whether a row meets all conditions."""
        return (
            tx.scalar(select(literal(1)).select_from(self._table).where(*where).limit(1))
            is not None
        )

    def count(self, tx: Tx, *where: ColumnElement[bool]) -> int:
        """Return how many rows meet all conditions."""
        return tx.scalar(select(func.count()).select_from(self._table).where(*where)) or 0

    def named(self, tx: Tx, name: str, field: str = "name", *, lock: bool = False) -> Record:
        """Return the record of that name. Raises `Refused` ('not_found') if there is none; the
        error names `field` as the field of the client's request that is wrong."""
        found = self.by_name(tx, name, lock=lock)
        if found is None:
            raise Refused("not_found", f"there is no {self._noun} {name!r}", field)
        return found

    # ------------------------------------------------------------ writing

    def add(self, tx: Tx, **columns: Any) -> Record:
        """Add a row and return its record. Raises IntegrityError if a unique value exists
        already."""
        number = inserting(self._table).add(tx, columns)
        return self.known(tx, columns.get(self._key.name, number))

    def insert(self, tx: Tx, records: Collection[Record]) -> None:
        """Add a row for each of the records. Raises IntegrityError if a unique value exists
        already."""
        rows = [dict(zip(self.names, self.values(one), strict=True)) for one in records]
        insert_all(tx, self._table, rows)

    def set(self, tx: Tx, key: int | str, **columns: Any) -> None:
        """Set columns of the row with that key."""
        made = {name: each for name, each in columns.items() if isinstance(each, ClauseElement)}
        if made:  # expressions are parts of a statement of their own
            plain = {name: each for name, each in columns.items() if name not in made}
            tx.execute(self._update_by_key.values(**made), {**plain, "of_key": key})
        elif columns:
            self._set_by_key.write(tx, {**columns, "of_key": key})

    def set_where(self, tx: Tx, *where: ColumnElement[bool], **columns: Any) -> int:
        """Set columns of the rows that meet all conditions; return the number of rows."""
        return tx.execute(update(self._table).where(*where).values(**columns)).rowcount

    def change(self, tx: Tx, record: Record, **columns: Any) -> Record:
        """Set columns of the record's row. Return the new record."""
        self.set(tx, getattr(record, self._key.name), **columns)
        return self.changed(record, columns)

    def changed(self, record: Record, columns: Mapping[str, Any]) -> Record:
        """Return a copy of the record with other values in those columns. For records of many
        fields this is faster than `dataclasses.replace`."""
        values = list(self.values(record))
        for name, value in columns.items():
            values[self._places[name]] = value
        return self._record(*values)

    def replace(self, tx: Tx, record: Record) -> bool:
        """Overwrite the row that has the record's key; return whether there was such a row."""
        columns = dict(zip(self.names, self.values(record), strict=True))
        key = columns.pop(self._key.name)
        return self._set_by_key.write(tx, columns | {"of_key": key}) == 1

    def remove(self, tx: Tx, key: int | str) -> bool:
        """Delete the row with that key; return whether it existed."""
        return self._delete_by_key.write(tx, {"of_key": key}) == 1

    # ------------------------------------------------------------ claims of work

    def claim(
        self,
        tx: Tx,
        key: int | str,
        server: str,
        now: float,
        until: float,
        *where: ColumnElement[bool],
        count: str = "attempts",
        **columns: Any,
    ) -> Record | None:
        """Claim the row for `server` until `until`, add one to the column `count`, set `columns`,
        and return the record. Return None if another server has a valid claim, or if the row does
        not meet a condition."""
        c = self._table.c
        free = or_(c.claim_expires.is_(None), c.claim_expires <= now)
        columns |= {"claimed_by": server, "claim_expires": until, count: c[count] + 1}
        won = self.set_where(tx, self._key == key, free, *where, **columns)
        return self.known(tx, key) if won == 1 else None

    def settle(self, tx: Tx, record: Record, *where: ColumnElement[bool], **columns: Any) -> bool:
        """End the claim that `record` has of its row, and set the outcome. Return False, and set
        nothing, when the claim is no longer valid: its server or its count of attempts has
        changed."""
        own = (self._table.c[name] for name in (self._key.name, "claimed_by", "attempts"))
        mine = (column == getattr(record, column.name) for column in own)
        done = self.set_where(tx, *mine, *where, claimed_by=None, claim_expires=None, **columns)
        return done == 1

    def shorten(self, tx: Tx, server: str, until: float, *where: ColumnElement[bool]) -> None:
        """Let claims of `server` that last longer end at `until`."""
        c = self._table.c
        held = c.claimed_by == server, c.claim_expires > until
        self.set_where(tx, *held, *where, claim_expires=until)


def _column(table: Table, record: type[Any], field: str, kind: Any) -> ColumnElement[Any]:
    """Return the column of a record's field. Raises `Mismatch` if there is no such column, if its
    type differs from the field's, or if only one of the two can be null."""
    if field not in table.c:
        raise Mismatch(f"{record.__name__}.{field}: there is no such column in {table.name}")
    column = table.c[field]
    held = column.type.python_type
    is_union = get_origin(kind) in (Union, UnionType)
    kinds = {_held(each) for each in (get_args(kind) if is_union else (kind,))}
    if kinds != ({held, NoneType} if column.nullable else {held}):
        null = " or null" if column.nullable else ""
        raise Mismatch(
            f"{record.__name__}.{field} is {kind}, its column in {table.name} {held.__name__}{null}"
        )
    return column


def _held(kind: Any) -> Any:
    """Return the type in which a column stores a field of type `kind`: str for literals and string
    enums."""
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return str
    return get_origin(kind) or kind


# ---------------------------------------------------------------- many rows at once


def insert_all(tx: Tx, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each with the same columns; the other columns get their defaults. Raises
    IntegrityError if a unique value exists already."""
    inserting(table).write_all(tx, rows)


class RowChange(NamedTuple):
    """A change of one row: the row whose columns have the values `old` (None: null) gets the values
    `new`."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]


def update_all(tx: Tx, table: Table, changes: Iterable[RowChange]) -> int:
    """Make the changes and return how many of the rows existed. Each change is of one row, and no
    row may be changed twice: MariaDB would make only the first of its changes, SQLite all. Values
    go to the driver without the conversions of the columns' types, such as `Words`."""
    alike: dict[tuple[tuple[str, ...], ...], list[tuple[Any, ...]]] = {}
    for old, new in changes:
        known = {name: value for name, value in old.items() if value is not None}
        nulls = tuple(name for name in old if name not in known)
        values = (*new.values(), *known.values())
        alike.setdefault((tuple(new), tuple(known), nulls), []).append(values)
    found = 0
    for (names, known_names, nulls), rows in alike.items():
        if tx.dialect.name == "sqlite":
            text = _updating(table, names, known_names, nulls, tx.dialect)
            found += run(tx, text, rows, many=True).rowcount
        else:  # MariaDB's driver would send a statement for each of the rows
            for part in slices(rows):
                text = _joining(table, names, known_names, nulls, len(part), tx.dialect)
                found += run(tx, text, tuple(chain.from_iterable(part))).rowcount
    return found


@lru_cache(maxsize=64)
def _updating(
    table: Table,
    names: tuple[str, ...],
    known: tuple[str, ...],
    nulls: tuple[str, ...],
    dialect: Dialect,
) -> str:
    mark = _mark(dialect)
    set_ = ", ".join(f"{name} = {mark}" for name in _quoted(dialect, *names))
    conditions = [f"{name} = {mark}" for name in _quoted(dialect, *known)]
    conditions += [f"{name} IS NULL" for name in _quoted(dialect, *nulls)]
    [name] = _quoted(dialect, table.name)
    return f"UPDATE {name} SET {set_} WHERE {' AND '.join(conditions)}"


def _joining(
    table: Table,
    names: tuple[str, ...],
    known: tuple[str, ...],
    nulls: tuple[str, ...],
    count: int,
    dialect: Dialect,
) -> str:
    """Return the UPDATE of `count` rows, whose values follow one another. STRAIGHT_JOIN fixes the
    join's order: each row is looked up by its key, and no other row is locked."""
    [name] = _quoted(dialect, table.name)
    width = len(names) + len(known)
    first = ", ".join(f"{_mark(dialect)} AS v{place}" for place in range(width))
    later = f" UNION ALL SELECT {', '.join([_mark(dialect)] * width)}" * (count - 1)
    set_ = (f"{name}.{each} = v{n}" for n, each in enumerate(_quoted(dialect, *names)))
    conditions = [
        f"{name}.{each} = v{n}" for n, each in enumerate(_quoted(dialect, *known), len(names))
    ]
    conditions += [f"{name}.{each} IS NULL" for each in _quoted(dialect, *nulls)]
    return (
        f"UPDATE (SELECT {first}{later}) AS rows_ STRAIGHT_JOIN {name}"
        f" ON {' AND '.join(conditions)} SET {', '.join(set_)}"
    )


def _quoted(dialect: Dialect, *names: str) -> list[str]:
    return [dialect.identifier_preparer.quote(name) for name in names]


def _mark(dialect: Dialect) -> str:
    return "?" if dialect.paramstyle == "qmark" else "%s"


def found_in(tx: Tx, column: Column[Any], values: Sequence[Key]) -> set[Key]:
    """Return those of the values that some row has in the column."""
    return {
        one for part in slices(values) for (one,) in _finding(column).rows(tx, {"values": part})
    }


@lru_cache(maxsize=64)
def _finding(column: Column[Any]) -> Prepared:
    return Prepared(select(column).where(Among(column, "values")))


def remove_all(tx: Tx, column: Column[Any], values: Sequence[Key]) -> None:
    """Delete the rows that have one of the values in a column."""
    for part in slices(values):
        _removing(column).write(tx, {"values": part})


@lru_cache(maxsize=64)
def _removing(column: Column[Any]) -> Prepared:
    return Prepared(delete(column.table).where(Among(column, "values")))


def upsert(table: Table, *names: str, add: bool = False) -> dict[str, Prepared]:
    """Return, by dialect, the statement that inserts a row. If a row with its primary key exists,
    the statement sets that row's columns `names`; with `add` it adds to them."""
    lite, maria = sqlite.insert(table), mysql.insert(table)

    def new(given: Any) -> dict[str, Any]:
        return {name: table.c[name] + given[name] if add else given[name] for name in names}

    on_maria = maria.on_duplicate_key_update(new(maria.inserted))
    key = list(table.primary_key)
    on_lite = lite.on_conflict_do_update(index_elements=key, set_=new(lite.excluded))
    maria_too = Prepared(on_maria)
    return {"sqlite": Prepared(on_lite), "mysql": maria_too, "mariadb": maria_too}


def only(wanted: Mapping[Column[Any], object]) -> list[ColumnElement[bool]]:
    """Return the conditions that each column has its value. A column whose value is None gets no
    condition."""
    return [column == value for column, value in wanted.items() if value is not None]


def theirs(
    column: ColumnElement[int | None], groups: frozenset[int] | None
) -> list[ColumnElement[bool]]:
    """Return the condition, in a list, that the column names one of `groups`; None (all groups)
    gives an empty list."""
    return [] if groups is None else [column.in_(groups)]


def theirs_or_shared(
    column: ColumnElement[int | None], groups: frozenset[int] | None
) -> list[ColumnElement[bool]]:
    """Return the condition that an image or a template belongs to one of `groups` or to the site
    (null); none for None (all groups)."""
    return [] if groups is None else [column.is_(None) | column.in_(groups)]
