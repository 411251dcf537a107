"""`cod status` and `cod top`: the site at a glance, once or live."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from cod.cli.show import (
    ago,
    client,
    for_programs,
    live,
    node_word,
    print_json,
    print_rich,
    shown,
    stream,
    styled,
    table,
    table_of,
    when,
    with_json,
)
from cod.client import Client
from cod.quantity import counted, first_few
from cod.states import WORDS

DAY = 86400.0
QUEUE = 20  # requests that `cod top` shows
WATTS_AGE = 60.0  # seconds for which `cod top` keeps a sum that takes a list of all nodes
BAR = 40  # characters of the longest bar


@click.command()
@with_json
def status(ctx: click.Context) -> None:
    """Show the site and your part of it in eight lines: nodes, clusters, requests, energy; for
    administrators faults, for others reclaims and keys.

    Example:
      cod status
    """
    api, now = client(ctx), time.time()
    found = {
        "me": api.get("/me"),
        "server": api.get("/server"),
        "nodes": api.get("/health")["counts"].get("nodes", {}),
        "vclusters": api.every("/vclusters"),
        "requests": api.every("/requests", state="pending"),
        "energy": api.get("/energy", **{"from": now - DAY, "to": now, "by": "day"})["total"],
    }
    if found["me"]["admin"]:
        found |= {"hold": api.get("/hold"), "faults": api.get("/faults")["items"]}
    else:
        found["reclaims"] = api.every("/reclaims", state="open")
        found["keys"] = api.get("/me/keys")["items"] if found["me"]["user"] else []
    shown(found, lambda v: table(("", ""), [*_lines(api.server, v)]))


def _lines(server: str, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    me, site = found["me"], found["server"]
    groups = ", ".join(f"{each['group']} ({each['role']})" for each in me["groups"])
    yield "Server", f"{site['name']}, COD {site['version']}, {server}"
    name = (me["user"] or me)["name"]
    yield "You", f"{name}: {'administrator' if me['admin'] else groups or 'no group'}"
    yield "Nodes", counted_nodes(found["nodes"])
    yield "Clusters", _clusters(found["vclusters"])
    yield "Requests", _requests(found["requests"])
    energy = found["energy"]
    saved = f", {energy['kwh_saved']:.1f} kWh saved by sleep"
    yield "Energy", f"{energy['kwh']:.1f} kWh since yesterday{saved}"
    if me["admin"]:
        hold = found["hold"]
        yield "Operation", f"held: {hold['why']}" if hold["held"] else "grants and erases nodes"
        lasting = [fault["what"] for fault in found["faults"] if fault["ended"] is None]
        yield "Faults", f"{len(lasting)}: {first_few(lasting, 3)}" if lasting else "none"
    else:
        leaving = sorted({reclaim["vcluster"] for reclaim in found["reclaims"]})
        yield "Reclaims", f"nodes are taken from {', '.join(leaving)}" if leaving else "none"
        keys = counted(len(found["keys"]), "SSH key")
        yield "Keys", keys if found["keys"] else "no SSH key yet: cod key add FILE"


def counted_nodes(states: Mapping[str, int]) -> str:
    """Return the number of nodes, and the numbers by people's words for states: '12: 8 in use, 4
    free'."""
    words = words_of(states)
    text = ", ".join(f"{number} {word}" for word, number in words.items())
    return f"{sum(words.values())}: {text}" if words else "none"


def words_of(states: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of nodes by people's words for their states, in the order of the words."""
    words: Counter[str] = Counter(dict.fromkeys(WORDS.values(), 0))
    for state, number in states.items():
        words[node_word(state)] += number
    return {word: number for word, number in words.items() if number}


def _clusters(values: list[Any]) -> str:
    if not values:
        return "none"
    nodes = sum(sum(one["states"].values()) for one in values)
    ends = min(
        ((one["expires_at"], one["name"]) for one in values if one["expires_at"]), default=()
    )
    first = f"; the first to end is {ends[1]}, {ago(ends[0])}" if ends else ""
    return f"{len(values)} with {counted(nodes, 'node')}{first}"


def _requests(values: list[Any]) -> str:
    if not values:
        return "none waits"
    nodes = sum(part["count"] for one in values for part in one["tuples"])
    starts = min((one["expected"]["at"] for one in values if _start(one)), default=None)
    first = "" if starts is None else f"; the first starts about {when(starts)}"
    return f"{len(values)} waiting for {counted(nodes, 'node')}{first}"


def _start(request: Mapping[str, Any]) -> float | None:
    start: float | None = request["expected"] and request["expected"]["at"]
    return start


# ---------------------------------------------------------------- top


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(1.0, 3600.0),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, as in a pipe.")
@with_json
def top(ctx: click.Context, interval: float, once: bool) -> None:
    """Show nodes by state, the power they draw and the requests that wait, live at a terminal until
    Ctrl-C.

    Example:
      cod top
      cod top --once --json
    """
    look = Look(client(ctx))
    if once or not sys.stdout.isatty():
        print_json(look()) if for_programs() else print_rich(picture(look()))
    elif for_programs():
        stream(look, interval)
    else:
        live(lambda: picture(look()), interval)


class Look:
    """A reader of the site's state. The sum of watts is fetched only every `WATTS_AGE` seconds,
    because it needs the list of all nodes."""

    def __init__(self, api: Client) -> None:
        self._api, self._next, self._watts = api, 0.0, (0.0, 0)

    def __call__(self) -> dict[str, Any]:
        """Return the state of the site as JSON values."""
        if time.monotonic() >= self._next:
            self._watts = drawn(self._api.items("/nodes"))
            self._next = time.monotonic() + WATTS_AGE
        watts, measured = self._watts
        return {
            "at": time.time(),
            "nodes": self._api.get("/health")["counts"].get("nodes", {}),
            "watts": watts,
            "measured": measured,
            "requests": self._api.newest("/requests", 1000, state="pending"),
        }


def drawn(nodes: Iterable[Any]) -> tuple[float, int]:
    """Return the sum of the nodes' last measured watts, and the number of measured nodes."""
    measured = [node["power"]["watts"] for node in nodes if node["power"]["watts"] is not None]
    return sum(measured), len(measured)


def picture(found: Mapping[str, Any]) -> Any:
    """Return the state of the site for people."""
    from rich.console import Group

    words = words_of(found["nodes"])
    most = max(words.values(), default=1)
    states = table_of(
        words.items(),
        ("STATE", lambda one: styled(one[0], one[0])),
        ("NODES", lambda one: str(one[1])),
        ("", lambda one: "█" * max(1, BAR * one[1] // most)),
    )
    queue = found["requests"]
    waiting = table_of(
        queue[:QUEUE],
        ("REQUEST", "id"),
        ("CLUSTER", "vcluster"),
        ("NODES", lambda one: sum(part["count"] for part in one["tuples"])),
        ("PRIORITY", "priority"),
        ("WAITING", lambda one: ago(one["submitted_at"])),
        ("EXPECTED", lambda one: ago(_start(one))),
    )
    more = f"\nand {len(queue) - QUEUE} more" if len(queue) > QUEUE else ""
    return Group(
        f"{when(found['at'])}",
        f"{counted(sum(words.values()), 'node')}, {found['watts'] / 1000:.1f} kW measured at"
        f" {counted(found['measured'], 'node')}, {counted(len(queue), 'request')} waiting",
        "",
        states,
        "",
        waiting,
        more,
    )
