"""`cod bmc`: BMCs on a network, and the nodes that they switch.

The command asks the BMCs itself, from this host, with the accounts of its site file. Facts about
nodes, and changes of nodes, go through the API (docs/decisions/0064).
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cod.cli.show import client, for_programs, print_json, print_table, with_json
from cod.client import SITE_FILE, ApiError, Client, path

if TYPE_CHECKING:
    from cod.policy.hardware.bmc_match import BmcMatch
    from cod.power.sweep.probe import Sweep, Swept

MOST = 1 << 16  # addresses in one sweep
PATIENCE = 90.0  # seconds for one BMC
WAITING = ("expected", "new")  # states of nodes that are powered on


@click.group()
def bmc() -> None:
    """BMCs on a network: find them, take over their power.

    Example:
      cod bmc sweep 10.1.0.0/24 --account rack1
    """


@bmc.command()
@click.argument("network", metavar="NETWORK")
@click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="NAME",
    help="An [[account]] of the site file to sign in with; several times for several, in order."
    " [default: the site file's, if there is one]",
)
@click.option("--ca", metavar="FILE", help="Authorities that have signed the BMCs' certificates.")
@click.option("--pin", is_flag=True, help="Trust the certificate that each BMC shows now.")
@click.option("--insecure", is_flag=True, help="Trust any certificate, now and later.")
@click.option("--ssdp", is_flag=True, help="Look only where Redfish answers a multicast search.")
@click.option(
    "--suite",
    type=click.Choice(["3", "17"]),
    help="Cipher suite of IPMI, for BMCs that do not tell theirs.",
)
@click.option("--at-once", type=click.IntRange(1, 64), default=16, show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=443, help="Redfish's. [443]")
@click.option("--take", is_flag=True, help="Switch nodes without power by the BMCs that fit them.")
@click.option(
    "--power-on",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Power on expected machines that are off, so many at a time; they boot from the network.",
)
@click.option(
    "--every",
    type=click.FloatRange(0.0),
    default=30.0,
    show_default=True,
    help="Seconds between two groups.",
)
@with_json
def sweep(
    ctx: click.Context,
    network: str,
    accounts: tuple[str, ...],
    ca: str | None,
    pin: bool,
    insecure: bool,
    ssdp: bool,
    suite: str | None,
    at_once: int,
    port: int,
    take: bool,
    power_on: int | None,
    every: float,
) -> None:
    """Look for BMCs by Redfish and IPMI, and show which nodes they switch.

    Run it on a host that reaches the BMCs and has the site file, mostly the server, as a user who
    may read the accounts' password files. Nothing is changed without --take or --power-on. A BMC
    that fits two nodes, or a node that two BMCs fit, is shown and left alone. Exit code 1 where
    something is in doubt or fails.

    Example:
      cod bmc sweep 10.1.0.0/24 --account rack1 --pin
      cod bmc sweep 10.1.0.0/24 --account rack1 --pin --take --power-on 10 --every 30
    """
    from cod.policy.hardware.bmc_match import match
    from cod.power.sweep.probe import Sweep

    hosts = _hosts(network)
    if sum((ca is not None, pin, insecure)) > 1:
        raise click.UsageError("of --ca, --pin and --insecure one may be given")
    credentials = _accounts(ctx, accounts)
    api = client(ctx)
    nodes = {node["name"]: node for node in api.every("/nodes") if node["state"] != "retired"}
    options = {"insecure": "yes"} if insecure else {}
    if ca:  # the server reads the file, too, and from another folder
        options["ca"] = str(Path(ca).absolute())
    begin = partial(
        Sweep,
        accounts=credentials,
        options=options,
        pin=pin,
        pinned=_pinned(nodes),
        suite=suite or "",
        https=port,
    )
    swept = _swept(hosts, begin, at_once, ssdp)
    systems = [system for each in swept for system in each.systems]
    matches = match(systems, [_machine(node) for node in nodes.values()])
    taken = [one for one in matches if take and one.outcome == "new"]
    failed = _take(api, taken)
    on = [
        one.node
        for one in matches
        if (one in taken or one.outcome == "known") and one.node not in failed
        if power_on and nodes[one.node]["state"] in WAITING and one.system.power == "off"
    ]
    failed |= _power_on(api, on, power_on or 1, every)
    rows = [_row(one, one in taken, one.node in on, failed.get(one.node)) for one in matches]
    silent = sum(not (each.systems or each.trouble) for each in swept)
    troubles = [
        {"host": each.host, "outcome": "trouble", "about": each.trouble}
        for each in swept
        if each.trouble
    ]
    if for_programs():
        print_json({"systems": rows, "troubles": troubles, "silent": silent})
    else:
        _print(rows, troubles, silent)
    if failed or troubles or any(one.outcome == "doubt" for one in matches):
        ctx.exit(1)


def _pinned(nodes: dict[str, Any]) -> dict[str, str]:
    """Return the fingerprints in nodes' power addresses, by host."""
    addresses = [node["power"]["address"] or "" for node in nodes.values()]
    found = [re.match(r"https://([^/:?]+)[^?]*\?fingerprint=([\da-fA-F:]+)$", a) for a in addresses]
    return {each[1]: each[2] for each in found if each is not None}


