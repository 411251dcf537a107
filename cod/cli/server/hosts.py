"""`cod server`: the hosts that serve the site."""

from __future__ import annotations

import click

from cod.cli.show import client, for_programs, print_json, print_rich, table_with, when, with_table


@click.group()
def server() -> None:
    """The hosts that serve the site: their parts, versions, and which of them manages.

    Example:
      cod server list
    """


@server.command("list")
@with_table
def list_(ctx: click.Context) -> None:
    """List the hosts that serve the site.

    Example:
      cod server list --json
    """
    found = client(ctx).get("/servers")
    if for_programs():
        print_json(found)
        return
    print_rich(hosts_table(found["items"]))
    if found["database_writer"]:
        click.echo(f"The database's writer is {found['database_writer']}.", err=True)


hosts_table = table_with(
    ("SERVER", "name"),
    ("ADDRESSES", lambda v: ", ".join(v["addresses"])),
    ("PARTS", lambda v: ", ".join(v["parts"]) or "none"),
    ("DOWN", lambda v: ", ".join(v["silent"])),
    ("MANAGES", lambda v: "yes" if v["manages"] else ""),
    ("VERSION", "version"),
    ("SCHEMA", "database_schema"),
    ("SEEN", lambda v: when(v["seen"])),
)
