"""`cod node`: the site's machines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from cod.choices import NodeAction, PowerVerb
from cod.cli.nodes.burnin import burnin
from cod.cli.nodes.capture import capture, captures
from cod.cli.nodes.console import console
from cod.cli.nodes.inventory import add, delete, export, import_
from cod.cli.nodes.many import (
    Acting,
    ChosenNodes,
    acts,
    listed,
    name_of,
    names_of,
    takes_nodes,
    where_option,
)
from cod.cli.nodes.trace import trace
from cod.cli.record_fields import (
    Show,
    body_of,
    facts,
    fields_table,
    lists,
    options_named,
    set_options,
)
from cod.cli.show import (
    MOMENT,
    WORD_LIST,
    ago,
    client,
    for_programs,
    machine_states,
    newest_option,
    node_word,
    print_json,
    print_result,
    print_rich,
    print_table,
    shown,
    size,
    table,
    table_with,
    when,
    with_json,
    with_table,
)
from cod.client import ApiError, path
from cod.model.views import NodeView
from cod.quantity import span

ATTEMPTS = 8  # reads of a node before a change bound to its tag is given up
name_argument = click.argument("name")


@click.group()
def node() -> None:
    """Machines: list, approve, power, take out of service.

    Example:
      cod node list --state free
    """


node.add_command(add)
node.add_command(burnin)
node.add_command(capture)
node.add_command(captures)
node.add_command(console)
node.add_command(delete)
node.add_command(export)
node.add_command(import_)
node.add_command(trace)


@node.command("list")
@click.option(
    "--state",
    help="Only nodes in this state, or in these with commas between: words of the table, or of"
    " `cod states`.",
)
@click.option("--vcluster", help="Only nodes of this vcluster.")
@click.option("--type", help="Only nodes of this type.")
@click.option("--block", help="Only nodes in this block.")
@where_option
@click.argument("names", nargs=-1, metavar="[NAME...]")
@lists(NodeView, watch=True)
def list_(
    ctx: click.Context, /, show: Show, names: tuple[str, ...], where: str, **only: str | None
) -> None:
    """List all nodes, the named ones, or those that match a filter.

    Example:
      cod node list --watch
      cod node list 'n[001-064]' --where 'state = free and not rack = r12'
      cod node list -o wide --sort -since
      cod node list --state "out of service" --json
    """
    only["state"] = machine_states(only["state"])
    api = client(ctx)
    show(lambda: listed(api, ChosenNodes(names, where), **only), COLUMNS)


COLUMNS = (
    "name",
    ("state", lambda n: node_word(n["state"])),
    ("For", lambda n: ago(n["since"])),
    "vcluster",
    "hostname",
    "address",
    "boot_mac",
    "firmware",
    ("Power", lambda n: n["power"]["state"]),
    ("Immune", lambda n: immunity(n["immune_until"])),
    ("Progress", lambda n: progress(n["progress"])),
)
node_table = partial(fields_table, NodeView, columns=COLUMNS)


def state_of(state: str) -> str:
    """Return people's word for a node's state, and the lifecycle's: 'free (inactive)'."""
    word = node_word(state)
    return word if word == state else f"{word} ({state})"


def immunity(until: float | None, now: float | None = None) -> str | None:
    """Return how long the node is still protected from being taken for others: '4 min'. Return None
    if it is not protected, or if nobody holds it."""
    left = (until or 0.0) - (time.time() if now is None else now)
    return span(left) if left > 0 else None


def progress(value: dict[str, Any] | None) -> str | None:
    """Return a node's progress: 'write 41 % 120.0 MiB/s from n12'; None if it has none."""
    if not value or not value["total"]:
        return None
    phase = f"{value['phase']} " if value.get("phase") else ""
    source = f" from {value['source']}" if value.get("source") else ""
    return f"{phase}{100 * value['done'] // value['total']:.0f} % {size(value['rate'])}/s{source}"


