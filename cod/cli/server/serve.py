"""`cod init`, `cod serve`, `cod states`."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import click

from cod.cli.show import for_programs, print_json, print_table, with_json, with_table
from cod.client import SITE_FILE

DATA = "/var/lib/cod"
PARTS = ("edge", "images", "manager", "web")


@click.command()
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    help=f"Keep everything, the site file too, in DIR. [default: {SITE_FILE} and {DATA}]",
)
@click.option("--interface", help="The server's interface on the nodes' network.")
@click.option("--network", help="Network of the nodes, ADDRESS/BITS. [default: the interface's]")
@click.option(
    "--address", "server", help="Address of the server on that network. [default: the interface's]"
)
@click.option(
    "--relay",
    metavar="ADDRESS",
    help=(
        "Network behind a DHCP relay, in place of --interface: the address "
        "that the relay sends as giaddr, usually the router's."
    ),
)
@click.option(
    "--router",
    metavar="ADDRESS",
    help="Default router of the nodes. [default behind a relay: the relay]",
)
@click.option("--name", help="Name of the network in listings. [default: the interface's]")
@click.option(
    "--boot-pool",
    nargs=2,
    metavar="FIRST LAST",
    help="Addresses for firmware and trampoline. [default: chosen]",
)
@click.option(
    "--block-pool",
    nargs=2,
    metavar="FIRST LAST",
    help="Addresses for vclusters."
    " [default: the upper half, or the lower one where the server is in it]",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS:PORT",
    help=(
        "Address of the portal and the REST API, over "
        "TLS; may be repeated. Without it only this host can use them."
    ),
)
@click.option(
    "--no-check",
    is_flag=True,
    help=(
        "Skip the checks of interface and addresses: for another host, or for "
        "a network that is not set up yet."
    ),
)
@with_json
def init(
    ctx: click.Context,
    /,
    folder: str | None,
    listen: tuple[str, ...],
    no_check: bool,
    **subnet: Any,
) -> None:
    """Create a new site: annotated site file, folders, boot loaders, database.

    Interface and addresses must be this host's. Existing files are kept, so the command can be
    repeated.

    Example:
      cod init --interface eth1 --listen 0.0.0.0:8443
      cod init --dir /srv/cod --interface eth1 --network 10.77.0.0/16 --address 10.77.0.1
      cod init --relay 10.80.0.1 --network 10.80.0.0/16 --address 192.0.2.10    # behind a router
    """
    from sqlalchemy.exc import DBAPIError

    from cod import host, proposal
    from cod.init import found
    from cod.security.ca import BadAuthority
    from cod.security.secretfile import Unreadable
    from cod.site.load import ConfigError
    from cod.store.schema import SchemaMismatch

    refusals = (ConfigError, proposal.Unfit, host.Unknown, SchemaMismatch, BadAuthority, Unreadable)

    data = Path(folder or DATA)
    parameters = ctx.find_root().obj  # --dir goes before $COD_SITE
    site = parameters["named"] if folder else parameters["site"]
    site_file = Path(site) if site else data / "site.toml" if folder else Path(SITE_FILE)
    options = {key: value for key, value in subnet.items() if value}
    try:
        if not (no_check or site_file.exists()):
            interfaces = host.interfaces()
            if not options:
                has = host.listed(list(interfaces.values()))
                click.echo(
                    f"[[subnet]] is an example, to be edited: this host has {has}",
                    err=for_programs(),
                )
            options = proposal.subnet(options, interfaces)
            proposal.check_listen(listen, interfaces)
        done = []
        for line in found(data, site_file, proposal.named(options), time.time(), listen):
            done.append(line)
            if not for_programs():
                click.echo(line)
    except (*refusals, OSError) as error:
        raise click.ClickException(str(error)) from None
    except DBAPIError as error:
        raise click.ClickException(f"the database cannot be used: {error.orig}") from None
    if for_programs():
        print_json({"site_file": str(site_file), "done": done})


@click.command()
@click.option("--only", metavar="PART[,PART]", help=f"Run some parts here: {', '.join(PARTS)}.")
@click.option(
    "--users",
    is_flag=True,
    help=(
        "Run each part as its own user, where this host has them; after `cod permissions`, as root."
    ),
)
@click.pass_context
def serve(ctx: click.Context, only: str | None, users: bool) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Example:
      cod --site /srv/cod/site.toml serve
      cod permissions && cod serve --users
      cod serve --only images        # on another host, with the same database
    """
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise click.BadParameter(
                f"there is no part {name!r}, only {', '.join(PARTS)}", param_hint="--only"
            )
    gc.disable()  # while it is loaded, all of which stays; a process that is ready enables it
    from cod.service.serve import serve as run

    sys.exit(
        run(Path(ctx.find_root().obj["site"] or SITE_FILE), list(dict.fromkeys(names)), users=users)
    )


@click.command()
@click.option("--dot", is_flag=True, help="Print a Graphviz digraph.")
@with_table
def states(_ctx: click.Context, dot: bool) -> None:
    """Show the nodes' lifecycle.

    Example:
      cod states --dot | dot -Tsvg > lifecycle.svg
    """
    from cod import states as s

    if dot:
        click.echo(s.dot())
        return
    arrows = [
        {"state": str(a), "event": str(e), "to": str(b)} for (a, e), b in s.NODE_TRANSITIONS.items()
    ]
    if for_programs():
        rules = {
            str(n): {"kind": r.kind, "about": r.about, "deadline": r.deadline, "retries": r.retries}
            for n, r in s.NODE_RULES.items()
        }
        print_json({"states": rules, "arrows": arrows})
        return
    rows = [
        (
            n,
            s.WORDS[n],
            r.kind,
            r.deadline and f"{r.deadline:.0f} s",
            r.retries or None,
            ", ".join(sorted({a["to"] for a in arrows if a["state"] == n and a["to"] != n})),
            r.about,
        )
        for n, r in s.NODE_RULES.items()
    ]
    print_table(("STATE", "CALLED", "KIND", "DEADLINE", "RETRIES", "LEADS TO", "ABOUT"), rows)
