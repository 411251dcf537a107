"""`cod node console`: a node's output on its serial console."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from cod.cli.nodes.many import name_of
from cod.cli.show import SIZE, client, for_programs, print_json, with_json
from cod.cli.terminal_text import json_text
from cod.client import Client, path

POLL = 1.0  # seconds
NEXT = 2**20  # bytes that are requested at a time while the console is followed


@click.command()
@click.argument("name")
@click.option(
    "--bytes",
    "count",
    type=SIZE,
    default="64K",
    show_default=True,
    help="Length of the end to show, 1K to 4M.",
)
@click.option("--follow", is_flag=True, help="Follow new output until Ctrl-C.")
@click.option(
    "--type", "typed", metavar="TEXT", help="Type a line on the console first, and Enter behind it."
)
@with_json
def console(ctx: click.Context, name: str, count: int, follow: bool, typed: str | None) -> None:
    """Show a node's serial console, without control sequences.

    Holders of a node see what was recorded since they got the node; administrators see all that is
    kept. What is typed is not noted; who typed is.

    Example:
      cod node console n7 --follow
      cod node console n7 --bytes 4M > n7.log
      cod node console n7 --type reboot --follow
    """
    api, about = client(ctx), ""
    name = name_of(api, name)
    if typed is not None:
        api.post(path("nodes", name, "console"), {"typed": f"{typed}\n"})
    for value in pieces(api, name, count) if follow else [first(api, name, count)]:
        if for_programs():
            click.echo(json_text(value)) if follow else print_json(value)
            continue
        click.echo(value["text"], nl=False)
        if value["about"] != about and value["about"]:
            click.echo(f"Not recorded: {value['about']}.", err=True)
        about = value["about"]


def first(api: Client, name: str, count: int) -> Any:
    """Return the last `count` bytes of the console."""
    return api.get(path("nodes", name, "console"), bytes=count)


def pieces(
    api: Client, name: str, count: int, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Any]:
    """Yield the last `count` bytes of the console, then new output, and changes of the recording's
    state."""
    value = first(api, name, count)
    yield value
    while True:
        before, value = (
            value,
            api.get(path("nodes", name, "console"), bytes=NEXT, since=value["end"]),
        )
        if value["text"] or value["about"] != before["about"]:
            yield value
        if value["end"] == before["end"]:
            sleep(POLL)
