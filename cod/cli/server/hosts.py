"""`cod server`: the hosts that serve the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from cod import quantity
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
    """List the hosts that serve the site, and say of each host of its database which one the
    servers write to, and how far it is behind the others.

    Example:
      cod server list --json
    """
    found = client(ctx).get("/servers")
    if for_programs():
        print_json(found)
        return
    print_rich(hosts_table(found["items"]))
    for each in found.get("database", ()):  # servers of before do not tell
        click.echo(_database_line(each), err=True)


def _database_line(host: Mapping[str, Any]) -> str:
    """Return the sentence about a host of the database."""
    if host["reason"]:
        return f"Database host {host['name']} does not answer: {host['reason']}"
    words = [host["role"]]
    words += ["the servers write to it"] if host["is_writer"] else []
    words += [host["node_state"]] if host["node_state"] else []
    words += [f"{quantity.span(host['behind'])} behind the others"] if host["behind"] else []
    return f"Database host {host['name']}: {', '.join(words)}"


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
