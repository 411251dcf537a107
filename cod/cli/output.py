"""Output of commands. `-o`, `--columns`, `--sort` and `--no-headers` apply to tables and to the
API's values alike."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from operator import itemgetter
from typing import Any

import click

from cod.cli.terminal_text import json_text, printable

_KEY = "cod.output"  # in the command's context
FOR_PROGRAMS = ("json", "yaml", "name")
FORMATS = ("table", "wide", "csv", *FOR_PROGRAMS)
NARROW, WIDE, EVERYTHING = range(3)
"""Which columns there are: of tables, of wide ones too, and of CSV or where one is named."""


class Cell(str):
    """Words for people, with an exact value and a style. Rows are sorted by the exact value, and
    CSV has it. Terminals show the words in the style."""

    exact: object
    style: str

    def __new__(cls, words: str, exact: object, style: str = "") -> Cell:
        """Make a cell of `words`. `exact` is the value for sorting and CSV; for a time it is a
        `datetime`."""
        made = super().__new__(cls, words)
        made.exact, made.style = exact, style
        return made


def exact_of(cell: object) -> object:
    """Return the exact value of a cell."""
    return cell.exact if isinstance(cell, Cell) else cell


@dataclass(frozen=True, slots=True)
class Output:
    """Options of the output. `columns` and `sort` are as they were written."""

    format: str = "table"
    columns: str = ""
    sort: str = ""
    headers: bool = True

    @property
    def for_programs(self) -> bool:
        """Return whether to print the API's values, and no table."""
        return self.format in FOR_PROGRAMS

    @property
    def shaped(self) -> bool:
        """Return whether the options require that the output is one table."""
        return bool(self.format == "csv" or self.columns or self.sort or not self.headers)

    def text(self, value: Any, *, line: bool = False) -> str:
        """Return a value of the API as text for programs: in the requested format, or as JSON. With
        `line`, the value is one of several, and the text is a line or a YAML document. Raises
        `click.UsageError`."""
        value = self._sorted(value)
        if self.format == "name":
            return "\n".join(_names(value))
        if self.format == "yaml":
            from cod.cli.site_files import written  # slow to load

            return ("---\n" if line else "") + written(value).rstrip("\n")
        return json_text(value, indent=None if line else 2)

    def _sorted(self, value: Any) -> Any:
        if not self.sort:
            return value
        if not isinstance(value, list):
            raise click.UsageError("--sort is for lists.")
        name, down = _order(self.sort)
        keys = list(value[0]) if value else [name]
        key = _known(name, {_plain_name(each): each for each in keys})
        return in_order(value, itemgetter(key), down)


def output() -> Output:
    """Return the output options of the running command."""
    ctx = click.get_current_context(silent=True)
    found: Output = ctx.meta.get(_KEY, Output()) if ctx else Output()
    return found


def choose(ctx: click.Context, chosen: Output, as_json: bool) -> None:
    """Store the output options of a command; `as_json`: it also has `--json`. Raises
    `click.UsageError` for options that contradict each other."""
    if as_json and chosen.format not in ("table", "json"):
        raise click.UsageError(f"--json goes not with -o {chosen.format}.")
    if as_json:
        chosen = Output("json", chosen.columns, chosen.sort, chosen.headers)
    if chosen.for_programs and chosen.columns:
        raise click.UsageError(f"--columns is for tables and CSV, not for -o {chosen.format}.")
    ctx.meta[_KEY] = chosen


