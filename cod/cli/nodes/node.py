"""`cod node`: machines."""

from __future__ import annotations

import time
from typing import Any

import click

from cod.choices import PowerVerb
from cod.cli.nodes.burnin import burnin
from cod.cli.nodes.capture import capture, captures
from cod.cli.nodes.console import console
from cod.cli.nodes.inventory import add, delete, export, import_
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
    ago,
    client,
    confirm,
    machine_states,
    newest_option,
    node_word,
    print_json,
    print_table,
    shown,
    size,
    table,
    when,
    with_json,
    yes_option,
)
from cod.client import ApiError, path
from cod.model.views import NodeView
from cod.quantity import span

COLORS = {
    "active": "green",
    "inactive": "cyan",
    "quarantined": "red",
    "prime": "yellow",
    "boot": "yellow",
    "wipe": "yellow",
    "trampoline": "yellow",
    "retired": "dim",
    "off": "dim",
}
ATTEMPTS = 8  # reads of a node before a change bound to its tag is given up
name_argument = click.argument("name")
names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@click.group()
def node() -> None:
    """Machines: list, approve, power, take out of service.

    \b
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


@node.command("list")
@click.option(
    "--state",
    help="Only nodes in this state, or in these with commas between: words of the table, or of"
    " `cod states`.",
)
@click.option("--vcluster", help="Only nodes of this vcluster.")
@click.option("--type", help="Only nodes of this type.")
@click.option("--block", help="Only nodes in this block.")
@lists(NodeView, watch=True)
def list_(ctx: click.Context, /, show: Show, **only: str | None) -> None:
    """List nodes.

    \b
    Example:
      cod node list --watch
      cod node list -o wide --sort -since
      cod node list --state "out of service" --json
    """
    only["state"] = machine_states(only["state"])
    api = client(ctx)
    show(lambda: api.every("/nodes", **only), COLUMNS)


def node_table(nodes: list[Any]) -> Any:
    """Return nodes for people."""
    return fields_table(NodeView, nodes, COLUMNS)


def _colored(node: dict[str, Any]) -> Any:
    from rich.text import Text

    return Text(node_word(node["state"]), COLORS.get(node["state"], ""))


COLUMNS = (
    "name",
    ("state", _colored),
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


def state_of(state: str) -> str:
    """Return a node's state in people's word, with the lifecycle's behind it: 'free (inactive)'."""
    word = node_word(state)
    return word if word == state else f"{word} ({state})"


def immunity(until: float | None, now: float | None = None) -> str | None:
    """Return how long a node may not be taken for others yet: '4 min'; None once it may, and where
    nobody holds it."""
    left = (until or 0.0) - (time.time() if now is None else now)
    return span(left) if left > 0 else None


def progress(value: dict[str, Any] | None) -> str | None:
    """Return how far a node is: 'write 41 % 120.0 MiB/s from n12', or None."""
    if not value or not value["total"]:
        return None
    phase = f"{value['phase']} " if value.get("phase") else ""
    source = f" from {value['source']}" if value.get("source") else ""
    return f"{phase}{100 * value['done'] // value['total']:.0f} % {size(value['rate'])}/s{source}"


