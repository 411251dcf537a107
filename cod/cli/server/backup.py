"""`cod backup` and `cod restore`: each saves or restores a whole site."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cod.cli.server.db import HELD, no_hold
from cod.cli.show import for_programs, print_json, print_table, progress_bar, size, with_json
from cod.client import SITE_FILE

if TYPE_CHECKING:
    from cod.backup import Set

FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))


@click.command()
@FOLDER
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep the N newest sets and remove older ones. [default: all are kept]",
)
@with_json
def backup(ctx: click.Context, folder: Path, keep: int | None) -> None:
    """Add a set to the backups in FOLDER: database, site file, keys, certificates, loaders, images.

    The backup is consistent while the server runs. Each image is copied once, so later sets need
    room only for new images. FOLDER holds secrets, and only its owner can read it. Exit code 1 if
    an image of the site is lost or damaged; everything else is saved.

    Example:
      cod backup /srv/backups/cod --keep 14
    """
    from cod import backup as site

    with _refusals(), progress_bar() as progress:
        done = site.backup(
            Path(ctx.find_root().obj["site"] or SITE_FILE),
            folder,
            time.time(),
            keep or 0,
            progress,
        )
    if for_programs():
        print_json(
            {**site.described(done.set), "copied_images": done.images, "copied_bytes": done.bytes}
        )
    else:
        made = done.set
        click.echo(
            f"{folder}: set {made.name}, {made.rows} rows, {len(made.files)} files,"
            f" {len(made.images)} images; {done.images} images copied, {size(done.bytes)}"
        )
    for note in done.notes:
        click.echo(f"Error: {note}; `cod image list` names it: add it anew or delete it", err=True)
    sys.exit(1 if done.notes else 0)


@click.command()
@FOLDER
@click.option(
    "--set", "name", metavar="NAME", default="", help="Set to restore. [default: the newest]"
)
@click.option("--replace", is_flag=True, help="Replace what the database and the data folder hold.")
@click.option(
    "--check", "check_only", is_flag=True, help="Compare the set with its digests; write nothing."
)
@click.option("--list", "list_only", is_flag=True, help="List the sets.")
@no_hold
@with_json
def restore(
    ctx: click.Context,
    folder: Path,
    name: str,
    replace: bool,
    check_only: bool,
    list_only: bool,
    no_hold: bool,
) -> None:
    """Restore a site from the backups in FOLDER; stop the server first.

    An existing site file is kept, and names the data folder and the database. Otherwise the
    backup's site file is written to its old place, or to --site. Every digest is checked before
    anything is written. After a restore every node counts as dirty until it reports; active nodes
    stay active. The site is held until `cod db hold --end`.

    Example:
      cod restore /srv/backups/cod --list
      cod restore /srv/backups/cod
    """
    from cod import backup as site

    if list_only and check_only:
        raise click.UsageError("of --list and --check one may be given")
    with _refusals():
        if list_only:
            _list(folder)
            return
        wanted = site.chosen(folder, name)
        if check_only:
            _check(folder, wanted)
            return
        site_path = ctx.find_root().obj["site"]
        with progress_bar() as progress:
            done = site.restore(
                folder,
                wanted,
                Path(site_path or wanted.site_file),
                time.time(),
                replace=replace,
                hold=not no_hold,
                say=lambda line: click.echo(line, err=True),
                progress=progress,
            )
    if for_programs():
        print_json(
            {
                **site.described(done.set),
                "copied_images": done.images,
                "copied_bytes": done.bytes,
                "held": not no_hold,
            }
        )
        return
    click.echo(
        f"restored set {wanted.name}: {wanted.rows} rows, {len(wanted.files)} files, "
        f"{len(wanted.images)} images"
    )
    if not no_hold:
        click.echo(HELD)
    for note in done.notes:
        click.echo(note, err=True)


def _list(folder: Path) -> None:
    from cod import backup as site

    found = [site.described(each) for each in site.sets(folder)]
    if for_programs():
        print_json(found)
        return
    columns = ("name", "site", "schema", "rows", "files", "images")
    print_table(
        ("SET", "SITE", "SCHEMA", "ROWS", "FILES", "IMAGES"),
        [tuple(each[column] for column in columns) for each in found],
    )


def _check(folder: Path, wanted: Set) -> None:
    from cod import backup as site

    with progress_bar() as progress:
        faults = site.check(folder, wanted, progress)
    if faults:
        raise site.BackupRefused(f"the backup {wanted.name} is damaged: {'; '.join(faults)}")
    if for_programs():
        print_json(site.described(wanted))
    else:
        click.echo(f"{folder}: set {wanted.name} is good")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn errors of the database, the site file and the backup into one line and exit code 1."""
    from sqlalchemy.exc import DBAPIError

    from cod.backup import BackupRefused
    from cod.site.load import ConfigError
    from cod.store.backup import BadBackup
    from cod.store.schema import SchemaMismatch

    try:
        yield
    except DBAPIError as error:
        raise click.ClickException(f"the database cannot be used: {error.orig}") from None
    except (BackupRefused, ConfigError, BadBackup, SchemaMismatch, OSError) as error:
        raise click.ClickException(str(error)) from None
