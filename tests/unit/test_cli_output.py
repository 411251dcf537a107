"""What `-o`, `--columns`, `--sort` and `--no-headers` do to tables and to the API's values."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console, Group

from cod.cli import show
from cod.cli.output import in_order
from cod.cli.root import cod
from cod.cli.show import (
    MOMENT,
    PAST,
    ago,
    moment,
    node_word,
    print_json,
    print_rich,
    shown,
    size,
    table,
    table_of,
    when,
    with_json,
    with_table,
)

NOW = 1_000_000.0
VALUES = [
    {"name": "n10", "state": "active", "bytes": 5 * 2**20, "seen": NOW - 90},
    {"name": "n9", "state": "inactive", "bytes": 2**30, "seen": NOW - 3 * 86400},
    {"name": "=n1", "state": "off", "bytes": None, "seen": None},
]


def nodes(values: list[Any]) -> Any:
    return table_of(
        values,
        ("NODE", "name"),
        ("STATE", lambda v: node_word(v["state"])),
        ("MEMORY", lambda v: size(v["bytes"])),
        ("LAST SEEN", lambda v: ago(v["seen"], NOW)),
    )


@click.command()
@with_table
def listing(ctx: click.Context) -> None:
    shown(VALUES, nodes)


def said(*words: str, command: click.Command = listing, code: int = 0) -> Result:
    result = CliRunner().invoke(command, list(words))
    assert result.exit_code == code, result.output
    return result


def test_columns_are_chosen_by_key_or_title_in_the_order_asked() -> None:
    lines = said("--columns", "last_seen,NODE,Last-Seen").stdout.splitlines()
    assert lines[0].split() == ["LAST", "SEEN", "NODE", "LAST", "SEEN"]
    assert lines[1].split() == ["1", "min", "30", "s", "n10", "1", "min", "30", "s"]
    assert said("--no-headers", "--columns", "name").stdout == "n10\nn9\n=n1\n"


@pytest.mark.parametrize("option", ["--columns", "--sort"])
def test_an_unknown_column_is_refused_with_the_known_ones(option: str) -> None:
    wrong = said(option, "colour", code=2).stderr
    assert "There is no column 'colour'; there are name, state, memory, last_seen." in wrong
    known = said("--sort", "colour", "-o", "json", code=2).stderr
    assert "there are name, state, bytes, seen." in known


@pytest.mark.parametrize(
    ("column", "order"),
    [
        ("name", ["=n1", "n9", "n10"]),
        ("memory", ["n10", "n9", "=n1"]),
        ("-memory", ["n9", "n10", "=n1"]),
        ("last_seen", ["n9", "n10", "=n1"]),
        ("-last_seen", ["n10", "n9", "=n1"]),
    ],
)
def test_rows_are_sorted_by_exact_values_those_without_one_last(
    column: str, order: list[str]
) -> None:
    assert said("--sort", column, "--columns", "name", "--no-headers").stdout.split() == order


def test_values_for_programs_are_sorted_by_their_keys() -> None:
    values = json.loads(said("--json", "--sort", "-bytes").stdout)
    assert [one["name"] for one in values] == ["n9", "n10", "=n1"]
    assert in_order([2, None, 1], lambda one: one, down=False) == [1, 2, None]


def test_json_yaml_and_names_are_of_one_value() -> None:
    assert json.loads(said("-o", "json").stdout) == VALUES == json.loads(said("--json").stdout)
    assert yaml.safe_load(said("--output", "yaml").stdout) == VALUES
    assert said("-o", "name").stdout == "n10\nn9\n=n1\n"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"name": "web", "id": 3}, "web\n"),
        ([{"id": 3}, {"id": 4}], "3\n4\n"),
        ({"items": [{"name": "a"}], "next": None}, "a\n"),
        ([], ""),
    ],
)
def test_a_name_is_what_other_commands_take(value: Any, names: str) -> None:
    @click.command()
    @with_json
    def show(ctx: click.Context) -> None:
        print_json(value)

    assert said("-o", "name", command=show).stdout == names
    assert "csv" not in said("--help", command=show).stdout


def test_what_has_no_names_is_refused() -> None:
    @click.command()
    @with_json
    def show(ctx: click.Context) -> None:
        print_json([{"at": 1}])

    assert "has no names" in said("-o", "name", command=show, code=2).stderr


def test_spreadsheets_get_exact_values_and_no_formula() -> None:
    lines = said("-o", "csv").stdout.splitlines()
    assert lines == [
        "NODE,STATE,MEMORY,LAST SEEN",
        "n10,active,5242880,1970-01-12T13:45:10+00:00",
        "n9,inactive,1073741824,1970-01-09T13:46:40+00:00",
        "'=n1,off,,",
    ]
    assert said("-o", "csv", "--no-headers", "--columns", "name").stdout == "n10\nn9\n'=n1\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--json", "-o", "csv"), "--json goes not with -o csv"),
        (("--columns", "name", "-o", "yaml"), "--columns is for tables and CSV"),
        (("-o", "xml"), "'xml' is not one of"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    words: tuple[str, ...], why: str
) -> None:
    assert why in said(*words, code=2).stderr


@pytest.mark.parametrize(
    "made",
    [
        lambda: Group(nodes(VALUES), nodes(VALUES)),
        lambda: table(("", ""), [("Name", "n1")]),
        lambda: "a sentence",
    ],
)
def test_only_a_list_can_be_shaped(made: Callable[[], Any]) -> None:
    @click.command()
    @with_table
    def show(ctx: click.Context) -> None:
        print_rich(made())

    assert "prints no list" in said("-o", "csv", command=show, code=2).stderr
    said(command=show)


def test_states_have_colours_at_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn() -> str:
        out = io.StringIO()
        Console(file=out, force_terminal=True, width=80).print(nodes(VALUES))
        return out.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32min use" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in drawn()
    assert "\x1b" not in said().stdout


def test_a_time_has_its_zone_and_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert when(NOW, NOW + 7200) == "1970-01-12 19:16:40+05:30 (2 h ago)"
        assert when(NOW + 60, NOW) == "1970-01-12 19:17:40+05:30 (in 1 min)"
        assert MOMENT.convert(moment(NOW), None, None) == NOW
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (when(None), ago(None)) == ("-", "-")


def test_a_time_that_is_over_is_a_moment_or_an_age() -> None:
    assert abs(time.time() - 7 * 86400 - PAST.convert("7d", None, None)) < 60
    assert PAST.convert("2026-12-01T00:00Z", None, None) == MOMENT.convert(
        datetime.fromisoformat("2026-12-01T00:00Z").isoformat(), None, None
    )


@pytest.mark.parametrize("words", [("-o", "json"), ("-ojson",), ("--output=json",), ("--json",)])
def test_a_refusal_is_json_where_json_is_asked_for(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cod, ["--server", "/nowhere", "node", "list", *words])
    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (3, "unreachable")


@pytest.mark.parametrize("words", [("nodes", "ls"), ("node", "ls"), ("switches", "list")])
def test_plurals_and_ls_lead_to_the_list(words: tuple[str, ...]) -> None:
    usage = CliRunner().invoke(cod, [*words, "--help"]).stdout.splitlines()[0]
    noun = {"nodes": "node", "switches": "switch"}.get(words[0], words[0])
    assert usage.split()[2:4] == [noun, "list"], usage


def test_a_plural_of_what_has_no_list_is_unknown() -> None:
    assert "No such command 'backups'" in CliRunner().invoke(cod, ["backups"]).stderr


def test_a_verb_without_its_noun_is_told_the_noun() -> None:
    said = CliRunner().invoke(cod, ["export", "n1"])
    assert said.exit_code == 2
    assert "No such command 'export'. Is `cod node export` meant?" in said.stderr


def test_a_terminal_gets_no_control_characters_of_a_cell() -> None:
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, width=80).print(
        table(("REASON",), [("x\x1b[31my\x9b2J\x07é",)])
    )
    assert "x [31my 2J é" in screen.getvalue()


HOSTILE = {"reason": "x\x7f\x9b2J\x85\u202ey é", "\x9bkey": "two\n\tlines\x85\x9b", "😀": "a\n\tb"}


@pytest.mark.parametrize("format", ["json", "yaml"])
def test_a_terminal_gets_no_control_characters_of_a_value(format: str) -> None:
    @click.command()
    @with_json
    def one(ctx: click.Context) -> None:
        print_json(HOSTILE)

    text = CliRunner().invoke(one, ["-o", format]).stdout
    assert not [each for each in text if not each.isprintable() and each not in "\n\t"]
    assert (json.loads if format == "json" else yaml.safe_load)(text) == HOSTILE


def test_times_in_tables_have_their_zone_but_for_lengths_and_short_views() -> None:
    """An age alone is for how long something lasts, and for what is looked at now."""
    alone = {
        f"{file.name} {found[1]}"
        for file in (Path(show.__file__).parent).rglob("*.py")
        for found in re.finditer(r'\("([^"]+)", lambda \w+: ago\(', file.read_text())
    }
    assert alone == {"node.py For", "status.py WAITING", "status.py EXPECTED"}
