"""`cod vcluster reinstall` and `reinstalls`: nodes that are installed again in place."""

from __future__ import annotations

import click

from cod.cli.nodes.many import where_option
from cod.cli.show import (
    client,
    confirm,
    node_word,
    shown,
    table_with,
    watched,
    watching,
    with_json,
    with_table,
    yes_option,
)
from cod.client import path
from cod.quantity import counted


@click.command()
@click.argument("name")
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@where_option
@click.option("--template", help="NAME or NAME@REVISION. [default: each node's own]")
@click.option(
    "--at-once",
    type=click.IntRange(0),
    default=0,
    help="Nodes at a time; where one is lost, the others keep their system. [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show which nodes are meant, and change nothing.")
@yes_option
@with_json
def reinstall(
    ctx: click.Context,
    name: str,
    nodes: tuple[str, ...],
    where: str,
    template: str | None,
    at_once: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Install nodes anew where they are: some, or all. What is on their disks is lost; names,
    addresses and SSH host keys stay. `cod vcluster reinstalls` shows how it goes.

    Example:
      cod vcluster reinstall web --template debian --at-once 4
      cod vcluster reinstall web 'n[1-8]' --dry-run
    """
    api = client(ctx)
    body = {"nodes": list(nodes), "where": where, "template": template, "at_once": at_once}
    where_to = path("vclusters", name, "reinstall")
    if dry_run:
        shown(api.post(f"{where_to}/check", body)["items"], reinstall_table)
        return

    def question() -> str:
        meant = len(api.post(f"{where_to}/check", body)["items"])
        return f"Reinstall {counted(meant, 'node')} of {name}? What is on their disks is lost."

    confirm(question, yes)
    shown(api.post(where_to, body)["items"], reinstall_table)


@click.command()
@click.argument("name")
@click.option("--stop", is_flag=True, help="Leave the nodes that have not begun as they are.")
@watching
@with_table
def reinstalls(ctx: click.Context, name: str, stop: bool, watch: bool) -> None:
    """Show the nodes that are reinstalled, or wait for it.

    Example:
      cod vcluster reinstalls web --watch
    """
    api = client(ctx)
    where_to = path("vclusters", name, "reinstall")
    if stop:
        shown(api.delete(where_to)["items"], reinstall_table)
        return
    watched(lambda: api.get(where_to)["items"], reinstall_table, watch)


reinstall_table = table_with(
    ("NODE", lambda v: v["hostname"]),
    ("MACHINE", lambda v: v["name"]),
    ("TEMPLATE", "template"),
    ("STATE", lambda v: "waits" if v["begun_at"] is None else node_word(v["state"])),
    ("DONE", lambda v: f"{100 * v['done'] // v['total']} %" if v["total"] else "-"),
    ("BY", lambda v: v["actor"]),
)
