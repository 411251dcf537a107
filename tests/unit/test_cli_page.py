"""docs/cli is true: every command takes --json, refusals are JSON with it, exit codes are these,
shells complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cod.cli.root import COMMANDS, NoServer, cod
from cod.cli.wait import TimedOut
from tests.manual import page

PAGE = page("cli").read_text()
WITHOUT = {
    *("serve", "vcm sge", "vcm slurm", "lab exec", "monitoring dashboard", "monitoring alerts"),
    *("ssh", "completion"),
}


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """Every command below this one, by its words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from commands(below, (*words, name))
    else:
        yield " ".join(words), command


def every() -> dict[str, click.Command]:
    return dict(commands(cod, ()))


def test_every_command_takes_json_but_those_the_page_names() -> None:
    without = {
        words
        for words, command in every().items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == WITHOUT
    for words in WITHOUT:
        assert f"`cod {words}`" in " ".join(PAGE.split())


def test_an_example_has_a_line_for_each_command() -> None:
    joined = [
        (words, line)
        for words, command in every().items()
        for line in (command.help or "").splitlines()
        if re.search(r"^ +cod [^&|;#(]* cod [a-z]", line)
    ]
    assert not joined


def test_every_list_can_be_shaped() -> None:
    """A command that lists is declared with `with_table` or `lists`."""
    lists = {words: command for words, command in every().items() if words.endswith(" list")}
    assert len(lists) > 15
    for words, command in lists.items():
        taken = {option for parameter in command.params for option in parameter.opts}
        assert taken >= {"-o", "--columns", "--sort", "--no-headers", "--json"}, words


def test_no_command_has_an_option_twice() -> None:
    for words, command in every().items():
        options = [option for parameter in command.params for option in parameter.opts]
        assert len(options) == len(set(options)), words


def test_the_page_names_every_noun() -> None:
    assert set(re.findall(r"`cod ([a-z]+)`", PAGE)) >= set(COMMANDS)


def run(*words: str, **environment: str) -> Any:
    return CliRunner().invoke(
        cod, list(words), env={"COD_SITE": "/nowhere/site.toml", **environment}
    )


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (("node", "list", "--json"), 3, "unreachable"),
        (("node", "list", "--json", "--nonsense"), 2, "usage"),
        (("nonsense", "--json"), 2, "usage"),
        (("db", "check", "--json"), 1, "failed"),
    ],
)
def test_a_refusal_is_json_on_standard_error(words: tuple[str, ...], code: int, name: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (code, "")
    error = json.loads(result.stderr)["error"]
    assert (error["exit_code"], error["code"], bool(error["detail"])) == (code, name, True)
    plain = run(*[word for word in words if word != "--json"])
    assert plain.exit_code == code
    assert plain.stderr.startswith(("Error", "Usage"))


def test_the_exit_codes_are_those_of_the_page() -> None:
    listed = {int(one) for one in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert listed == {
        0,
        click.ClickException.exit_code,
        click.UsageError.exit_code,
        NoServer.exit_code,
        TimedOut.exit_code,
        130,
    }
    for code in listed - {130}:
        assert re.search(rf"\b{code} \w", cod.epilog or ""), code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_given_their_completion(shell: str) -> None:
    assert f"cod completion {shell}" in PAGE
    result = CliRunner().invoke(cod, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert f"_COD_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.slow  # a process for each
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("cod no", {"node", "notice"}),
        ("cod node qua", {"quarantine"}),
        ("cod node list --wa", {"--watch"}),
        ("cod lab power demo n1 re", {"reset"}),
        ("cod approve no", {"node", "notice"}),  # a verb without its noun: as after any word
    ],
)
def test_what_a_shell_is_offered(typed: str, offered: set[str]) -> None:
    """Commands are loaded when they are used; completion has to find them all the same."""
    result = subprocess.run(
        [sys.executable, "-m", "cod"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ
        | {
            "_COD_COMPLETE": "bash_complete",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(typed.count(" ")),
        },
    )
    assert {line.partition(",")[2] for line in result.stdout.splitlines()} == offered
