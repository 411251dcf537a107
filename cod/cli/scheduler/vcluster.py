"""`cod vcluster`: virtual clusters."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from cod.cli.local_files import TEXT_FILE, text_of
from cod.cli.nodes.node import node_table
from cod.cli.output import Cell
from cod.cli.owner import group_option, owner
from cod.cli.record_fields import Show, body_of, facts, fields_table, lists, set_options
from cod.cli.scheduler.move import move, moves
from cod.cli.scheduler.nis import nis
from cod.cli.scheduler.recurrence import DAY_NAMES, MOST, series_in_full, this_zone
from cod.cli.scheduler.reinstall import reinstall, reinstalls
from cod.cli.show import (
    KIND,
    MOMENT,
    MOUNT,
    PREFIX,
    SPAN,
    client,
    confirm,
    created,
    for_programs,
    if_missing_option,
    machine_states,
    print_json,
    print_result,
    shown,
    state_word,
    styled,
    table,
    watched,
    watching,
    when,
    with_dry_run,
    with_json,
    yes_option,
)
from cod.cli.wait import wait_option, wait_until, wait_until_gone
from cod.client import path
from cod.model.described import FieldLevel
from cod.model.sharing.vclusters import AskedVcluster
from cod.model.views import VclusterView
from cod.quantity import counted
from cod.states import OTHER_WORDS

name_argument = click.argument("name")
spread_option = click.option(
    "--spread", is_flag=True, help="Allow nodes of several types and blocks."
)
now_option = click.option(
    "--no-wait", "now", is_flag=True, help="Reject the request unless it can be granted now."
)


@click.group()
def vcluster() -> None:
    """Virtual clusters: create, watch, resize, release.

    Example:
      cod vcluster create web --size 4 --template debian --wait
    """


for each in (nis, move, moves, reinstall, reinstalls):
    vcluster.add_command(each)


def _state(value: Any) -> Cell:
    draining = value["drain_until"] and value["state"] == "active"
    return styled("draining", value["state"]) if draining else state_word(value["state"])


def _ranges(value: Any) -> str | None:
    return ", ".join(f"{one['first']} - {one['last']}" for one in value["addresses"]) or None


COLUMNS = (
    "name",
    ("state", _state),
    "group",
    "template",
    "size",
    ("Active", lambda v: str(v["states"].get("active", 0))),
    ("Addresses", _ranges),
    (
        "Expires",
        lambda v: f"ended {when(v['ended_at'])}" if v["ended_at"] else when(v["expires_at"]),
    ),
)
vcluster_table = partial(fields_table, VclusterView, columns=COLUMNS)


def in_full(value: Any) -> Any:
    """Return a vcluster and its nodes for people."""
    from rich.console import Group

    parts: list[Any] = [vcluster_table([value])]
    if value["network"]:
        net = value["network"]
        parts.append(
            f"Isolated: VLAN {net['vlan']}, subnet {net['subnet']}, server {net['server']}, "
            + (f"router {net['router']}" if net["router"] else "no router")
        )
    elif value["isolated"] and value["state"] == "pending":
        parts.append("Isolated: its VLAN comes with its nodes")
    if value["waits"]:
        parts.append(f"{state_word(value['state'])}; " + "; ".join(value["waits"]))
    return Group(*parts, "", node_table(value["nodes"])) if value["nodes"] else Group(*parts)


def _in_detail(value: Any) -> Any:
    from rich.console import Group

    rest = facts(VclusterView, value, levels=(FieldLevel.WIDE, FieldLevel.DETAIL))
    return Group(in_full(value), "", table(("", ""), rest))


@vcluster.command("list")
@click.option("--group", help="Only this group's.")
@click.option("--state", help="waiting, active, ending or ended, or several with commas between.")
@click.option("--ended", is_flag=True, help="Include vclusters that have ended.")
@lists(VclusterView, watch=True)
def list_(
    ctx: click.Context, show: Show, group: str | None, state: str | None, ended: bool
) -> None:
    """List vclusters.

    Example:
      cod vcluster list --watch
      cod vcluster list --group physics --state active -o csv
    """
    api, named = client(ctx), machine_states(state, OTHER_WORDS)
    show(lambda: api.every("/vclusters", group=group, state=named, ended=ended), COLUMNS)


@vcluster.command()
@name_argument
@watching
@with_json
def show(ctx: click.Context, name: str, watch: bool) -> None:
    """Show a vcluster and its nodes.

    Example:
      cod vcluster show web --watch
    """
    api = client(ctx)
    watched(lambda: api.get(path("vclusters", name)), _in_detail, watch)


@vcluster.command("known-hosts")
@name_argument
@with_json
def known_hosts(ctx: click.Context, name: str) -> None:
    """Print the SSH host keys of the nodes, as lines of a known_hosts file.

    Example:
      cod vcluster known-hosts web > ~/.ssh/known_hosts.web
      ssh -o UserKnownHostsFile=~/.ssh/known_hosts.web root@n1.web.cod.internal
    """
    value = client(ctx).get(path("vclusters", name, "known_hosts"))
    if for_programs():
        print_json(value)
        return
    for line in value["lines"]:
        click.echo(line)


@vcluster.command()
@name_argument
@click.option("--size", type=click.IntRange(1), required=True, help="Nodes.")
@click.option(
    "--template",
    required=True,
    help="NAME or NAME@REVISION: the group's own, or else the site's; site/NAME is the site's.",
)
@group_option
@click.option(
    "--lease",
    "--for",
    type=SPAN,
    help="Length of the lease, such as 8h or 7d. [default: the group's]",
)
@click.option(
    "--from",
    "starts_at",
    type=MOMENT,
    metavar="TIME",
    help=(
        "Reserve the cluster in advance, from this time on: "
        "2026-12-01T08:00 in this computer's time zone, or with one, as in 2026-12-01T08:00Z."
    ),
)
@click.option(
    "--until",
    "ends_at",
    type=MOMENT,
    metavar="TIME",
    help="With --from, in place of --lease: when the lease ends.",
)
@click.option(
    "--repeat",
    type=DAY_NAMES,
    metavar="DAYS",
    help=(
        "With --from: make a series, with a cluster NAME-2026-12-07 and so on for each day: "
        "daily, weekly, or days such as mon,wed."
    ),
)
@click.option(
    "--count",
    type=click.IntRange(1, MOST),
    help="With --repeat: how many clusters in all. [default: no limit]",
)
@click.option(
    "--last",
    type=MOMENT,
    metavar="TIME",
    help="With --repeat: no cluster starts later. [default: no limit]",
)
@click.option(
    "--zone", help="With --repeat: time zone whose clock counts. [default: this computer's]"
)
@click.option(
    "--attributes",
    type=TEXT_FILE,
    metavar="FILE",
    help="Requirements of its nodes (XML); - is standard input.",
)
@click.option(
    "--also",
    type=KIND,
    multiple=True,
    help=(
        "Nodes of another kind, granted together with the others. "
        "Parts left out are as for the others. May be repeated."
    ),
)
@set_options(AskedVcluster, new=True)
@click.option(
    "--network-size",
    type=PREFIX,
    metavar="BITS",
    help="Size of the subnet of an isolated one, such as 26 or /26. [default: the site's]",
)
@spread_option
@now_option
@click.option(
    "--volume",
    "mounts",
    type=MOUNT,
    multiple=True,
    help="Volume that the nodes mount; at /NAME unless a directory is named. May be repeated.",
)
@click.option(
    "--vcm-inside",
    is_flag=True,
    help="Run the autoscaler (VCM) on the first node, as `cod vcm enroll --inside` does.",
)
@click.option("--key", help="Idempotency key: a repetition with the same key has no effect.")
@if_missing_option
@wait_option
@with_json
def create(
    ctx: click.Context,
    /,
    name: str,
    group: str | None,
    attributes: Path | None,
    also: tuple[Any, ...],
    now: bool,
    key: str | None,
    mounts: tuple[Any, ...],
    if_missing: bool,
    wait: bool,
    timeout: float,
    repeat: list[str] | None,
    count: int | None,
    last: float | None,
    zone: str | None,
    **asked: Any,
) -> None:
    """Create a virtual cluster (vcluster). Its nodes are granted, installed and booted; --wait
    shows progress.

    Example:
      cod vcluster create web --size 4 --template debian --lease 7d --wait
      cod vcluster create batch --size 1 --template head --also 8:worker:large.xml
      cod vcluster create lab --size 4 --template debian --isolated --network-size 27
      cod vcluster create filler --size 8 --template debian --spread --preemptible
      cod vcluster create sim --size 4 --template debian --volume data --volume input:/in:ro
      cod vcluster create course --size 8 --template debian --from 2026-12-07T08:00 --for 10h
      cod vcluster create w --size 8 --template hello --from 2026-12-07T08 --for 9h --repeat weekly
    """
    if wait and asked["starts_at"] is not None:
        raise click.UsageError("--wait is for clusters that begin now, --from for later ones.")
    if repeat is not None and asked["starts_at"] is None:
        raise click.UsageError("--repeat goes with --from.")
    if repeat is None and any(each is not None for each in (count, last, zone)):
        raise click.UsageError("--count, --last and --zone go with --repeat.")
    requirements = text_of(attributes) if attributes else ""
    api = client(ctx)
    body = {
        "name": name,
        "group": owner(api, group, "site"),
        "wait": not now,
        "attributes": requirements,
        **body_of(AskedVcluster, asked),
    }
    if also:
        body["also"] = list(also)
    if mounts:
        body["volumes"] = list(mounts)
    if repeat is not None:
        body |= {"days": repeat, "count": count, "last": last, "zone": zone or this_zone()}
        made = created(api, "series", name, body, if_missing, key)
        shown(made, series_in_full)
        return
    value = created(api, "vclusters", name, body, if_missing, key)
    if wait:
        value = wait_until(api, name, _all_active, timeout)
    shown(value, in_full)


@vcluster.command()
@name_argument
@click.argument("size", type=click.IntRange(1))
@spread_option
@now_option
@click.option("--key", help="Idempotency key: a repetition with the same key has no effect.")
@wait_option
@with_dry_run
def resize(
    ctx: click.Context,
    name: str,
    size: int,
    spread: bool,
    now: bool,
    key: str | None,
    wait: bool,
    timeout: float,
) -> None:
    """Request more nodes, or release some.

    Example:
      cod vcluster resize web 8 --wait
    """
    api = client(ctx)
    value = api.post(
        path("vclusters", name, "resize"), {"size": size, "spread": spread, "wait": not now}, key
    )
    if wait:
        value = wait_until(api, name, lambda v: len(v["nodes"]) == size and _all_active(v), timeout)
    shown(value, in_full)


@vcluster.command("set")
@name_argument
@click.option("--description", help="What the cluster is for; '' for nothing.")
@click.option("--tags", help="Words to find it by, with spaces between; '' for none.")
@with_dry_run
def set_(ctx: click.Context, name: str, description: str | None, tags: str | None) -> None:
    """Describe and tag a virtual cluster.

    Example:
      cod vcluster set web --description "load tests" --tags "paper-2 urgent"
    """
    values = {"description": description, "tags": tags}
    body = {key: text for key, text in values.items() if text is not None}
    if not body:
        raise click.UsageError("name --description or --tags")
    value = client(ctx).patch(path("vclusters", name), body)
    shown(value, _in_detail)


@vcluster.command()
@name_argument
@click.argument("new")
@with_dry_run
def rename(ctx: click.Context, name: str, new: str) -> None:
    """Rename a virtual cluster. Names of its nodes in DNS follow at once, and the former ones lead
    to them; its running nodes go on with the names that they were installed with.

    Example:
      cod vcluster rename web shop
    """
    value = client(ctx).patch(path("vclusters", name), {"name": new})
    print_result(value, f"{name} is called {value['name']} now")


@vcluster.command()
@name_argument
@click.argument("lease", type=SPAN)
@with_dry_run
def extend(ctx: click.Context, name: str, lease: float) -> None:
    """Extend the lease to LEASE from now.

    Example:
      cod vcluster extend web 7d
    """
    value = client(ctx).post(path("vclusters", name, "extend"), {"lease": lease})
    print_result(value, f"{name}: until {when(value['expires_at'])}")


@vcluster.command()
@name_argument
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@yes_option
@wait_option
@with_dry_run
def release(
    ctx: click.Context, name: str, nodes: tuple[str, ...], yes: bool, wait: bool, timeout: float
) -> None:
    """Release nodes, by host name or by the site's name. Their disks are erased.

    Example:
      cod vcluster release web web-3 web-4 --wait
    """
    confirm(
        lambda: f"Release {counted(len(nodes), 'node')} of {name}? Their disks are erased.", yes
    )
    api = client(ctx)
    before = api.get(path("vclusters", name))["nodes"]
    leaving = {n["name"] for n in before if n["name"] in nodes or n["hostname"] in nodes}
    value = api.post(path("vclusters", name, "release"), {"nodes": list(nodes)})
    if wait:
        value = wait_until(
            api, name, lambda v: not leaving & {n["name"] for n in v["nodes"]}, timeout
        )
    shown(value, in_full)


@vcluster.command()
@name_argument
@yes_option
@wait_option
@with_dry_run
def delete(ctx: click.Context, name: str, yes: bool, wait: bool, timeout: float) -> None:
    """Release all nodes and end the vcluster. Their disks are erased.

    Example:
      cod vcluster delete web --wait
    """
    api = client(ctx)

    def question() -> str:
        held = len(api.get(path("vclusters", name))["nodes"])
        return f"Delete {name}? It has {counted(held, 'node')}; their disks are erased."

    confirm(question, yes)
    value = api.delete(path("vclusters", name))
    if wait:
        wait_until_gone(api, name, timeout)
        value |= {"state": "ended", "nodes": []}
    print_result(value, f"{name}: {state_word(value['state'])}")


def _all_active(value: Any) -> bool:
    nodes = value["nodes"]
    return (
        value["state"] == "active"
        and len(nodes) == value["size"]
        and all(n["state"] == "active" for n in nodes)
        and not value["waits"]
    )
