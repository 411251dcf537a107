"""`cod request`: requests for nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from cod.cli.local_files import TEXT_FILE, text_of
from cod.cli.nouns import Noun, by_number
from cod.cli.owner import owner
from cod.cli.record_fields import Show, body_of, fields_table, lists, set_options
from cod.cli.scheduler.plan import print_explanation, print_match
from cod.cli.show import (
    KIND,
    MOMENT,
    SPAN,
    client,
    for_programs,
    machine_states,
    newest_option,
    print_json,
    print_result,
    shown,
    when,
    with_dry_run,
    with_json,
)
from cod.client import path
from cod.model.sharing.requests import AskedNodes
from cod.model.views import RequestView
from cod.states import OTHER_WORDS


@click.group()
def request() -> None:
    """Requests for nodes, and why they wait.

    Example:
      cod request list --state waiting
    """


def _starts(value: Any) -> str:
    """Return when a request starts: at its reserved time, or else at its expected time."""
    expected = value["expected"] or {"at": None}
    if value["starts_at"] is not None or expected["at"] is None:
        return when(value["starts_at"])
    return f"about {when(expected['at'])}"


COLUMNS = (
    "id",
    "vcluster",
    "kind",
    "state",
    ("Nodes", lambda v: sum(t["count"] for t in v["tuples"])),
    ("Template", lambda v: ", ".join(t["template"] for t in v["tuples"])),
    "priority",
    "submitted_at",
    ("starts_at", _starts),
    "decided_at",
    "reason",
)
request_table = partial(fields_table, RequestView, columns=COLUMNS)
Noun(request, "requests", request_table, named=by_number).show(
    "Show a request and why it waits.", "cod request show 12"
)


@request.command("list")
@click.option("--vcluster", help="Only this vcluster's.")
@click.option("--group", help="Only this group's.")
@click.option(
    "--state",
    help="waiting, stopped, granted, rejected or withdrawn, or several with commas between.",
)
@newest_option(1000)
@lists(RequestView, watch=True)
def list_(
    ctx: click.Context, show: Show, state: str | None, limit: int, **only: str | None
) -> None:
    """List the newest requests, oldest first.

    Example:
      cod request list --state waiting --watch
    """
    api, named = client(ctx), machine_states(state, OTHER_WORDS)
    show(lambda: api.newest("/requests", limit, state=named, **only), COLUMNS)


@request.command()
@click.argument("number", type=click.IntRange(1))
@click.option(
    "--all", "everything", is_flag=True, help="Print all lines of each part, not only the first 20."
)
@with_json
def explain(ctx: click.Context, number: int, everything: bool) -> None:
    """Explain why a request waits: mismatches by type, requests ahead, holders of matching nodes,
    remedies.

    Example:
      cod request explain 12
    """
    why = client(ctx).get(path("requests", number, "explain"))
    if for_programs():
        print_json(why)
    else:
        print_explanation(why, None if everything else 20)


@request.command()
@click.argument("vcluster")
@click.argument("nodes", type=KIND, nargs=-1, required=True, metavar="COUNT[:TEMPLATE[:FILE]]...")
@click.option(
    "--spread", is_flag=True, help="Allow nodes of one kind to be of several types and blocks."
)
@click.option(
    "--no-wait", "now", is_flag=True, help="Reject the request unless it can be granted now."
)
@click.option(
    "--at",
    "starts_at",
    type=MOMENT,
    metavar="TIME",
    help=(
        "Reserve the nodes in advance, from this time on: "
        "2026-12-01T08:00 in this computer's time zone, or with one, as in 2026-12-01T08:00Z."
    ),
)
@click.option(
    "--for",
    "duration",
    type=SPAN,
    metavar="LENGTH",
    help=(
        "With --at or --before: how long, such as 8h or 2d. "
        "The lease of VCLUSTER is extended to that."
    ),
)
@click.option(
    "--before",
    type=MOMENT,
    metavar="TIME",
    help=(
        "With --for, in place of --at: reserve the nodes at the cheapest hours by the site's curve "
        "of price or carbon, so that the time is over before then."
    ),
)
@set_options(AskedNodes, new=True)
@click.option("--key", help="Idempotency key: a repetition with the same key has no effect.")
@with_dry_run
def submit(
    ctx: click.Context,
    /,
    vcluster: str,
    nodes: tuple[Any, ...],
    spread: bool,
    now: bool,
    starts_at: float | None,
    duration: float | None,
    before: float | None,
    key: str | None,
    **options: Any,
) -> None:
    """Request more nodes for VCLUSTER, of one kind or of several: all of them, or none. A kind is a
    count, a template and a file of requirements (XML). Parts left out are those that the vcluster
    was created with.

    Example:
      cod request submit batch 8:worker 2::gpu.xml
      cod request submit batch 8 --at 2026-12-01T08:00 --for 2d
      cod request submit batch 8 --for 6h --before 2026-12-04T18:00
    """
    if starts_at is not None and before is not None:
        raise click.UsageError("Only one of --at and --before can be given.")
    if (starts_at is None and before is None) != (duration is None):
        raise click.UsageError(
            "--at and --before need --for: how long?"
            if duration is None
            else "--for needs --at or --before."
        )
    body = {"tuples": list(nodes), "spread": spread, "wait": not now}
    body |= body_of(AskedNodes, options)
    if starts_at is not None:
        body |= {"starts_at": starts_at, "duration": duration}
    if before is not None:
        body |= {"before": before, "duration": duration}
    shown(
        client(ctx).post(path("vclusters", vcluster, "requests"), body, key),
        lambda v: request_table([v]),
    )


@request.command()
@click.argument("number", type=click.IntRange(1))
@with_dry_run
def withdraw(ctx: click.Context, number: int) -> None:
    """Withdraw a request that waits.

    Example:
      cod request withdraw 12
    """
    print_result(client(ctx).delete(path("requests", number)), f"{number}: withdrawn")


@request.command()
@click.argument("number", type=click.IntRange(1))
@click.option("--off", is_flag=True, help="Be told no more.")
@with_json
def watch(ctx: click.Context, number: int, off: bool) -> None:
    """Get an e-mail when a request is granted, rejected or withdrawn.

    Example:
      cod request watch 12
    """
    api, where = client(ctx), path("requests", number, "watch")
    value = api.delete(where) if off else api.call("PUT", where)
    sentence = "you get no e-mail" if off else "you get an e-mail when it is decided"
    print_result(value, f"{number}: {sentence}")


@request.command()
@click.argument("number", type=click.IntRange(1))
@click.option("--count", type=click.IntRange(1, 100_000), required=True, help="How many nodes.")
@click.option(
    "--spread/--no-spread",
    default=None,
    help="Allow nodes of several types and blocks. [default: as it was asked]",
)
@with_dry_run
def change(ctx: click.Context, number: int, count: int, spread: bool | None) -> None:
    """Let a vcluster that waits for its first nodes begin with fewer, or with nodes of several
    types. It keeps its place in the queue.

    Example:
      cod request change 12 --count 4
    """
    body = {"count": count, "spread": spread}
    reply = client(ctx).post(path("requests", number, "change"), body)
    print_result(reply, f"{number}: changed to request {reply['id']}")


@request.command()
@click.argument("number", type=click.IntRange(1))
@click.option(
    "--template", default="", help="What its nodes are to run now: NAME or NAME@REVISION."
)
@with_dry_run
def retry(ctx: click.Context, number: int, template: str) -> None:
    """Try a request again that was stopped because its nodes failed.

    Example:
      cod request retry 12 --template debian@4
    """
    reply = client(ctx).post(path("requests", number, "retry"), {"template": template})
    print_result(reply, f"{number}: tried again")


@request.command()
@click.option("--count", type=click.IntRange(1, 100_000), required=True, help="How many nodes.")
@click.option(
    "--group", help="For a new vcluster of this group. [default: as for `cod vcluster create`]"
)
@click.option("--vcluster", help="For this vcluster, in addition to its nodes.")
@click.option("--template", help="NAME or NAME@REVISION. [default: any]")
@click.option(
    "--attributes",
    type=TEXT_FILE,
    metavar="FILE",
    help="Requirements (XML); - is standard input.",
)
@click.option("--spread", is_flag=True, help="Allow nodes of several types and blocks.")
@click.option(
    "--isolated/--no-isolated",
    default=None,
    help=(
        "For a new vcluster with a VLAN and a subnet of its own. [default: as the site's rules say]"
    ),
)
@with_json
def match(ctx: click.Context, /, group: str | None, attributes: Path | None, **asked: Any) -> None:
    """Forecast a request without making it. Exit code 1 unless the nodes are available now.

    Example:
      cod request match --count 8 --group physics --template debian
    """
    body = {key: value for key, value in asked.items() if value is not None}
    if attributes:
        body["attributes"] = text_of(attributes)
    api = client(ctx)
    if "vcluster" not in body:
        body["group"] = owner(api, group, "site")
    found = api.post("/match", body)
    if for_programs():
        print_json(found)
    else:
        print_match(found)
    ctx.exit(0 if found["granted"] else 1)
