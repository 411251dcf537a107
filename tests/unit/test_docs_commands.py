"""Every `cod` command in the manual is one: the real parsers take it, so that a reader can type
what they read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.unit.test_cli_page import every

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = every()
GROUPS = {
    " ".join(words.split()[:length])
    for words in COMMANDS
    for length in range(1, len(words.split()))
}
NO_FILE = re.compile("does not exist|No such file")  # files of the reader's


def examples(page: str) -> list[str]:
    """Return the commands in a page's code blocks, without comments and what a shell does with
    their output."""
    blocks = [
        line.strip().removeprefix("$ ")
        for line in re.sub(r"\s*\\\n\s*", " ", page).splitlines()
        if line.startswith("    ")
    ]
    lines = [re.sub(r"\s+#.*", "", line) for line in blocks if line.startswith("cod ")]
    parts = [
        re.split(r"\s+(?:[|>]|&&)", part)[0]
        for line in lines
        for part in re.split(r";\s+(?=cod )", line)
    ]
    return [re.sub(r"^cod --(server|site|ca-file) \S+", "cod", part) for part in parts]


def named(words: list[str], among: set[str]) -> str | None:
    """Return the longest beginning of the words that is `among` commands or groups."""
    return next((name for length in (3, 2, 1) if (name := " ".join(words[:length])) in among), None)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if examples(page.read_text())], ids=lambda page: page.name
)
def test_examples_are_taken(page: Path) -> None:
    wrong = []
    for example in examples(page.read_text()):
        words = shlex.split(example)[1:]
        name = named(words, {*COMMANDS})
        if name is None:
            wrong.append(f"{example}: no command")
            continue
        try:
            COMMANDS[name].make_context(name, words[len(name.split()) :]).close()
        except click.exceptions.Exit:
            pass
        except click.ClickException as error:
            if not NO_FILE.search(error.format_message()):
                wrong.append(f"{example}: {error.format_message()}")
    assert not wrong


def test_commands_in_sentences_are_there() -> None:
    """A sentence may name a group, or the beginning of a command, and several verbs as
    `list|show`."""
    wrong = []
    for page in PAGES:
        for text in re.findall(r"`cod ([a-z][^`]*)`", page.read_text()):
            words = text.split()
            name = named(words, {*COMMANDS} | GROUPS)
            rest = words[len((name or "").split()) :]
            if name in COMMANDS and name not in GROUPS:
                options = {
                    option
                    for parameter in COMMANDS[name].params
                    for option in (*parameter.opts, *parameter.secondary_opts, "--help")
                }
                asked = {
                    found[0] for word in rest if (found := re.match(r"--[a-z-]+", word.strip("[]")))
                }
                if "exec" not in words and asked - options:
                    wrong.append(f"{page.name}: {text}")
            elif name is None or (
                rest and not all(f"{name} {verb}" in COMMANDS for verb in rest[0].split("|"))
            ):
                wrong.append(f"{page.name}: {text}")
    assert not wrong


def test_what_is_wrong_would_be_seen() -> None:
    page = "    cod node list | head; cod node lost\n    $ cod node show \\\n      n1   # a node\n"
    assert examples(page) == ["cod node list", "cod node lost", "cod node show n1"]
    assert examples("    cod node approve n1; cod image add x  # too few\n")[1] == "cod image add x"
    with pytest.raises(click.UsageError):
        COMMANDS["node list"].make_context("node list", ["--nonsense"])
