"""`cod block`: groups of nodes that are near each other."""

from __future__ import annotations

import click

from cod.cli.nouns import Noun
from cod.cli.show import (
    client,
    created,
    for_programs,
    if_missing_option,
    print_json,
    print_rich,
    shown,
    table,
    table_with,
    with_dry_run,
    with_json,
)
from cod.client import path


@click.group()
def block() -> None:
    """Blocks: nodes that share a rack or a switch. A request is granted from one block where
    possible.

    Example:
      cod block propose
    """


block_table = table_with(
    ("BLOCK", "name"),
    ("NODES", lambda v: str(v["nodes"])),
    (
        "TYPES",
        lambda v: ", ".join(
            (f"{count} {name or 'not reported'}" for name, count in sorted(v["types"].items()))
        ),
    ),
)


noun = Noun(block, "blocks", block_table)
noun.list("List blocks with their nodes by type.", "cod block list")
noun.show("Show a block; `cod node list --block NAME` lists its nodes.", "cod block show rack1")
noun.delete("Delete a block that has no nodes.", "cod block delete rack1")


@block.command()
@click.argument("name")
@if_missing_option
@with_json
def create(ctx: click.Context, name: str, if_missing: bool) -> None:
    """Create a block without nodes.

    Example:
      cod block create rack1
    """
    shown(
        created(client(ctx), "blocks", name, {"name": name}, if_missing),
        lambda value: block_table([value]),
    )


def _change(ctx: click.Context, name: str, verb: str, nodes: tuple[str, ...]) -> None:
    value = client(ctx).post(path("blocks", name, verb), {"nodes": list(nodes)})
    shown(value, lambda value: block_table([value]))


@block.command()
@click.argument("name")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@with_dry_run
def add(ctx: click.Context, name: str, nodes: tuple[str, ...]) -> None:
    """Add nodes to a block, by names, ranges or patterns: all of them, or none.

    Example:
      cod block add rack1 'n[001-040]' 'rack1-*' spare-3
    """
    _change(ctx, name, "add", nodes)


@block.command()
@click.argument("name")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@with_dry_run
def remove(ctx: click.Context, name: str, nodes: tuple[str, ...]) -> None:
    """Remove nodes from a block, by names, ranges or patterns.

    Example:
      cod block remove rack1 spare-3
    """
    _change(ctx, name, "remove", nodes)


@block.command()
@click.option("--apply", "apply_", is_flag=True, help="Create the blocks: all, or the named ones.")
@click.argument("names", nargs=-1, metavar="[BLOCK]...")
@with_json
def propose(ctx: click.Context, apply_: bool, names: tuple[str, ...]) -> None:
    """Propose blocks for nodes without one, from what their switches report (LLDP). With --apply,
    create them.

    Example:
      cod block propose
      cod block propose --apply leaf-3 leaf-4
    """
    api = client(ctx)
    if names and not apply_:
        raise click.UsageError("names of blocks belong to --apply: they say which to create")
    value = (
        api.post("/blocks/proposal", {"blocks": list(names) or None})
        if apply_
        else api.get("/blocks/proposal")
    )
    if for_programs():
        print_json(value)
        return
    print_rich(
        table(
            ("BLOCK", "NODE", "WHY"),
            [
                (
                    f"{block['name']}{'' if block['exists'] else ' (new)'}",
                    place["node"],
                    place["why"],
                )
                for block in value["blocks"]
                for place in block["places"]
            ],
        )
    )
    if value["unknown"]:
        click.echo(f"nothing is known of: {', '.join(value['unknown'])}")
