"""`cod doctor`: reports what is wrong with this server."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cod.cli.show import client, for_programs, print_json, print_table, with_json
from cod.client import SITE_FILE
from cod.quantity import counted

if TYPE_CHECKING:
    from cod.doctor.finding import Finding

STYLES = {"good": "green", "warning": "yellow", "bad": "bold red", "not seen": "dim"}


@click.command()
@click.option(
    "--only",
    metavar="CHECK[,CHECK]",
    default="",
    help="Run only these checks, named as in the second column.",
)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a .tar.gz, too, for those who help you: findings, versions, settings and log.",
)
@with_json
def doctor(ctx: click.Context, only: str, bundle: Path | None) -> None:
    """Check this server, and say how to fix what is wrong. Exit code 1 if a check fails.

    The server may be up or down. The checks change nothing: they look for other DHCP servers by
    DISCOVERs that no request follows, and ask each BMC once whether its machine is on. Run the
    command as root: checks that need more rights are reported as not seen.

    Example:
      cod doctor
      cod doctor --only ports,dhcp --json
      cod doctor --bundle cod-head.tar.gz
    """
    from rich.console import Console
    from rich.text import Text

    from cod.doctor.examination import CHECKS, examine
    from cod.doctor.finding import BAD, WARNING

    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in CHECKS]:
        raise click.BadParameter(
            f"there is no check {unknown[0]!r}, only {', '.join(CHECKS)}", param_hint="--only"
        )
    site_file = Path(ctx.find_root().obj["site"] or SITE_FILE)
    with Console(stderr=True).status("") as status:  # shown at a terminal alone
        found = list(examine(site_file, time.time(), names, status.update))
    if bundle is not None:
        _bundle(ctx, bundle, site_file, found)
    bad, warnings = ([each for each in found if each.state == state] for state in (BAD, WARNING))
    if for_programs():
        print_json({"good": not bad, "findings": [asdict(each) for each in found]})
    else:
        print_table(
            ("STATE", "CHECK", "FOUND", "WHAT TO DO"),
            [
                (Text(each.state, STYLES[each.state]), each.check, each.found, each.remedy)
                for each in found
            ],
        )
        click.echo(f"\n{counted(len(bad), 'problem')}, {counted(len(warnings), 'warning')}")
    sys.exit(1 if bad else 0)


def _bundle(ctx: click.Context, path: Path, site_file: Path, found: Sequence[Finding]) -> None:
    from cod.doctor import bundle

    try:
        names = bundle.write(
            path, site_file, found, lambda path: client(ctx).get(path), time.time()
        )
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    click.echo(
        f"{path}: {', '.join(names)}; passwords and tokens are taken out, names and addresses are"
        " not: look into it before you send it",
        err=True,
    )
