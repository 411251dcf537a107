"""`cod fault`: what outside of COD does not do its part: switches, file servers, BMCs, other DHCP
servers, put together from what the API shows of each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import click

from cod.cli.show import ago, as_json, client, count, shown, table

RECENT = 3600.0  # seconds after which a conflict counts as over
ENDED = 86400.0  # seconds for which faults that are over are listed
FOUND_OFF = "its power driver says"
OVER = {"volume-recovered": "volume-trouble"}  # notices that end a fault, and those that begin it


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault outside.

    since    when it began, or what is at fault last answered; None: not known
    ended    when it was over; None: it lasts
    affects  nodes or volumes, by name
    waits    vclusters that hold or wait for those
    """

    what: str
    since: float | None
    ended: float | None
    affects: tuple[str, ...]
    waits: tuple[str, ...]
    about: str


@click.group()
def fault() -> None:
    """Faults outside of COD: since when, whom they affect, and who waits.

    \b
    Example:
      cod fault list
    """


@fault.command("list")
@as_json
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List faults of switches, file servers, BMCs and other DHCP servers, and those that ended in
    the last day.

    \b
    Example:
      cod fault list --json
    """
    api = client(ctx)
    found = faults(
        api.get("/switches")["items"],
        api.every("/ports"),
        api.every("/volumes"),
        api.every("/nodes"),
        api.newest("/conflicts", 500),
        api.newest("/notices", 500),
        time.time(),
    )
    shown(ctx, [asdict(each) for each in found], fault_table, as_json)


def fault_table(values: Sequence[Mapping[str, Any]]) -> Any:
    """Return faults for people."""
    return table(
        ("FAULT", "SINCE", "ENDED", "AFFECTS", "WAITING", "ABOUT"),
        [
            (
                v["what"],
                ago(v["since"]),
                ago(v["ended"]),
                _few(v["affects"], "other"),
                _few(v["waits"], "other"),
                v["about"],
            )
            for v in values
        ],
    )


def _few(names: Sequence[str], one: str) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {count(more, one)}" if more > 0 else "")


def faults(
    switches: Sequence[Any],
    ports: Sequence[Any],
    volumes: Sequence[Any],
    nodes: Sequence[Any],
    conflicts: Sequence[Any],
    notices: Sequence[Any],
    now: float,
) -> list[Fault]:
    """Return the faults that last, then those that are over, the newest first. All are items as the
    API lists them; `notices` and `conflicts` the oldest first."""
    by_name = {node["name"]: node for node in nodes}
    # of a notice of each kind and link the newest
    told = {(each["kind"], each["link"]): each["at"] for each in notices}
    lasting = [
        *_switches(switches, ports, by_name),
        *_fileservers(volumes, told),
        *_machines(nodes, told),
        *_dhcp_servers(conflicts, nodes, now),
    ]
    lasting.sort(key=lambda each: -(each.since or 0.0))
    return [*lasting, *_ended(notices, now)]


def _holders(nodes: Sequence[Any]) -> tuple[str, ...]:
    return tuple(sorted({node["vcluster"] for node in nodes if node["vcluster"]}))


def _switches(
    switches: Sequence[Any], ports: Sequence[Any], by_name: Mapping[str, Any]
) -> list[Fault]:
    waiting = defaultdict(list)
    for port in ports:
        if port["state"] in ("pending", "given up") and port["node"] in by_name:
            waiting[port["switch"]].append(by_name[port["node"]])
    return [
        Fault(
            f"switch {each['name']}",
            each["answered_at"],
            None,
            tuple(sorted(node["name"] for node in waiting[each["name"]])),
            _holders(waiting[each["name"]]),
            each["reason"],
        )
        for each in switches
        if each["reason"]
    ]


def _fileservers(volumes: Sequence[Any], told: Mapping[tuple[str, str], float]) -> list[Fault]:
    by_server = defaultdict(list)
    for volume in volumes:
        if volume["state"] == "trouble":
            by_server[volume["fileserver"]].append(volume)
    found = []
    for server, troubled in by_server.items():
        since = [told.get(("volume-trouble", f"/volumes/{quote(v['name'])}")) for v in troubled]
        waits = {
            each["vcluster"]
            for volume in troubled
            for each in volume["attachments"]
            if each["state"] == "waiting"
        }
        found.append(
            Fault(
                f"file server {server}",
                min((at for at in since if at is not None), default=None),
                None,
                tuple(sorted(volume["name"] for volume in troubled)),
                tuple(sorted(waits)),
                troubled[0]["reason"],
            )
        )
    return found


def _machines(nodes: Sequence[Any], told: Mapping[tuple[str, str], float]) -> list[Fault]:
    found = []
    for node in nodes:
        off = node["power"]["state"] == "off" and node["reason"].startswith(FOUND_OFF)
        if off or node["reason"].startswith("power:"):
            since = told.get(("found-off", f"/nodes/{quote(node['name'])}")) if off else None
            found.append(
                Fault(
                    f"power of {node['name']}",
                    since or node["since"],
                    None,
                    (node["name"],),
                    _holders([node]),
                    node["reason"],
                )
            )
    return found


def _dhcp_servers(conflicts: Sequence[Any], nodes: Sequence[Any], now: float) -> list[Fault]:
    by_mac = {mac: node for node in nodes for mac in node["macs"]}
    by_subnet = defaultdict(list)
    for each in conflicts:
        if each["kind"] == "dhcp" and each["at"] > now - RECENT and each["mac"] in by_mac:
            by_subnet[each["subnet"]].append(each)
    found = []
    for subnet, recent in by_subnet.items():
        taken = {by_mac[each["mac"]]["name"]: by_mac[each["mac"]] for each in recent}
        found.append(
            Fault(
                f"another DHCP server on {subnet}",
                min(each["at"] for each in recent),
                None,
                tuple(sorted(taken)),
                _holders(list(taken.values())),
                recent[-1]["about"],
            )
        )
    return found


def _ended(notices: Sequence[Any], now: float) -> list[Fault]:
    """Return faults whose end was told, each once, the newest first."""
    begun: dict[tuple[str, str], Any] = {}
    found: dict[str, Fault] = {}
    for each in notices:
        if each["kind"] in OVER.values():
            begun[each["kind"], each["link"]] = each
        elif each["kind"] in OVER and each["at"] > now - ENDED:
            first = begun.get((OVER[each["kind"]], each["link"]))
            name = each["subject"].partition(":")[0]
            found[each["link"]] = Fault(
                name,
                first["at"] if first else None,
                each["at"],
                (name.rpartition(" ")[2],),
                (),
                each["subject"],
            )
    return sorted(found.values(), key=lambda each: -(each.ended or 0.0))
