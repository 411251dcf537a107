"""`cod vcm`: virtual cluster managers; enrolling them at the server, and running one here."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from cod.cli.show import ago, as_json, client, console, print_json, shown, table
from cod.client import path

name_argument = click.argument("vcluster")
CONFIG = """\
# A virtual cluster manager of COD. The other keys are in docs/vcm.md.
vcluster = {vcluster}
servers = {servers}
{tls}"""


@click.group()
def vcm() -> None:
    """Programs that resize vclusters by what runs in them.

    \b
    Example:
      cod vcm enroll batch --into /etc/cod/vcm
      cod vcm sge /etc/cod/vcm/vcm.toml
    """


@vcm.command()
@name_argument
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Folder for vcm.toml, vcm.key, vcm.crt and ca.crt; the vcluster's name if left out.")
@click.option("--address", help="The only address that it may come from.")
@click.option("--plain", is_flag=True, help="It is known by its --address alone, and speaks without TLS: for closed "
              "networks, where the site file has [nmp] plain_port.")
@click.pass_context
def enroll(ctx: click.Context, vcluster: str, into: Path | None, address: str | None, plain: bool) -> None:
    """Make key, certificate and configuration for a vcluster's VCM. A VCM that was enrolled before is shut out.

    \b
    Example:
      cod vcm enroll batch --into /etc/cod/vcm
    """
    folder = into or Path(vcluster)
    enrolled = client(ctx).post(path("vclusters", vcluster, "vcm"), {"address": address, "plain": plain})
    folder.mkdir(parents=True, exist_ok=True)
    files = {} if plain else {"vcm.key": "key", "vcm.crt": "certificate", "ca.crt": "authority"}
    for name, field in files.items():
        _write(folder / name, enrolled[field])
    if not (folder / "vcm.toml").exists():
        _write(folder / "vcm.toml", CONFIG.format(
            vcluster=json.dumps(vcluster), servers=json.dumps(enrolled["servers"]), tls="tls = false\n" * plain))
    click.echo(f"wrote {', '.join(['vcm.toml', *files])} to {folder}; start it with: cod vcm sge {folder}/vcm.toml")


def _write(file: Path, text: str) -> None:
    """For its owner alone."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def vcm_table(values: list[Any]) -> Any:
    """VCMs for people."""
    return table(("VCLUSTER", "VCM", "SERVER", "SINCE", "OWED", "ADDRESS"),
                 [(v["vcluster"], v["about"], v["server"] or "away", ago(v["since"]), str(v["owed"]),
                   v["address"] or "any") for v in values])


@vcm.command("list")
@as_json
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the site's VCMs, and whether they are connected.

    \b
    Example:
      cod vcm list
    """
    values = client(ctx).every("/vcms")
    if as_json:
        print_json(values)
    else:
        console().print(vcm_table(values))


@vcm.command()
@name_argument
@as_json
@click.pass_context
def show(ctx: click.Context, vcluster: str, as_json: bool) -> None:
    """Show a vcluster's VCM.

    \b
    Example:
      cod vcm show batch
    """
    shown(ctx, client(ctx).get(path("vclusters", vcluster, "vcm")), lambda v: vcm_table([v]), as_json)


@vcm.command()
@name_argument
@click.pass_context
def revoke(ctx: click.Context, vcluster: str) -> None:
    """Let nobody speak for a vcluster any more. Its nodes stay as they are.

    \b
    Example:
      cod vcm revoke batch
    """
    client(ctx).delete(path("vclusters", vcluster, "vcm"))
    click.echo(f"nobody speaks for vcluster {vcluster} any more")


@vcm.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Say what would be asked for and given back, and do neither.")
def sge(config: Path, dry_run: bool) -> None:
    """Run the manager of a Grid Engine pool, until SIGTERM or SIGINT.

    \b
    Example:
      cod vcm sge /etc/cod/vcm/vcm.toml --dry-run
    """
    from cod.vcm import daemon, settings
    from cod.vcm.gridengine.pool import GridEnginePool, GridEngineSettings

    try:
        read = settings.load(config, GridEngineSettings)
    except settings.Unusable as error:
        raise click.ClickException(str(error)) from None
    pool = GridEnginePool(read, prepare=not dry_run)
    raise SystemExit(daemon.run(read, config.parent, f"cod-vcm-sge {version('cod')}", pool, dry_run=dry_run))