@node.command()
@takes_nodes
@with_json
def show(ctx: click.Context, nodes: ChosenNodes) -> None:
    """Show nodes with their hardware, their bindings and their history. A node is named by its
    name, a MAC in any spelling, its serial number, UUID or host name.

    Example:
      cod node show node-525400000001
      cod node show 52-54-00-00-00-01
    """
    api = client(ctx)
    values = [api.get(path("nodes", name)) for name in names_of(api, nodes)]
    if for_programs():
        print_json(values[0] if nodes.lone else values)
        return
    for value in values:
        _show(value)


def _show(value: Any) -> None:
    """Print all facts about a node."""
    print_table(("", ""), facts(NodeView, value, FACTS))
    details = [("BMC reported", _proposal(value["name"], bmc)) for bmc in value["bmcs"]]
    details += [
        ("Host key", f"{key['algorithm']} {key['fingerprint']}") for key in value["host_keys"]
    ]
    if details:
        print_table(("", ""), details)
    print_rich(_binding_table(value["bindings"]))
    if value["phrase"]:
        click.echo(value["phrase"])
    if (siblings := value["siblings"]) and siblings["differences"]:
        print_table(
            (f"DIFFERS FROM THE {siblings['nodes']} OF {siblings['type']}",),
            [(difference,) for difference in siblings["differences"]],
        )
    if value["hardware"]:
        print_table(("HARDWARE", ""), [(part["name"], part["value"]) for part in value["hardware"]])
    if value["pci"]:
        print_rich(_pci_table(value["pci"]))
    if value["conflicts"]:
        print_table(
            ("AT", "CONFLICT", "ABOUT"),
            [
                (when(conflict["at"]), conflict["kind"], conflict["about"])
                for conflict in value["conflicts"]
            ],
        )
    shown(value["history"], history_table)


_binding_table = table_with(
    ("ADDRESS", "address"),
    ("MAC", "mac"),
    ("KIND", "kind"),
    ("STATE", "state"),
    ("HOST", "hostname"),
    ("EXPIRES", lambda v: "when it leaves" if v["expires_at"] is None else when(v["expires_at"])),
)
_pci_table = table_with(
    ("SLOT", "slot"),
    ("CLASS", lambda v: v["class_name"] or v["class_id"]),
    ("PCI DEVICE", "name"),
    ("IDS", lambda v: f"{v['vendor']}:{v['device']}"),
    ("DRIVER", "driver"),
)


def _power(node: dict[str, Any]) -> str:
    power = node["power"]
    seen = "" if power["seen_at"] is None else f", {ago(power['seen_at'])} ago"
    by = f"{power['driver']} {power['address'] or ''}".rstrip()
    return f"{power['state']}{seen} ({by})"


FACTS = (
    "name",
    ("state", lambda n: state_of(n["state"])),
    "reason",
    "block",
    "vcluster",
    "hostname",
    ("immune_until", lambda n: when(n["immune_until"]) if immunity(n["immune_until"]) else None),
    ("Progress", lambda n: progress(n["progress"])),
    ("Power", _power),
    ("Watts", lambda n: n["power"]["watts"]),
    ("Marked keep", lambda n: ", ".join(n["keep"])),
    ("Disks kept", lambda n: ", ".join(n["kept"])),
)


def _proposal(name: str, bmc: dict[str, Any]) -> str:
    """Return the lines about a BMC that the node reported, with the command that makes use of
    it."""
    text = f"{bmc['address']} ({bmc['driver']}{', MAC ' + bmc['mac'] if bmc['mac'] else ''})"
    if bmc["nodes"]:
        return f"{text}, switches {', '.join(bmc['nodes'])}"
    return (
        f"{text}; use it: cod node set {name} --power-driver {bmc['driver']} --power-address"
        f" {bmc['power_address']}"
    )


@node.command()
@name_argument
@newest_option(100)
@with_table
def history(ctx: click.Context, name: str, limit: int) -> None:
    """List a node's transitions, the newest last, and how its disks were erased.

    Example:
      cod node history n7
      cod node history n7 --json
    """
    api = client(ctx)
    values = api.newest(path("nodes", name_of(api, name), "history"), limit)
    shown(values, history_table)


