"""Makes a new site: the annotated site file, the folders, the loaders, the database."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cod import data
from cod.core.database.writer import connect
from cod.images import store
from cod.model.keys import SiteTable
from cod.pool import in_transaction
from cod.proposal import EXAMPLE, pools
from cod.security import partusers, secretfile
from cod.security.ca import Ca
from cod.site import load
from cod.site.changes import open_keys
from cod.site.file import SiteFile, about, keys
from cod.store import schema
from cod.store.people import groups

_IPXE, _EL_IPXE = "/usr/lib/ipxe", "/usr/share/ipxe"
_SYSLINUX, _EL_SYSLINUX = "/usr/lib/syslinux/modules/bios", "/usr/share/syslinux"
LOADERS = {  # below the boot root, and where Debian and Enterprise Linux keep them
    "undionly.kpxe": (f"{_IPXE}/undionly.kpxe", f"{_EL_IPXE}/undionly.kpxe"),
    "snponly.efi": (f"{_IPXE}/snponly.efi", f"{_EL_IPXE}/ipxe-snponly-x86_64.efi"),
    "ipxe.efi": (f"{_IPXE}/ipxe.efi", f"{_EL_IPXE}/ipxe-x86_64.efi"),
    "pxelinux.0": ("/usr/lib/PXELINUX/pxelinux.0", f"{_EL_SYSLINUX}/pxelinux.0"),
    "lpxelinux.0": ("/usr/lib/PXELINUX/lpxelinux.0", f"{_EL_SYSLINUX}/lpxelinux.0"),
    "ldlinux.c32": (f"{_SYSLINUX}/ldlinux.c32", f"{_EL_SYSLINUX}/ldlinux.c32"),
    # the libraries that reboot.c32 is linked with
    "libcom32.c32": (f"{_SYSLINUX}/libcom32.c32", f"{_EL_SYSLINUX}/libcom32.c32"),
    # for the end of a PXELINUX configuration that refuses to boot
    "reboot.c32": (f"{_SYSLINUX}/reboot.c32", f"{_EL_SYSLINUX}/reboot.c32"),
}
FIRST_LIMITS = {"node_limit": 64, "max_lease": 30 * 86400.0}
"""What a new site grants its groups at most until an administrator decides otherwise: nobody holds
it for ever."""
HEAD = """\
COD's site file. Every key is here with its default; a line that begins with '#' and a key is a default left as it is.
`cod serve` checks the whole file at its start. SIGHUP re-reads the tables that say so, log_level and the
certificate; the rest needs a restart."""


def found(
    folder: Path,
    site_file: Path,
    subnet: Mapping[str, Any],
    now: float,
    listen: Sequence[str] = (),
) -> list[str]:
    """Make a site with its data in `folder`; return lines about what was done. Existing files are
    kept.

    listen  ADDRESS:PORT pairs of the portal and the REST API
    """
    done = []
    if site_file.exists():
        done.append(
            f"kept {site_file}"
            + (": what the options say is for a new one" if subnet or listen else "")
        )
    else:
        write_site_file(site_file, folder, subnet, listen)
        done.append(f"wrote {site_file}: read it, the [[subnet]] table first")
    site, settings = load.load(site_file)
    for path in (settings.boot / "trampoline", settings.images, settings.run):
        path.mkdir(parents=True, exist_ok=True)
    partusers.close(settings.run)
    store.private(settings.images)
    secretfile.key(settings.webhook_key)
    Ca(settings.authority, site.name)
    done += copy_loaders(settings.boot)
    done += copy_trampoline(settings.boot / "trampoline")
    engine = connect(settings.database)
    try:
        done.append(f"database has schema {schema.upgrade(engine)}")
        in_transaction(engine, groups.ensure, groups.SITE, now)
    finally:
        engine.dispose()
    return done


def write_site_file(
    path: Path, folder: Path, subnet: Mapping[str, Any], listen: Sequence[str] = ()
) -> None:
    """Write the annotated file, readable by its owner alone: a database URL may hold a password."""
    own = [str(subnet[key]) for key in ("server", "router") if subnet.get(key)]
    missing = {"boot_pool", "block_pool"} - subnet.keys()
    proposed = pools(str(subnet.get("network", "")), *own, of=missing) if missing else {}
    table = {**EXAMPLE, **proposed, **subnet}
    text = annotated(
        {
            "server": {"data_dir": str(folder.absolute())},
            "api": {"listen": listen} if listen else {},
            "policy": FIRST_LIMITS,
            "subnet": {key: value for key, value in table.items() if value is not None},
        }
    )
    load.parse(text, path)  # an --option that cannot be is refused before anything is written
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)


def copy_loaders(boot: Path) -> list[str]:
    """Copy the distribution's NBPs below the boot root, where they are missing."""
    done = []
    for name, places in LOADERS.items():
        target = boot / name
        if target.exists():
            continue
        source = next((place for place in places if Path(place).exists()), None)
        if source:
            shutil.copy(source, target)
            done.append(f"copied {name}")
        else:
            done.append(
                f"missing {' or '.join(places)}: install the package it is in and run"
                " `cod init` again"
            )
    return done


