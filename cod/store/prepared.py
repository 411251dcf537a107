"""Statements that are made once and go to the driver as they are.

SQLAlchemy works out parameters and results anew whenever it executes a statement, also one that it
has compiled. That takes it 80 µs, where SQLite finds a row in 5. A `Prepared` keeps the text, the
order of its parameters, and the conversions of those types that have any.

What one relies on elsewhere stays: errors are SQLAlchemy's, and its listeners are told of them
(`handle_error`) and of statements (`before_cursor_execute`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Delete,
    Dialect,
    Insert,
    SelectBase,
    Table,
    Text,
    TypeDecorator,
    Update,
    bindparam,
    exc,
    insert,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from cod.store.engine import Tx

Values = Mapping[str, Any]
Row = tuple[Any, ...]
NOTHING: Values = {}
_Converter = Callable[[Any], Any]
_Readers = Sequence[tuple[int, _Converter]]  # of columns by their places


class Among(FunctionElement[bool]):
    """The condition that a column has one of the values in the parameter `name`, a list or tuple.

    SQLite gets the values as one JSON text: SQLAlchemy would make a parameter of each, which takes
    it longer than SQLite takes to look the row up. No type is told: it would write `= 1` behind a
    condition of type Boolean, for which no index is used."""

    inherit_cache = True

    def __init__(self, column: ColumnElement[Any], name: str) -> None:
        super().__init__(column, bindparam(name, expanding=True))


@compiles(Among)
def _among(element: Among, compiler: Any, **how: Any) -> str:
    column, values = element.clauses
    text: str = compiler.process(column.in_(values), **how)
    return text


class _JsonList(TypeDecorator[Any]):
    """Values for `json_each`, which cuts a text off at a NUL: 'n1\\0x' would find the row 'n1'."""

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
    """A statement as a driver takes it.

    sources    the names of its parameters, in their order
    named      whether the driver wants them with their names
    fixed      values that the statement or its table gives
    converted  what makes parameters into what is stored, by name
    read       what makes columns into what is told, by place
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
    """A statement whose values are parameters with names (`bindparam`), or the columns that an
    INSERT or UPDATE sets. Values that it lacks are those that the statement or its table gives; a
    KeyError if there are none."""

    def __init__(self, statement: SelectBase | Insert | Update | Delete) -> None:
        self._statement = statement
        self._forms: dict[tuple[Any, ...], _Form] = {}

    def rows(self, tx: Tx, values: Values = NOTHING) -> list[Row]:
        """Return the rows that it finds."""
        text, given, read = self._filled(tx, values)
        found: list[Row] = list(run(tx, text, given, rows=True))
        return [_read(row, read) for row in found] if read else found

    def row(self, tx: Tx, values: Values = NOTHING) -> Row | None:
        """Return the one row that it finds; None: there is none. MultipleResultsFound: there are
        more."""
        found = self.rows(tx, values)
        if len(found) > 1:
            raise exc.MultipleResultsFound(f"{len(found)} rows, of which there is to be one")
        return found[0] if found else None

    def value(self, tx: Tx, values: Values = NOTHING) -> Any:
        """Return the first column of the first row that it finds; None: there is none."""
        return next((row[0] for row in self.rows(tx, values)), None)

    def write(self, tx: Tx, values: Values = NOTHING) -> int:
        """Return how many rows it wrote, or found as they should be."""
        text, given, _ = self._filled(tx, values)
        count: int = run(tx, text, given).rowcount
        return count

    def add(self, tx: Tx, values: Values) -> int:
        """Insert a row, and return the number that it was given."""
        text, given, _ = self._filled(tx, values)
        number: int = run(tx, text, given).lastrowid
        return number

    def write_all(self, tx: Tx, rows: Sequence[Values]) -> int:
        """Run it for each of the rows of values, all with the same names; return as of `write`."""
        if not rows:
            return 0
        filled = [self._filled(tx, each) for each in rows]
        count: int = run(tx, filled[0][0], [given for _, given, _ in filled], many=True).rowcount
        return count

    def _filled(self, tx: Tx, values: Values) -> tuple[str, Any, _Readers]:
        """Return the text, its parameters, and what makes columns into what is told."""
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
    """Return the INSERT of a row of a table."""
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
    if lists and lists.isdisjoint(names):  # lists that the statement gives: made once, too
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
    """Return a statement's text, values, converters and the order of its parameters, with one of
    these for each value of a list."""
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
    """Return the driver's cursor after the statement, or the `rows` that it finds."""
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
        # the one way by which SQLAlchemy gives the error its class and tells its listeners of it
        tx._handle_dbapi_exception(error, text, values, cursor, None)
