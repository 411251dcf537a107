"""`cod series`: recurring reservations, a cluster for each day or week; and the options by which
`cod vcluster create` makes a series."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cod.cli.nouns import Noun
from cod.cli.show import (
    WrittenValue,
    client,
    confirm,
    print_result,
    table_of,
    table_with,
    when,
    with_dry_run,
    yes_option,
)
from cod.client import path

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST = 1000
__all__ = ["DAY_NAMES", "MOST", "series", "series_in_full", "this_zone"]


def _days(text: str) -> list[str]:
    """Return the days of the week in 'daily', 'weekly' (the day of the first start), or
    'mon,wed'."""
    days = {"daily": list(DAYS), "weekly": []}.get(text, text.split(","))
    if not set(days) <= set(DAYS):
        raise ValueError("is not daily, weekly, or days of the week such as mon,wed")
    return days


DAY_NAMES = WrittenValue("days", _days)


def this_zone() -> str:
    """Return the name of this computer's time zone. Raises UsageError if it has none."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named:
        return named
    _, found, name = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")
    if not found:
        raise click.UsageError("name the time zone: --zone Europe/Berlin")
    return name


@click.group()
def series() -> None:
    """Reservations that recur: a virtual cluster for each day or week.

    `cod vcluster create NAME --from TIME --for SPAN --repeat weekly` makes a series. Its clusters
    are reserved four weeks before they start.

    Example:
      cod series show course
    """


series_table = table_with(
    ("SERIES", "name"),
    ("GROUP", "group"),
    ("DAYS", lambda one: "daily" if len(one["days"]) == len(DAYS) else ",".join(one["days"])),
    ("ZONE", "zone"),
    ("FIRST", lambda one: when(one["starts_at"])),
    ("COUNT", lambda one: "open" if one["count"] is None else str(one["count"])),
    ("LAST", lambda one: "open" if one["last"] is None else when(one["last"])),
    ("REFUSED", lambda one: str(sum(bool(each["refused"]) for each in one["occurrences"]))),
)


def series_in_full(value: Any) -> Any:
    """Return a series and its decided starts, for people."""
    from rich.console import Group

    starts = table_of(
        value["past"] + value["occurrences"],
        ("VCLUSTER", "vcluster"),
        ("STARTS", lambda one: when(one["starts_at"])),
        ("STATE", "state"),
        ("WHY NOT", "refused"),
    )
    return Group(series_table([value]), "", starts)


noun = Noun(series, "series", series_table, series_in_full)
noun.list("List series.", "cod series list", watch=True)
noun.show(
    "Show a series: which of its next clusters are reserved, and what became of the last ones.",
    "cod series show course",
)


@series.command()
@click.argument("name")
@yes_option
@with_dry_run
def end(ctx: click.Context, name: str, yes: bool) -> None:
    """End a series: no further clusters are reserved. Those that are reserved stay.

    Example:
      cod series end course
    """
    confirm(lambda: f"End series {name}?", yes)
    value = client(ctx).delete(path("series", name))
    print_result(value, f"{name}: ended; clusters that are reserved stay")
