"""`cod image make`: images whose recipes ship with this program."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click

from cod.cli.local_files import writable
from cod.cli.server.trampoline import FLAVOURS
from cod.cli.show import as_json, print_json

NAMES = (
    "debian",
    "debian-members",
    "execd",
    "hello-a",
    "hello-b",
    "opaque",
    "slurmd",
    "slurmd-debian13",
)


@click.command()
@click.argument("name", type=click.Choice(NAMES))
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    show_default=True,
    help="Folder for NAME.img, NAME.json (facts), NAME.xml (a template) and downloads.",
)
@click.option(
    "--flavour",
    type=click.Choice(FLAVOURS),
    default="generic",
    show_default=True,
    help="Drivers of execd, slurmd and slurmd-debian13: for servers, or (lab) for QEMU machines.",
)
@as_json
def make(name: str, into: Path, flavour: str, as_json: bool) -> None:
    """Build an image from the distribution's packages, on this computer.

    NAME is debian (a stock Debian 12; takes root and the package mmdebstrap), debian-members (the
    same with SSSD, autofs and NFS, for accounts and volumes of the group's members), hello-a or
    hello-b (small systems with a page on port 80), opaque (no system, to try COD with), execd (an
    execution host of Grid Engine), slurmd (a compute node of Slurm 22.05, Debian 12) or
    slurmd-debian13 (one of Slurm 24.11, Debian 13). Images that are up to date are not built
    again. The command sends nothing to the server: `cod image add` does.

    Example:
      cod image make debian --into /srv/images
    """
    from cod import data, recipes

    writable(into, mode=0o777)
    folder = into.resolve()
    done = recipes.image(
        name,
        "--out",
        str(folder),
        "--cache",
        str(folder / "cache"),
        "--flavour",
        flavour,
        stdout=sys.stderr if as_json else None,
    )
    if done.returncode:
        raise click.ClickException("the image could not be made; the reason is above")
    shutil.copy(data.path(f"images/{name}.xml"), folder / f"{name}.xml")
    if as_json:
        print_json(json.loads((folder / f"{name}.json").read_text()))
    else:
        click.echo(next_steps(name, into))


def next_steps(name: str, folder: Path) -> str:
    """Return the next steps with an image and its template in `folder`. If the template needs user
    data, they include writing it; its secrets belong to a group."""
    template = folder / f"{name}.xml"
    add = f"next: cod image add {name} {folder / name}.img --wait; "
    if "Its user data need" in template.read_text():
        return f"{add}write user data into {template}; cod template add {template} --group GROUP"
    return f"{add}cod template add {template}"
