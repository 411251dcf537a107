"""`cod switch` and `cod port`: the site's switches, and the ports to which nodes are connected."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import click

from cod.cli.nodes.many import name_of
from cod.cli.nouns import Noun
from cod.cli.record_fields import Show, facts, fields_table, lists
from cod.cli.show import client, print_result, shown, table, when, with_json
from cod.client import path
from cod.model.switches import SwitchPortView, SwitchView

CHECK_EVERY = 0.5  # seconds
CHECK_FOR = 120.0  # longer than a session may last


@click.group()
def switch() -> None:
    """Switches of the site file: whether they answer, and how many ports wait for their VLAN.

    Example:
      cod switch check leaf-3
    """


COLUMNS = (
    "name",
    ("driver", lambda v: " ".join(filter(None, (v["driver"], v["platform"])))),
    "address",
    *("ports", "pending", "given_up"),
    ("answered_at", lambda v: when(v["answered_at"]) if v["answered_at"] else "never"),
    "reason",
)


@switch.command("list")
@lists(SwitchView)
def list_(ctx: click.Context, show: Show) -> None:
    """List the switches of the site file.

    Example:
      cod switch list
    """
    show(lambda: client(ctx).get("/switches")["items"], COLUMNS)


@switch.command()
@click.argument("name")
@with_json
def check(ctx: click.Context, name: str) -> None:
    """Ask a switch whether it answers, and wait for that; exit code 1 when it does not.

    Example:
      cod switch check leaf-3
    """
    api = client(ctx)
    before = api.get(path("switches", name))["tried_at"]
    value = api.post(path("switches", name, "check"), {})
    until = time.monotonic() + CHECK_FOR
    while (value["checking"] or value["tried_at"] == before) and time.monotonic() < until:
        time.sleep(CHECK_EVERY)
        value = api.get(path("switches", name))
    if value["tried_at"] == before:
        value = value | {
            "reason": f"no server asked it within {CHECK_FOR:.0f} s: is `cod serve` running?"
        }
    shown(value, _in_full)
    ctx.exit(1 if value["reason"] else 0)


def _in_full(value: Any) -> Any:
    return table(("", ""), facts(SwitchView, value))


Noun(switch, "switches", partial(fields_table, SwitchView, columns=COLUMNS), _in_full).show(
    "Show a switch and what it says of itself.", "cod switch show leaf-3"
)


@click.group()
def port() -> None:
    """Switch ports of nodes: the VLAN that each should have, and the VLAN that the switch reports.

    Example:
      cod port list --switch leaf-3
    """


def _wanted(value: Any) -> str:
    if value["wanted_vlan"] is not None:
        return str(value["wanted_vlan"])
    return "" if value["state"] == "untouched" else "provisioning"


PORT_COLUMNS = (
    *("switch", "port", "node", "mac", "source"),
    ("wanted_vlan", _wanted),
    *("applied_vlan", "state", "reason"),
)
port_table = partial(fields_table, SwitchPortView, columns=PORT_COLUMNS)


@port.command("list")
@click.option("--switch", help="Ports of this switch alone.")
@click.option("--node", help="Ports of this node's NICs alone.")
@lists(SwitchPortView)
def list_ports(ctx: click.Context, show: Show, switch: str | None, node: str | None) -> None:
    """List the switch ports that nodes are on.

    Example:
      cod port list --switch leaf-3
    """
    show(lambda: client(ctx).every("/ports", switch=switch, node=node), PORT_COLUMNS)


@port.command("set")
@click.argument("node")
@click.argument("switch")
@click.argument("port")
@click.option("--mac", help="The NIC; without it the one that the node boots from.")
@with_json
def set_port(ctx: click.Context, node: str, switch: str, port: str, mac: str | None) -> None:
    """Enter which PORT of a SWITCH a NODE is on. The entry stays, whatever LLDP says.

    Example:
      cod port set node7 leaf-3 Ethernet17
    """
    body = {"switch": switch, "port": port} | ({"mac": mac} if mac else {})
    api = client(ctx)
    value = api.call("PUT", path("nodes", name_of(api, node), "port"), body)["items"]
    shown(value, port_table)


@port.command()
@click.argument("node")
@with_json
def unset(ctx: click.Context, node: str) -> None:
    """Forget which ports a node is on, until its next hardware report tells.

    Example:
      cod port unset node7
    """
    api = client(ctx)
    node = name_of(api, node)
    api.delete(path("nodes", node, "port"))
    print_result({"node": node, "state": "forgotten"}, f"{node}: its ports are forgotten")


@port.command()
@click.argument("node")
@with_json
def retry(ctx: click.Context, node: str) -> None:
    """Try at once to change a node's ports that are pending or were given up; read the others
    again.

    Example:
      cod port retry node7
    """
    api = client(ctx)
    shown(api.post(path("nodes", name_of(api, node), "port", "retry"), {})["items"], port_table)
