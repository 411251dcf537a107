"""`cod maintenance`: times in which nodes are out of service, and racks that are drained."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.nodes.many import ChosenNodes, chosen, where_option
from cod.cli.nouns import Noun
from cod.cli.show import (
    MOMENT,
    client,
    confirm,
    print_result,
    shown,
    table_of,
    table_with,
    watched,
    watching,
    when,
    with_dry_run,
    with_json,
    with_table,
    yes_option,
)
from cod.client import path
from cod.quantity import counted

by_id = click.argument("id", type=int)


def _window_options(command: Any) -> Any:
    """Add the options of a maintenance window or a drain: its nodes, its end, and its reason."""
    for option in (
        with_json,
        yes_option,
        click.option(
            "--dry-run", is_flag=True, help="Show what is taken from whom, and change nothing."
        ),
        click.option(
            "--stay-out",
            is_flag=True,
            help="Nodes stay out of service afterwards, until restored by hand.",
        ),
        click.option("--reason", required=True, help="Shown to owners, and at the nodes."),
        click.option(
            "--until",
            type=MOMENT,
            help="When nodes come back. Left out: when it is ended by hand.",
        ),
        click.option("--site", "whole", is_flag=True, help="All nodes of the site."),
        where_option,
        click.argument("names", nargs=-1, metavar="[NAME...]"),
    ):
        command = option(command)
    return command


@click.group()
def maintenance() -> None:
    """Maintenance: times in which nodes are out of service, and racks that are drained.

    Example:
      cod maintenance plan @r12 --from 2026-12-14T08:00 --until 2026-12-14T18:00 --reason "power"
      cod maintenance drain @r12 --reason "moves to the new room"
    """


window_table = table_with(
    ("ID", lambda one: str(one["id"])),
    ("STATE", lambda one: "draining" if _drains(one) else one["state"]),
    ("NODES OF", "what"),
    ("BEGINS", lambda one: when(one["begins_at"])),
    ("ENDS", lambda one: when(one["ends_at"])),
    ("NODES", lambda one: str(one["nodes"])),
    ("OUT", lambda one: str(one["out"])),
    ("REASON", "reason"),
)


def _drains(one: Any) -> bool:
    return bool(one["drain"] and one["state"] == "running" and one["out"] < one["nodes"])


def window_in_full(one: Any) -> Any:
    """Return a window and the holders of its nodes, for people."""
    from rich.console import Group

    parts = [window_table([one])] if one["state"] else []
    holders = table_of(
        one["holders"],
        ("VCLUSTER", "vcluster"),
        ("GROUP", "group"),
        ("NODES", lambda each: f"{each['nodes']} of {each['held']}"),
        ("TAKEN", lambda each: str(each["lost"])),
        ("LEAVES", lambda each: when(each["leaves_at"])),
    )
    return Group(*parts, holders, effect(one))


def effect(one: Any) -> str:
    """Return a sentence about the nodes that a window takes from holders, and the time from which
    nobody holds its nodes."""
    lost = sum(each["lost"] for each in one["holders"])
    empty = f"empty {when(one['empty_at'])}" if one["empty_at"] else "nobody knows when it is empty"
    late = f" Reservations begin late: {', '.join(one['late'])}." if one["late"] else ""
    return (
        f"{counted(one['nodes'], 'node')}: {one['free']} free, {one['nodes'] - one['free']} held;"
        f" {lost} taken from their holders; {empty}.{late}"
    )


@maintenance.command("list")
@watching
@with_table
def list_(ctx: click.Context, watch: bool) -> None:
    """List maintenance that is to come, that runs, and that of the last 30 days.

    Example:
      cod maintenance list
    """
    api = client(ctx)
    watched(lambda: api.get("/maintenance")["items"], window_table, watch)


Noun(maintenance, "maintenance", window_table, window_in_full, by_id).show(
    "Show maintenance: whose nodes it takes, and when nobody holds them.", "cod maintenance show 3"
)


@maintenance.command()
@click.option("--from", "begins", type=MOMENT, required=True, help="Nodes still held are taken.")
@_window_options
def plan(ctx: click.Context, **asked: Any) -> None:
    """Plan maintenance of nodes, blocks, or the site. Leases begin on them only if they end before.

    Owners whose nodes are taken are told now, and again before it begins.

    Example:
      cod maintenance plan @r12 --from 2026-12-14T08:00 --until 2026-12-14T18:00 --reason "power"
      cod maintenance plan --where 'type=gpu' --from 2026-12-14T08:00 --reason "firmware" --dry-run
    """
    _make(ctx, **asked)


@maintenance.command()
@click.option("--by", "begins", type=MOMENT, help="Nodes still held then are taken.")
@_window_options
def drain(ctx: click.Context, **asked: Any) -> None:
    """Drain nodes or racks: they are given to nobody, and go out of service as they come free.

    Example:
      cod maintenance drain @r12 --reason "moves to the new room" --dry-run
      cod maintenance drain @r12 --by 2026-12-14T08:00 --reason "moves to the new room"
    """
    _make(ctx, drain=True, **asked)


def _make(
    ctx: click.Context,
    *,
    names: tuple[str, ...],
    where: str,
    whole: bool,
    begins: float | None,
    until: float | None,
    reason: str,
    stay_out: bool,
    dry_run: bool,
    yes: bool,
    drain: bool = False,
) -> None:
    """Plan a window, after a question about its effect."""
    nodes = ChosenNodes(names) if whole else chosen(names, where, None)
    body = {
        "names": ",".join(nodes.names),
        "where": where,
        "site": whole,
        "begins_at": begins,
        "ends_at": until,
        "reason": reason,
        "stay_out": stay_out,
        "drain": drain,
    }
    api = client(ctx)
    if dry_run:
        shown(api.post("/maintenance/check", body), _checked)
        return
    verb = "Drain" if drain else "Plan maintenance of"
    confirm(lambda: f"{verb} these nodes? {effect(api.post('/maintenance/check', body))}", yes)
    shown(api.post("/maintenance", body), window_in_full)


def _checked(one: Any) -> Any:
    return window_in_full(one | {"state": ""})


@maintenance.command("set")
@by_id
@click.option("--from", "begins_at", type=MOMENT, help="Not once it has begun.")
@click.option("--until", "ends_at", type=MOMENT, help="When nodes come back.")
@click.option("--reason", help="Shown to owners, and at the nodes.")
@with_dry_run
def set_(
    ctx: click.Context, id: int, begins_at: float | None, ends_at: float | None, reason: str | None
) -> None:
    """Move maintenance, or change its reason. Owners whose nodes are taken are told.

    Example:
      cod maintenance set 3 --from 2026-12-15T08:00 --until 2026-12-15T18:00
    """
    changes = {"begins_at": begins_at, "ends_at": ends_at, "reason": reason}
    body = {name: each for name, each in changes.items() if each is not None}
    if not body:
        raise click.UsageError("say what to change: --from, --until or --reason")
    value = client(ctx).patch(path("maintenance", str(id)), body)
    shown(value, window_in_full)


@maintenance.command()
@by_id
@yes_option
@with_dry_run
def end(ctx: click.Context, id: int, yes: bool) -> None:
    """Cancel maintenance that has not begun, or end it now: nodes come back.

    Example:
      cod maintenance end 3
    """
    confirm(lambda: f"End maintenance {id}?", yes)
    value = client(ctx).delete(path("maintenance", str(id)))
    what = "cancelled" if value["state"] == "cancelled" else "ended; its nodes come back"
    print_result(value, f"{id}: {what}")
