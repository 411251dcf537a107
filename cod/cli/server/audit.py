"""`cod audit history`: the holders of each node over time, read from the site's database and
checked."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from cod.cli.people.account import audit
from cod.cli.server.local import read
from cod.cli.show import for_programs, print_json, with_json
from cod.quantity import counted
from cod.quantity import span as length

if TYPE_CHECKING:
    from cod.flows.nodes.history import CheckedHistories
    from cod.policy.histories import Span

SHOWN = 6  # owners in a node's line where all nodes are listed


@audit.command()
@click.argument("node", required=False)
@with_json
def history(ctx: click.Context, node: str | None) -> None:
    """Show a line of owners over time for each node, or for NODE, and check the histories.

    Reads the site's database, not the server, which may run. Exit code 1 if there is a violation:
    two owners at once, a boot into another's image, a node that is free while it is dirty or was
    handed on without a wipe, a foreign volume or VLAN, a gap. Vclusters are shown as GROUP/NAME.

    Example:
      cod audit history
      cod audit history m17 --json
    """
    from cod.flows.nodes import history as flow

    found: CheckedHistories = read(ctx, flow.check, node=node)
    if for_programs():
        print_json(_values(found))
    else:
        _print(found, None if node else SHOWN)
    sys.exit(1 if found.violations else 0)


def _print(found: CheckedHistories, last: int | None) -> None:
    now = time.time()
    for node, name in found.names.items():
        owners = [
            _words(span, found, now)
            for span in found.histories.spans(node)
            if span.holder is not None or span.erased or span.until is None
        ]
        click.echo(f"{name}: " + ", ".join(owners if last is None else owners[-last:]))
    for one in found.violations:
        click.echo(f"{found.names.get(one.node, one.node)}: {one.kind}: {one.about}", err=True)
    click.echo(
        f"{counted(len(found.names), 'node')}, {counted(found.transitions, 'transition')},"
        f" {counted(len(found.violations), 'violation')}",
        err=True,
    )


def _words(owned: Span, found: CheckedHistories, now: float) -> str:
    """Return 'erased', or the owner of a node ('free' for none) and the length of the span of
    time."""
    if owned.holder is None and owned.erased:
        return "erased"
    owner = "free" if owned.holder is None else found.histories.name(owned.holder)
    return f"{owner} {length((owned.until or now) - owned.since)}"


def _values(found: CheckedHistories) -> dict[str, Any]:
    """Return the checked histories as JSON values."""
    histories = found.histories
    return {
        "transitions": found.transitions,
        "nodes": [
            {
                "node": name,
                "owners": [
                    {
                        "vcluster": None if span.holder is None else histories.name(span.holder),
                        "since": span.since,
                        "until": span.until,
                        "erased": span.erased,
                    }
                    for span in histories.spans(node)
                ],
            }
            for node, name in found.names.items()
        ],
        "violations": [
            {
                "node": found.names.get(one.node),
                "kind": one.kind,
                "about": one.about,
                "at": one.at,
                "transition": one.row,
            }
            for one in found.violations
        ],
    }