def _hosts(network: str) -> list[str]:
    """Return the addresses of hosts in the network. Raises `click.BadParameter`."""
    try:
        found = IPv4Network(network)
    except ValueError as error:
        raise click.BadParameter(f"{error}", param_hint="NETWORK") from None
    if found.num_addresses > MOST:
        raise click.BadParameter("a sweep has at most a /16", param_hint="NETWORK")
    return [str(host) for host in found.hosts()]


def _accounts(ctx: click.Context, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the credentials of each account, from the site file and its password files."""
    from cod.power.accounts import sign_in
    from cod.power.driver import PowerError
    from cod.site import load

    try:
        site, _ = load.load(Path(ctx.find_root().obj["site"] or SITE_FILE))
        known = [account.name for account in site.accounts]
        if not names and len(known) != 1:
            raise click.UsageError(
                f"name the account with --account; the site file has {', '.join(known) or 'none'}"
            )
        return {name: sign_in(site, name) for name in names or known}
    except load.ConfigError as error:
        raise click.ClickException(str(error)) from None
    except PowerError as error:
        raise click.ClickException(error.sentence) from None


def _swept(
    hosts: list[str], begin: Callable[[Any], Sweep], at_once: int, ssdp: bool
) -> list[Swept]:
    """Return the result for each of the hosts; a bar on stderr shows the progress. `begin` makes a
    sweep in a reactor."""
    from twisted.internet.defer import TimeoutError

    from cod.doctor.asking import answers
    from cod.power.sweep.probe import Swept
    from cod.power.sweep.ssdp import search

    if ssdp:
        found = answers([partial(search, toward=hosts[0])])[0]
        if isinstance(found, Exception):
            raise click.ClickException(f"the search by SSDP failed: {found}")
        hosts = [host for host in hosts if host in found]
    sweeps: list[Sweep] = []

    async def look(host: str, reactor: Any) -> Swept:
        if not sweeps:
            sweeps.append(begin(reactor))
        return await sweeps[0].look(host)

    with click.progressbar(length=len(hosts), label="Addresses", file=sys.stderr) as bar:
        answered = answers(
            [partial(look, host) for host in hosts],
            at_once=at_once,
            patience=PATIENCE,
            step=partial(bar.update, 1),
        )
    swept: list[Swept] = []
    for host, answer in zip(hosts, answered, strict=True):
        if isinstance(answer, Swept):
            swept.append(answer)
        elif isinstance(answer, TimeoutError):
            swept.append(Swept(host, trouble=f"no answer within {PATIENCE:.0f} s"))
        else:
            swept.append(Swept(host, trouble=f"{type(answer).__name__}: {answer}"))
    return swept


def _machine(node: dict[str, Any]) -> Any:
    """Return a node of the API in the form that the policy takes."""
    from cod.model import KnownMachine

    power = node["power"]
    return KnownMachine(
        node["name"],
        tuple(node["macs"]),
        node["uuid"],
        node["serial"],
        power_driver=power["driver"],
        power_address=power["address"],
    )


def _take(api: Client, matches: Iterable[BmcMatch]) -> dict[str, str]:
    """Have each match's system switch its node; return the error by name for nodes refused."""
    failed: dict[str, str] = {}
    for one in matches:
        settings = {
            "power_driver": one.system.driver,
            "power_address": one.system.address,
            "power_account": one.system.account,
        }
        try:
            api.patch(path("nodes", one.node), settings)
        except ApiError as error:
            failed[one.node] = str(error)
    return failed


def _power_on(api: Client, names: list[str], at_once: int, every: float) -> dict[str, str]:
    """Request that the nodes are powered on, in groups with pauses; return the error by name for
    those refused. The server's power part tells each node to boot from the network, and switches it
    on."""
    failed: dict[str, str] = {}
    groups = [names[start : start + at_once] for start in range(0, len(names), at_once)]
    hidden = len(groups) < 2
    with click.progressbar(groups, label="Power on", file=sys.stderr, hidden=hidden) as bar:
        for number, group in enumerate(bar):
            if number:
                time.sleep(every)
            for name in group:
                try:
                    api.post(path("nodes", name, "power"), {"desired": "on"})
                except ApiError as error:
                    failed[name] = str(error)
    return failed


def _row(one: BmcMatch, taken: bool, on: bool, failed: str | None) -> dict[str, Any]:
    """Return the table row of a system."""
    done = [*(["taken"] if taken else []), *(["powered on"] if on else [])]
    system = asdict(one.system)
    return {
        **system,
        "node": one.node,
        "outcome": "failed" if failed else ", ".join(done) or str(one.outcome),
        "about": failed or one.about,
    }


def _print(rows: list[dict[str, Any]], troubles: list[dict[str, str]], silent: int) -> None:
    table = [
        (
            row["host"],
            row["driver"],
            row["model"],
            ", ".join(row["serials"]),
            row["power"],
            row["node"],
            row["outcome"],
            row["about"],
        )
        for row in rows
    ]
    table += [(one["host"], "", "", "", "", "", one["outcome"], one["about"]) for one in troubles]
    if table:
        print_table(("HOST", "BY", "MODEL", "SERIAL", "POWER", "NODE", "OUTCOME", "ABOUT"), table)
    counts = Counter(row["outcome"] for row in [*rows, *troubles])
    words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    click.echo(f"{words or 'No BMC answers'}; {silent} addresses without an answer.")
