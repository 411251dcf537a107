"""`cod events`: events as they happen."""

from __future__ import annotations

import json
from typing import Any

import click

from cod.cli.show import client, for_programs, moment, size, with_json


@click.command()
@click.option(
    "--after",
    help="Start after this position, which --json shows; 0: at the beginning.",
)
@with_json
def events(ctx: click.Context, after: str | None) -> None:
    """Follow transitions, priming progress and notices until Ctrl-C; with --json one object a line.

    Example:
      cod events --after 0
    """
    here = client(ctx)
    for kind, value in here.events(after):
        row = {"event": kind, **value, "position": here.position}
        click.echo(json.dumps(row) if for_programs() else line(kind, value))


def line(kind: str, value: Any) -> str:
    """Return an event as a line for people."""
    if kind == "progress":
        share = 100 * value["done"] // max(value["total"], 1)
        phase = f", {value['phase']}" if value.get("phase") else ""
        return (
            f"         {value['node']}: {value['state']}{phase} {share} %, {size(value['rate'])}/s"
        )
    at = moment(value["at"])  # without its age, which would not be true for long
    if kind == "notice":
        return f"{at} notice {value['id']} to {value['group'] or 'the site'}: {value['subject']}"
    way = f"{value['from_state'] or '(new)'} -> {value['to_state']}"
    return f"{at} {value['node']}: {way}: {value['cause']} [{value['actor']}]"
