"""`cod plan`: the actions that the resource manager would take in its next pass; and the layout of
`cod request explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from cod.cli.show import (
    client,
    for_programs,
    print_json,
    print_rich,
    print_table,
    table_of,
    when,
    with_table,
)

COLORS = {
    "grant": "green",
    "take": "yellow",
    "seize": "yellow",
    "expire": "yellow",
    "drain": "yellow",
    "reject": "red",
    "wait": "dim",
    "hold": "dim",
    "reserve": "dim",
    "ease": "green",
    "wake": "cyan",
    "sleep": "cyan",
}


@click.command()
@click.option("--waits/--no-waits", default=True, help="List requests that would still wait.")
@with_table
def plan(ctx: click.Context, waits: bool) -> None:
    """Show what the resource manager would do in its next pass, without doing it.

    Example:
      cod plan
      cod plan --no-waits --json
    """
    value = client(ctx).get("/plan")
    if not waits:
        value["items"] = [each for each in value["items"] if each["kind"] != "wait"]
    if for_programs():
        print_json(value)
    elif value["items"]:
        print_rich(plan_table(value["items"]))
    else:
        click.echo("nothing to do")


def plan_table(items: Sequence[Mapping[str, Any]]) -> Any:
    """Return the table of a plan's actions, in their order."""
    from rich.text import Text

    return table_of(
        items,
        ("WHAT", lambda one: Text(one["kind"], COLORS.get(one["kind"], ""))),
        ("NODES", "nodes"),
        ("TYPE", "type"),
        ("BLOCK", "block"),
        ("SUBNET", "subnet"),
        ("VCLUSTER", "vcluster"),
        ("REQUEST", "request"),
        ("WHY", "about"),
    )


# ---------------------------------------------------------------- why a request waits


def print_explanation(why: Mapping[str, Any], most: int | None = 20) -> None:
    """Print a request's explanation: first the sentence, then its reasons, at most `most` lines of
    each kind (None: all). Empty parts are left out."""
    state = "" if why["state"] == "pending" else f", {why['state']}"  # the sentence says so
    click.echo(f"request {why['request']} of vcluster {why['vcluster']}{state}: {why['sentence']}")
    if not why["position"]:
        return
    click.echo(f"place {why['position']} in the queue for these types")
    if why["start"]:
        click.echo(why["start"])
    _ports(why)
    _part(
        "ahead of it",
        ("REQUEST", "VCLUSTER", "PRIORITY", "NODES"),
        [(one["request"], one["vcluster"], _priority(one), one["wanted"]) for one in why["ahead"]],
        most,
    )
    _types(why["types"], most)
    _part(
        "who holds what matches",
        ("VCLUSTER", "PRIORITY", "NODES", "MAY BE TAKEN", "KEPT BY", "UNTIL", "WHY"),
        [
            (
                one["vcluster"],
                _priority(one),
                one["count"],
                str(one["takeable"]),
                one["protected"],
                when(one["until"]),
                one["sentence"],
            )
            for one in why["holders"]
        ],
        most,
    )
    _part(
        "what would free it",
        ("WHEN", "NODES", "HOW"),
        [
            (
                when(one["at"]),
                one["count"],
                one["sentence"],
            )
            for one in why["chances"]
        ],
        most,
    )


def _priority(one: Mapping[str, Any]) -> str:
    return "preemptible" if one["priority"] is None else str(one["priority"])


def print_match(found: Mapping[str, Any]) -> None:
    """Print the prospects of a request."""
    click.echo(found["sentence"])
    click.echo(
        f"{found['wanted']} wanted, {found['matching']} of the site match: {found['free']} free, "
        f"{found['coming']} coming; its vcluster has addresses for {found['room']}"
    )
    _ports(found)
    if not found["granted"] and found["expected_at"] is not None:
        click.echo(f"as far as leases tell there are enough {when(found['expected_at'])}")
    _types(found["types"], None)


def _types(types: Sequence[Mapping[str, Any]], most: int | None) -> None:
    counts = ("site", "free", "coming", "held")
    _part(
        "types of nodes",
        ("TYPE", "COST", "SITE", "FREE", "COMING", "HELD", "LACKS"),
        [
            (one["name"], f"{one['cost']:g}", *(str(one[key]) for key in counts), _lacks(one))
            for one in types
        ],
        most,
    )


def _ports(found: Mapping[str, Any]) -> None:
    if found["portless"]:
        click.echo(
            f"{found['portless']} that match cannot be in an isolated vcluster, because COD cannot"
            " change their switch ports: see cod port list, and cod port set"
        )


def _part(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int | None
) -> None:
    if rows:
        click.echo(f"\n{title}")
        print_table(columns, rows[:most])
    if most is not None and len(rows) > most:
        click.echo(f"… and {len(rows) - most} more: see --all")


def _lacks(fit: Mapping[str, Any]) -> str:
    """Return the requirements that a type of nodes does not meet, by tuple: 'tuple 2: memory/mib:
    …; tuple 3: …'. If only the first tuple has some, its number is left out."""
    lacks = {one["position"]: "; ".join(one["phrases"]) for one in fit["lacks"]}
    if list(lacks) == [0]:
        return lacks[0]
    return "; ".join(
        f"tuple {position + 1}: {phrases}" for position, phrases in sorted(lacks.items())
    )
