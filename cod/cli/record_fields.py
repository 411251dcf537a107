"""Columns, lines and options of a noun, made of what is written at its record's fields
(`model.described`)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from io import StringIO
from typing import Any

import click

from cod.cli.show import (
    MOMENT,
    SIZE,
    Option,
    Span,
    size,
    state_word,
    table,
    watched,
    watching,
    when,
)
from cod.cli.show import as_json as as_json_option
from cod.model.described import FieldKind, FieldLevel, RecordField, described
from cod.quantity import exact_span

Column = str | tuple[str, Callable[[Any], object]]
Columns = tuple[Column, ...]
"""Columns that come first, in this order: a field's name, with a function if its words are made by
hand of the whole value; or the title of a column that is no field."""


def word(field: RecordField, value: Any) -> object:
    """Return what people read for a field's value; None where there is none."""
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


def fields_table(
    record: type, values: Iterable[Any], columns: Columns = (), wide: bool = False
) -> Any:
    """Return a table of values as the API has them: `columns`, and one for each other field that
    lists show; with `wide` also what wide lists show."""
    levels = {FieldLevel.LIST, FieldLevel.WIDE} if wide else {FieldLevel.LIST}
    cells = _cells(record, columns, _word_in, levels)
    return table(
        [label.upper() for label, _ in cells], [[make(one) for _, make in cells] for one in values]
    )


def facts(
    record: type,
    value: Any,
    columns: Columns = (),
    levels: Container[FieldLevel] = tuple(FieldLevel),
) -> list[tuple[str, object]]:
    """Return lines for a value that the API has told: `columns`, and one for each other field of
    these levels; for null what it means."""
    return [(label, make(value)) for label, make in _cells(record, columns, _said, levels)]


def _cells(
    record: type,
    columns: Columns,
    make_word: Callable[[RecordField, Any], object],
    levels: Container[FieldLevel],
) -> list[tuple[str, Callable[[Any], object]]]:
    """Return labels, and functions that make the words of a value."""
    fields = {each.name: each for each in described(record)}
    found: list[tuple[str, Callable[[Any], object]]] = []
    for column in columns:
        name, by_hand = (column, None) if isinstance(column, str) else column
        field = fields.pop(name, None)
        if by_hand is not None:
            found.append((name if field is None else field.about.label, by_hand))
        elif field is not None:
            found.append((field.about.label, partial(make_word, field)))
    return found + [
        (each.about.label, partial(make_word, each))
        for each in fields.values()
        if each.about.level in levels
    ]


def _word_in(field: RecordField, value: Any) -> object:
    """Return the words of a field in a value, which may have it in a part of its own."""
    return word(field, _value_in(field, value))


def _value_in(field: RecordField, value: Any) -> Any:
    part = field.about.part
    return value[part][field.name.removeprefix(f"{part}_")] if part else value[field.name]


def _said(field: RecordField, value: Any) -> object:
    """Return the words of a field, or what null means; null of one that is closed may mean that
    who asks is not told."""
    told = _word_in(field, value)
    means = None if field.about.closed else field.about.none or None
    return means if told is None else told


# ---------------------------------------------------------------- lists

Show = Callable[..., None]
"""Prints the list that a function asks for, with these columns first: `show(ask, COLUMNS)`."""


