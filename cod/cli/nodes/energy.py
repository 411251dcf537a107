"""`cod energy`: the energy that nodes used, and the energy that the reserve's sleep has saved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from cod.cli.show import SPAN, client, shown, table, when, with_table

RESERVE = "(reserve)"
WIDTH = 40  # columns of the picture


@click.command()
@click.option(
    "--by",
    type=click.Choice(("group", "vcluster", "type", "day", "month")),
    default="group",
    show_default=True,
    help="Sum by group, by vcluster, by node type, by day or by month.",
)
@click.option(
    "--since",
    type=SPAN,
    default="30d",
    show_default=True,
    help="Start of the report, such as 7d ago; whole days, UTC.",
)
@click.option("--group", help="Only this group.")
@with_table
def energy(ctx: click.Context, by: str, since: float, group: str | None) -> None:
    """Show the energy that nodes used, and the energy saved by sleep: of your groups; for
    administrators, of all.

    Example:
      cod energy --by day --since 7d
      cod energy --by month --since 365d --group physics
    """
    now = time.time()
    report = client(ctx).get(
        "/energy", **{"from": max(0.0, now - since), "to": now, "by": by, "group": group}
    )
    shown(report, picture)


def picture(report: Mapping[str, Any]) -> Any:
    """Return the report as a table with bars: solid for energy used, light for energy saved."""
    from rich.console import Group
    from rich.text import Text

    carbon = report["total"]["gco2"] > 0  # a site that does not count CO2 has no column for it
    priced = report["total"]["cost"] is not None  # nor one without prices for cost
    longest = max((line["kwh"] + line["kwh_saved"] for line in report["items"]), default=0.0)
    lines = [
        (name(report["by"], line), *figures(line, carbon, priced), bar(line, longest))
        for line in report["items"]
    ]
    if lines:
        lines.append(("total", *figures(report["total"], carbon, priced), Text()))
    columns = (
        report["by"].upper(),
        "NODE-HOURS",
        "KWH",
        "SAVED",
        "SAVED %",
        *(["KG CO2"] if carbon else []),
        *([report["currency"]] if priced else []),
        "USED █ SAVED ░",
    )
    counted = report["counted_until"]
    until = "nothing is counted yet" if counted is None else f"counted until {when(counted)}"
    return Group(
        table(columns, lines),
        Text(f"{day(report['since'])} to {day(report['until'] - 1)}, {until}"),
        *([Text(curve(report["curve"]))] if report["curve"] else []),
    )


def curve(found: Mapping[str, Any]) -> str:
    """Return a sentence about the curve of carbon or price: its present value, and its age."""
    if found["read_at"] is None:
        return f"{found['of']}: the curve was never read; {found['fault'] or 'it will be soon'}"
    value = found["value"]
    now = "no value for now" if value is None else f"now {value:g} {found['unit']}"
    fault = f"; the last try failed: {found['fault']}" if found["fault"] else ""
    return f"{found['of']}: {now}, read {when(found['read_at'])}{fault}"


def name(by: str, line: Mapping[str, Any]) -> str:
    """Return the name or the day of a line."""
    if by == "month":
        return time.strftime("%Y-%m", time.gmtime(line["day"]))
    return day(line["day"]) if by == "day" else line["name"] or RESERVE


def day(at: float) -> str:
    """Return the day in UTC, as in the accounts."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def figures(line: Mapping[str, Any], carbon: bool = False, priced: bool = False) -> tuple[str, ...]:
    """Return node-hours, kWh used, kWh saved, and the saved share of both together; with `carbon`
    also kg of CO2 emitted, with `priced` also the cost."""
    always_on = line["kwh"] + line["kwh_saved"]
    share = 100 * line["kwh_saved"] / always_on if always_on else 0.0
    return (
        f"{line['node_hours']:.1f}",
        f"{line['kwh']:.2f}",
        f"{line['kwh_saved']:.2f}",
        f"{share:.0f}",
        *([f"{line['gco2'] / 1000:.2f}"] if carbon else []),
        *([f"{line['cost']:,.2f}"] if priced else []),
    )


def bar(line: Mapping[str, Any], longest: float) -> Any:
    """Return a bar, in which `WIDTH` columns stand for the `longest` of all bars."""
    from rich.text import Text

    scale = WIDTH / longest if longest else 0.0
    used = round(line["kwh"] * scale)
    saved = round((line["kwh"] + line["kwh_saved"]) * scale) - used
    return Text.assemble(("█" * used, "yellow"), ("░" * saved, "green"))
