"""`cod shares`: groups' shares, limits and guarantees, and their present use of the site."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from cod.cli.nodes.energy import day
from cod.cli.show import client, shown, table, table_of, when, with_table
from cod.client import path
from cod.quantity import span

PARTS = ("own", "higher", "equal", "lower", "free")


@click.command()
@click.argument("group", required=False)
@click.option("--users", is_flag=True, help="Show the shares of the users inside GROUP.")
@click.option(
    "--use", is_flag=True, help="Show what GROUP used in 30 days, others did, and what was free."
)
@with_table
def shares(ctx: click.Context, group: str | None, users: bool, use: bool) -> None:
    """Show groups' shares of the site: usage, rank, guarantees and limits; of one GROUP, or of all
    that you may see.

    Example:
      cod shares
      cod shares physics --users
      cod shares physics --use
    """
    api = client(ctx)
    if use:
        if group is None:
            raise click.UsageError("--use needs a GROUP")
        shown(api.get(path("shares", group, "use")), _use_table)
        return
    if users:
        if group is None:
            raise click.UsageError("--users needs a GROUP")
        inside = api.get(path("shares", group, "users"))["items"]
        shown(inside, _user_table)
        return
    found = api.get("/shares")["items"] if group is None else api.get(path("shares", group))
    shown(found, share_table if group is None else lambda one: share_table([one]))


def share_table(values: list[Any]) -> Any:
    """Return the table of shares, with a caption that says how evenly they were used."""
    found = table(
        (
            "GROUP",
            "PRIORITY",
            "SHARES",
            "OF SITE",
            "USAGE",
            "RATIO",
            "RANK",
            "GUARANTEE",
            "LIMIT",
            "HELD",
            "HOURS",
        ),
        [row for value in values for row in _rows(value)],
    )
    if values and values[0]["evenness"] is not None:
        found.caption = (
            "Jain's index of what groups used in 14 days for each unit of their shares: "
            f"{values[0]['evenness']:.3f} (1 is even)"
        )
    return found


def preview_table(value: Any) -> Any:
    """Return the effect that other shares would have had in the last days, for people."""
    from rich.console import Group

    return Group(
        value["sentence"],
        "",
        table_of(
            value["groups"],
            ("GROUP", lambda one: one["group"]),
            ("REQUESTS", lambda one: str(one["requests"])),
            ("MEAN WAIT", lambda one: span(one["before"])),
            ("WITH THESE SHARES", lambda one: span(one["after"])),
        ),
    )


def _use_table(value: Any) -> Any:
    """Return a group's use of the site for people: sentences, and a table by week."""
    from rich.console import Group

    rows = [(day(one["at"]), *(f"{one[part]:.1f}" for part in PARTS)) for one in value["days"]]
    return Group(
        value["sentence"],
        *(f"- {change}" for change in value["changes"]),
        "",
        table(("DAY", *(part.upper() for part in PARTS)), rows),
    )


def _user_table(values: list[Any]) -> Any:
    return table_of(
        values,
        ("USER", lambda one: one["user"] or "(not known)"),
        ("SHARES", lambda one: f"{one['shares']:g}"),
        ("OF GROUP", lambda one: f"{100 * one['share']:.1f} %"),
        ("USAGE", lambda one: f"{one['usage']:,.1f} h"),
        ("RATIO", _ratio),
        ("RANK", lambda one: "" if one["rank"] is None else f"{one['rank']} of {len(values)}"),
    )


def _rows(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the row of a group, and a row for each type whose nodes are kept apart."""
    yield (
        value["group"] if value["parent"] is None else f"{value['parent']} / {value['group']}",
        str(value["priority"]),
        f"{value['shares']:g}",
        ""
        if value["share"] is None
        else f"{100 * value['share']:.1f} %, {value['share_nodes']} nodes",
        "" if value["usage"] is None else f"{value['usage']:,.1f} h",
        _ratio(value),
        "" if value["rank"] is None else f"{value['rank']} of {value['ranked']}",
        _guarantee(value),
        _limit(value),
        str(value["held"]),
        f"{value['hours_used']:,.1f}"
        + ("" if value["hours_limit"] is None else f" of {value['hours_limit']:,.0f}"),
    )
    for one in value["types"]:
        yield (
            f"{value['group']}: {one['type']}",
            "",
            "" if one["shares"] is None else f"{one['shares']:g}",
            "" if one["share_nodes"] is None else f"{one['share_nodes']} nodes",
            "",
            "",
            "",
            _guarantee(one),
            "",
            str(one["held"]),
            "",
        )


def _ratio(value: Any) -> str:
    if value["rank"] is None:
        return ""
    return "unused" if value["ratio"] is None else f"{value['ratio']:.3f}"


def _guarantee(value: Any) -> str:
    """Return the number of guaranteed nodes. If the site cannot provide them now, add when it
    can."""
    at = value["guaranteed_from"]
    if not value["guarantee"] or (at is not None and at < time.time() + 60):
        return str(value["guarantee"])
    return f"{value['guarantee']}, " + ("too few nodes" if at is None else f"from {when(at)}")


def _limit(value: Any) -> str:
    most = [] if value["node_limit"] is None else [str(value["node_limit"])]
    return ", ".join([*most, *(f"{kind}={count}" for kind, count in value["type_limits"].items())])
