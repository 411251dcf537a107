"""`cod trampoline`: the system that machines boot between the systems of their users."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

import click

from cod.cli.show import for_programs, print_result, shown, with_json
from cod.client import SITE_FILE

FLAVOURS = ("lab", "generic")


@click.group()
def trampoline() -> None:
    """The trampoline: kernel and ramdisk that nodes boot between two vclusters.

    Example:
      cod trampoline build generic
    """


@trampoline.command()
@click.argument("flavour", type=click.Choice(FLAVOURS), default="generic")
@with_json
def build(ctx: click.Context, flavour: str) -> None:
    """Build the trampoline from the distribution's packages, and install it in the site's boot
    folder.

    FLAVOUR is generic (drivers for servers; the default) or lab (small, for QEMU machines). The
    build installs no packages on this host and needs root only to write into the site's folder.
    Parts that are up to date are not built again.

    Example:
      cod --site /srv/cod/site.toml trampoline build lab
    """
    from cod.site import load

    try:
        _, settings = load.load(Path(ctx.find_root().obj["site"] or SITE_FILE))
        cache = settings.data / "cache/trampoline"
        made(flavour, cache, sys.stderr if for_programs() else None)
        for name in ("vmlinuz", "ramdisk", "facts.json"):
            put(cache / flavour / name, settings.boot / "trampoline" / name)
    except (load.ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    folder = settings.boot / "trampoline"
    print_result(
        {"flavour": flavour, "folder": str(folder)}, f"{folder}: machines boot this from now on"
    )


@trampoline.command()
@with_json
def show(ctx: click.Context) -> None:
    """Show the installed trampoline: kernel, size, and drivers that lack firmware.

    Example:
      cod trampoline show
    """
    from cod.site import load

    try:
        _, settings = load.load(Path(ctx.find_root().obj["site"] or SITE_FILE))
        facts = json.loads((settings.boot / "trampoline/facts.json").read_text())
    except FileNotFoundError:
        raise click.ClickException(
            "there is no trampoline, or none that `cod trampoline build` made"
        ) from None
    except (load.ConfigError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    shown(facts, _summary)


def _summary(facts: dict[str, Any]) -> str:
    carried = facts.get("firmware", {})
    lines = [
        (
            f"{facts['flavour']}: Linux {facts['release']}, kernel {facts['kernel']:,} bytes,"
            f" ramdisk {facts['packed']:,} bytes ({facts['unpacked']:,} unpacked)"
        ),
        f"firmware: {carried.get('files', 0)} files, {carried.get('bytes', 0):,} bytes",
    ]
    return "\n".join(filter(None, [*lines, carried.get("note"), carried.get("remedy")]))


def made(flavour: str, folder: Path, output: TextIO | None = None) -> None:
    """Run the recipe that ships with this program; the result is in `folder`/<flavour>. The
    recipe's messages go to `output`; None: to standard output."""
    from cod import recipes

    if recipes.trampoline(
        flavour, "--out", str(folder), "--cache", str(folder / "packages"), stdout=output
    ).returncode:
        raise click.ClickException("the trampoline could not be made; the reason is above")


def put(source: Path, target: Path) -> None:
    """Replace `target` as a whole, because a machine may be loading the old file. Any user can read
    it, whatever this shell's umask is, because parts with users of their own serve it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    shutil.copy(source, partial)
    partial.chmod(0o644)
    partial.replace(target)
