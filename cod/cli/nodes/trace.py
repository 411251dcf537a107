"""`cod node trace`: how long each step of nodes took, for people and for collectors of traces.

A node's way is the sequence of its transitions from one state in which it rests, such as free, to
the next such state, such as in use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import click

from cod.cli.nodes.many import ChosenNodes, names_of, takes_nodes
from cod.cli.show import (
    PAST,
    client,
    for_programs,
    node_word,
    print_json,
    print_result,
    print_rich,
    table,
    when,
    with_table,
)
from cod.cli.terminal_text import printable
from cod.client import path
from cod.client.otlp import CollectorRefused, TraceSpan, document, send
from cod.quantity import counted, span
from cod.states import NODE_RULES, NodeEvent, NodeState

MOTION = frozenset(state for state, rule in NODE_RULES.items() if rule.kind == "motion")
TROUBLE = frozenset(
    {
        NodeEvent.BOOT_FAILED,
        NodeEvent.EXHAUSTED,
        NodeEvent.FAILED,
        NodeEvent.LOST,
        NodeEvent.TIMED_OUT,
    }
)
Moves = Sequence[Mapping[str, Any]]


@click.command()
@takes_nodes
@click.option(
    "--since",
    type=PAST,
    default="1d",
    show_default=True,
    help="Only ways that ended since then: a time, or how long ago.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send the ways as traces to the collector there, with $OTEL_EXPORTER_OTLP_HEADERS.",
)
@with_table
def trace(ctx: click.Context, nodes: ChosenNodes, since: float, otlp: str | None) -> None:
    """Show how long each step took that nodes went through, from one state in which they rest to
    the next: from free to in use, for instance. With --json as a trace (OTLP as JSON).

    Example:
      cod node trace n7 --since 7d
      cod node trace --where 'rack = r12' --otlp http://collector:4318
    """
    api = client(ctx)
    found = (
        (name, list(ways(recent(api.items(path("nodes", name, "history")), since))))
        for name in names_of(api, nodes)
    )
    if otlp:
        _send(otlp, found)
    elif for_programs():
        print_json(document((_resource(name), spans(own)) for name, own in found))
    else:
        print_rich(
            table(
                ("NODE", "FROM", "TO", "STEP", "AT", "TOOK", "ENDED BY", "CAUSE"),
                (row for name, own in found for way in own for row in _rows(name, way)),
            )
        )


def _send(url: str, found: Iterable[tuple[str, list[Moves]]]) -> None:
    """Send the ways of each node in a request of their own, so that no request is too large for a
    collector."""
    headers = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    of, sent = 0, 0
    try:
        for name, own in found:
            if own:
                send(url, document([(_resource(name), spans(own))]), headers)
                of, sent = of + 1, sent + len(own)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except CollectorRefused as error:
        raise click.ClickException(
            printable(f"{error} ({counted(sent, 'way')} sent before)")
        ) from None
    about = f"{counted(sent, 'way')} of {counted(of, 'node')} sent to {url}"
    print_result({"nodes": of, "ways": sent}, about)


def recent(moves: Iterable[Mapping[str, Any]], since: float) -> Moves:
    """Return the transitions of ways that ended after `since`, the oldest first. The given
    transitions have the newest first."""
    found = list[Mapping[str, Any]]()
    for move in moves:
        if move["at"] < since and move["to_state"] not in MOTION:
            break
        found.append(move)
    return found[::-1]


def ways(moves: Moves) -> Iterator[Moves]:
    """Yield the transitions of each way that has ended. The first transition leaves a state in
    which the node rests, and the last one reaches such a state. A way whose beginning is missing is
    left out."""
    way = list[Mapping[str, Any]]()
    for move in moves:
        if move["from_state"] not in MOTION:
            way = [move]
        elif way:
            way.append(move)
        if move["to_state"] not in MOTION:
            if len(way) > 1:
                yield way
            way = []


def spans(found: Iterable[Moves]) -> Iterator[TraceSpan]:
    """Yield a trace for each way: a span for the whole way, and one for each step. The ids of a way
    are the same each time, and differ from those of all other ways, here and at other sites."""
    for way in found:
        first, last = way[0], way[-1]
        trouble = (
            (last["cause"] or last["event"]) if last["to_state"] == NodeState.QUARANTINED else ""
        )
        trace_id, root = _id(16, first), _id(8, last)
        begun, ended = first["from_state"] or "unknown", last["to_state"]
        about = {"cod.actor": first["actor"], "cod.cause": first["cause"]}
        yield TraceSpan(
            *(trace_id, root, b"", f"{begun} to {ended}", first["at"], last["at"], about, trouble)
        )
        for move, after in pairwise(way):
            about = {
                "cod.vcluster": move["vcluster"],
                "cod.event": after["event"],
                "cod.cause": after["cause"],
                "cod.bytes_written": after["bytes_written"],
            }
            trouble = (after["cause"] or after["event"]) if after["event"] in TROUBLE else ""
            step = _id(8, move)
            yield TraceSpan(
                *(trace_id, step, root, move["to_state"], move["at"], after["at"], about, trouble)
            )


def _resource(name: str) -> dict[str, str]:
    return {"service.name": "cod", "host.name": name}


def _id(length: int, move: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(f"{move['id']} {move['at']}".encode()).digest()[:length]


def _rows(name: str, way: Moves) -> Iterator[tuple[object, ...]]:
    """Yield a line for each step of a way, and a line for the whole way if it has several steps."""
    first, last = way[0], way[-1]
    ends = (name, node_word(first["from_state"] or "-"), node_word(last["to_state"]))
    for move, after in pairwise(way):
        took = span(after["at"] - move["at"])
        yield (*ends, move["to_state"], when(move["at"]), took, after["event"], after["cause"])
    if len(way) > 2:
        took = span(last["at"] - first["at"])
        yield (*ends, "all", when(first["at"]), took, last["event"], last["cause"])