history_table = table_with(
    ("AT", lambda v: when(v["at"])),
    ("EVENT", "event"),
    ("STATE", lambda v: node_word(v["to_state"])),
    ("CAUSE", lambda v: "\n".join([v["cause"], *map(_erased, v["erased"])])),
    ("BY", lambda v: v["actor"]),
)


def _erased(disk: dict[str, Any]) -> str:
    serial = f" (serial {disk['serial']})" if disk["serial"] else ""
    return (
        f"erased {disk['disk']}{serial}, {size(disk['size'])}: {disk['method']},"
        f" {span(disk['seconds'])}, {size(disk['checked'])} read back as zeros"
    )


@node.command()
@click.option("--to", metavar="NAMES", help="A name for each: r12-[01-40].")
@click.option("--block", help="The block or rack that they are in.")
@acts
def approve(acting: Acting, to: str | None, block: str | None) -> None:
    """Accept new machines into the site. From then on COD may erase their disks.

    Example:
      cod node approve node-525400000001 node-525400000002 --block r12 --to 'r12-[01-02]'
      cod node approve --where 'rack = r12 and state = "waiting for approval"' --dry-run
    """
    changes = {"block": block} if block else None
    acting("Approve", action=NodeAction.APPROVE, to=to or "", changes=changes)


@node.command()
@click.argument("desired", type=click.Choice(PowerVerb.names()))
@acts
def power(acting: Acting, desired: str) -> None:
    """Power nodes on, off, soft (their systems shut down first), or cycle them. The server carries
    it out.

    Example:
      cod node power cycle node-525400000001
      cod node power on 'n[001-064]' @rack12
    """
    acting(f"Power {desired}", action=NodeAction.POWER, desired=desired)


@node.command()
@click.option("--reason", required=True, help="Reason, shown with the node.")
@click.option(
    "--until", type=MOMENT, help="When they return by themselves. Left out: when restored."
)
@acts
def quarantine(acting: Acting, reason: str, until: float | None) -> None:
    """Take nodes out of service (quarantine), or change why and until when they are.

    Example:
      cod node quarantine n7 --reason "fan is loud"
      cod node quarantine n7 --reason "lent to the lab" --until 2026-12-14T08:00
      cod node quarantine @rack12 --reason "power feed is replaced" --dry-run
    """
    acting("Take out of service", action=NodeAction.QUARANTINE, reason=reason, until=until)


@node.command()
@acts
def restore(acting: Acting) -> None:
    """Return nodes from quarantine or retirement to service. Their disks are erased first.

    Example:
      cod node restore n7
      cod node restore --where 'reason ~ "power feed"'
    """
    acting("Return to service", action=NodeAction.RESTORE)


@node.command()
@click.option(
    "--also",
    type=click.IntRange(1),
    metavar="PLACE",
    help="Let the node boot at that place too, as `cod node places` numbers it.",
)
@acts
def moved(acting: Acting, also: int | None) -> None:
    """Confirm that nodes were moved. The place where each boots next is remembered as its own.

    Example:
      cod node moved n7
      cod node moved n7 --also 12
    """
    if also is None:
        acting("Confirm the move of", action=NodeAction.MOVED)
        return
    if not acting.nodes.lone or acting.dry_run:
        raise click.UsageError("--also is of one node, and has no --dry-run")
    api = client(acting.ctx)
    value = api.post(path("nodes", name_of(api, acting.nodes.lone), "moved"), {"also": also})
    print_result([value], f"{value['name']}: {node_word(value['state'])}")


@node.command()
@name_argument
@with_table
def places(ctx: click.Context, name: str) -> None:
    """List where a node may boot, and where else its MAC was heard.

    Example:
      cod node places n7
    """
    api = client(ctx)
    found = api.get(path("nodes", name_of(api, name), "places"))["items"]
    columns = ("PLACE", "MAY BOOT", "SUBNET", "CIRCUIT", "REMOTE", "PORT", "HEARD")
    shown(found, lambda places: table(columns, map(_place, places)))


