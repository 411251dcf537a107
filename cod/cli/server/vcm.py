"""`cod vcm`: enrols virtual cluster managers at the server, and runs one on this host."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cod.cli.local_files import writable, write_private
from cod.cli.show import (
    ago,
    client,
    for_programs,
    print_json,
    print_result,
    print_rich,
    shown,
    table_with,
    when,
    with_json,
    with_table,
)
from cod.client import path

if TYPE_CHECKING:
    from cod.vcm.batch.settings import BatchTable
    from cod.vcm.batch.system import BatchSystem
    from cod.vcm.settings import Settings

S = TypeVar("S", bound="Settings")
# seconds before its expiry in which an unrenewed certificate is reported
NEAR = 30 * 86400.0

name_argument = click.argument("vcluster")


@click.group()
def vcm() -> None:
    """Virtual cluster managers (VCMs): programs that resize a vcluster to its load.

    Example:
      cod vcm enroll batch --into /etc/cod/vcm/batch
      cod vcm sge /etc/cod/vcm/batch/vcm.toml
    """


@vcm.command()
@name_argument
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for vcm.toml, vcm.key, vcm.crt and ca.crt. [default: the vcluster's name]",
)
@click.option("--address", help="Only address that the VCM may connect from.")
@click.option(
    "--plain",
    is_flag=True,
    help=(
        "Identify the VCM by --address alone, without TLS: for closed networks, "
        "where the site file has [nmp] plain_port."
    ),
)
@click.option(
    "--inside",
    is_flag=True,
    help=(
        "Run the VCM on a node of the vcluster. The node finds configuration "
        "and invitation in its seed; nothing is written here."
    ),
)
@click.option("--head", help="Host name of that node. [default: the vcluster's first]")
@with_json
def enroll(
    ctx: click.Context,
    vcluster: str,
    into: Path | None,
    address: str | None,
    plain: bool,
    inside: bool,
    head: str | None,
) -> None:
    """Create key, certificate and configuration of a vcluster's VCM. An earlier VCM loses its
    access.

    Example:
      cod vcm enroll batch --into /etc/cod/vcm/batch
      cod vcm enroll batch --inside
    """
    if (inside and (into or address or plain)) or (head and not inside):
        raise click.UsageError(
            "--head goes with --inside, which goes with none of --into, --address and --plain"
        )
    folder = into or Path(vcluster)
    if not inside:
        writable(folder)  # before an earlier VCM loses its access
    body = {"address": address, "plain": plain, "inside": inside, "head": head}
    enrolled = client(ctx).post(path("vclusters", vcluster, "vcm"), body)
    if inside:
        value = {"vcluster": vcluster, "head": enrolled["head"], "primed": enrolled["primed"]}
        print_result(
            value,
            f"{enrolled['head']} of {vcluster} finds configuration and invitation in its seed when"
            " it is primed"
            + (
                "; it was primed before: they come when it is primed anew"
                if enrolled["primed"]
                else ""
            ),
        )
        return
    _written(folder, enrolled, [] if plain else ["vcm.key", "vcm.crt", "ca.crt"])


def _written(folder: Path, enrolled: Any, names: list[str]) -> None:
    """Write the VCM's files, and print what to do with them. An existing configuration stays,
    because it may have the pool's keys."""
    fields = {
        "vcm.key": "key",
        "vcm.crt": "certificate",
        "ca.crt": "authority",
        "vcm.toml": "configuration",
    }
    kept = (folder / "vcm.toml").exists()
    for name in [*names, *["vcm.toml"] * (not kept)]:
        write_private(folder / name, enrolled[fields[name]])  # a VCM may be reading it
    (folder / "vcm.crt.renewed").unlink(missing_ok=True)  # of the VCM that has lost its access
    written = [*names, *["vcm.toml"] * (not kept)]
    if for_programs():
        print_json(
            {
                "vcluster": enrolled["vcluster"],
                "folder": str(folder),
                "written": written,
                "kept": kept,
                "serial": enrolled["serial"],
                "servers": enrolled["servers"],
            }
        )
        return
    click.echo(
        f"wrote {', '.join(written) or 'nothing'} to {folder}; start it with: cod vcm sge"
        f" {folder}/vcm.toml (Slurm: cod vcm slurm)"
    )
    if kept:
        click.echo(
            f"left {folder}/vcm.toml as it was; it should say servers ="
            f" {json.dumps(enrolled['servers'])}" + (" and tls = false" if not names else "")
        )


