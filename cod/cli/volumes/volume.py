"""`cod volume`: directories on file servers that vclusters mount."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import click

from cod.cli.nouns import Noun
from cod.cli.owner import group_option, owner
from cod.cli.record_fields import fields_table
from cod.cli.show import (
    SIZE,
    SPAN,
    ago,
    client,
    created,
    if_missing_option,
    insist,
    print_result,
    shown,
    size,
    table,
    table_with,
    when,
    with_dry_run,
    with_json,
    with_table,
    yes_option,
)
from cod.client import path
from cod.model.volumes import NfsSecurity, VolumeView
from cod.quantity import exact_span

name_argument = click.argument("name", metavar="[GROUP/]NAME")


@click.group()
def volume() -> None:
    """Volumes on file servers: create, attach to vclusters, snapshot, delete.

    Example:
      cod volume create data --size 200G --group physics
      cod volume attach physics/data web --mount /data
    """


def in_full(value: Any) -> Any:
    """Return a volume and its snapshots for people."""
    from rich.console import Group

    parts: list[Any] = [volume_table([value])]
    if value["snapshots"]:
        parts += [
            "",
            table(
                ("SNAPSHOT", "STATE", "TAKEN"),
                [
                    (one["name"], one["state"], when(one["created_at"]))
                    for one in value["snapshots"]
                ],
            ),
        ]
    return Group(*parts)


def _state(value: Any) -> str:
    return (
        f"deleted, erased {ago(value['purge_at'])}"
        if value["state"] == "deleted"
        else str(value["state"])
    )


def _mounted(one: Any) -> str:
    """'web:/data (read-only, waiting)'."""
    notes = [
        *(["read-only"] if one["read_only"] else []),
        *([one["state"]] if one["state"] != "exported" else []),
        *(
            [f"deleted {exact_span(one['delete_after'])} after its end"]
            if one["delete_after"]
            else []
        ),
    ]
    return f"{one['vcluster']}:{one['mount']}" + (f" ({', '.join(notes)})" if notes else "")


SECURITY = get_args(NfsSecurity)
COLUMNS = (
    "name",
    "kind",
    ("state", _state),
    "size",
    "enforced",
    "fileserver",
    ("Mounted by", lambda v: ", ".join(_mounted(one) for one in v["attachments"])),
)
volume_table = partial(fields_table, VolumeView, columns=COLUMNS)
noun = Noun(volume, "volumes", volume_table, in_full, name_argument)
noun.list("List volumes.", "cod volume list")
noun.show("Show a volume, where it is mounted, and its snapshots.", "cod volume show physics/data")


@volume.command()
@click.argument("name")
@click.option(
    "--size", "bytes_", type=SIZE, required=True, help="Bytes that it may hold, such as 200G or 2T."
)
@group_option
@click.option("--fileserver", default="", help="File server of the site file. [default: the first]")
@click.option(
    "--from", "source", metavar="VOLUME", default="", help="Begin with the data of this volume."
)
@click.option("--snapshot", default="", help="The snapshot of --from that is copied.")
@click.option(
    "--sec",
    type=click.Choice(SECURITY),
    help="How NFS protects it. [default: as --from is, or as the site file says]",
)
@if_missing_option
@with_json
def create(
    ctx: click.Context,
    /,
    name: str,
    bytes_: int,
    group: str | None,
    if_missing: bool,
    **asked: Any,
) -> None:
    """Create a volume. With --from and --snapshot it is a copy of a snapshot, on the same file
    server.

    Example:
      cod volume create data --size 200G --group physics
      cod volume create rescued --size 200G --from physics/data --snapshot monday
    """
    api = client(ctx)
    body = {"name": name, "size": bytes_, "group": owner(api, group, "site"), **asked}
    full = f"{body['group']}/{name}"  # the site's, too: site/NAME
    shown(created(api, "volumes", full, body, if_missing), in_full)


@volume.command()
@name_argument
@click.argument("bytes_", metavar="SIZE", type=SIZE)
@with_dry_run
def resize(ctx: click.Context, name: str, bytes_: int) -> None:
    """Change how much a volume may hold. Its data stays, even if there is more of it.

    Example:
      cod volume resize physics/data 400G
    """
    shown(client(ctx).patch(path("volumes", name), {"size": bytes_}), in_full)


@volume.command()
@name_argument
@click.argument("sec", type=click.Choice(SECURITY))
@with_json
def protect(ctx: click.Context, name: str, sec: str) -> None:
    """Change how NFS protects a volume: by the node's word (sys), or by Kerberos, with signed
    (krb5i) or encrypted (krb5p) messages. Nodes that have mounted it have to mount it again.

    Example:
      cod volume protect physics/data krb5p
    """
    shown(client(ctx).patch(path("volumes", name), {"sec": sec}), in_full)


@volume.command()
@name_argument
@click.argument("vcluster")
@click.option(
    "--mount", default="", metavar="DIRECTORY", help="Where the nodes mount it. [default: /NAME]"
)
@click.option("--read-only", is_flag=True, help="The nodes cannot write to it.")
@click.option(
    "--delete-after",
    type=SPAN,
    help="Delete the volume so long after the vcluster's end, such as 30d. [default: keep it]",
)
@with_dry_run
def attach(ctx: click.Context, /, name: str, **asked: Any) -> None:
    """Have the nodes of a virtual cluster (vcluster) mount a volume.

    Example:
      cod volume attach physics/data web --mount /data --read-only
    """
    shown(client(ctx).post(path("volumes", name, "attach"), asked), in_full)


@volume.command()
@name_argument
@click.argument("vcluster")
@with_dry_run
def detach(ctx: click.Context, name: str, vcluster: str) -> None:
    """Withdraw a volume from the nodes of a virtual cluster. Unmount it on the nodes first:
    programs that have files of it open get errors.

    Example:
      cod volume detach physics/data web
    """
    shown(client(ctx).post(path("volumes", name, "detach"), {"vcluster": vcluster}), in_full)


@volume.command()
@name_argument
@click.argument("snapshot")
@click.option("--delete", "remove", is_flag=True, help="Delete the snapshot.")
@with_dry_run
def snapshot(ctx: click.Context, name: str, snapshot: str, remove: bool) -> None:
    """Take a snapshot of a volume, where its file server can (Btrfs, ZFS).

    Example:
      cod volume snapshot physics/data monday
    """
    api = client(ctx)
    if remove:
        value = api.delete(path("volumes", name, "snapshots", snapshot))
    else:
        value = api.post(path("volumes", name, "snapshots"), {"snapshot": snapshot})
    shown(value, in_full)


@volume.command()
@name_argument
@yes_option
@with_dry_run
def delete(ctx: click.Context, name: str, yes: bool) -> None:
    """Delete a volume. It is kept for the site's grace, in which `cod volume restore` undoes the
    deletion.

    Example:
      cod volume delete physics/data
    """
    insist(f"Delete volume {name} and all its data?", yes)
    value = client(ctx).delete(path("volumes", name))
    print_result(value, f"{name}: deleted; it can be restored until {when(value['purge_at'])}")


@volume.command()
@name_argument
@with_dry_run
def restore(ctx: click.Context, name: str) -> None:
    """Undo the deletion of a volume.

    Example:
      cod volume restore physics/data
    """
    shown(client(ctx).post(path("volumes", name, "restore"), {}), in_full)


@volume.command()
@name_argument
@yes_option
@with_json
def remake(ctx: click.Context, name: str, yes: bool) -> None:
    """Make the directory of a volume anew, empty, where its file server has lost it.

    Example:
      cod volume remake physics/data
    """
    insist(f"Begin volume {name} anew, empty, if its data is not there?", yes)
    shown(client(ctx).post(path("volumes", name, "remake"), {}), in_full)


@volume.command()
@name_argument
@yes_option
@with_json
def forget(ctx: click.Context, name: str, yes: bool) -> None:
    """Forget a volume whose file server is gone for good and is no longer in the site file
    (administrators).

    Example:
      cod volume forget physics/data
    """
    insist(f"Forget volume {name}? Its exports are not withdrawn", yes)
    value = client(ctx).post(path("volumes", name, "forget"), {})
    print_result(value, f"{name}: forgotten")


@volume.command()
@with_table
def servers(ctx: click.Context) -> None:
    """List the site's file servers (administrators).

    Example:
      cod volume servers
    """
    shown(
        client(ctx).get("/fileservers")["items"],
        table_with(
            ("FILE SERVER", "name"),
            ("DRIVER", "driver"),
            ("ADDRESS", "address"),
            ("ROOT", "root"),
            ("SQUASH", "squash"),
            ("VOLUMES", lambda v: str(v["volumes"])),
            ("SIZE", lambda v: size(v["size"])),
            ("REASON", "reason"),
        ),
    )
