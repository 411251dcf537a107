"""`cod db`: maintenance of the database."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cod.cli.server.local import database, local_user, run
from cod.cli.show import (
    for_programs,
    print_json,
    print_result,
    print_rich,
    shown,
    table_of,
    table_with,
    when,
    with_json,
)
from cod.client import SITE_FILE
from cod.states import StoryVerdict

if TYPE_CHECKING:
    from cod.flows.nodes.hold import SiteHold

no_hold = click.option("--no-hold", is_flag=True, help="Do not hold the site afterwards.")
SHOWN = 8  # names in a sentence
HELD = "the site is held: `cod db reconcile` compares it with its machines"


@click.group()
def db() -> None:
    """Upgrade, back up, restore and check the database. Needs the site file, not the server.

    Example:
      cod db backup /var/backups/cod.gz
    """


@db.command()
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@with_json
def upgrade(ctx: click.Context, dry_run: bool) -> None:
    """Upgrade the schema to this program's. Make a backup first.

    Servers may go on meanwhile where their program works with the new schema. The upgrade is
    refused while one that does not was seen in the last minute.

    Example:
      cod db upgrade --dry-run
      cod db upgrade
    """
    from cod.flows import servers
    from cod.pool import in_transaction
    from cod.store import schema
    from cod.store.people import groups

    with database(ctx, checked=False) as engine:
        have, lacking, oldest = schema.current(engine), schema.pending(engine), schema.oldest()
        now = time.time()
        running = in_transaction(engine, servers.running, now=now) if have else []
        unsaid = min(have or "", schema.first())  # what a program of 0.1 was written for, or before
        too_old = [each for each in running if (each.database_schema or unsaid) < oldest]
        if dry_run:
            found = {
                "schema": have,
                "new_schema": schema.head(),
                "oldest_schema": oldest,
                "migrations": [each._asdict() for each in lacking],
                "servers": [asdict(each) | {"too_old": each in too_old} for each in running],
            }
            shown(found, _plan)
            return
        if lacking and too_old:
            names = ", ".join(sorted({each.name for each in too_old}))
            raise click.ClickException(
                f"the new schema {schema.head()} needs programs for {oldest} or later, and older"
                f" ones were seen in the last minute on {names}: stop them, wait a minute, and try"
                " again (docs/upgrading)"
            )
        revision = schema.upgrade(engine)
        in_transaction(engine, groups.ensure, groups.SITE, time.time())
    print_result({"schema": revision}, f"schema {revision}")


def _plan(found: dict[str, Any]) -> Any:
    """Return the steps of an upgrade, for people."""
    from rich.console import Group

    if not found["migrations"]:
        return f"schema {found['schema']}: nothing to upgrade"
    return Group(
        f"schema {found['schema']} becomes {found['new_schema']}, for programs of schema"
        f" {found['oldest_schema']} and later",
        table_of(
            found["migrations"],
            ("MIGRATION", "revision"),
            ("ONLY EXPANDS", lambda v: "yes" if v["expands"] else "no"),
            ("ABOUT", "about"),
        ),
        table_of(
            found["servers"],
            ("SERVER", "name"),
            ("VERSION", lambda v: v["version"] or "0.1 or older"),
            ("SCHEMA", "database_schema"),
            ("SEEN", lambda v: when(v["seen_at"])),
            ("MAY GO ON", lambda v: "no: stop it" if v["too_old"] else "yes"),
        ),
    )


@db.command()
@with_json
def check(ctx: click.Context) -> None:
    """Check whether this program works with the schema. Exit code 1 if it does not.

    Example:
      cod db check
    """
    from cod.store import schema

    with database(ctx) as engine:
        revision = schema.current(engine)
    print_result({"schema": revision, "good": True}, f"schema {revision}: good")


@db.command()
@click.option("--start", "act", flag_value="start", help="Hold the site.")
@click.option("--end", "act", flag_value="end", help="End the hold.")
@with_json
def hold(ctx: click.Context, act: str | None) -> None:
    """Hold the site after a restore, until its machines are compared with the database.

    While a site is held, no request is granted, no lease or deadline ends, and no node in the
    trampoline is erased or installed. Nodes whose machines were silent or differ stay held one by
    one after the end: `cod db reconcile` shows and decides. Without an option, show the hold.

    Example:
      cod db hold --start
      cod db hold --end
    """
    from cod.flows.nodes import hold as flows

    now = time.time()
    if act == "start":
        held = run(ctx, flows.start, now)
    elif act == "end":
        held = run(ctx, flows.end, now)
    else:
        held = run(ctx, flows.show)
    print_result(
        _hold_json(held)
        | {"silent": held.names(StoryVerdict.SILENT), "differs": held.names(StoryVerdict.DIFFERS)},
        _sentence(held),
    )


def _hold_json(held: SiteHold) -> dict[str, Any]:
    return {"held": held.since is not None, "since": held.since, "why": held.why}


def _sentence(held: SiteHold) -> str:
    """Return a sentence about the hold of the site, and the held nodes."""
    start = "not held" if held.since is None else f"held since {when(held.since)}: {held.why}"
    parts = [
        f"{len(names)} {about}: {', '.join(names[:SHOWN])}{' …' if len(names) > SHOWN else ''}"
        for about, names in (
            ("differ", held.names(StoryVerdict.DIFFERS)),
            ("silent", held.names(StoryVerdict.SILENT)),
        )
        if names
    ]
    if held.since is None and parts:
        start = "the site is not held; these nodes are, one by one"
    return "; ".join([start, *parts])


@db.command()
@click.option("--keep", multiple=True, metavar="NODE", help="Keep the node with its disks.")
@click.option("--erase", multiple=True, metavar="NODE", help="Erase what the machine holds.")
@click.option("--wake", is_flag=True, help="Switch on the silent nodes, so that they tell.")
@with_json
def reconcile(
    ctx: click.Context, keep: tuple[str, ...], erase: tuple[str, ...], wake: bool
) -> None:
    """Compare the database with the reports of a held site's machines, and decide on differences.

    A kept node that is in use continues. Any other kept node stays out of service, and its disks
    stay as they are. An erased node is free again once the hold is over and its disks are wiped.
    Options that name nodes may be repeated.

    Example:
      cod db reconcile
      cod db reconcile --keep r3-u17 --erase r3-u18
    """
    from cod.flows.nodes import hold as flows
    from cod.model import FlowContext, Who
    from cod.site import load

    now = time.time()
    held = run(ctx, flows.show)
    if keep or erase:
        site, _ = load.load(Path(ctx.find_root().obj["site"] or SITE_FILE))
        asks = FlowContext(site, now, Who(local_user(), admin=True, local=True))
        held = run(ctx, flows.decide, asks, keep=keep, erase=erase)
    if wake:
        held = run(ctx, flows.wake, now)
    nodes = [
        {
            "node": node.name,
            "state": node.state,
            "known": story.known,
            "machine": story.said,
            "source": story.source,
            "at": story.at,
            "verdict": story.verdict,
        }
        for node, story in held.nodes
    ]
    if for_programs():
        print_json(_hold_json(held) | {"nodes": nodes})
        return
    click.echo(_sentence(held).partition(";")[0])
    print_rich(_stories(nodes))


_stories = table_with(
    ("NODE", "node"),
    ("DATABASE", lambda v: f"{v['state']}, generation {v['known']}"),
    ("MACHINE", "machine"),
    ("SOURCE", "source"),
    ("AT", lambda v: when(v["at"])),
    ("VERDICT", "verdict"),
)


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@with_json
def backup(ctx: click.Context, file: Path) -> None:
    """Write every row to FILE, consistently, while the servers run. Image files are not in it.

    Example:
      cod db backup /var/backups/cod-$(date +%F).gz
    """
    from cod.store.backup import backup as write

    with database(ctx) as engine:
        try:
            rows = write(engine, file)
        except OSError as error:
            raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    print_result({"file": str(file), "rows": rows}, f"{file}: {rows} rows")


@db.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace what the database holds.")
@no_hold
@with_json
def restore(ctx: click.Context, file: Path, replace: bool, no_hold: bool) -> None:
    """Read a backup into the database; stop all servers first. Every node then counts as dirty
    until it reports, and the site is held until `cod db hold --end`.

    Example:
      cod db restore /var/backups/cod-2026-01-31.gz --replace
    """
    from cod.store.backup import BadBackup
    from cod.store.backup import restore as read

    with database(ctx) as engine:
        try:
            rows = read(engine, file, time.time(), replace=replace, hold=not no_hold)
        except BadBackup as error:
            raise click.ClickException(str(error)) from None
    done = {"file": str(file), "rows": rows, "held": not no_hold}
    print_result(done, f"{file}: {rows} rows" + ("" if no_hold else f"; {HELD}"))