def _end(vcm: Any) -> str:
    """Return when the VCM's certificate expires or expired, for people."""
    if vcm["ends_at"] is None:
        return "-"
    return (
        f"ends {ago(vcm['ends_at'])}"
        if vcm["ends_at"] > time.time()
        else f"ENDED {ago(vcm['ends_at'])} ago"
    )


def _from(vcm: Any) -> str:
    """Return the node or the address from which the VCM may connect."""
    if vcm["head"]:
        return str(vcm["head"]) + ("" if vcm["serial"] else " (has no certificate yet)")
    return str(vcm["address"] or "any")


vcm_table = table_with(
    ("VCLUSTER", "vcluster"),
    ("VCM", "about"),
    ("SERVER", lambda v: v["server"] or "away"),
    ("SINCE", lambda v: when(v["since"])),
    ("OWED", lambda v: str(v["owed"])),
    ("ADDRESS", _from),
    ("CERTIFICATE", _end),
)


def _warn(values: list[Any]) -> None:
    """Warn on standard error of certificates that expire soon and were not renewed."""
    for vcm in values:
        if vcm["ends_at"] is not None and vcm["ends_at"] < time.time() + NEAR:
            click.echo(
                f"warning: the certificate of {vcm['vcluster']}'s VCM {_end(vcm)} and was not"
                " renewed; see that the VCM runs and can write its folder, or enrol it anew: cod"
                f" vcm enroll {vcm['vcluster']}",
                err=True,
            )


@vcm.command("list")
@with_table
def list_(ctx: click.Context) -> None:
    """List VCMs and their connections.

    Example:
      cod vcm list
    """
    values = client(ctx).every("/vcms")
    if for_programs():
        print_json(values)
    else:
        print_rich(vcm_table(values))
        _warn(values)


@vcm.command()
@name_argument
@with_table
def show(ctx: click.Context, vcluster: str) -> None:
    """Show a vcluster's VCM.

    Example:
      cod vcm show batch
    """
    value = client(ctx).get(path("vclusters", vcluster, "vcm"))
    shown(value, lambda v: vcm_table([v]))
    if not for_programs():
        _warn([value])


@vcm.command()
@name_argument
@with_json
def revoke(ctx: click.Context, vcluster: str) -> None:
    """Revoke the access of a vcluster's VCM. The vcluster keeps its nodes.

    Example:
      cod vcm revoke batch
    """
    client(ctx).delete(path("vclusters", vcluster, "vcm"))
    print_result(
        {"vcluster": vcluster, "revoked": True}, f"nobody speaks for vcluster {vcluster} any more"
    )


@vcm.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--dry-run", is_flag=True, help="Log what the VCM would request and release, and do neither."
)
def sge(config: Path, dry_run: bool) -> None:
    """Run the VCM of a Grid Engine pool until SIGTERM or SIGINT.

    Example:
      cod vcm sge /etc/cod/vcm/batch/vcm.toml --dry-run
    """
    from cod.vcm.gridengine.settings import GridEngineSettings
    from cod.vcm.gridengine.system import GridEngineSystem

    read = _settings(config, GridEngineSettings)
    _run(
        "sge",
        config,
        read,
        read.gridengine,
        GridEngineSystem(read.gridengine, prepare=not dry_run),
        dry_run,
    )


@vcm.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--dry-run", is_flag=True, help="Log what the VCM would request and release, and do neither."
)
def slurm(config: Path, dry_run: bool) -> None:
    """Run the VCM of a Slurm pool until SIGTERM or SIGINT.

    Example:
      cod vcm slurm /etc/cod/vcm/batch/vcm.toml --dry-run
    """
    from cod.vcm.slurm.settings import SlurmSettings
    from cod.vcm.slurm.system import SlurmSystem

    read = _settings(config, SlurmSettings)
    _run("slurm", config, read, read.slurm, SlurmSystem(read.slurm, dry_run=dry_run), dry_run)


def _settings(config: Path, kind: type[S]) -> S:
    from cod.vcm import settings

    try:
        return settings.load(config, kind)
    except settings.BadSettings as error:
        raise click.ClickException(str(error)) from None


def _run(
    name: str, config: Path, read: Settings, table: BatchTable, system: BatchSystem, dry_run: bool
) -> None:
    """Run the VCM of a batch system's pool; end with its exit status."""
    from cod.vcm import daemon
    from cod.vcm.batch.pool import BatchPool

    pool = BatchPool(table, system)
    raise SystemExit(
        daemon.run(read, config.parent, f"cod-vcm-{name} {version('cod')}", pool, dry_run=dry_run)
    )
