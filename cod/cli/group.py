"""`cod group`: who owns vclusters, and with which priority."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.show import SPAN, as_json, client, duration, shown, table


@click.group()
def group() -> None:
    """Groups own vclusters and give their requests a priority.

    \b
    Example:
      cod group create physics --priority 10 --max-lease 14d
    """


def group_table(values: list[Any]) -> Any:
    """Groups for people."""
    return table(
        ("GROUP", "PRIORITY", "DEFAULT LEASE", "LONGEST LEASE"),
        [(v["name"], str(v["priority"]), v["default_lease"] and duration(v["default_lease"]),
          v["max_lease"] and duration(v["max_lease"])) for v in values])


@group.command("list")
@as_json
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List groups.

    \b
    Example:
      cod group list
    """
    shown(ctx, client(ctx).every("/groups"), group_table, as_json)


@group.command()
@click.argument("name")
@click.option("--priority", type=int, default=0, show_default=True, help="Larger goes first.")
@click.option("--default-lease", type=SPAN, help="Such as 8h or 7d; else the site's.")
@click.option("--max-lease", type=SPAN, help="Such as 14d; else no limit.")
@as_json
@click.pass_context
def create(ctx: click.Context, /, name: str, as_json: bool, **asked: Any) -> None:
    """Create a group.

    \b
    Example:
      cod group create physics --priority 10 --default-lease 8h --max-lease 14d
    """
    shown(ctx, client(ctx).post("/groups", {"name": name, **asked}), lambda v: group_table([v]), as_json)
