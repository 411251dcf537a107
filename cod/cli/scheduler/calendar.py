"""`cod calendar`: vclusters that hold nodes and the ends of their leases, and nodes that change
hands at a known time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from cod.cli.show import SPAN, client, shown, table, when, with_table

KINDS = {
    "held": "held",
    "draining": "draining",
    "reserved": "reserved",
    "expected": "expected",
    "moving": "arriving by a move",
    "leaving": "leaving",
}


@click.command()
@click.option(
    "--ahead",
    type=SPAN,
    default="7d",
    show_default=True,
    help="Length of the calendar from now on.",
)
@with_table
def calendar(ctx: click.Context, ahead: float) -> None:
    """Show the vclusters that hold nodes, until when, and the nodes that come: reservations in
    advance and moves; and maintenance.

    Vclusters of groups that you may not see have no names.

    Example:
      cod calendar --ahead 30d
    """
    now = time.time()
    shown(client(ctx).get("/calendar", **{"from": now, "to": now + ahead}), bars)


def bars(found: Mapping[str, Any]) -> Any:
    """Return a line for each bar of the calendar."""
    lines = [_bar(row, bar) for row in found["rows"] for bar in row["bars"]]
    lines += [_closed(one) for one in found["maintenance"]]
    if found["omitted"]:
        lines.append((f"and {found['omitted']} more", *[""] * 7))
    return table(("GROUP", "VCLUSTER", "WHAT", "NODES", "TYPES", "FROM", "UNTIL", "REQUEST"), lines)


def _bar(row: Mapping[str, Any], bar: Mapping[str, Any]) -> tuple[str, ...]:
    types = [f"{name or 'no type'}={count}" for name, count in row["types"].items()]
    return (
        row["group"] or "(another)",
        row["vcluster"] or "(another group's)",
        KINDS[bar["kind"]] + (", preemptible" if row["preemptible"] else ""),
        str(bar["nodes"]),
        ", ".join(types) if bar["kind"] in ("held", "draining") else "",
        "" if bar["kind"] == "leaving" else when(bar["start"]),
        _until(bar),
        "" if bar["request"] is None else str(bar["request"]),
    )


def _closed(one: Mapping[str, Any]) -> tuple[str, ...]:
    about = f"maintenance of {one['what']}: {one['reason']}"
    return ("", "", about, str(one["nodes"]), "", when(one["start"]), _until(one), "")


def _until(span: Mapping[str, Any]) -> str:
    return "open" if span["end"] is None else when(span["end"])
