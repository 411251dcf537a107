"""`cod permissions`: prepares a site's files for parts that run as users of their own, also if root
alone has run the site until now."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from sqlalchemy.exc import DBAPIError

from cod import backup
from cod.cli.show import for_programs, print_json, with_json
from cod.client import SITE_FILE
from cod.core.database.writer import connect
from cod.security import partusers, secretfile
from cod.service import preparation
from cod.site import load, ownership
from cod.site.load import Settings


@click.command()
@click.option("--check", is_flag=True, help="Change nothing: print what would be changed.")
@with_json
def permissions(ctx: click.Context, check: bool) -> None:
    """Give each file of the server to the user of the part that needs it.

    The systemd units run this command before they start the server, and when they are reloaded. It
    also makes keys and folders that are missing. Files that the site file names, such as passwords
    of BMCs, get the owner or the group of the parts that read them. Exit code 1 if a part cannot
    read one of them all the same, for instance because its folder is closed.

    Example:
      cod permissions
    """
    site_file = Path(ctx.find_root().obj["site"] or SITE_FILE)
    try:
        _possible()
        done = list(unfit(site_file)) if check else ready(site_file)
        closed = [
            f"{path} is closed to the part {part}: let its user {partusers.USERS[part].name} read"
            " it (write to it, if it is the database or its folder) and pass through its folders"
            for part, path in ownership.closed(load.read(site_file), load.load(site_file)[1])
        ]
    except (Unready, load.ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if for_programs():
        print_json({"changed": done, "unreadable": closed})
    else:
        for line in done + closed:
            click.echo(line)
    sys.exit(bool(closed))


class Unready(Exception):
    """The files cannot be prepared; the sentence says why."""


def _possible() -> None:
    """Raise `Unready` if files cannot be given to the parts' users."""
    if os.geteuid():
        raise Unready("only root can give files to other users")
    if missing := partusers.missing():
        raise Unready(
            f"this host has no {', '.join(missing)}: install the package, or run systemd-sysusers"
            " with docs/systemd/cod.sysusers.conf; until then all parts run as root"
        )


def unfit(site_file: Path) -> Iterator[str]:
    """Yield a sentence for each file that `ready` would change. Raises `ConfigError`, OSError."""
    _, settings = load.load(site_file)
    return ownership.settle(load.read(site_file), settings, change=False)


def ready(site_file: Path) -> list[str]:
    """Make missing keys and folders of the site, and give every file its owner. Return a sentence
    for each change. Raises `Unready`, `ConfigError`, OSError."""
    site, settings = load.load(site_file)
    with secretfile.alone_in(settings.data):  # the parts' units start at the same time
        done = list(_move_database(settings))
        try:
            preparation.prepare(site, settings)
        except preparation.BadService as error:
            raise Unready(str(error)) from None
        else:
            for part in partusers.USERS:
                with suppress(FileExistsError):  # it may be a part's link, which is not followed
                    settings.lock(part).touch(mode=0o600, exist_ok=False)
        finally:  # a bad certificate concerns one part only
            file, counters = load.read(site_file), preparation.counters_folder(settings)
            done += ownership.settle(file, settings, counters)
    return done


def _move_database(settings: Settings) -> Iterator[str]:
    """Move an SQLite file from the data folder into the folder that all parts may write to. A link
    at the old place leads to it, and is there at every moment."""
    file, folder = settings.data / "cod.db", ownership.database_folder(settings)
    if (
        settings.database != f"sqlite:///{file.absolute()}"
        or not file.exists()
        or file.is_symlink()
    ):
        return
    if answers := backup.running(settings.run):
        raise Unready(f"the server runs ({answers}), and {file} has to be moved: stop it first")
    engine = connect(settings.database)
    try:
        # the last one to close the file empties and removes its -wal
        with engine.connect().execution_options(reading=True) as connection:
            connection.exec_driver_sql("SELECT 1")
    except DBAPIError as error:
        raise Unready(f"{file} cannot be used: {error.orig}") from None
    finally:
        engine.dispose()
    if any(Path(f"{file}{end}").exists() for end in ("-wal", "-journal")):
        raise Unready(f"another program has {file} open: stop it first")
    folder.mkdir(mode=0o700, exist_ok=True)
    link = settings.data / "cod.db.new"
    with suppress(FileExistsError):  # a crash in here left it
        os.link(file, folder / file.name)
    if not file.samefile(folder / file.name):
        raise Unready(f"{file} and {folder / file.name} are two databases: move one of them away")
    link.unlink(missing_ok=True)
    link.symlink_to(Path(folder.name, file.name))
    link.replace(file)
    yield f"{file}: moved to {folder / file.name}"
