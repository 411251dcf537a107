"""`cod reclaim`: nodes that are being taken from vclusters."""

from __future__ import annotations

import time

import click

from cod.cli.nouns import Noun, by_number
from cod.cli.show import (
    ago,
    client,
    newest_option,
    shown,
    table_with,
    watched,
    watching,
    when,
    with_dry_run,
    with_table,
)
from cod.client import path

number_argument = click.argument("number", type=click.IntRange(1))


@click.group()
def reclaim() -> None:
    """Reclaims: nodes taken from vclusters for requests of higher priority.

    Example:
      cod reclaim list --state open
    """


reclaim_table = table_with(
    ("ID", "id"),
    ("VCLUSTER", "vcluster"),
    ("FOR", "wanted_by"),
    ("REQUEST", "request"),
    ("TYPE", "type"),
    ("BLOCK", "block"),
    ("NODES", "count"),
    ("GIVEN", lambda v: str(v["given"])),
    ("STATE", "state"),
    ("DEADLINE", lambda v: when(v["deadline"]) if v["state"] == "open" else "-"),
    (
        "CHOSEN",
        lambda v: " ".join(_chosen(name, v["promised"].get(name)) for name in v["chosen"]),
    ),
)


def _chosen(name: str, promised: float | None) -> str:
    """Return a node's name, and when its VCM gives it back."""
    if promised is None:
        return name
    return f"{name} ({ago(promised) if promised > time.time() else 'any moment'})"


Noun(reclaim, "reclaims", reclaim_table, named=by_number).show(
    "Show a reclaim, and the nodes that were chosen for it.", "cod reclaim show 3"
)


@reclaim.command("list")
@click.option("--vcluster", help="Only reclaims from this vcluster.")
@click.option("--state", help="open, done or cancelled.")
@newest_option(1000)
@watching
@with_table
def list_(
    ctx: click.Context,
    vcluster: str | None,
    state: str | None,
    limit: int,
    watch: bool,
) -> None:
    """List the newest reclaims, oldest first.

    Example:
      cod reclaim list --state open --watch
    """
    api = client(ctx)
    watched(
        lambda: api.newest("/reclaims", limit, vcluster=vcluster, state=state),
        reclaim_table,
        watch,
    )


@reclaim.command()
@number_argument
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@with_dry_run
def answer(ctx: click.Context, number: int, nodes: tuple[str, ...]) -> None:
    """Release these nodes in place of the chosen ones. Their disks are erased.

    Example:
      cod reclaim answer 3 n7 n8
    """
    value = client(ctx).post(path("reclaims", number, "answer"), {"nodes": list(nodes)})
    shown(value, lambda v: reclaim_table([v]))