def copy_trampoline(folder: Path) -> list[str]:
    """Copy the generic trampoline that was built in the checkout, where the site has none. The
    lab's small trampoline lacks the drivers of real machines and is never copied; `cod trampoline
    build lab` installs it."""
    if (folder / "vmlinuz").exists() and (folder / "ramdisk").exists():
        return []
    with suppress(FileNotFoundError):
        built = data.path("build/trampoline/generic/ramdisk").parent
        for name in ("vmlinuz", "ramdisk", "facts.json"):
            shutil.copy(built / name, folder / name)
        return ["copied the generic trampoline"]
    return [
        "no trampoline yet: `cod trampoline build` makes it, or put vmlinuz and ramdisk into"
        f" {folder}"
    ]


# ---------------------------------------------------------------- the annotated file


def annotated(values: Mapping[str, Any]) -> str:
    """Return the site file as TOML, with an explanation of every key. `values`, by key (nested by
    table), replace the defaults."""
    lines = [*_comment(HEAD), *_keys(SiteFile, values)]
    for key in keys(SiteFile):
        if key.table is None:
            continue
        head = f"[[{key.name}]]" if key.repeated else f"[{key.name}]"
        optional = key.repeated and key.name not in values
        lines += ["", *_comment(about(key.table)), ("# " if optional else "") + head]
        lines += _keys(key.table, values.get(key.name, {}), optional)
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Return the site file's keys as Markdown tables, for docs/site-file."""
    lines = []
    for shown, name, table in [
        ("**top level**", "", SiteFile),
        *(
            (f"**[[{key.name}]]**" if key.repeated else f"**[{key.name}]**", key.name, key.table)
            for key in keys(SiteFile)
            if key.table is not None
        ),
    ]:
        lines += [
            shown + ("" if table is SiteFile else f": {about(table)}"),
            "",
            "| Key | Default | Meaning | Changed [while servers run](../howto/admin/settings.md) |",
            "|---|---|---|---|",
        ]
        for key in keys(table):
            if key.table is None:
                default = "not set" if key.default is None else f"`{toml(key.default)}`"
                note = "required" if key.required else default
                live = "yes" if f"{name}.{key.name}" in open_keys() else ""
                lines.append(f"| `{key.name}` | {note} | {key.about} | {live} |")
        lines.append("")
    return "\n".join(lines)


def _keys(
    table: type[SiteTable], values: Mapping[str, Any], optional: bool = False
) -> Iterator[str]:
    for key in keys(table):
        if key.table is not None:
            continue
        yield ""
        yield from _comment(key.about)
        value = values.get(key.name, None if key.required else key.default)
        mark = "" if key.name in values and not optional else "# "
        yield f"{mark}{key.name} = {toml(value)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), 116)]


def toml(value: Any) -> str:
    """Return a value as TOML. None becomes an empty string, since keys without a value are written
    as comments."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(each) for each in value)}]"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{toml(str(key))} = {toml(each)}" for key, each in value.items()) + "}"
        )
    text = "" if value is None else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
