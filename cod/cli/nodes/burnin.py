"""`cod node burnin`: tests of a node's memory, disks and network."""

from __future__ import annotations

from typing import Any

import click

from cod.choices import BurninTest, NodeAction
from cod.cli.nodes.follow import follow
from cod.cli.nodes.many import Acting, acts, name_of
from cod.cli.show import client, node_word, shown, size, table, table_of, table_with, when
from cod.cli.wait import wait_option
from cod.client import path

OVER = ("passed", "failed", "cancelled")
# Figures that people look at first, by test: (name, text after it).
_FIGURES = {
    "memory": (("rounds", " rounds"), ("tested_mib", " MiB")),
    "disk": (
        ("tested_percent", " % tested"),
        ("read_mb_s", " MB/s read"),
        ("write_mb_s", " MB/s written"),
        ("smart_power_on_hours", " h powered on"),
    ),
    "network": (("link_mbit_s", " Mb/s link"), ("throughput_mbit_s", " Mb/s"), ("drops", " drops")),
}


class NotPassed(click.ClickException):
    """Exit code 1: the node failed its burn-in, or it was cancelled."""


@click.command()
@click.option(
    "--tests",
    metavar="TEST,...",
    help=f"Of {', '.join(BurninTest)}. [default: the site's]",
)
@click.option(
    "--seconds",
    type=click.IntRange(10, 864_000),
    help="For all tests together. [default: the site's]",
)
@click.option(
    "--erase",
    is_flag=True,
    help="Erase disks that are not clean first, to test them by writing, too.",
)
@click.option("--show", is_flag=True, help="Show the newest burn-in; start none.")
@click.option("--history", is_flag=True, help="List the burn-ins of the node; start none.")
@click.option("--cancel", is_flag=True, help="Cancel the burn-in.")
@wait_option
@acts
def burnin(
    acting: Acting,
    tests: str | None,
    seconds: int | None,
    erase: bool,
    show: bool,
    history: bool,
    cancel: bool,
    wait: bool,
    timeout: float,
) -> None:
    """Test free nodes' memory, disks and network. A node that fails is taken out of service.

    Clean disks are written, read back and left empty. Disks that hold anything, or are marked keep,
    are only read.

    Example:
      cod node burnin n7 --wait
      cod node burnin n7 --tests disk --seconds 3600
      cod node burnin n7 --history
      cod node burnin @r12 --seconds 3600 --dry-run
    """
    asked = {
        "tests": tests.split(",") if tests is not None else None,
        "seconds": seconds,
        "erase": erase or None,
    }
    fields = {key: given for key, given in asked.items() if given is not None}
    if acting.dry_run or not acting.nodes.lone:
        if show or history or cancel or wait:
            raise click.UsageError("--show, --history, --cancel and --wait are for one node")
        acting("Burn in", action=NodeAction.BURNIN, burnin=fields)
        return
    api = client(acting.ctx)
    name = name_of(api, acting.nodes.lone)
    place = path("nodes", name, "burnin")
    if history:
        shown(api.get(path("nodes", name, "burnins"))["items"], _history)
        return
    if cancel:
        value = api.delete(place)
    elif show:
        value = api.get(place)
    else:
        value = api.post(place, fields)
    if wait and not cancel:
        value = follow(api, place, "burn-in", OVER, timeout)
    shown(value, _facts)
    if wait and not cancel and value["state"] != "passed":
        raise NotPassed(f"{name} did not pass: {value['reason']}")


def _facts(value: Any) -> Any:
    from rich.console import Group

    facts = [
        (key, text)
        for key, text in (
            ("node", f"{value['node']} ({node_word(value['node_state'])})"),
            ("state", _state(value)),
            ("cause", value["cause"]),
            ("tests", ", ".join(value["tests"])),
            ("seconds", value["seconds"]),
            ("asked", f"{when(value['asked_at'])} by {value['actor']}"),
            ("ended", when(value["ended_at"])),
            ("reason", value["reason"]),
        )
        if text
    ]
    return Group(
        table(("", ""), facts),
        table_of(
            value["results"],
            ("TEST", "test"),
            ("PART", "part"),
            ("RESULT", "outcome"),
            ("MEASURED", measured),
            ("ABOUT", "about"),
        ),
    )


_history = table_with(
    ("ASKED", lambda v: when(v["asked_at"])),
    ("CAUSE", "cause"),
    ("TESTS", lambda v: ", ".join(v["tests"])),
    ("STATE", lambda v: _state(v)),
    ("ENDED", lambda v: when(v["ended_at"])),
    ("MEASURED", lambda v: _all_measured(v["results"])),
    ("REASON", "reason"),
)


def _all_measured(results: list[Any]) -> str:
    found = ((each["part"], measured(each)) for each in results)
    return "; ".join(f"{part}: {figures}" for part, figures in found if figures)


def _state(value: Any) -> str:
    """'running: disk 41 % 120.0 MiB/s'."""
    if value["state"] != "running" or not value["total"]:
        return str(value["state"])
    return (
        f"running: {value['phase']} {100 * value['done'] // value['total']} %"
        f" {size(value['rate'])}/s"
    )


def measured(result: Any) -> str:
    """Return a test's most important figures: '100 % tested, 512 MB/s read'."""
    figures = result["figures"]
    return ", ".join(
        f"{figures[name]:.0f}{text}" for name, text in _FIGURES[result["test"]] if name in figures
    )
