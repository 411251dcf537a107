"""Commands for many nodes: the choice of nodes, the question before the change, and the outcome for
each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from cod.cli.local_files import text_of
from cod.cli.show import client, confirm, for_programs, node_word, print_json, with_json, yes_option
from cod.client import ApiError, Client
from cod.quantity import counted

SHOWN = 5  # nodes that a question names
LONGEST = 3500  # characters of names in one request for a list
where_option = click.option(
    "--where", default="", metavar="FILTER", help="Only nodes that the filter means: rack=r12."
)


@dataclass(frozen=True, slots=True)
class ChosenNodes:
    """The nodes that a command is for: those of `names`, or of all nodes, that match `where`."""

    names: Sequence[str]
    where: str = ""

    def __post_init__(self) -> None:
        """Raise `click.UsageError` if a name is empty, for instance because a shell's variable is
        unset. Without any names the command would be for all nodes."""
        if not all(name.strip() for name in self.names):
            raise click.UsageError("a name is empty")

    @property
    def lone(self) -> str:
        """Return the name if exactly one node is named, by itself; else ''."""
        if len(self.names) != 1 or self.where:
            return ""
        return "" if set(self.names[0]) & set("[]@, \"'") else self.names[0]


def takes_nodes(command: Callable[..., None]) -> Callable[..., None]:
    """Add options and arguments that choose nodes by names, by a file of names and by a filter, and
    call the command with the choice as `nodes`."""

    @wraps(command)
    def run(*args: Any, names: tuple[str, ...], where: str, file: Path | None, **rest: Any) -> None:
        command(*args, nodes=chosen(names, where, file), **rest)

    for option in (
        click.option(
            "-f",
            "--file",
            type=click.Path(exists=True, allow_dash=True, path_type=Path),
            help="Also the nodes that a file names; - is standard input.",
        ),
        where_option,
        click.argument("names", nargs=-1, metavar="[NAME...]"),
    ):
        run = option(run)
    return run


def chosen(names: Sequence[str], where: str, file: Path | None) -> ChosenNodes:
    """Return the chosen nodes. Raises `click.UsageError` if nothing chooses any."""
    every = list(names)
    if file is not None:
        lines = text_of(file).splitlines()
        every += [word for line in lines for word in line.partition("#")[0].split()]
        if not every:  # without names the filter alone would choose
            raise click.UsageError(f"{file} names no node")
    if not every and not where:
        raise click.UsageError("name nodes, or say which by --where FILTER or -f FILE")
    return ChosenNodes(every, where)


def names_of(api: Client, nodes: ChosenNodes) -> list[str]:
    """Return the names of the chosen nodes. Raises `ApiError`."""
    try:
        return [each["name"] for each in listed(api, nodes)]
    except ApiError as error:
        if nodes.lone and error.field == "names":  # the same error as that of the node's own path
            raise ApiError(404, "not_found", error.detail) from None
        raise


def name_of(api: Client, label: str) -> str:
    """Return the name of the only node that a label identifies. Raises `ApiError`, and
    `click.UsageError` if there is not exactly one."""
    found = names_of(api, ChosenNodes([label]))
    if len(found) != 1:
        raise click.UsageError(f"{label!r} stands for {counted(len(found), 'node')}: name one")
    return found[0]


def listed(api: Client, nodes: ChosenNodes, **only: Any) -> list[Any]:
    """Return the chosen nodes that also match the other filters, `only`. Raises `ApiError`."""
    parts, length = [list[str]()], 0
    for name in nodes.names:  # the length of an address is limited
        if parts[-1] and length + len(name) > LONGEST:
            parts, length = [*parts, []], 0
        parts[-1].append(name)
        length += len(name) + 1
    found: dict[str, Any] = {}
    for part in parts:
        wanted = {"names": ",".join(part), "where": nodes.where, **only}
        asked = {key: value for key, value in wanted.items() if value}
        found |= {each["name"]: each for each in api.items("/nodes", **asked)}
    return list(found.values())


# ---------------------------------------------------------------- actions

_ACTING = (
    yes_option,
    click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing."),
)


@dataclass(frozen=True, slots=True)
class Acting:
    """An action on the nodes that a command is for.

    yes      whether it is confirmed already
    dry_run  whether only to show its effect
    """

    ctx: click.Context
    nodes: ChosenNodes
    yes: bool
    dry_run: bool

    def __call__(self, verb: str, ask: str = "", **body: Any) -> None:
        """Carry out the action `body` on each chosen node. At a terminal, ask before; the command
        fails if one node is refused. Raises `ApiError`.

        verb  the action for people, with a capital: 'Power off'
        ask   the question to ask even if only one node is chosen that nobody uses; '': do not ask
              then
        """
        api = client(self.ctx)
        body |= {"names": list(self.nodes.names), "where": self.nodes.where}
        if self.dry_run:
            items = api.post("/nodes/actions/check", body)["items"]
            _print_outcomes(self.ctx, items, "would be ")
            return

        def question() -> str:
            items = api.post("/nodes/actions/check", body)["items"]
            body["stops"] = sorted({item["stops"] for item in items if item["stops"]})
            return _question(items, verb, ask)

        confirm(question, self.yes)
        _print_outcomes(self.ctx, api.post("/nodes/actions", body)["items"])


def acts(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of actions on nodes to a command, and call it with its `Acting` as the first
    argument."""

    @wraps(command)
    def run(
        ctx: click.Context,
        /,
        *args: Any,
        nodes: ChosenNodes,
        yes: bool,
        dry_run: bool,
        **rest: Any,
    ) -> None:
        command(Acting(ctx, nodes, yes, dry_run), *args, **rest)

    made = takes_nodes(with_json(run))
    for option in _ACTING:
        made = option(made)
    return made


