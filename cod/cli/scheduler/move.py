"""`cod vcluster move` and `moves`: moves of nodes from one virtual cluster to another."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.show import (
    SPAN_OR_ZERO,
    client,
    newest_option,
    shown,
    state_word,
    table_with,
    watched,
    watching,
    when,
    with_dry_run,
    with_table,
)
from cod.client import path


@click.command()
@click.argument("source")
@click.argument("target")
@click.argument("nodes", type=click.IntRange(1))
@click.option(
    "--within",
    type=SPAN_OR_ZERO,
    help=(
        "Time after which nodes still held are taken, such as 6h; "
        "0: at once. [default: the grace of its group]"
    ),
)
@click.option(
    "--type", "types", multiple=True, help="Move only nodes of this type. May be repeated."
)
@click.option("--key", help="Idempotency key: a repetition with the same key has no effect.")
@with_dry_run
def move(
    ctx: click.Context,
    source: str,
    target: str,
    nodes: int,
    within: float | None,
    types: tuple[str, ...],
    key: str | None,
) -> None:
    """Move nodes from SOURCE to TARGET. They are reserved for TARGET, drained in SOURCE, taken when
    they are released or at the deadline, erased, and installed with TARGET's template. `cod request
    withdraw` ends a move.

    Example:
      cod vcluster move batch web 4 --within 6h
    """
    body = {"to": target, "nodes": nodes, "within": within, "types": list(types)}
    shown(
        client(ctx).post(path("vclusters", source, "moves"), body, key), lambda v: move_table([v])
    )


@click.command()
@click.option("--to", "target", help="Only moves to this vcluster.")
@click.option("--all", "ended", is_flag=True, help="Include moves that are over.")
@newest_option(1000)
@watching
@with_table
def moves(ctx: click.Context, target: str | None, ended: bool, limit: int, watch: bool) -> None:
    """List moves of nodes between vclusters, oldest first. HELD nodes are still in the source.

    Example:
      cod vcluster moves --watch
    """
    api = client(ctx)
    watched(
        lambda: api.newest(
            "/requests", limit, kind="move", vcluster=target, state=None if ended else "pending"
        ),
        move_table,
        watch,
    )


move_table = table_with(
    ("REQUEST", lambda v: v["id"]),
    ("FROM", lambda v: v["move"]["source"]),
    ("TO", lambda v: v["vcluster"]),
    ("NODES", lambda v: _wanted(v)),
    ("HELD", lambda v: str(v["move"]["leaving"])),
    ("ON THE WAY", lambda v: _on_the_way(v)),
    ("MOVED", lambda v: str(v["move"]["granted"])),
    ("STATE", lambda v: state_word(v["state"])),
    ("DEADLINE", lambda v: when(v["move"]["deadline"]) if v["move"]["leaving"] else "-"),
    ("REASON", "reason"),
)


def _wanted(request: Any) -> int:
    return sum(each["count"] for each in request["tuples"])


def _on_the_way(request: Any) -> str:
    if request["state"] != "pending":
        return "-"
    move = request["move"]
    return str(max(0, _wanted(request) - move["leaving"] - move["granted"]))