def lists(record: type, *, watch: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Make a command that lists a record: it is given the context and a `Show`, which heeds the
    options `--sort`, `-o`, `--json` and, with `watch`, `--watch`, which are added."""
    names = [each.name for each in described(record) if not each.about.part]
    options = (
        click.option(
            "--sort",
            type=click.Choice([sign + name for name in names for sign in ("", "-")]),
            metavar="FIELD",
            help=f"Sort by a field, the largest first with - before it: {', '.join(names)}.",
        ),
        click.option(
            "-o",
            "output",
            type=click.Choice(["wide", "csv"]),
            help="wide: show more columns. csv: print all columns for spreadsheets.",
        ),
        as_json_option,
        *((watching,) if watch else ()),
    )

    def make(command: Callable[..., None]) -> Any:
        @click.pass_context
        @wraps(command)
        def run(
            ctx: click.Context,
            /,
            sort: str | None,
            output: str | None,
            as_json: bool,
            watch: bool = False,
            **only: Any,
        ) -> None:
            if output == "csv" and (as_json or watch):
                raise click.UsageError("-o csv goes neither with --json nor with --watch.")

            def show(ask: Callable[[], list[Any]], columns: Columns = ()) -> None:
                if output == "csv":
                    click.echo(as_csv(record, in_order(ask(), sort), columns), nl=False)
                    return
                watched(
                    lambda: in_order(ask(), sort),
                    partial(fields_table, record, columns=columns, wide=output == "wide"),
                    as_json,
                    watch,
                )

            command(ctx, show, **only)

        made: Any = run
        for option in reversed(options):
            made = option(made)
        return made

    return make


def as_csv(record: type, values: Iterable[Any], columns: Columns = ()) -> str:
    """Return values as CSV: the columns of `fields_table`, and those that a table leaves out.
    Fields have exact values: times in UTC (ISO 8601), lengths of time in seconds, sizes in
    bytes."""
    names = {each.name for each in described(record)}

    def exact(column: Column) -> Column:
        if isinstance(column, str):
            return column
        name, _ = column
        return name if name in names else column

    cells = _cells(record, tuple(map(exact, columns)), _exact_in, tuple(FieldLevel))
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(label for label, _ in cells)
    lines.writerows([_harmless(make(one)) for _, make in cells] for one in values)
    return text.getvalue()


def _harmless(told: object) -> object:
    """Return a cell that a spreadsheet takes for no formula and a terminal for no command: people
    and machines choose texts, and somebody else opens the table."""
    if told is None or isinstance(told, int | float):
        return told
    text = "".join(each if each.isprintable() or each in "\n\t" else " " for each in str(told))
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def _exact_in(field: RecordField, value: Any) -> object:
    told = _value_in(field, value)
    if field.about.kind is FieldKind.MOMENT and told is not None:
        return datetime.fromtimestamp(told, UTC).isoformat(timespec="seconds")
    return ", ".join(told) if isinstance(told, list) else told


def in_order(values: list[Any], sort: str | None) -> list[Any]:
    """Return the values sorted by a field, or by '-field' the largest first; those without one at
    the end."""
    if not sort:
        return values
    name = sort.removeprefix("-")
    there = [each for each in values if each[name] is not None]
    there.sort(key=lambda each: each[name], reverse=sort.startswith("-"))
    return there + [each for each in values if each[name] is None]


# ---------------------------------------------------------------- options that set fields


class OrNone(click.ParamType[Any]):
    """What another type reads, or 'none', or another word for null."""

    def __init__(self, other: click.ParamType[Any], null: str = "none") -> None:
        self.name, self._other, self._null = other.name, other, null

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """'none' as such."""
        return value if value == self._null else self._other.convert(value, param, ctx)


class WordList(click.ParamType[Any]):
    """Words with commas between, as a list."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """'a,b' as ['a', 'b']."""
        return (
            value
            if isinstance(value, list)
            else [word.strip() for word in value.split(",") if word.strip()]
        )


def set_options(
    record: type, *, new: bool = False, without: Container[str] = ()
) -> Callable[[Option], Option]:
    """Add an option for each field that can be set, those `without` excepted. For a `new` thing one
    that is left out has the API's default; else 'none' takes a value away."""

    def add(command: Option) -> Option:
        for field in reversed(described(record)):
            if field.about.set_by is not None and field.name not in without:
                command = _make_option(field, new)(command)
        return command

    return add


def body_of(record: type, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request that sets what the options of `set_options` have asked."""
    nulls = {each.name: each.about.null for each in described(record) if each.clears}
    return {
        "name" if name == "new_name" else name: None if value == nulls.get(name) else value
        for name, value in asked.items()
        if value is not None
    }


def options_named(record: type, *more: str) -> str:
    """Return the options that set something, and more, as a sentence lists them."""
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
    kind: click.ParamType[Any] = click.STRING
    if field.several:
        kind = WordList()
    elif field.choices:
        clearing = [field.about.null] if field.clears and not new else []
        return click.Choice([*field.choices, *clearing])
    elif field.about.kind is FieldKind.SPAN:
        kind = Span(zero=field.about.least == 0)
    elif field.about.kind is FieldKind.SIZE:
        kind = SIZE
    elif field.about.kind is FieldKind.MOMENT:
        kind = MOMENT
    elif field.type in (int, float):
        kind = click.INT if field.type is int else click.FLOAT
    return OrNone(kind, field.about.null) if field.clears and not new else kind


def _help(field: RecordField, new: bool) -> str:
    about = field.about
    text = about.about[:1].upper() + about.about[1:]
    text += f", such as {about.example}" if about.example else ""
    if about.none and not new:
        text += f"; {about.null if field.clears else repr('')}: {about.none}"
    return f"{text}." + (f" [default: {about.none}]" if about.none and new else "")