def _question(items: list[Any], verb: str, ask: str) -> str:
    """Return the question before the change, with the number of nodes and whose work stops; '' if
    no question is needed."""
    doable = [item for item in items if item["outcome"] == "done"]
    used = [item for item in doable if item["stops"]]
    if len(items) == 1:
        [item] = items
        if used:
            name = f"{item['name']} (in use by {item['stops']})"
            return f"{verb} {name}? Running work is lost."
        return ask.format(item["name"]) if ask and doable else ""
    if not doable:
        return ""
    first = ", ".join(item["name"] for item in doable[:SHOWN])
    more = f" and {len(doable) - SHOWN} more" if len(doable) > SHOWN else ""
    refused = f" ({len(items) - len(doable)} refused)" if len(doable) < len(items) else ""
    holders = Counter(item["stops"] for item in used)
    lost = ", ".join(f"{name} ({counted(held, 'node')})" for name, held in sorted(holders.items()))
    stops = f" Running work is lost in {lost}." if lost else ""
    return f"{verb} {counted(len(doable), 'node')}: {first}{more}{refused}?{stops}"


def _print_outcomes(ctx: click.Context, items: list[Any], would: str = "") -> None:
    """Print the outcome for each node, and fail if one was refused."""
    refused = [item for item in items if item["outcome"] == "refused"]
    if len(items) == 1 and refused and not would:
        [item] = refused
        raise ApiError(409, item["code"], item["about"])
    if for_programs():
        print_json(items)
    for item in () if for_programs() else items:
        if item["outcome"] == "done":
            stops = f", stops work of {item['stops']}" if would and item["stops"] else ""
            click.echo(f"{item['name']}: {would}{node_word(item['state'])}{stops}")
        else:
            click.echo(f"{item['name']}: {would}refused: {item['about']}", err=True)
    if len(items) > 1 and not for_programs():
        done = len(items) - len(refused)
        click.echo(f"{counted(done, 'node')} {would}done, {len(refused)} {would}refused.", err=True)
    if refused:
        ctx.exit(1)
