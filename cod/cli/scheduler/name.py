"""`cod name`: names (CNAME) that owners add to their vclusters."""

from __future__ import annotations

import click

from cod.cli.show import (
    client,
    print_result,
    shown,
    table_with,
    with_dry_run,
    with_json,
    with_table,
)
from cod.client import path

vcluster_option = click.option(
    "--vcluster", required=True, help="The vcluster that the name is in."
)


@click.group()
def name() -> None:
    """Names beside nodes' host names: www for n3. DNS follows at once.

    Example:
      cod name add www n3 --vcluster web
    """


_names = table_with(
    ("NAME", "name"),
    ("TARGET", "target"),
    ("ADDRESS", lambda v: "no such node" if v["dangling"] else v["address"]),
    ("IN DNS", "full"),
    ("BY", "actor"),
)


@name.command("list")
@vcluster_option
@with_table
def list_(ctx: click.Context, vcluster: str) -> None:
    """List the names of a vcluster.

    Example:
      cod name list --vcluster web
    """
    shown(client(ctx).get(path("vclusters", vcluster, "names"))["items"], _names)


@name.command()
@click.argument("label", metavar="NAME")
@click.argument("target")
@vcluster_option
@with_json
def add(ctx: click.Context, label: str, target: str, vcluster: str) -> None:
    """Add a name that leads to TARGET, or point it at another TARGET: a node's host name, another
    name of the vcluster, or, where the site allows that, a full name elsewhere.

    Example:
      cod name add www n3 --vcluster web
    """
    value = client(ctx).call("PUT", path("vclusters", vcluster, "names", label), {"target": target})
    shown(value, lambda one: _names([one]))


@name.command()
@click.argument("label", metavar="NAME")
@vcluster_option
@with_dry_run
def remove(ctx: click.Context, label: str, vcluster: str) -> None:
    """Remove a name.

    Example:
      cod name remove www --vcluster web
    """
    client(ctx).delete(path("vclusters", vcluster, "names", label))
    print_result(
        {"vcluster": vcluster, "name": label, "state": "removed"},
        f"{label}: removed from {vcluster}",
    )
