"""`cod conflict`: address and identity trouble."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.show import client, newest_option, shown, table, when, with_table


@click.group()
def conflict() -> None:
    """Conflicts: declined addresses, exhausted pools, machines with another's identity or that
    cannot be booted.

    Example:
      cod conflict list
    """


def conflict_table(values: list[Any]) -> Any:
    """Return conflicts for people."""
    return table(
        ("AT", "KIND", "SUBNET", "ADDRESS", "MAC", "ABOUT"),
        [
            (when(v["at"]), v["kind"], v["subnet"], v["address"], v["mac"], v["about"])
            for v in values
        ],
    )


@conflict.command("list")
@newest_option(200)
@with_table
def list_(ctx: click.Context, limit: int) -> None:
    """List conflicts, newest first.

    Example:
      cod conflict list --json
    """
    shown(client(ctx).newest("/conflicts", limit)[::-1], conflict_table)
