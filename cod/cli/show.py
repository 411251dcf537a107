"""Parts that all nouns share: the client, `--json`, `-o`, tables, live views, and formats of times
and sizes."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from operator import itemgetter
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import click

from cod import quantity
from cod.cli.local_files import text_of
from cod.cli.logins import kept_login
from cod.cli.output import (
    FOR_PROGRAMS,
    FORMATS,
    Cell,
    Column,
    Output,
    Table,
    choose,
    one_table,
    output,
)
from cod.client import ApiError, Client, WouldChange, find_server, path
from cod.model.described import FieldKind, kind_by_name
from cod.states import OTHER_WORDS, WORDS

P = ParamSpec("P")
R = TypeVar("R")
Option = TypeVar("Option", bound=Callable[..., Any] | click.Command)

as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the API's JSON, for programs: as -o json."
)
watching = click.option(
    "--watch",
    is_flag=True,
    help="Keep the view up to date until Ctrl-C; with --json, print a line for each change.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def _format_option(*formats: str) -> Callable[[Option], Option]:
    return click.option(
        "-o",
        "--output",
        "output_format",
        type=click.Choice(formats),
        default="table",
        show_default=True,
        help="Format of the output.",
    )


_SHAPING = (
    click.option(
        "--columns",
        "output_columns",
        default="",
        metavar="NAMES",
        help="Columns of the table, in this order: name,state.",
    ),
    click.option(
        "--sort",
        "output_sort",
        default="",
        metavar="COLUMN",
        help="Sort by a column; with - before it, the largest first.",
    ),
    click.option(
        "--no-headers", "output_plain", is_flag=True, help="Leave out the titles of columns."
    ),
)


def with_json(command: Callable[Concatenate[click.Context, P], R]) -> Callable[P, R]:
    """Add the options `--json` and `-o` to a command, and call it with its context as the first
    argument."""
    made: Callable[P, R] = _with_output(command, _format_option("table", *FOR_PROGRAMS))
    return made


def with_table(command: Callable[Concatenate[click.Context, P], R]) -> Callable[P, R]:
    """Do as `with_json` for a command that prints one table, and add the options that shape tables:
    `-o wide`, `-o csv`, `--columns`, `--sort` and `--no-headers`."""
    made: Callable[P, R] = _with_output(command, _format_option(*FORMATS), *_SHAPING)
    return made


MIB = 1 << 20  # bytes; no vcluster has so many nodes, and no volume so few bytes


def with_dry_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Do as `with_json` for a command that makes one change, and add the option `--dry-run`."""

    @with_json
    @click.option(
        "--dry-run",
        is_flag=True,
        help="Change nothing; say what would change, and whose work would stop.",
    )
    @wraps(command)
    def run(ctx: click.Context, /, *args: Any, dry_run: bool, **options: Any) -> Any:
        if not dry_run:
            return command(ctx, *args, **options)
        root = ctx.find_root()
        root.obj = {**root.obj, "dry_run": "yes"}
        try:
            return command(ctx, *args, **options | ({"yes": True} if "yes" in options else {}))
        except WouldChange as found:
            return shown(found.reply, _would_change)

    return run


def _would_change(reply: Any) -> Table | str:
    """Return a table of the effect of a change, for people."""
    before, after = reply["before"] or {}, reply["after"] or {}
    rows = [
        (name, value_text(name, before.get(name)), value_text(name, after.get(name)))
        for name in {**before, **after}
        if before.get(name) not in (None, "", []) or after.get(name) not in (None, "", [])
    ]
    gone = [("all of it", "there", "gone")] if reply["before"] and reply["after"] is None else []
    stops = [
        (
            f"work of {one['vcluster']} ({one['group']})",
            f"runs on {', '.join(one['nodes'])}",
            "stops",
        )
        for one in reply["stops"]
    ]
    changes = [*stops, *(gone or rows)]
    return table(("WHAT", "IS", "WOULD BE"), changes) if changes else "Nothing would change."


