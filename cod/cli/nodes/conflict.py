"""`cod conflict`: address and identity trouble."""

from __future__ import annotations

import click

from cod.cli.show import client, newest_option, shown, table_with, when, with_table


@click.group()
def conflict() -> None:
    """Conflicts: declined addresses, exhausted pools, machines with another's identity or that
    cannot be booted.

    Example:
      cod conflict list
    """


conflict_table = table_with(
    ("AT", lambda v: when(v["at"])),
    ("KIND", "kind"),
    ("SUBNET", "subnet"),
    ("ADDRESS", "address"),
    ("MAC", "mac"),
    ("ABOUT", "about"),
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
