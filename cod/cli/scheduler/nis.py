"""`cod vcluster nis`: a vcluster's accounts as files for an NIS server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cod.cli.show import client, print_result, with_json
from cod.client import path
from cod.quantity import counted


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the files go: a new or empty directory, or one that this command has written to.",
)
@with_json
def nis(ctx: click.Context, name: str, folder: Path) -> None:
    """Write the accounts of the nodes as source files of NIS maps.

    DIR/maps/ holds a file for each map, the input of makedbm. DIR/domain holds the name of the NIS
    domain; DIR/securenets and DIR/ypserv.conf hold lines for ypserv that admit the vcluster's
    addresses. Files of maps that no longer exist are removed.

    Example:
      cod vcluster nis pool --dir /var/lib/cod-nis/pool
    """
    maps = folder / "maps"
    if folder.exists() and any(folder.iterdir()) and not maps.is_dir():
        raise click.ClickException(f"{folder} holds other files: choose a new or empty directory")
    value = client(ctx).get(path("vclusters", name, "nis"))
    try:
        maps.mkdir(parents=True, exist_ok=True)
        for file in set(os.listdir(maps)) - set(value["maps"]):
            (maps / file).unlink()
        for file, lines in {
            **{f"maps/{each}": lines for each, lines in value["maps"].items()},
            "domain": [value["domain"]],
            "securenets": value["securenets"],
            "ypserv.conf": value["access_rules"],
        }.items():
            written = folder / "new"
            written.write_text("".join(f"{line}\n" for line in lines))
            written.replace(folder / file)
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be written: {error.strerror}") from None
    people = len(value["maps"]["passwd.byname"])
    about = f"{len(value['maps'])} maps of the NIS domain {value['domain']}"
    print_result(value, f"{folder}: {about}, {counted(people, 'account')}")