def value_text(name: str, value: Any, longest: int = 300) -> str | None:
    """Return a value of a change as text for people; None for no value. At most `longest`
    characters of a text are shown."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        kind = kind_by_name(name)
        if kind is FieldKind.MOMENT:
            return str(when(value))
        if kind is FieldKind.SPAN:
            return quantity.exact_span(value)
        if kind is FieldKind.SIZE or (name == "size" and value >= MIB):
            return str(size(value))
    if isinstance(value, dict):
        if name == "states":
            return ", ".join(f"{count} {node_word(state)}" for state, count in value.items())
        return ", ".join(f"{each} {value_text(each, one, longest)}" for each, one in value.items())
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _with_output(command: Callable[..., Any], *options: Callable[[Any], Any]) -> Any:
    """Return a command with these options, which decide how `print_json` and `print_rich` print."""

    @click.pass_context
    @wraps(command)
    def run(
        ctx: click.Context,
        /,
        *args: Any,
        as_json: bool,
        output_format: str,
        output_columns: str = "",
        output_sort: str = "",
        output_plain: bool = False,
        **asked: Any,
    ) -> Any:
        given = Output(output_format, output_columns, output_sort, not output_plain)
        choose(ctx, given, as_json)
        return command(ctx, *args, **asked)

    made: Any = run
    for option in (*reversed(options), as_json):
        made = option(made)
    return made


def newest_option(default: int, most: int = 100_000) -> Callable[[Option], Option]:
    """Return the option for the number of newest entries to show."""
    return click.option(
        "--limit",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help="Number of newest entries.",
    )


def interactive() -> bool:
    """Return whether a person at a terminal can be asked."""
    return sys.stdin.isatty()


def confirm(question: Callable[[], str], yes: bool) -> None:
    """Ask at a terminal whether to go on, unless `yes` is true or the question is ''. Scripts are
    not asked. Raises `click.Abort`."""
    if not yes and interactive() and (text := question()):
        click.confirm(text, abort=True, err=True)


def insist(question: str, yes: bool) -> None:
    """Ask whether to go on, unless `yes` is true, in scripts, too. Raises `click.Abort` if the
    answer is no, and `click.ClickException` if there is no answer and no terminal."""
    try:
        if not yes:
            click.confirm(question, abort=True, err=True)
    except click.Abort:
        if interactive():
            raise
        sentence = "nothing was done, since nobody said yes: a script says it by --yes"
        raise click.ClickException(sentence) from None


if_missing_option = click.option(
    "--if-missing", is_flag=True, help="If there is one of that name, show it and change nothing."
)


def there_is(api: Client, place: str) -> Any:
    """Return the reply to a GET of `place`; None if it is not found. Raises `ApiError`."""
    try:
        return api.get(place)
    except ApiError as error:
        if error.code != "not_found":
            raise
        return None


def created(
    api: Client,
    kind: str,
    name: str,
    body: dict[str, Any],
    if_missing: bool,
    key: str | None = None,
) -> Any:
    """POST `body` to the collection `kind`, and return the new thing. If the name is taken and
    `if_missing` is true, return the existing thing called `name`. Raises `ApiError`."""
    try:
        return api.post(f"/{kind}", body, key)
    except ApiError as error:
        if not if_missing or error.code != "conflict":
            raise
        try:
            existing = api.get(path(kind, name))
        except ApiError:  # the user may not see the thing; or it is another conflict
            raise error from None
        if existing.get("group", "") != body.get("group", existing.get("group", "")):
            raise
        return existing


def client(ctx: click.Context) -> Client:
    """Return a client of the server that the command line names, or else of the server at which the
    person is logged in. A login's token is sent to its server only."""
    made = client_of(ctx.find_root().obj)
    ctx.call_on_close(made.close)
    return made


