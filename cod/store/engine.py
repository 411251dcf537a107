"""Transactions and their statements: how a transaction begins, statements that are compiled once
and then go directly to the driver, long lists of values, parts that are undone, and which errors
merit a retry.

SQLAlchemy processes parameters and results anew whenever it executes a statement, even a compiled
one. That takes 80 µs, while SQLite finds a row in 5 µs. A `Prepared` keeps the text of the
statement, the order of its parameters, and the conversions of those types that have any. For other
code nothing differs: errors have SQLAlchemy's classes, and its listeners are told of errors
(`handle_error`) and of statements (`before_cursor_execute`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Dialect,
    Insert,
    Select,
    SelectBase,
    Table,
    Text,
    TypeDecorator,
    Update,
    bindparam,
    exc,
    insert,
)
from sqlalchemy import (
    Engine as Engine,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

Key = TypeVar("Key")
Tx = Connection
"""A transaction in progress. Only `cod.pool` (and the tests) begins, commits and rolls back."""

Values = Mapping[str, Any]
Row = tuple[Any, ...]
NOTHING: Values = {}
_Converter = Callable[[Any], Any]
_Readers = Sequence[tuple[int, _Converter]]  # (place of a column, its converter)

# server away, connection cut, server shutting down
LOST = (2002, 2003, 2006, 2013, 2055, 1053, 1077, 1927)
# A node of Galera that is not ready or has no quorum; a replica, or a writer that has become one:
# the connection works, and another one, made anew, may lead to the writer. A node that loses its
# quorum before a commit refuses that by 1180.
NO_WRITER = (1047, 1180, 1290, 1836)
_RETRY = (1205, 1213)  # lock wait timeout, deadlock; with Galera also a failed certification
_FULL = (1021, 1114)  # the disk, a table's file


# ---------------------------------------------------------------- transactions


def begin_sqlite(connection: Connection) -> None:
    """Send the BEGIN of a transaction, which SQLAlchemy leaves to the driver."""
    # A deferred BEGIN that later wants to write can fail without waiting; IMMEDIATE queues up
    # front.
    reading = connection.get_execution_options().get("reading")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def of_one_moment(engine: Engine) -> Engine:
    """Return the engine for transactions that only read. Each sees the database as it was at one
    moment. Writers do not wait for them."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(reading=True)
    # otherwise each statement of a MariaDB transaction sees the commits before it
    return engine.execution_options(reading=True, isolation_level="REPEATABLE READ")


@contextmanager
def snapshot(engine: Engine) -> Iterator[Tx]:
    """Provide a transaction that only reads and sees the database as it was at one moment. It locks
    no row, and may pause between statements for hours, as a backup does."""
    with of_one_moment(engine).begin() as tx:
        if engine.dialect.name != "sqlite":
            tx.exec_driver_sql(
                "SET wait_timeout = 28800 /*M!100300 , idle_transaction_timeout = 0 */"
            )
        yield tx


@contextmanager
def savepoint(tx: Tx, *, keep: bool = True) -> Iterator[None]:
    """Run a part of a transaction by itself. If the part raises, its writes are undone, and the
    rest of the transaction stays. `keep`: its writes stay if it does not raise."""
    part = tx.begin_nested()
    try:
        yield
    except Exception as error:
        # after a deadlock the database has no savepoint any more, and would say so instead
        if not is_retryable(error):
            part.rollback()
        raise
    if keep:
        part.commit()
    else:
        part.rollback()


def trial(tx: Tx) -> AbstractContextManager[None]:
    """Run a part of a transaction for its result alone. Its writes are undone."""
    return savepoint(tx, keep=False)


# ---------------------------------------------------------------- statements that are made once


class Among(FunctionElement[bool]):
    """The condition that a column has one of the values in the parameter `name`, a list or tuple.

    SQLite gets the values as one JSON text, because SQLAlchemy takes longer to make a parameter of
    each value than SQLite takes to find the row. The condition has no type: behind a condition of
    type Boolean, SQLAlchemy would write `= 1`, and no index would be used."""

    inherit_cache = True

    def __init__(self, column: ColumnElement[Any], name: str) -> None:
        super().__init__(column, bindparam(name, expanding=True))


@compiles(Among)
def _among(element: Among, compiler: Any, **how: Any) -> str:
    column, values = element.clauses
    text: str = compiler.process(column.in_(values), **how)
    return text


