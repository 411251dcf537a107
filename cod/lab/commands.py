"""`cod lab …`: virtual bare metal from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cod.lab import agents as simulated
from cod.lab import control, network, record
from cod.lab.spec import (
    ADDRESS,
    BUSES,
    MOST_SERVERS,
    NICS,
    LabDisk,
    LabNic,
    LabSpec,
    completed,
    counted,
    parse,
    size_of,
)
from cod.model import Refused


class _Group(click.Group):
    """Shows a refusal as a sentence and ends with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Refused as refusal:
            raise click.ClickException(refusal.sentence) from None


WHOLE_FILES = "known, whole files"
# In this order: each storm needs the machines as the storms before have left them.
STORMS = ("unknown", "known", WHOLE_FILES, "to be erased", "in a cluster")

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for programs.")


@click.group(cls=_Group)
def lab() -> None:
    """Virtual bare metal: QEMU machines with real firmware on a bridge of their own.

    Example: cod lab up --bios 2 --uefi 1
    """


@lab.command()
@click.argument(
    "spec", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--name", default="lab", show_default=True, help="Name of the lab (without a SPEC).")
@click.option("--bios", default=2, show_default=True, help="How many machines with BIOS.")
@click.option("--uefi", default=1, show_default=True, help="How many machines with UEFI.")
@click.option("--memory", default=512, show_default=True, help="MiB of memory of each.")
@click.option("--disk", default="4G", show_default=True, help="Size of the disk of each.")
@click.option(
    "--bus",
    type=click.Choice(BUSES),
    default="virtio",
    show_default=True,
    help="What the disk hangs on.",
)
@click.option(
    "--nic", type=click.Choice(NICS), default=NICS[0], show_default=True, help="Model of the NIC."
)
@click.option(
    "--address", default=ADDRESS, show_default=True, help="The bridge's address with prefix length."
)
@click.option(
    "--servers",
    type=click.IntRange(0, MOST_SERVERS),
    default=0,
    show_default=True,
    help="How many COD servers, each on a host of its own, that serve the lab's machines.",
)
@click.option(
    "--galera",
    is_flag=True,
    help="Three nodes of MariaDB Galera as the servers' database, in place of one MariaDB.",
)
@as_json
def up(
    spec: Path | None,
    name: str,
    bios: int,
    uefi: int,
    memory: int,
    disk: str,
    bus: str,
    nic: str,
    address: str,
    servers: int,
    galera: bool,
    json_: bool,
) -> None:
    """Make a lab, all machines switched off, from the file SPEC (TOML) or from the options.

    Example:
      cod lab up --name demo --bios 2 --uefi 1 --disk 8G
      cod lab up --servers 2 --galera
    """
    if spec is not None:
        try:
            wanted = parse(spec.read_text("utf-8"))
        except UnicodeDecodeError:
            raise Refused("invalid", f"{spec} is not UTF-8") from None
    else:
        like = counted(
            name, bios, uefi, disk=LabDisk(size_of(disk), bus), memory=memory, nic=LabNic(nic)
        )
        made = LabSpec(name, like.nodes, address, servers=servers, galera=galera)
        wanted = completed(made)
    _show(control.up(wanted), json_)


@lab.command()
@click.argument("name", default="lab")
@click.option("--all", "every", is_flag=True, help="Remove every lab.")
@as_json
def down(name: str, every: bool, json_: bool) -> None:
    """Remove a lab and everything in it, also after a crash.

    Example: cod lab down demo
    """
    chosen = record.names() if every else [each for each in record.names() if each == name]
    if every:
        control.down_all()
    else:
        control.down(name)
    if json_:
        click.echo(json.dumps({"removed": chosen}))


@lab.command()
@click.argument("name", required=False)
@as_json
def status(name: str | None, json_: bool) -> None:
    """Show a lab's machines, or all labs'.

    Example: cod lab status demo --json
    """
    found = [control.status(each) for each in ([name] if name else record.names())]
    if json_:
        click.echo(json.dumps(found[0] if name else found, indent=1))
        return
    for each in found:
        _show(each, False)


@lab.command()
@click.argument("name")
@click.argument("node")
@click.option("--follow", "-f", is_flag=True, help="Go on showing what comes, until interrupted.")
@as_json
def console(name: str, node: str, follow: bool, json_: bool) -> None:
    """Show a machine's serial console.

    Example: cod lab console demo n1 --follow
    """
    path = control.console(name, node)
    if follow and json_:
        raise click.UsageError(
            "--follow shows the console as it is written: it goes without --json"
        )
    if follow:
        sys.exit(subprocess.call(["tail", "-n", "+1", "-F", str(path)]))
    text = path.read_bytes() if path.exists() else b""
    if json_:
        click.echo(
            json.dumps({"node": node, "file": str(path), "text": text.decode(errors="replace")})
        )
    else:
        click.echo(text, nl=False)


@lab.command()
@click.argument("name")
@click.argument("node")
@click.argument("op", type=click.Choice(["on", "off", "reset", "status"]))
@as_json
def power(name: str, node: str, op: str, json_: bool) -> None:
    """Turn the power switch of a machine, or of a server's (s1) or a database's host (d1).

    Off ends all that runs there at once.

    Example: cod lab power demo n1 on
    """
    answer = control.power(name, node, op)
    click.echo(json.dumps(answer, indent=1) if json_ else f"{node} is {answer['power']}")


@lab.command()
@click.argument("count", type=click.IntRange(1, simulated.MOST))
@click.argument("name", default="lab")
@click.option(
    "--disk", default="64M", show_default=True, help="Size of the disk of each, a sparse file."
)
@click.option(
    "--off",
    "wait",
    is_flag=True,
    help="Leave them switched off: the server's power driver turns them on.",
)
@as_json
def agents(count: int, name: str, disk: str, wait: bool, json_: bool) -> None:
    """Run COUNT simulated nodes on a lab's network until Ctrl-C, and show what they say.

    They speak DHCP, HTTP and confd as machines do; there is no machine. A lab that is not there is
    made without machines, and removed at the end. With --json each line is an object.

    Example: cod lab agents 20
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    is_new = name not in record.names()
    if is_new:
        control.up(completed(LabSpec(name, ())))
    try:
        with simulated.running(name, count, size_of(disk), on=not wait) as nodes:
            chosen = {
                "lab": name,
                "namespace": record.namespace(name),
                "address": record.load(name).spec.address,
                "bridge": network.BRIDGE,
                "switches": str(record.folder(name) / simulated.SOCKET),
                "agents": [{"name": node.name, "mac": node.mac} for node in nodes],
            }
            sentence = (
                f"{count} agents in {chosen['namespace']}, at {chosen['bridge']}; switches:"
                f" {chosen['switches']}"
            )
            click.echo(json.dumps(chosen) if json_ else sentence)
            for node, line in simulated.console_lines(nodes):
                click.echo(
                    json.dumps({"agent": node.name, "said": line})
                    if json_
                    else f"{node.name}: {line}"
                )
    except KeyboardInterrupt:
        pass
    finally:
        if is_new:
            control.down(name)


@lab.command()
@click.argument("count", type=click.IntRange(1, 100_000))
@click.argument("name", default="storm")
@click.option(
    "--over", default=10.0, show_default=True, help="Seconds in which all are switched on."
)
@click.option(
    "--patience",
    default=60.0,
    show_default=True,
    help="Seconds after that until who waits is lost.",
)
@click.option(
    "--linger",
    default=0.0,
    help="Seconds for which all then wait, connected, to see what that costs.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 32),
    default=min(len(os.sched_getaffinity(0)), 32),
    show_default="one a core",
    help="Processes of machines, each with a network of its own.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 99),
    default=0.0,
    show_default=True,
    help="Per cent of packets that are lost, either way.",
)
@click.option("--database", default="", help="URL of an empty database in place of SQLite.")
@click.option(
    "--whole-files",
    is_flag=True,
    help="Have them boot once more, fetching kernel and ramdisk whole: 15 MiB each.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(STORMS),
    help="Only storms of these kinds, after one of unknown machines; may be repeated.",
)
@click.option(
    "--svg",
    "picture",
    type=click.Path(file_okay=True, dir_okay=False, path_type=Path),
    help="Draw machines by state over time into FILE.",
    metavar="FILE",
)
@click.option(
    "--svg-steps",
    type=click.Path(file_okay=True, dir_okay=False, path_type=Path),
    help="Draw p50 and p99 of unknown machines' steps into FILE.",
    metavar="FILE",
)
@as_json
def storm(
    count: int,
    name: str,
    over: float,
    patience: float,
    linger: float,
    processes: int,
    loss: float,
    database: str,
    whole_files: bool,
    only: tuple[str, ...],
    picture: Path | None,
    svg_steps: Path | None,
    json_: bool,
) -> None:
    """Measure COUNT machines that are switched on within seconds, on a site of their own.

    Makes the lab NAME with a fresh site and its server, and has so many machines boot that the site
    does not know; then the same once more; then with disks that are to be erased; then as nodes of
    clusters, whose system boots from their disks; and removes everything. Machines are protocols on
    real sockets, without firmware, kernels and disks.

    Example: cod lab storm 1000 --over 10
    """
    from cod.lab.storm import report, site  # late: other commands need neither the wire nor charts

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    site.make_room(count, processes)
    wanted = only or [kind for kind in STORMS if kind != WHOLE_FILES or whole_files]
    storms: dict[str, Any] = {}
    with site.StormSite(name, processes, loss, database) as storm_site:
        for which in [kind for kind in STORMS if kind in (STORMS[0], *wanted)]:
            if which == "to be erased":
                storm_site.make_dirty()
            elif which == "in a cluster":
                storm_site.assign()
            whole = which == WHOLE_FILES
            results = storm_site.storm(count, over, patience, linger=linger, whole=whole)
            last = "metadata" if which == "in a cluster" else "order"
            storms[which] = report.summary(results, storm_site.samples, last, linger)
            title = f"{count:,} unknown machines switched on within {over:g} s"
            if picture is not None and which == STORMS[0]:
                picture.write_text(report.picture(title, results))
            if svg_steps is not None and which == STORMS[0]:
                svg_steps.write_text(report.latencies(f"{title}: each step", storms[which]))
    if json_:
        click.echo(json.dumps(storms, indent=1))
    else:
        report.show(storms)


@lab.command()
@click.argument("name")
@click.argument("vlan", type=click.IntRange(1, 4094))
@click.argument("address")
@as_json
def vlan(name: str, vlan: int, address: str, json_: bool) -> None:
    """Give a lab's server an interface in a VLAN, with an ADDRESS such as 10.78.0.1/24.

    The lab's switch has to be Open vSwitch (switch = "ovs" in its SPEC).

    Example: cod lab vlan demo 20 10.78.0.1/24
    """
    record.load(name)
    interface = f"vlan{vlan}"
    network.add_interface(record.namespace(name), interface, vlan, address)
    made = {"lab": name, "interface": interface, "vlan": vlan, "address": address}
    click.echo(
        json.dumps(made)
        if json_
        else f"{interface} in {record.namespace(name)} has {address}, in VLAN {vlan}"
    )


@lab.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("name")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, argv: tuple[str, ...]) -> None:
    """Run a program inside a lab's network, in this process's place: signals reach it.

    Example: cod lab exec demo ip address
    """
    record.load(name)
    command = network.inside(record.namespace(name), list(argv))
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from None


def _show(found: dict[str, Any], json_: bool) -> None:
    if json_:
        click.echo(json.dumps(found, indent=1))
        return
    title = (
        f"lab {found['name']}: {found['address']} on {found['bridge']} in {found['namespace']}"
        f" ({found['accel']})"
    )
    table = Table(title=title, title_justify="left")
    for column in ("name", "power", "firmware", "nics", "disks", "mac", "uuid"):
        table.add_column(column)
    for node in found["nodes"]:
        disks = [f"{disk['size'] / (1 << 30):g} GiB {disk['bus']}" for disk in node["disks"]]
        table.add_row(
            node["name"],
            node["power"],
            node["firmware"],
            ", ".join(node["nics"]),
            ", ".join(disks),
            node["mac"],
            node["uuid"],
        )
    Console().print(table)
    for host in found["hosts"]:
        hint = f": cod --site {host['site_file']} …" if "site_file" in host else ""
        click.echo(f"{host['name']} {host['power']} at {host['address']}{hint}")
