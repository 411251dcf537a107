"""`cod timeline`: how many nodes each held over time, and the pool by state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from cod.cli.show import SPAN, client, node_word, shown, table, when, with_table

SHOWN = 8  # columns; what else there is comes together


@click.command()
@click.option(
    "--by",
    type=click.Choice(("vcluster", "group", "type", "state")),
    default="vcluster",
    show_default=True,
    help="Count nodes by holder, by type, or by state.",
)
@click.option(
    "--since",
    type=SPAN,
    default="1d",
    show_default=True,
    help="Start of the chart, such as 12h or 30d ago.",
)
@click.option("--group", help="Only this group.")
@click.option("--vcluster", help="Only this vcluster.")
@with_table
def timeline(
    ctx: click.Context, by: str, since: float, group: str | None, vcluster: str | None
) -> None:
    """Show how many nodes were held over time, averaged over five minutes, an hour or a day.

    Example:
      cod timeline --by group --since 7d
    """
    now = time.time()
    window = {"from": max(0.0, now - since), "to": now}
    if by != "state":
        asked = {"by": by, "group": group, "vcluster": vcluster, "limit": SHOWN}
        return shown(client(ctx).get("/timeline", **window, **asked), columns)
    if group or vcluster:
        raise click.UsageError("--by state is of all the site's nodes")
    return shown(client(ctx).get("/pool/history", **window), state_columns)


def state_columns(chart: Mapping[str, Any]) -> Any:
    """Return the columns of nodes by state, with the states of one word as one column."""
    sums: dict[str, list[float]] = {}
    for one in chart["series"]:
        word = node_word(one["name"] or "")
        before = sums.get(word, [0.0] * len(one["nodes"]))
        sums[word] = [sum(pair) for pair in zip(before, one["nodes"], strict=True)]
    series = [{"name": word, "nodes": nodes} for word, nodes in sums.items()]
    return columns({**chart, "series": series})


def columns(chart: Mapping[str, Any]) -> Any:
    """Return a line for each span; the largest series come first."""
    names = [one["name"] or "(others)" for one in chart["series"]]
    rows = [
        (when(start), *(f"{one['nodes'][place]:.1f}" for one in chart["series"]))
        for place, start in enumerate(chart["starts"])
    ]
    return table(("FROM", *names), rows)
