"""Columns, facts and options of a noun, made from the descriptions of its record's fields
(`model.described`)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any

import click

from cod.cli.output import EVERYTHING, NARROW, WIDE, Column, Table
from cod.cli.show import (
    MOMENT,
    SIZE,
    SPAN,
    SPAN_OR_ZERO,
    WORD_LIST,
    Option,
    size,
    state_word,
    watched,
    watching,
    when,
    with_table,
)
from cod.model.described import FieldKind, FieldLevel, RecordField, described
from cod.quantity import exact_span

Columns = tuple[str | tuple[str, Callable[[Any], object]], ...]
"""Columns that come first, in this order: the name of a field, or the title of a column that is no
field. A function with the name returns the column's words from the whole value."""


def word(field: RecordField, value: Any) -> object:
    """Return a field's value in words; None for no value."""
    if value is None:
        return None
    match field.about.kind:
        case FieldKind.SPAN:
            return exact_span(value)
        case FieldKind.SIZE:
            return size(value)
        case FieldKind.MOMENT:
            return when(value)
        case FieldKind.STATE:
            return state_word(value)
        case FieldKind.FLAG:
            return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def fields_table(record: type, values: Iterable[Any], columns: Columns = ()) -> Table:
    """Return a table of the API's values. It has `columns`, and a column for each other field that
    lists show; further fields appear in wide tables and in CSV."""
    made = list(_columns(record, columns, _word_in, tuple(FieldLevel)))
    return Table(made, values, capitals=True)


def facts(
    record: type,
    value: Any,
    columns: Columns = (),
    levels: Container[FieldLevel] = tuple(FieldLevel),
) -> list[tuple[str, object]]:
    """Return (label, words) for `columns`, and for each other field of these levels, of a value of
    the API. A null value has the words for null."""
    return [
        (each.title, each.make(value)) for each in _columns(record, columns, _word_or_null, levels)
    ]


_LEVELS = {FieldLevel.LIST: NARROW, FieldLevel.WIDE: WIDE, FieldLevel.DETAIL: EVERYTHING}


def _columns(
    record: type,
    columns: Columns,
    make_word: Callable[[RecordField, Any], object],
    levels: Container[FieldLevel],
) -> Iterator[Column]:
    """Yield `columns`, and a column for each other field of these levels."""
    fields = {each.name: each for each in described(record)}

    def of(field: RecordField, level: int, by_hand: Callable[[Any], object] | None) -> Column:
        make = by_hand or partial(make_word, field)
        return Column(field.about.label, make, partial(_exact_in, field), field.name, level)

    for column in columns:
        name, by_hand = (column, None) if isinstance(column, str) else column
        field = fields.pop(name, None)
        if field is not None:
            yield of(field, NARROW, by_hand)
        elif by_hand is not None:
            yield Column(name, by_hand)
    for field in fields.values():
        if field.about.level in levels:
            yield of(field, _LEVELS[field.about.level], None)


def _word_in(field: RecordField, value: Any) -> object:
    """Return the words of a field of a value. The field may be in a part of the value."""
    return word(field, _value_in(field, value))


def _value_in(field: RecordField, value: Any) -> Any:
    part = field.about.part
    return value[part][field.name.removeprefix(f"{part}_")] if part else value[field.name]


def _word_or_null(field: RecordField, value: Any) -> object:
    """Return the words of a field, or the meaning of null. The null of a closed field has no words,
    because it may mean that the field is hidden from the caller."""
    word = _word_in(field, value)
    means = None if field.about.closed else field.about.none or None
    return means if word is None else word


# ---------------------------------------------------------------- lists

Show = Callable[..., None]
"""Prints the list that a function fetches, with these columns first: `show(ask, COLUMNS)`."""


def lists(record: type, *, watch: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Make a command that lists a record. The command is called with the context and with a `Show`,
    which obeys the options of `with_table` and, with `watch`, `--watch`. These options are added.
    """

    def make(command: Callable[..., None]) -> Any:
        @wraps(command)
        def run(ctx: click.Context, /, watch: bool = False, **only: Any) -> None:
            def show(ask: Callable[[], list[Any]], columns: Columns = ()) -> None:
                watched(ask, partial(fields_table, record, columns=columns), watch)

            command(ctx, show, **only)

        made = with_table(run)
        return watching(made) if watch else made

    return make


def _exact_in(field: RecordField, value: Any) -> object:
    text = _value_in(field, value)
    if field.about.kind is FieldKind.MOMENT and text is not None:
        return datetime.fromtimestamp(text, UTC)
    return ", ".join(text) if isinstance(text, list) else text


# ---------------------------------------------------------------- options that set fields


class OrNone(click.ParamType[Any]):
    """A value of another type, or 'none' (or another word for null)."""

    def __init__(self, other: click.ParamType[Any], null: str = "none") -> None:
        self.name, self._other, self._null = other.name, other, null

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return 'none' unchanged, and any other text as the other type."""
        return value if value == self._null else self._other.convert(value, param, ctx)


def set_options(
    record: type, *, new: bool = False, without: Container[str] = ()
) -> Callable[[Option], Option]:
    """Add an option for each field that people may set, but for those in `without`. For a `new`
    thing, the API's default applies to an option that is left out. For an existing thing, 'none'
    sets a field to null."""

    def add(command: Option) -> Option:
        for field in reversed(described(record)):
            if field.about.set_by is not None and field.name not in without:
                command = _make_option(field, new)(command)
        return command

    return add


def body_of(record: type, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request from the options that `set_options` has added."""
    nulls = {each.name: each.about.null for each in described(record) if each.clears}
    return {
        "name" if name == "new_name" else name: None if value == nulls.get(name) else value
        for name, value in asked.items()
        if value is not None
    }


def options_named(record: type, *more: str) -> str:
    """Return the options that set something, and `more`, as a list in a sentence."""
    options = [_option(each.name) for each in described(record) if each.about.set_by is not None]
    *others, last = *options, *more
    return f"{', '.join(others)} or {last}" if others else last


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _make_option(field: RecordField, new: bool) -> Callable[[Option], Option]:
    if field.type is bool:
        name = field.name.replace("_", "-")
        return click.option(f"--{name}/--no-{name}", default=None, help=_help(field, new))
    names = [_option(field.name)] + (["new_name"] if field.name == "name" else [])
    return click.option(*names, type=_type(field, new), help=_help(field, new))


def _type(field: RecordField, new: bool) -> click.ParamType[Any]:
    null = [field.about.null] if field.clears and not new else []
    if field.choices and not field.several:
        return click.Choice([*field.choices, *null])
    return OrNone(_value_type(field), *null) if null else _value_type(field)


def _value_type(field: RecordField) -> click.ParamType[Any]:
    if field.several:
        return WORD_LIST
    match field.about.kind:
        case FieldKind.SPAN:
            return SPAN_OR_ZERO if field.about.least == 0 else SPAN
        case FieldKind.SIZE:
            return SIZE
        case FieldKind.MOMENT:
            return MOMENT
    numbers: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT}
    return numbers.get(field.type, click.STRING)


def _help(field: RecordField, new: bool) -> str:
    about = field.about
    text = about.about[:1].upper() + about.about[1:]
    text += f", such as {about.example}" if about.example else ""
    if about.none and not new:
        text += f"; {about.null if field.clears else repr('')}: {about.none}"
    return f"{text}." + (f" [default: {about.none}]" if about.none and new else "")