def _place(place: Any) -> Sequence[object]:
    where = (place[key] or "-" for key in ("subnet", "circuit", "remote", "port"))
    return place["id"], "yes" if place["approved"] else "no", *where, when(place["heard_at"])


@node.command()
@acts
def retire(acting: Acting) -> None:
    """Retire nodes: take them out of the site. Their disks stay as they are: see `disk` in
    `cod node show` before a machine leaves the house.

    Example:
      cod node retire n7
    """
    ask = "Retire {} from the site? Disks stay as they are."
    acting("Retire", ask, action=NodeAction.RETIRE)


@node.command()
@click.option("--to", required=True, metavar="NAMES", help="A name for each: r12-[01-40].")
@acts
def rename(acting: Acting, to: str) -> None:
    """Give nodes names by a pattern, in the order in which they are named; those that a filter
    means in the natural order of their names.

    Example:
      cod node rename --where 'rack = r12 and state = new' --to 'r12-[01-40]' --dry-run
    """
    acting("Rename", action=NodeAction.RENAME, to=to)


@node.command()
@click.argument("tags", type=WORD_LIST)
@click.option("--remove", is_flag=True, help="Take these tags away.")
@acts
def tag(acting: Acting, tags: list[str], remove: bool) -> None:
    """Add tags to nodes: words with commas between, by which nodes are found.

    Example:
      cod node tag gpu,loan @rack12
      cod node tag loan --remove --where 'tag = loan'
    """
    action, verb = (NodeAction.UNTAG, "Untag") if remove else (NodeAction.TAG, "Tag")
    acting(verb, action=action, tags=tags)


@node.command()
@name_argument
@click.argument("marks", nargs=-1, metavar="[MARK...]")
@click.option(
    "--remove",
    is_flag=True,
    help="Remove these marks. The disks are erased before another group gets the node.",
)
@with_json
def keep(ctx: click.Context, name: str, marks: tuple[str, ...], remove: bool) -> None:
    """Mark disks of a node as kept, or list the marks. Kept disks are never written nor erased.

    MARK is serial:SERIAL, path:/dev/NAME or model:PATTERN. Marks of the site file ([[keep]]) count
    as well.

    Example:
      cod node keep rack1-07 serial:S39YNX0K500123
    """
    api = client(ctx)
    name = name_of(api, name)
    for attempt in range(ATTEMPTS):
        value, seen = api.seen(path("nodes", name))
        if unknown := [mark for mark in marks if remove and mark not in value["keep"]]:
            raise click.ClickException(
                f"{name} has no mark {unknown[0]}; see `cod node keep {name}`"
            )
        if not marks:
            break
        own = [mark for mark in value["keep"] if mark not in marks] + (
            [] if remove else list(marks)
        )
        try:
            value = api.patch(path("nodes", name), {"keep": own}, match=seen)
            break
        except ApiError as error:
            # the node changed between the two requests, perhaps in other respects
            if error.status != 412 or attempt == ATTEMPTS - 1:
                raise
    marked = {"name": name, "keep": value["keep"], "kept": value["kept"]}
    shown(
        marked,
        lambda v: table(
            ("NODE", "MARKED KEEP", "DISKS KEPT"),
            [(name, ", ".join(v["keep"]), ", ".join(v["kept"]))],
        ),
    )


@node.command("set")
@set_options(NodeView)
@acts
def set_(acting: Acting, /, **asked: Any) -> None:
    """Change a node's name, place, tags or power driver, or those of many but the name.

    Example:
      cod node set node-525400000001 --name rack1-07 --power-driver lab --power-address
      "/run/lab.sock#n7"
      cod node set 'n[001-040]' --block r12
    """
    body = body_of(NodeView, asked)
    if not body:
        raise click.UsageError(f"say what to set: {options_named(NodeView)}")
    if acting.nodes.lone and not acting.dry_run:
        api = client(acting.ctx)
        value = api.patch(path("nodes", name_of(api, acting.nodes.lone)), body)
        shown(value, lambda value: node_table([value]))
        return
    if "name" in body:
        raise click.UsageError("names of many nodes are given by `cod node rename`")
    acting("Change", action=NodeAction.CHANGE, changes=body)