@node.command()
@name_argument
@with_json
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show a node with its hardware, its bindings and its history.

    \b
    Example:
      cod node show node-525400000001
    """
    value = client(ctx).get(path("nodes", name))
    if as_json:
        print_json(value)
        return
    print_table(("", ""), facts(NodeView, value, FACTS))
    told = [("BMC reported", _proposal(value["name"], each)) for each in value["bmcs"]]
    told += [("Host key", f"{key['algorithm']} {key['fingerprint']}") for key in value["host_keys"]]
    if told:
        print_table(("", ""), told)
    print_table(
        ("ADDRESS", "MAC", "KIND", "STATE", "HOST", "EXPIRES"),
        [
            (b["address"], b["mac"], b["kind"], b["state"], b["hostname"], when(b["expires_at"]))
            for b in value["bindings"]
        ],
    )
    if value["hardware"]:
        print_table(("HARDWARE", ""), [(part["name"], part["value"]) for part in value["hardware"]])
    if value["pci"]:
        print_table(
            ("SLOT", "CLASS", "PCI DEVICE", "IDS", "DRIVER"),
            [
                (
                    d["slot"],
                    d["class_name"] or d["class_id"],
                    d["name"],
                    f"{d['vendor']}:{d['device']}",
                    d["driver"],
                )
                for d in value["pci"]
            ],
        )
    if value["conflicts"]:
        print_table(
            ("AT", "CONFLICT", "ABOUT"),
            [(when(c["at"]), c["kind"], c["about"]) for c in value["conflicts"]],
        )
    shown(value["history"], history_table, False)


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
    """Return what is told of a BMC that the node reported, with how to use it."""
    told = f"{bmc['address']} ({bmc['driver']}{', MAC ' + bmc['mac'] if bmc['mac'] else ''})"
    if bmc["nodes"]:
        return f"{told}, switches {', '.join(bmc['nodes'])}"
    return (
        f"{told}; use it: cod node set {name} --power-driver {bmc['driver']} --power-address"
        f" {bmc['power_address']}"
    )


@node.command()
@name_argument
@newest_option(100)
@with_json
def history(ctx: click.Context, name: str, limit: int, as_json: bool) -> None:
    """List a node's transitions, the newest last, and how its disks were erased.

    \b
    Example:
      cod node history n7
      cod node history n7 --json
    """
    values = client(ctx).newest(path("nodes", name, "history"), limit)
    shown(values, history_table, as_json)


def history_table(values: list[Any]) -> Any:
    """Return transitions for people."""
    return table(
        ("AT", "EVENT", "STATE", "CAUSE", "BY"),
        [
            (
                when(h["at"]),
                h["event"],
                node_word(h["to_state"]),
                "\n".join([h["cause"], *map(_erased, h["erased"])]),
                h["actor"],
            )
            for h in values
        ],
    )


def _erased(disk: dict[str, Any]) -> str:
    serial = f" (serial {disk['serial']})" if disk["serial"] else ""
    return (
        f"erased {disk['disk']}{serial}, {size(disk['size'])}: {disk['method']},"
        f" {span(disk['seconds'])}, {size(disk['checked'])} read back as zeros"
    )


def _each(
    ctx: click.Context, names: tuple[str, ...], verb: str, as_json: bool, body: Any = None
) -> None:
    """POST `verb` for each name; the first refusal ends it."""
    api = client(ctx)
    values = []
    for name in names:
        values.append(api.post(path("nodes", name, verb), body))
        if not as_json:
            click.echo(f"{name}: {node_word(values[-1]['state'])}")
    if as_json:
        print_json(values)


def _in_use(ctx: click.Context, names: tuple[str, ...], verb: str) -> str:
    """Return the question whether nodes that vclusters hold are meant; '' where none of them is
    held."""
    api = client(ctx)
    held = [(name, api.get(path("nodes", name))["vcluster"]) for name in names]
    used = [f"{name} (in use by {vcluster})" for name, vcluster in held if vcluster]
    return f"{verb} {', '.join(used)}? Running work is lost." if used else ""


@node.command()
@names_argument
@with_json
def approve(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Accept new machines into the site. From then on COD may erase their disks.

    \b
    Example:
      cod node approve node-525400000001 node-525400000002
    """
    _each(ctx, names, "approve", as_json)


