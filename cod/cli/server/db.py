"""`cod db`: the database itself."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cod.cli.server.local import database
from cod.cli.show import said, when, with_json


@click.group()
def db() -> None:
    """Upgrade, back up, restore and check the database. Needs the site file, not the server.

    \b
    Example:
      cod db backup /var/backups/cod.gz
    """


@db.command()
@with_json
def upgrade(ctx: click.Context, as_json: bool) -> None:
    """Upgrade the schema to this program's. Make a backup first. Servers of the release before may
    go on meanwhile.

    \b
    Example:
      cod db upgrade
    """
    from cod.pool import in_transaction
    from cod.store import schema
    from cod.store.people import groups

    with database(ctx, checked=False) as engine:
        revision = schema.upgrade(engine)
        in_transaction(engine, groups.ensure, groups.SITE, time.time())
    said({"schema": revision}, f"schema {revision}", as_json)


@db.command()
@with_json
def check(ctx: click.Context, as_json: bool) -> None:
    """Check whether this program works with the schema. Exit code 1 if it does not.

    \b
    Example:
      cod db check
    """
    from cod.store import schema

    with database(ctx) as engine:
        revision = schema.current(engine)
    said({"schema": revision, "good": True}, f"schema {revision}: good", as_json)


@db.command()
@click.option("--start", "act", flag_value="start", help="Hold the site.")
@click.option("--end", "act", flag_value="end", help="End the hold.")
@with_json
def hold(ctx: click.Context, act: str | None, as_json: bool) -> None:
    """Hold the site after a restore, until its machines are compared with the database.

    While a site is held, no request is granted, no lease or deadline ends, and no node in the
    trampoline is erased or installed. Without an option, show the hold and the nodes that have not
    answered since.

    \b
    Example:
      cod db hold --start
      cod db hold --end
    """
    from cod.flows.nodes import hold as flows
    from cod.pool import in_transaction

    with database(ctx) as engine:
        if act == "start":
            in_transaction(engine, flows.start, time.time())
        elif act == "end":
            in_transaction(engine, flows.end, time.time())
        held = in_transaction(engine, flows.show)
    if held is None:
        said({"held": False, "since": None, "silent": []}, "not held", as_json)
        return
    names = ", ".join(held.silent) or "none"
    said(
        {"held": True, "since": held.since, "silent": list(held.silent)},
        f"held since {when(held.since)}; nodes that have not answered: {names}",
        as_json,
    )


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@with_json
def backup(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Write every row to FILE, consistently, while the servers run. Image files are not in it.

    \b
    Example:
      cod db backup /var/backups/cod-$(date +%F).gz
    """
    from cod.store.backup import backup as write

    with database(ctx) as engine:
        rows = write(engine, file)
    said({"file": str(file), "rows": rows}, f"{file}: {rows} rows", as_json)


@db.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace what the database holds.")
@with_json
def restore(ctx: click.Context, file: Path, replace: bool, as_json: bool) -> None:
    """Read a backup into the database; stop all servers first. Every node then counts as dirty
    until it reports.

    \b
    Example:
      cod db restore /var/backups/cod-2026-01-31.gz --replace
    """
    from cod.store.backup import BadBackup
    from cod.store.backup import restore as read

    with database(ctx) as engine:
        try:
            rows = read(engine, file, time.time(), replace=replace)
        except BadBackup as error:
            raise click.ClickException(str(error)) from None
    said({"file": str(file), "rows": rows}, f"{file}: {rows} rows", as_json)
