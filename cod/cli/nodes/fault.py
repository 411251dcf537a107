"""`cod fault`: parts of the site outside COD that do not work: switches, file servers, BMCs, other
DHCP servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from cod.cli.show import client, shown, table_of, table_with, when, with_table
from cod.quantity import counted

FEW = 5  # names that a line shows


@click.group()
def fault() -> None:
    """Faults outside of COD: since when, whom they affect, and who waits.

    Example:
      cod fault list
    """


@fault.command("list")
@with_table
def list_(ctx: click.Context) -> None:
    """List faults of switches, file servers, BMCs and other DHCP servers, and those that ended in
    the last day.

    Example:
      cod fault list --json
    """
    shown(client(ctx).get("/faults")["items"], fault_table)


@fault.command()
@click.option(
    "--by",
    type=click.Choice(["reason", "rack", "template"]),
    default="reason",
    help="By what nodes are grouped.",
)
@with_table
def nodes(ctx: click.Context, by: str) -> None:
    """List nodes that failed and are out of service, those that failed alike together.

    To try all of a group again, return its nodes to service:

    Example:
      cod fault nodes --by rack
      cod node restore --where "state=quarantined and rack=r12"
    """
    found = client(ctx).get("/faults/nodes", by=by)["items"]
    shown(found, lambda groups: failure_table(groups, by))


def failure_table(groups: Sequence[Mapping[str, Any]], by: str) -> Any:
    """Return the table of failed nodes."""
    return table_of(
        [(group["key"], node) for group in groups for node in group["nodes"]],
        (by.upper(), lambda v: v[0] or "none"),
        ("NODE", lambda v: v[1]["name"]),
        ("SINCE", lambda v: when(v[1]["since"])),
        *(
            (title, lambda v, key=key: v[1][key] or "-")
            for key, title in (("block", "RACK"), ("template", "TEMPLATE"), ("reason", "REASON"))
            if title != by.upper()
        ),
    )


fault_table = table_with(
    ("FAULT", "what"),
    ("SINCE", lambda v: when(v["since"])),
    ("ENDED", lambda v: when(v["ended"])),
    ("AFFECTS", lambda v: _few(v["affects"])),
    ("WAITING", lambda v: _few(v["waits"])),
    ("ABOUT", "about"),
)


def _few(names: Sequence[str]) -> str:
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {counted(more, 'other')}" if more > 0 else "")
