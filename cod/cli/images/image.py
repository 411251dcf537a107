"""`cod image`: disk and partition images."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from cod.cli.nouns import Noun
from cod.cli.owner import group_option, owner
from cod.cli.record_fields import fields_table
from cod.cli.server.image_sources import (
    DISKLESS,
    ImageArgument,
    inspect,
    is_oci,
    made_of_oci,
    warn,
)
from cod.cli.server.recipe import make
from cod.cli.show import (
    SPAN,
    client,
    if_missing_option,
    print_result,
    progress_bar,
    shown,
    size,
    table_with,
    there_is,
    when,
    with_json,
    with_table,
)
from cod.cli.wait import POLL, TimedOut
from cod.client import Client, Unreachable, full_name, path, path_of
from cod.client.uploads import Sender
from cod.model.software import ImageView

name_argument = click.argument("name", metavar="[GROUP/]NAME")


@click.group()
def image() -> None:
    """Disk and partition images: raw, qcow2, gzip or zstd.

    Example:
      cod image add debian ./debian-12.qcow2 --wait
    """


image.add_command(make)
image.add_command(inspect)


COLUMNS = ("name", "group", "state", "format", "size", "used", "stored", "created_at", "used_by")
image_table = partial(fields_table, ImageView, columns=COLUMNS)
noun = Noun(image, "images", image_table, named=name_argument, place=path_of)
noun.list("List images.", "cod image list")
noun.show("Show an image.", "cod image show debian --json", "cod image show physics/debian")
noun.delete("Delete an image that no template uses.", "cod image delete debian")


@image.command()
@name_argument
@click.argument("source", metavar="FILE|oci:IMAGE", type=ImageArgument())
@click.option("--sha256", help="Expected SHA-256 of the file.")
@click.option(
    "--upload/--no-upload",
    default=None,
    help=(
        "Send the file, or let a server on this host read it. "
        "[default: send it, unless over the UNIX socket and the server can read it]"
    ),
)
@group_option
@click.option(
    "--plain",
    is_flag=True,
    help="Serve the file unchanged: for kernels and ramdisks of diskless templates.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Accept a file with neither a partition table nor a known file system.",
)
@click.option(
    "--diskless",
    is_flag=True,
    help="Make a kernel and a ramdisk of an OCI image: the images NAME-kernel and NAME-ramdisk.",
)
@click.option("--tag", default="", help="Which image of an OCI layout that has several.")
@click.option(
    "--insecure", is_flag=True, help="Fetch from a registry without TLS, or with a strange one."
)
@click.option(
    "--inspect/--no-inspect",
    "look",
    default=True,
    help="Warn of what would keep nodes from booting the disk. [default: where grub-fstest is]",
)
@click.option(
    "--wait", is_flag=True, help="Wait until the image is ready. Exit code 1 if it is refused."
)
@click.option("--timeout", type=SPAN, default=3600.0, show_default="60m", help="For --wait.")
@if_missing_option
@with_json
def add(
    ctx: click.Context,
    name: str,
    source: Path | str,
    sha256: str | None,
    upload: bool | None,
    group: str | None,
    plain: bool,
    raw: bool,
    diskless: bool,
    tag: str,
    insecure: bool,
    look: bool,
    wait: bool,
    timeout: float,
    if_missing: bool,
) -> None:
    """Add FILE as the image NAME (a group's image: GROUP/NAME). Repeat the command to resume an
    upload that was interrupted.

    An OCI image becomes a whole disk first, on this computer, which takes root: oci:REGISTRY/NAME
    (fetched by skopeo), a folder in the OCI image layout, an archive of one, or of docker save. The
    image must hold a system, with systemd, OpenSSH and cloud-init. With --diskless it becomes a
    kernel and a ramdisk, for nodes that keep all of the system in memory.

    Example:
      cod image add debian ./debian-12.qcow2 --group physics --wait
      cod image add compute oci:registry.example.org/hpc/compute:9.4 --wait
      cod image add live oci:registry.example.org/hpc/compute:9.4 --diskless --wait
    """
    api = client(ctx)
    group = owner(api, group)
    if plain and (isinstance(source, str) or source.is_dir()):
        raise click.UsageError("--plain is for a file, not for an OCI image.")
    oci = not plain and is_oci(source)
    if oci and sha256:
        raise click.UsageError("--sha256 is of a file; an OCI image has digests of its own.")
    if diskless and not oci:
        raise click.UsageError("--diskless is for an OCI image; a file takes --plain.")
    names = [name + each.replace(".", "-") for each in DISKLESS] if diskless else [name]
    places = [path_of("images", full_name(each, group)) for each in names]
    values: list[Any] = [there_is(api, place) if if_missing else None for place in places]
    fields = {"group": group, "sha256": sha256, "plain": plain or diskless, "raw": raw}
    if any(each is None or each["state"] == "failed" for each in values):
        if oci:
            words = [*(["--tag", tag] if tag else []), *(["--insecure"] if insecure else [])]
            with made_of_oci(source, name, *words, diskless=diskless) as made:
                values = [
                    _send(api, file, name=each, **fields)
                    for each, file in zip(names, made, strict=True)
                ]
        else:
            file = Path(source)
            if look and not plain:
                warn(file)
            if upload if upload is not None else not _server_reads(api.server, file):
                values = [_send(api, file, name=name, **fields)]
            else:
                body = {"name": name, **fields, "path": str(file.absolute())}
                values = [api.post("/images", body)]
    if wait:
        values = [_taken_in(api, each["name"], timeout) for each in values]
    if diskless:
        shown(values, image_table)
    else:
        shown(values[0], lambda value: image_table([value]))


def _server_reads(server: str, file: Path) -> bool:
    """Return whether the server on this host can read the file itself, because the server's socket
    is this user's, or everybody may read the file."""
    if server.startswith("http"):
        return False
    try:
        if Path(server).stat().st_uid == os.geteuid():
            return True
    except OSError:  # there is no server, which the next request will report
        return True
    real = file.resolve()
    return bool(real.stat().st_mode & 0o004) and all(
        folder.stat().st_mode & 0o001 for folder in real.parents
    )


def _send(api: Client, file: Path, **fields: Any) -> Any:
    with file.open("rb") as content, progress_bar() as progress:
        try:
            return Sender(api, progress).add(file=content, **fields)
        except KeyboardInterrupt:
            raise click.ClickException(
                "broken off; the same command goes on where it was"
            ) from None
        except Unreachable as error:
            raise click.ClickException(f"{error}\nThe same command goes on where it was.") from None


def _taken_in(api: Client, name: str, timeout: float) -> Any:
    until = time.monotonic() + timeout
    while (value := api.get(path_of("images", name)))["state"] == "ingesting":
        if time.monotonic() > until:
            raise TimedOut(f"{name} is still being taken in")
        time.sleep(POLL)
    if value["state"] != "ready":
        raise click.ClickException(f"{name}: {value['reason']}")
    return value


upload_table = table_with(
    ("IMAGE", "name"),
    ("GROUP", "group"),
    ("THERE", lambda v: size(v["offset"])),
    ("OF", lambda v: size(v["size"])),
    ("BY", "actor"),
    ("BEGUN", lambda v: when(v["created_at"])),
    ("GIVEN UP", lambda v: when(v["expires_at"])),
    ("UPLOAD", "id"),
)


@image.command()
@with_table
def uploads(ctx: click.Context) -> None:
    """List uploads under way.

    Example:
      cod image uploads
    """
    shown(client(ctx).every("/uploads"), upload_table)


@image.command()
@name_argument
@with_json
def cancel(ctx: click.Context, name: str) -> None:
    """Cancel the upload of the image NAME.

    Example:
      cod image cancel physics/debian
    """
    api = client(ctx)
    found = [each for each in api.items("/uploads", q=name) if each["name"] == name]
    if not found:
        raise click.ClickException(f"no upload of {name} is under way")
    api.delete(path("uploads", found[0]["id"]))
    print_result({"name": name, "state": "cancelled"}, f"{name}: its upload is given up")


@image.command()
@name_argument
@with_json
def verify(ctx: click.Context, name: str) -> None:
    """Verify an image: compare every chunk with its digest. Exit code 1 if a chunk is damaged.

    Example:
      cod image verify debian
    """
    value = client(ctx).post(path_of("images", name, "verify"))
    sound = "all sound" if value["ok"] else "DAMAGED"
    lines = [f"{name}: {value['chunks']} chunks, {sound}", *value["bad"]]
    print_result(value, "\n  ".join(lines))
    ctx.exit(0 if value["ok"] else 1)