def _names(value: Any) -> Iterator[str]:
    """Yield the names of values, as other commands take them. Raises `click.UsageError` for values
    without names."""
    if isinstance(value, Mapping) and isinstance(value.get("items"), list):
        value = value["items"]
    for each in value if isinstance(value, list) else [value]:
        for key in ("name", "id"):
            if isinstance(each, Mapping) and each.get(key) is not None:
                yield printable(str(each[key]))
                break
        else:
            raise click.UsageError("What this command prints has no names: -o json has all of it.")


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    title  the heading
    make   returns the cell of a row
    exact  returns the exact value of a row; None: the cell's
    name   the field's name, if the column is a field
    level  NARROW, WIDE or EVERYTHING
    """

    title: str
    make: Callable[[Any], object]
    exact: Callable[[Any], object] | None = None
    name: str = ""
    level: int = NARROW

    def value(self, row: Any) -> object:
        """Return the exact value of a row."""
        return exact_of(self.make(row)) if self.exact is None else self.exact(row)


class Table:
    """A table to print: rich shows it to people, and `csv` writes it for spreadsheets, both by the
    options in `Output`. `caption` is printed below the table; with `capitals` people see its titles
    in capitals."""

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Any], *, capitals: bool = False
    ) -> None:
        self._capitals = capitals
        self.columns, self.rows, self.caption = columns, list(rows), ""

    @property
    def is_list(self) -> bool:
        """Return whether the table has titles, and is not a list of facts about one thing."""
        return any(column.title for column in self.columns)

    def __rich__(self) -> Any:
        """Return the table for a terminal: None, '' and 0 are shown as '-'."""
        from rich.table import Table as RichTable
        from rich.text import Text

        def shown(cell: object) -> Text:
            style = cell.style if isinstance(cell, Cell) else ""
            return Text(printable(str(cell or "-")), style)

        asked = output()
        chosen = self._chosen(asked, WIDE if asked.format == "wide" else NARROW)
        made = RichTable(box=None, pad_edge=False, header_style="bold", show_header=asked.headers)
        for column in chosen:
            title = column.title.upper() if self._capitals else column.title
            made.add_column(title, overflow="fold")
        for row in self._in_order(asked):
            cells = [column.make(row) for column in chosen]
            made.add_row(*(each if isinstance(each, Text) else shown(each) for each in cells))
        made.caption = self.caption or None
        return made

    def csv(self) -> str:
        """Return the table as CSV, with the exact values of all columns."""
        asked, text = output(), StringIO()
        chosen = self._chosen(asked, EVERYTHING)
        lines = csv.writer(text, lineterminator="\n")
        if asked.headers:
            lines.writerow(column.title for column in chosen)
        for row in self._in_order(asked):
            lines.writerow(_harmless(column.value(row)) for column in chosen)
        return text.getvalue()

    def _chosen(self, asked: Output, level: int) -> list[Column]:
        """Return the columns that `--columns` names, in that order, or those of the level."""
        names = [name for name in asked.columns.split(",") if name.strip()]
        if not names:
            return [column for column in self.columns if column.level <= level]
        return [_known(name, self._by_name()) for name in names]

    def _by_name(self) -> dict[str, Column]:
        """Return the columns by each name that people may write: by their fields' names and by
        their titles."""
        titles = {_plain_name(column.title): column for column in self.columns}
        return {column.name: column for column in self.columns if column.name} | titles

    def _in_order(self, asked: Output) -> list[Any]:
        if not asked.sort:
            return self.rows
        name, down = _order(asked.sort)
        return in_order(self.rows, _known(name, self._by_name()).value, down)


def _order(sort: str) -> tuple[str, bool]:
    """Return the name of the column to sort by, and whether the largest value comes first."""
    return sort.removeprefix("-"), sort.startswith("-")


def _plain_name(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _known(name: str, known: Mapping[str, Any]) -> Any:
    """Return the value of that name. Raises `click.UsageError`, which lists the known names."""
    try:
        return known[_plain_name(name)]
    except KeyError:
        firsts = {each: one for one, each in reversed([*known.items()])}  # a name for each
        names = ", ".join(reversed(firsts.values()))
        raise click.UsageError(f"There is no column {name.strip()!r}; there are {names}.") from None


def in_order(rows: list[Any], value: Callable[[Any], object], down: bool) -> list[Any]:
    """Return the rows sorted by their values, which may be numbers, times or texts. Rows without a
    value come last."""
    from cod.model.names import natural_key  # slow to load

    def key(row: Any) -> tuple[int, float, Any]:
        found = value(row)
        if isinstance(found, datetime):
            found = found.timestamp()
        if isinstance(found, int | float):
            return 0, found, []
        return 1, 0, natural_key(str(found))

    filled = [row for row in rows if value(row) not in (None, "")]
    missing = [row for row in rows if value(row) in (None, "")]
    return sorted(filled, key=key, reverse=down) + missing


def _harmless(value: object) -> object:
    """Return a value that a spreadsheet does not take for a formula, nor a terminal for a
    command."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if value is None or isinstance(value, int | float):
        return value
    text = printable(str(value))
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def one_table(made: Any) -> Table:
    """Return the table among the output of a command. Raises `click.UsageError` if the command
    prints no list, or more than one table."""
    found = list(_tables(made))
    if len(found) != 1 or not found[0].is_list:
        raise click.UsageError(
            "This command prints no list: -o csv, --columns, --sort and --no-headers are for"
            " lists; -o json has all of it."
        )
    return found[0]


def _tables(made: Any) -> Iterator[Table]:
    if isinstance(made, Table):
        yield made
    for each in getattr(made, "renderables", ()):
        yield from _tables(each)