def client_of(options: Mapping[str, str | None], timeout: float = 60.0) -> Client:
    """Return a client of the server that the root's options name. Raises `Unreachable`."""
    kept, server = kept_login(), options["server"]
    if not server and kept and not options["site"] and not os.environ.get("COD_SERVER"):
        server = kept.server
    server = server or find_server(options["named"])
    token, ca_file, pin = options["token"], options["ca_file"], options["pin"]
    if kept and kept.server == server:
        token = token or kept.token
        if not ca_file and not pin:
            ca_file, pin = kept.ca_file, kept.pin
    made = Client(server, token, timeout, ca_file=ca_file, pin=pin or "")
    made.dry_run = bool(options.get("dry_run"))
    return made


SHORTEST_PASSWORD = 12  # characters, as the server has it


def ask_password(*, new: bool = False) -> str:
    """Return a password that is asked for at a terminal; without a terminal, the first line of
    standard input."""
    if sys.stdin.isatty():
        text = f"New password, at least {SHORTEST_PASSWORD} characters" if new else "Password"
        return str(click.prompt(text, hide_input=True, confirmation_prompt=new))
    return sys.stdin.readline().rstrip("\r\n")


def password_option(*, new: bool = False) -> Callable[[Option], Option]:
    """Add `--password`. If it is left out, it is asked for at a terminal; without a terminal it is
    the first line of standard input."""

    def ask(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
        return ask_password(new=new) if value is None else value

    return click.option(
        "--password", callback=ask, help="Password. [default: asked for, or read from a pipe]"
    )


def print_json(value: Any) -> None:
    """Print one of the API's values on standard output: as JSON, or as `-o` says."""
    if text := output().text(value):  # '' only for the names of an empty list
        click.echo(text)


WIDE = 100_000  # columns of what no terminal shows


def console() -> Any:
    """Return rich's console."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def print_rich(made: Any) -> None:
    """Print an object of rich's, or a table as CSV. In a pipe nothing is wrapped or padded with
    spaces. Raises `click.UsageError` if the options need a table and the object has none."""
    if output().shaped:
        made = one_table(made)
    if output().format == "csv":
        click.echo(made.csv(), nl=False)
    elif sys.stdout.isatty():
        console().print(made)
    else:
        click.echo(_plain(made), nl=False)


def _plain(made: Any) -> str:
    """Return rich's output as lines without trailing spaces."""
    out = console()
    with out.capture() as text:
        out.print(made)
    return "".join(f"{line.rstrip()}\n" for line in text.get().splitlines())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a plain table for people; None, '' and 0 are shown as '-'."""
    return Table([Column(each, itemgetter(place)) for place, each in enumerate(columns)], rows)


def table_of(values: Iterable[Any], *columns: tuple[str, str | Callable[[Any], object]]) -> Table:
    """Return a table with a row for each value. A column is its title, and either the key of its
    cells or a function that returns the cell of a value."""
    return Table(
        [
            Column(title, itemgetter(cell), name=cell)
            if isinstance(cell, str)
            else Column(title, cell)
            for title, cell in columns
        ],
        values,
    )


def table_with(
    *columns: tuple[str, str | Callable[[Any], object]],
) -> Callable[[Iterable[Any]], Table]:
    """Return the function that makes a table of values, with columns as in `table_of`."""
    return lambda values: table_of(values, *columns)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    print_rich(table(columns, rows))


def live(make: Callable[[], Any], period: float = 1.0) -> None:
    """Show the result of `make`, renewed every `period` seconds, until Ctrl-C. In a pipe, print the
    result whenever it changes."""
    from rich.live import Live

    if not sys.stdout.isatty():
        _changes(lambda: _plain(make()), period)
    with Live(make(), console=console(), auto_refresh=False, screen=False) as view:
        while True:
            time.sleep(period)
            view.update(make(), refresh=True)


def for_programs() -> bool:
    """Return whether the running command prints JSON, YAML or names, and no table or sentence."""
    return output().for_programs


def shown(value: Any, make: Callable[[Any], Any]) -> None:
    """Print `value` as JSON, or as the view that `make` returns."""
    if for_programs():
        print_json(value)
    else:
        print_rich(make(value))


def watched(ask: Callable[[], Any], make: Callable[[Any], Any], watch: bool) -> None:
    """Print the result of `ask` as JSON, or as the view that `make` returns. With `watch`, repeat
    that; JSON is then a line for each change."""
    if watch and output().format == "csv":
        raise click.UsageError("-o csv goes not with --watch.")
    if for_programs() and watch:
        stream(ask)
    elif for_programs():
        print_json(ask())
    elif watch:
        live(lambda: make(ask()))
    else:
        print_rich(make(ask()))


def stream(ask: Callable[[], Any], period: float = 1.0) -> None:
    """Print the result of `ask` as a line of JSON, or in the format of `-o`, and again whenever it
    changes, until Ctrl-C."""
    _changes(lambda: output().text(ask(), line=True), period)


def _changes(text: Callable[[], str], period: float) -> NoReturn:
    last = None
    while True:
        if (now := text()) != last:
            click.echo(last := now)
        time.sleep(period)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Provide a bar on standard error, if that is a terminal. Call it with the name of the step,
    the bytes done and all bytes."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total, completed=done)
            bar.update(tasks[what], completed=done)

        yield show


def print_result(value: Any, sentence: str) -> None:
    """Print the outcome of a command: the value as JSON, or a sentence."""
    if for_programs():
        print_json(value)
    else:
        click.echo(sentence)


STYLES = {
    "in use": "green",
    "active": "green",
    "ready": "green",
    "granted": "green",
    "free": "cyan",
    "out of service": "red",
    "failed": "red",
    "rejected": "red",
    "stopped": "red",
    "draining": "yellow",
    "waiting": "yellow",
    "ending": "yellow",
    "processing": "yellow",
    "installing": "yellow",
    "starting": "yellow",
    "saving": "yellow",
    "erasing": "yellow",
    "testing": "yellow",
    "expected": "magenta",
    "new": "magenta",
    "waiting for approval": "magenta",
    "asleep": "dim",
    "retired": "dim",
    "ended": "dim",
    "withdrawn": "dim",
}
"""The colour in which terminals show people's words for states; rich leaves colours out where
$NO_COLOR is set."""


def node_word(state: str) -> Cell:
    """Return the word for a node's state."""
    return styled(WORDS.get(state, state), state)


def state_word(state: str) -> Cell:
    """Return the word for a state of a vcluster, a request or an image."""
    return styled(OTHER_WORDS.get(state, state), state)


def styled(word: str, state: str) -> Cell:
    """Return the word for a state in the state's colour."""
    return Cell(word, state, STYLES.get(word, ""))


def machine_states(text: str | None, words: Mapping[str, str] = WORDS) -> str | None:
    """Return states with commas between in the API's terms. The text may use people's words:
    'free,starting' -> 'inactive,trampoline,boot'."""
    if text is None:
        return None
    return ",".join(
        state
        for one in map(str.strip, text.split(","))
        for state in [str(s) for s, word in words.items() if word == one] or [one]
    )


def moment(at: float) -> str:
    """Return a time as local time to the second with its zone, in a form that `MOMENT` reads:
    '2026-12-01 08:00:00+01:00'."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def when(at: float | None, now: float | None = None) -> Cell:
    """Return a time as local time with its zone, and how long ago it was or how soon it will be."""
    if at is None:
        return Cell("-", None)
    age = ago(at, now)
    return Cell(f"{moment(at)} ({age}{'' if age.startswith('in ') else ' ago'})", age.exact)


def ago(at: float | None, now: float | None = None) -> Cell:
    """Return how long ago a time was: '12 s', '5 min', '3 h', '2 d'. A time to come begins with
    'in'."""
    if at is None:
        return Cell("-", None)
    seconds = (time.time() if now is None else now) - at
    span = quantity.span(seconds) if seconds >= 0 else f"in {quantity.span(-seconds)}"
    return Cell(span, datetime.fromtimestamp(at, UTC))


def size(count: float | None) -> Cell:
    """Return bytes (`quantity.size`); a dash for None."""
    return Cell("-" if count is None else quantity.size(count), count)


# ---------------------------------------------------------------- values that people write


class WrittenValue(click.ParamType[R]):
    """A parameter whose text `read` converts. The ValueError of `read` says what the text should
    be."""

    def __init__(self, name: str, read: Callable[[str], R]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> R:
        """Return the value that a text stands for. A default that is not a text is returned
        unchanged."""
        if not isinstance(value, str):
            default: R = value
            return default
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def _span(text: str, *, zero: bool = False) -> float:
    """Return a length of time in seconds; with `zero`, 0 is allowed, too."""
    seconds = quantity.read_span(text)
    if not (0 < seconds < 1e10 or (zero and not seconds)):
        raise ValueError("is no length of time that COD can keep")
    return seconds


def _moment(text: str) -> float:
    """Return a time in seconds since the epoch. Without a zone of its own it is in this computer's
    time zone."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            "should be a time such as 2026-12-01T08:00, or with a time zone as in"
            " 2026-12-01T08:00+01:00"
        ) from None