@node.command()
@click.argument("desired", type=click.Choice(PowerVerb.names()))
@names_argument
@yes_option
@with_json
def power(
    ctx: click.Context, desired: str, names: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Power nodes on, off, soft (their systems shut down first), or cycle them. The server carries
    it out.

    \b
    Example:
      cod node power cycle node-525400000001
    """
    if desired != "on":
        confirm(lambda: _in_use(ctx, names, f"Power {desired}"), yes)
    _each(ctx, names, "power", as_json, {"desired": desired})


@node.command()
@names_argument
@click.option("--reason", required=True, help="Reason, shown with the node.")
@with_json
def quarantine(ctx: click.Context, names: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Take nodes out of service (quarantine).

    \b
    Example:
      cod node quarantine n7 --reason "fan is loud"
    """
    _each(ctx, names, "quarantine", as_json, {"reason": reason})


@node.command()
@names_argument
@with_json
def restore(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Return nodes from quarantine or retirement to service. Their disks are erased first.

    \b
    Example:
      cod node restore n7
    """
    _each(ctx, names, "restore", as_json)


@node.command()
@names_argument
@click.option(
    "--also",
    type=click.IntRange(1),
    metavar="PLACE",
    help="Let the node boot at that place too, as `cod node places` numbers it.",
)
@with_json
def moved(ctx: click.Context, names: tuple[str, ...], also: int | None, as_json: bool) -> None:
    """Confirm that nodes were moved. The place where each boots next is remembered as its own.

    \b
    Example:
      cod node moved n7
      cod node moved n7 --also 12
    """
    _each(ctx, names, "moved", as_json, {"also": also} if also else None)


@node.command()
@name_argument
@with_json
def places(ctx: click.Context, name: str, as_json: bool) -> None:
    """List where a node may boot, and where else its MAC was heard.

    \b
    Example:
      cod node places n7
    """
    found = client(ctx).get(path("nodes", name, "places"))["items"]
    if as_json:
        print_json(found)
        return
    print_table(
        ("PLACE", "MAY BOOT", "SUBNET", "CIRCUIT", "REMOTE", "PORT", "HEARD"),
        [
            (
                each["id"],
                "yes" if each["approved"] else "no",
                *(each[key] or "-" for key in ("subnet", "circuit", "remote", "port")),
                when(each["heard_at"]),
            )
            for each in found
        ],
    )


@node.command()
@names_argument
@yes_option
@with_json
def retire(ctx: click.Context, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Retire nodes: take them out of the site. Their disks stay as they are: see `disk` in
    `cod node show` before a machine leaves the house.

    \b
    Example:
      cod node retire n7
    """
    whole = f"Retire {', '.join(names)} from the site? Disks stay as they are."
    confirm(lambda: _in_use(ctx, names, "Retire") or whole, yes)
    _each(ctx, names, "retire", as_json)


@node.command()
@name_argument
@click.argument("marks", nargs=-1, metavar="[MARK...]")
@click.option(
    "--remove",
    is_flag=True,
    help="Remove these marks. The disks are erased before another group gets the node.",
)
@with_json
def keep(
    ctx: click.Context, name: str, marks: tuple[str, ...], remove: bool, as_json: bool
) -> None:
    """Mark disks of a node as kept, or list the marks. Kept disks are never written nor erased.

    MARK is serial:SERIAL, path:/dev/NAME or model:PATTERN. Marks of the site file ([[keep]]) count
    as well.

    \b
    Example:
      cod node keep rack1-07 serial:S39YNX0K500123
    """
    api = client(ctx)
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
        except (
            ApiError
        ) as error:  # the node changed between the two requests, perhaps in other respects
            if error.status != 412 or attempt == ATTEMPTS - 1:
                raise
    said = {"name": name, "keep": value["keep"], "kept": value["kept"]}
    shown(
        said,
        lambda v: table(
            ("NODE", "MARKED KEEP", "DISKS KEPT"),
            [(name, ", ".join(v["keep"]), ", ".join(v["kept"]))],
        ),
        as_json,
    )


@node.command("set")
@name_argument
@set_options(NodeView)
@with_json
def set_(ctx: click.Context, /, name: str, as_json: bool, **asked: Any) -> None:
    """Change a node's name, block or power driver.

    \b
    Example:
      cod node set node-525400000001 --name rack1-07 --power-driver lab --power-address
      "/run/lab.sock#n7"
    """
    body = body_of(NodeView, asked)
    if not body:
        raise click.UsageError(f"say what to set: {options_named(NodeView)}")
    shown(
        client(ctx).patch(path("nodes", name), body),
        lambda value: node_table([value]),
        as_json,
    )