class _JsonList(TypeDecorator[Any]):
    """A list of values as JSON text for `json_each`. Values with a NUL are left out: `json_each`
    cuts a text off there, so that 'n1\\0x' would find the row 'n1'."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        text = json.dumps(value)
        if r"\u0000" in text:
            text = json.dumps([one for one in value if "\0" not in str(one)])
        return text


@compiles(Among, "sqlite")
def _among_json(element: Among, compiler: Any, **how: Any) -> str:
    column, values = element.clauses
    text = compiler.process(bindparam(values.key, type_=_JsonList()), **how)
    return f"{compiler.process(column, **how)} IN (SELECT value FROM json_each({text}))"


class _Form(NamedTuple):
    """A statement in the form that a driver takes.

    sources    names of the parameters, in their order
    named      whether the driver takes parameters by name
    fixed      values that the statement or its table gives
    converted  converters of parameters to stored values, by name
    read       converters of the result's columns, by place
    expands    makes text and parameters for lists of values; None: the text is always the same
    """

    text: str
    sources: Sequence[str]
    named: bool
    fixed: Values
    converted: Mapping[str, _Converter]
    read: _Readers
    expands: SQLCompiler | None


class Prepared:
    """A statement whose parameters have names: those of its `bindparam`, or of the columns that an
    INSERT or UPDATE sets. A parameter without a value gets the value that the statement or its
    table gives; a KeyError is raised if there is none."""

    def __init__(self, statement: SelectBase | Insert | Update | Delete) -> None:
        self._statement = statement
        self._forms: dict[tuple[Any, ...], _Form] = {}

    def rows(self, tx: Tx, values: Values = NOTHING) -> list[Row]:
        """Return the rows that the statement finds."""
        text, given, read = self._filled(tx, values)
        found: list[Row] = list(run(tx, text, given, rows=True))
        return [_read(row, read) for row in found] if read else found

    def row(self, tx: Tx, values: Values = NOTHING) -> Row | None:
        """Return the only row that the statement finds; None if there is none. Raises
        MultipleResultsFound if there are several."""
        found = self.rows(tx, values)
        if len(found) > 1:
            raise exc.MultipleResultsFound(f"{len(found)} rows, of which there is to be one")
        return found[0] if found else None

    def value(self, tx: Tx, values: Values = NOTHING) -> Any:
        """Return the first column of the first row that the statement finds; None if there is no
        row."""
        return next((row[0] for row in self.rows(tx, values)), None)

    def write(self, tx: Tx, values: Values = NOTHING) -> int:
        """Execute the statement; return how many rows it wrote, including those that had the new
        values already."""
        text, given, _ = self._filled(tx, values)
        count: int = run(tx, text, given).rowcount
        return count

    def add(self, tx: Tx, values: Values) -> int:
        """Insert a row, and return the id that the database gave to it."""
        text, given, _ = self._filled(tx, values)
        number: int = run(tx, text, given).lastrowid
        return number

    def write_all(self, tx: Tx, rows: Sequence[Values]) -> int:
        """Execute the statement for each of `rows`, all of which have the same names; return the
        number of rows as `write` does."""
        if not rows:
            return 0
        filled = [self._filled(tx, each) for each in rows]
        [text] = {text for text, _, _ in filled}
        count: int = run(tx, text, [given for _, given, _ in filled], many=True).rowcount
        return count

    def _filled(self, tx: Tx, values: Values) -> tuple[str, Any, _Readers]:
        """Return the text, its parameters, and the converters of the result's columns."""
        key = (tx.dialect.name, *values)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _form(self._statement, tuple(values), tx.dialect)
        text, sources, converted = form.text, form.sources, form.converted
        if form.fixed:
            values = {**form.fixed, **values}
        if form.expands is not None:
            text, values, more, sources = _expanded(form.expands, values)
            converted = {**converted, **more}
        given = [*map(values.__getitem__, sources)]
        if converted:
            for place, name in enumerate(sources):
                if name in converted:
                    given[place] = converted[name](given[place])
        named = dict(zip(sources, given, strict=True)) if form.named else tuple(given)
        return text, named, form.read


@cache
def inserting(table: Table) -> Prepared:
    """Return the INSERT of a row into a table."""
    return Prepared(insert(table))


def _form(
    statement: SelectBase | Insert | Update | Delete, names: tuple[str, ...], dialect: Dialect
) -> _Form:
    compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
    text, sources = compiled.string, compiled.positiontup or list(compiled.bind_names.values())
    defaults = {column.key: column.default.arg for column in compiled.insert_prefetch}
    fixed, converted = dict[str, Any](), dict[str, _Converter]()
    for name in sources:
        bind = compiled.binds[name]
        if name in defaults:
            fixed[name] = defaults[name]
        elif name not in names:
            if bind.required:
                raise KeyError(name)
            fixed[name] = bind.effective_value
        convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
        if convert is not None:
            converted[name] = convert
    lists = {bind.key for bind in compiled.post_compile_params}
    if lists and lists.isdisjoint(names):  # the statement gives the lists: expand them once
        text, fixed, more, sources = _expanded(compiled, {**dict.fromkeys(names), **fixed})
        converted |= more
    columns = statement.selected_columns if isinstance(statement, SelectBase) else ()
    read = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
    return _Form(
        text,
        sources,
        compiled.positiontup is None,
        fixed,
        converted,
        [(place, each) for place, each in enumerate(read) if each is not None],
        None if lists.isdisjoint(names) else compiled,
    )