def _past(text: str) -> float:
    """Return a time in seconds since the epoch, given the time or how long ago it was, such as
    '7d'."""
    try:
        return time.time() - quantity.read_span(text)
    except ValueError:
        return _moment(text)


def _size(text: str) -> int:
    count = quantity.read_size(text)
    if count >= 2**62:
        raise ValueError("is more than any disk has")
    return count


def _kind(text: str) -> dict[str, Any]:
    """Return nodes of one kind in the API's form: `4:worker:gpu.xml` becomes {"count": 4,
    "template": "worker", "attributes": CONTENT OF THE FILE}."""
    count, template, file = (*text.split(":", 2), "", "")[:3]
    if not (count.isascii() and count.isdigit() and int(count[:7])):
        raise ValueError("should begin with a number of nodes: 4, 4:TEMPLATE or 4:TEMPLATE:FILE")
    try:
        attributes = text_of(Path(file)) if file else ""
    except click.ClickException as error:
        raise click.BadParameter(error.message) from None
    return {"count": int(count), "template": template, "attributes": attributes}


def _prefix(text: str) -> int:
    bits = text.removeprefix("/")
    if not re.fullmatch(r"[0-9]|[12][0-9]|3[0-2]", bits):
        raise ValueError("should be a prefix length such as 26 or /26")
    return int(bits)


def _mount(text: str) -> dict[str, Any]:
    """Return a volume that a vcluster mounts in the API's form: `data:/in:ro` becomes {"volume":
    "data", "mount": "/in", "read_only": True}."""
    volume, mount, mode = (*text.split(":", 2), "", "")[:3]
    if not volume or mode not in ("", "ro", "rw"):
        raise ValueError("should be VOLUME, VOLUME:DIRECTORY or VOLUME:DIRECTORY:ro")
    return {"volume": volume, "mount": mount, "read_only": mode == "ro"}


SPAN = WrittenValue("time", _span)
SPAN_OR_ZERO = WrittenValue("time", partial(_span, zero=True))
MOMENT = WrittenValue("moment", _moment)
PAST = WrittenValue("moment", _past)
SIZE = WrittenValue("size", _size)
WORD_LIST = WrittenValue(
    "words", lambda text: [word.strip() for word in text.split(",") if word.strip()]
)
KIND = WrittenValue("COUNT[:TEMPLATE[:FILE]]", _kind)
PREFIX = WrittenValue("bits", _prefix)
MOUNT = WrittenValue("VOLUME[:DIRECTORY[:ro]]", _mount)
