"""Images on this computer: the content of a disk, and disks made from OCI images."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import click

from cod.cli.show import as_json, print_json, size, table_of
from cod.cli.terminal_text import printable

_TABLES = {
    "gpt": "GPT",
    "mbr": "MBR",
    "full": "MBR whose four partitions are taken",
    "none": "no partition table",
}
_TAR = (257, b"ustar")  # where a tar archive has its magic
_TEMPLATE = """<template name="{name}">
  <description>{system}</description>
  <requires>{firmware}<disk><size min="{size}"/></disk></requires>
  <image target="disk" name="{name}"/>
  <boot mode="disk"/>
{more}</template>"""


# cloud-init grows partitions and the file systems in them, and no logical volume.
_GROW = """
    #!/bin/sh
    # Grows the root, which is a logical volume, up to the seed.
    root=$(findmnt -no SOURCE /)
    group=$(lvs --noheadings -o vg_name "$root" | tr -d ' ')
    for volume in $(pvs --noheadings -o pv_name -S "vg_name=$group"); do
      number=$(cat "/sys/class/block/${volume##*/}/partition") &&
        growpart "/dev/$(lsblk -ndo PKNAME "$volume")" "$number"
      pvresize "$volume"
    done
    [ "$(vgs --noheadings -o vg_free_count "$group" | tr -d ' ')" = 0 ] ||
      lvextend --resizefs --extents +100%FREE "$root"
  """


class ImageArgument(click.Path):
    """A file with an image, a folder in the OCI image layout, or `oci:REGISTRY/NAME:TAG`."""

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if str(value).startswith("oci:"):
            return str(value)
        path: Path = cast(Path, super().convert(value, param, ctx))
        if path.is_dir() and not (path / "oci-layout").is_file():
            self.fail(f"{path} is a folder, and not in the OCI image layout", param, ctx)
        return path


def is_oci(source: Path | str) -> bool:
    """Return whether a source names an OCI image."""
    if isinstance(source, str) or source.is_dir():
        return True
    with source.open("rb") as file:
        file.seek(_TAR[0])
        return file.read(len(_TAR[1])) == _TAR[1]


DISKLESS = (".kernel", ".ramdisk")


@contextmanager
def made_of_oci(
    source: Path | str, name: str, *words: str, diskless: bool = False
) -> Iterator[list[Path]]:
    """Make a disk, or a kernel and a ramdisk, from an OCI image on this computer. The files are
    deleted afterwards.

    words  options of `python -m images.oci`
    """
    from cod import recipes

    with TemporaryDirectory(prefix="cod-oci-") as folder:
        out = Path(folder) / f"{name.rpartition('/')[2]}.img"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cod/images"
        done = recipes.oci(
            *(str(source if isinstance(source, str) else source.resolve()), "--out", str(out)),
            *("--cache", str(cache), *words, *(["--diskless"] if diskless else [])),
            stdout=sys.stderr,
        )
        if done.returncode:
            raise click.ClickException("no image could be made of it; the reason is above")
        yield [out.with_suffix(each) for each in DISKLESS] if diskless else [out]


def facts_of(file: Path) -> dict[str, Any]:
    """Return what `images.inspection` finds on a disk. Raises ClickException."""
    from cod import recipes

    done = recipes.inspection(str(file.resolve()), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise click.ClickException(done.stderr.strip() or "the image cannot be looked into")
    return dict(json.loads(done.stdout))


def warn(file: Path) -> None:
    """Print warnings about an image that would keep nodes from booting, if the programs to find
    them are installed."""
    if shutil.which("grub-fstest") is None:
        return
    try:
        found = facts_of(file)["warnings"]
    except (click.ClickException, OSError):  # the server says what is wrong with the file
        return
    for each in found:
        click.echo(f"warning: {each}", err=True)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--template", "name", metavar="NAME", help="Print a template for the image NAME.")
@as_json
def inspect(file: Path, name: str | None, as_json: bool) -> None:
    """Show what is on a disk image, before it is added: partitions, system, kernels, and what
    would keep a node from booting it.

    FILE is a disk in any format that COD takes. The command reads it on this computer with
    grub-fstest (Debian's package grub-common) and sends nothing. Exit code 1 if there are warnings.

    Example:
      cod image inspect Rocky-9-GenericCloud-LVM.qcow2
      cod image inspect ./disk.img --template rocky-9 > rocky-9.xml
    """
    facts = facts_of(file)
    if name is not None:
        click.echo(template_for(name, facts))
    elif as_json:
        print_json(facts)
    else:
        _show(facts)
    for each in facts["warnings"]:
        click.echo(f"warning: {each}", err=True)
    if facts["warnings"]:
        click.get_current_context().exit(1)


def _show(facts: dict[str, Any]) -> None:
    from cod.cli.show import print_rich

    print_rich(
        table_of(
            facts["partitions"],
            ("NUMBER", "number"),
            ("TYPE", "type"),
            ("SIZE", lambda v: size(v["size"])),
            ("CONTENT", "content"),
            ("NAMES", lambda v: ", ".join(v["names"])),
        )
    )
    lines = {"Disk": f"{size(facts['size'])}, {_TABLES[facts['table']]}"}
    lines["Boots on"] = " and ".join(map(str.upper, facts["firmware"])) or "nothing"
    if "system" in facts:
        lines |= {
            "System": facts["system"],
            "Root": f"{facts['root_content']} at {facts['root']}",
            "Kernels": f"{', '.join(k['release'] for k in facts['kernels'])} at {facts['boot']}",
            "Boot loader entries": str(facts["loader_entries"]),
            "SELinux": facts["selinux"] or "not configured",
            "cloud-init": "yes" if facts["cloud_init"] else "no",
            "SSH server": "yes" if facts["ssh_server"] else "no",
            "Kerberos": ", ".join(facts["kerberos"]) or "no",
        }
    for label, text in lines.items():
        click.echo(printable(f"{label:<20} {text}"))


def _on_lvm(facts: dict[str, Any]) -> bool:
    return str(facts.get("root")).startswith("(lvm/")


def template_for(name: str, facts: dict[str, Any]) -> str:
    """Return a template that writes the image `name` to a disk, as text."""
    from xml.sax.saxutils import escape

    client = {"nfs", "sssd"} <= {*facts.get("kerberos", ())} and facts.get("cloud_init")
    attributes = 'seed="nocloud"' + (' kerberos="yes"' if client else "")
    grow = f"><user-data>{escape(_GROW)}</user-data></personalise>" if _on_lvm(facts) else "/>"
    only = facts["firmware"] if len(facts["firmware"]) == 1 else []
    more = ['  <ready port="22"/>\n'] if facts.get("ssh_server") else []
    more += [f"  <personalise {attributes}{grow}\n"] if facts.get("cloud_init") else []
    return _TEMPLATE.format(
        name=name,
        system=escape(printable(facts.get("system") or "A disk")),
        firmware="".join(f'<firmware><kind equal="{each}"/></firmware>' for each in only),
        size=f"{(facts['size'] >> 20) + 8}MiB",  # the seed, and the table's copy, lie behind
        more="".join(more),
    )
