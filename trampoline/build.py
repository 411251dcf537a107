"""Makes the trampoline: `python -m trampoline.build [lab|generic] [--out DIR]`.

Writes DIR/<flavour>/vmlinuz and DIR/<flavour>/ramdisk from the distribution's packages: the
unchanged kernel, and one compressed cpio with drivers, busybox, Python and the agent. Equal inputs
give equal bytes. Nothing is installed, nothing needs root, and nothing is done if the inputs have
not changed since the last time (`stamp`).

lab      drivers for QEMU machines (virtio, four kinds of NICs, AHCI, PIIX, NVMe, MegaRAID, USB):
         small and quick
generic  all drivers for wired networks and disks that the distribution's kernel has, and the
         firmware that they load into their hardware, as far as apt is set up to fetch it
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trampoline.recipe import cpio, firmware, modules, packages, python

CHECKOUT = Path(__file__).resolve().parent.parent
FLAVOURS = ("lab", "generic")
OWN_BMC = ("ipmi_si", "ipmi_devintf")  # the way to the machine's own BMC
# One thread: the bytes must not depend on the machine. A window of 8 MiB is what any kernel's
# decoder takes.
COMPRESS = ("zstd", "-19", "--single-thread", "-q", "-c")


def main(arguments: list[str] | None = None) -> int:
    """Run the command: build the flavours and print each one's sizes."""
    parser = argparse.ArgumentParser(
        prog="python -m trampoline.build", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("flavour", nargs="*", choices=[*FLAVOURS, []], help="default: lab")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build/trampoline")
    parser.add_argument("--cache", type=Path, default=CHECKOUT / "build/cache/trampoline")
    parser.add_argument(
        "--sources",
        action="store_true",
        help="print the digest of the agent's sources, make nothing",
    )
    options = parser.parse_args(arguments)
    if options.sources:
        print(sources())
        return 0
    for flavour in options.flavour or ["lab"]:
        folder = build(flavour, options.out, options.cache)
        print(describe(flavour, folder))
    return 0


def build(flavour: str, out: Path, cache: Path) -> Path:
    """Build one flavour of the trampoline below `out`, unless the present one is up to date. Return
    its folder."""
    folder = out / flavour
    with packages.alone(cache):
        wanted = packages.wanted()
        blobs = (
            packages.exactly(names)
            if flavour == "generic" and (names := firmware.available())
            else []
        )
        stamp = _stamp(flavour, [*wanted, *blobs])
        if not _is_made(folder, stamp):
            root = packages.unpacked(wanted, cache)
            _write(
                folder,
                flavour,
                root,
                packages.unpacked(blobs, cache / "firmware") if blobs else root,
                stamp,
            )
    return folder


def describe(flavour: str, folder: Path) -> str:
    """Return a line of sizes, in bytes, and a line about firmware that drivers need and that is
    missing."""
    facts = json.loads((folder / "facts.json").read_text())
    line = (
        f"{flavour}: kernel {facts['kernel']:,}, ramdisk {facts['packed']:,} packed,"
        f" {facts['unpacked']:,} unpacked ({folder})"
    )
    return "\n".join(filter(None, [line, facts["firmware"]["note"], facts["firmware"]["remedy"]]))


def tree(flavour: str, root: Path, blobs: Path, scratch: Path) -> dict[str, cpio.Entry]:
    """Return everything in the ramdisk, by path. `root` has the unpacked packages, `blobs` those of
    firmware; `scratch` is a folder for a while."""
    here = CHECKOUT / "trampoline"
    busybox = root / "bin/busybox"
    entries = {name: cpio.folder() for name in ("dev", "etc", "proc", "run", "sbin", "sys", "tmp")}
    # an initrd of its own unpacks the boot's secret into this folder
    entries["cod"] = cpio.folder(0o700)
    entries |= python.tree(root, CHECKOUT, scratch) | modules.tree(
        root, flavour, (modules.FIRMWARE_DISKS, *OWN_BMC)
    )
    entries |= firmware.tree(blobs, modules.firmware(root, flavour))
    entries["init"] = cpio.file((here / "init").read_bytes(), 0o755)
    entries["lib/udhcpc"] = cpio.file((here / "udhcpc").read_bytes(), 0o755)
    entries["bin/busybox"] = cpio.file(busybox.read_bytes(), 0o755)
    # scan=sync: loading a driver ends when its disks are there, so the first report has them all
    entries["etc/modprobe.d/scsi.conf"] = cpio.file(b"options scsi_mod scan=sync\n")
    # a BMC that is slow to answer would delay disks and network: init asks for the driver later
    entries["etc/modprobe.d/ipmi.conf"] = cpio.file(b"blacklist ipmi_si\n")
    for name in python.run(root, busybox, "--list").split():
        entries.setdefault(f"bin/{name}", cpio.link("busybox"))
    entries["sbin/modprobe"] = cpio.link("../bin/busybox")
    return entries


# ---------------------------------------------------------------- on disk


def _stamp(flavour: str, wanted: list[packages.Package]) -> str:
    """Return a digest of all inputs of the result: packages, the agent's sources, the recipe."""
    return hashlib.sha256(repr((flavour, wanted, sources())).encode()).hexdigest()


def sources() -> str:
    """Return a digest of the agent's sources and of the recipe. Ramdisks with equal digests contain
    the same agent."""
    mine, _ = python.reachable(python.AGENT, CHECKOUT)
    files = {python.source(name, CHECKOUT) for name in mine} | set(
        (CHECKOUT / "trampoline").rglob("*")
    )
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path and path.is_file() and path.suffix != ".pyc"):
        digest.update(
            f"{path.relative_to(CHECKOUT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest()
        )
    return digest.hexdigest()


def _is_made(folder: Path, stamp: str) -> bool:
    try:
        return bool(json.loads((folder / "facts.json").read_text())["stamp"] == stamp)
    except (OSError, ValueError, KeyError):
        return False


def _write(folder: Path, flavour: str, root: Path, blobs: Path, stamp: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kernel = next((root / "boot").glob("vmlinuz-*"))
    with TemporaryDirectory() as scratch:
        entries = tree(flavour, root, blobs, Path(scratch))
    raw = cpio.archive(entries)
    packed = cpio.padded(
        subprocess.run(COMPRESS, input=raw, stdout=subprocess.PIPE, check=True).stdout
    )
    facts = {
        "flavour": flavour,
        "release": kernel.name.removeprefix("vmlinuz-"),
        "kernel": kernel.stat().st_size,
        "packed": len(packed),
        "unpacked": len(raw),
        "firmware": _carried(flavour, root, entries),
        "stamp": stamp,
        "sources": sources(),
    }
    _replace(folder / "vmlinuz", kernel.read_bytes())
    _replace(folder / "ramdisk", packed)
    # written last, as it says that the build is complete
    _replace(folder / "facts.json", json.dumps(facts, indent=1).encode() + b"\n")


def _carried(flavour: str, root: Path, entries: Mapping[str, cpio.Entry]) -> dict[str, Any]:
    """Return facts about firmware: the number of `files` and their `bytes`, the files `missing` by
    driver, and for people a `note` on these and a `remedy`."""
    needs = modules.firmware(root, flavour)
    carried = [entry for path, entry in entries.items() if path.startswith("lib/firmware/")]
    missing = firmware.lacking(entries, needs)
    note, remedy = firmware.note(missing) if needs else ("", "")
    return {
        "files": len(carried),
        "bytes": sum(len(entry.content) for entry in carried),
        "missing": missing,
        "note": note,
        "remedy": remedy,
    }


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: a boot server may be reading the old one."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