def _expanded(
    compiled: SQLCompiler, values: Values
) -> tuple[str, dict[str, Any], Mapping[str, _Converter], Sequence[str]]:
    """Return a statement's text, values, converters and the order of its parameters, with one
    parameter for each value of a list."""
    made = compiled.construct_expanded_state(dict(values))
    of_lists = made.parameter_expansion
    sources = made.positiontup or [name for name in made.parameters if name not in of_lists]
    return made.statement, dict(made.parameters), made.processors, sources


def _read(row: Row, converters: _Readers) -> Row:
    made = list(row)
    for place, convert in converters:
        made[place] = convert(made[place])
    return tuple(made)


def run(tx: Tx, text: str, values: Any, *, many: bool = False, rows: bool = False) -> Any:
    """Execute the statement; return the driver's cursor, or with `rows` the rows found. With `many`
    the statement is executed for each of a list of values."""
    if not tx.in_transaction():
        tx.begin()
    cursor = tx.connection.cursor()
    for listener in tx.dispatch.before_cursor_execute:
        text, values = listener(tx, cursor, text, values, None, many)
    try:
        (cursor.executemany if many else cursor.execute)(text, values)
        # SQLite looks for later rows only as they are fetched
        return cursor.fetchall() if rows else cursor
    except tx.dialect.loaded_dbapi.Error as error:
        # only this method gives the error SQLAlchemy's class and tells the listeners of the error
        tx._handle_dbapi_exception(error, text, values, cursor, None)


# ---------------------------------------------------------------- results, and long lists


def new_id(inserted: CursorResult[Any]) -> int:
    """Return the id that the database gave to the one row just inserted."""
    key = inserted.inserted_primary_key
    assert key is not None
    return int(key[0])


def slices(ids: Sequence[Key], size: int = 500) -> Iterable[Sequence[Key]]:
    """Return a long list in parts, because SQLite and MariaDB both limit the parameters of a
    statement."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def rows_among(
    tx: Tx, query: Select[Any], column: ColumnElement[Any], values: Iterable[Key]
) -> Iterator[Any]:
    """Yield the rows of `query` whose `column` has one of any number of values. One statement reads
    each of the `slices` of the values, and orders and groups only the rows of that slice."""
    for part in slices(list(values)):
        yield from tx.execute(query.where(column.in_(part))).all()


def grouped(rows: Iterable[Any]) -> dict[Any, list[Any]]:
    """Return lists of the rows' second columns by their first column, in the rows' order."""
    found: dict[Any, list[Any]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found


def nested(rows: Iterable[Any]) -> dict[Any, dict[Any, Any]]:
    """Return the rows' third columns by their first and second columns."""
    found: dict[Any, dict[Any, Any]] = {}
    for outer, inner, value in rows:
        found.setdefault(outer, {})[inner] = value
    return found


# ---------------------------------------------------------------- errors


class NoWriter(exc.OperationalError):
    """No host of the database is known to be its writer. Nothing was committed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(None, None, Exception(sentence))


def is_lost(error: BaseException) -> bool:
    """Return whether the connection broke, so that the outcome of a commit is unknown and a new
    connection may help."""
    if not isinstance(error, exc.DBAPIError):
        return False
    return bool(error.connection_invalidated) or code(error) in LOST


def is_retryable(error: BaseException) -> bool:
    """Return whether running the same flow again is likely to succeed: a deadlock, a lock wait, a
    busy or lost database."""
    if not isinstance(error, exc.DBAPIError):
        return False
    return (
        is_lost(error)
        or isinstance(error, NoWriter)
        or code(error) in (*_RETRY, *NO_WRITER)
        or "database is locked" in str(error.orig)
    )


def is_full(error: BaseException) -> bool:
    """Return whether the database's disk has no room."""
    return isinstance(error, exc.DBAPIError) and (
        code(error) in _FULL or "database or disk is full" in str(error.orig)
    )


def code(error: exc.DBAPIError) -> int | None:
    """Return MariaDB's number of the error; None if it has none."""
    return number(error.orig)


def number(error: BaseException | None) -> int | None:
    """Return MariaDB's number of an error of its driver; None if it has none."""
    args = getattr(error, "args", ())
    return args[0] if args and isinstance(args[0], int) else None
