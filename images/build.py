"""Makes node images: `python -m images.build NAME... [--out DIR]`, NAME one of hello-a, hello-b,
opaque, execd, slurmd, slurmd-debian13, debian, debian-members.

Writes DIR/NAME.img, a sparse raw disk, and DIR/NAME.json with its facts: name, version, size
(bytes), sha256 of the whole image, digest (what the running image says about itself), stamp (of the
inputs). Nothing is done when the inputs are those of the last time; of all but Debian's, the same
inputs give the same bytes. Needs no network but the distribution's packages, and root for Debian's
alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from images import batch, debian, disk, execd, hello, linux, opaque, releases, slurmd
from trampoline.recipe import firmware, packages

CHECKOUT = Path(__file__).resolve().parent.parent
BATCH_HOSTS = {host.name: host for host in (execd.HOST, slurmd.HOST, slurmd.DEBIAN_13)}
NAMES = (*hello.HELLOS, "opaque", *BATCH_HOSTS, *debian.VARIANTS)
SOURCES = ("images", "trampoline/recipe")


def main(arguments: list[str] | None = None) -> int:
    """Return the command; prints a line for each image."""
    parser = argparse.ArgumentParser(
        prog="python -m images.build", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("name", nargs="+", choices=NAMES)
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build/images")
    parser.add_argument("--cache", type=Path, default=CHECKOUT / "build/cache/images")
    parser.add_argument(
        "--flavour",
        choices=batch.SYSTEM_MIB,
        default="generic",
        help="drivers of execd, slurmd and slurmd-debian13: generic (for servers) or lab",
    )
    options = parser.parse_args(arguments)
    for name in options.name:
        facts = build(name, options.out, options.cache, options.flavour)
        used = (options.out / f"{name}.img").stat().st_blocks * 512
        print(
            f"{name} {facts['version']}: {facts['size'] >> 20} MiB, {used >> 20} MiB used, sha256"
            f" {facts['sha256']}"
        )
    return 0


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The making of an image.

    stamp  a digest of everything that goes in
    make   makes the image at a path, with the help of a scratch folder; returns further facts
    """

    stamp: str
    make: Callable[[Path, Path], dict[str, Any]]


def build(name: str, out: Path, cache: Path, flavour: str = "lab") -> dict[str, Any]:
    """Make one image unless it is up to date; returns its facts. `flavour`: of a batch host's
    drivers."""
    with packages.alone(cache):
        recipe = _recipe(name, cache, flavour)
        known = _known(out, name)
        if known.get("stamp") == recipe.stamp and (out / f"{name}.img").is_file():
            return known
        return _make(name, out, recipe)


def _recipe(name: str, cache: Path, flavour: str) -> _Recipe:
    if name == "opaque":
        return _Recipe(_stamp([], SOURCES), lambda scratch, path: opaque.make(path))
    if name in debian.VARIANTS:
        system = debian.wanted(name)
        return _Recipe(
            _stamp(system, debian.SOURCES),
            lambda scratch, path: debian.make(
                name, packages.fetched(system, cache / "packages"), scratch, path
            ),
        )
    wanted = packages.wanted(linux.PACKAGES)
    if name not in BATCH_HOSTS:
        kind = hello.HELLOS[name]
        return _Recipe(
            _stamp(wanted, SOURCES),
            lambda scratch, path: hello.make(kind, packages.unpacked(wanted, cache), scratch, path),
        )
    host = BATCH_HOSTS[name]
    root, blobs = _packages_of(host, cache), _firmware_for(name, flavour)

    def make(scratch: Path, path: Path) -> dict[str, Any]:
        tools = packages.unpacked(wanted, cache)
        with releases.apt(host.suite, cache / f"apt-{host.suite}"):
            files = packages.unpacked(root, cache / name)
        unpacked = packages.unpacked(blobs, cache / "firmware") if blobs else None
        return batch.make(host, tools, files, scratch, path, flavour=flavour, blobs=unpacked)

    return _Recipe(f"{flavour} {_stamp([*wanted, *root, *blobs], SOURCES)}", make)


def _firmware_for(name: str, flavour: str) -> list[packages.Package]:
    """Return the packages of firmware that apt knows here, for servers' drivers."""
    if name not in BATCH_HOSTS or flavour != "generic":
        return []
    known = firmware.available()
    return packages.exactly(known) if known else []


def _packages_of(host: batch.BatchHost, cache: Path) -> list[packages.Package]:
    with releases.apt(host.suite, cache / f"apt-{host.suite}"):
        return packages.exactly(host.packages)


def _make(name: str, out: Path, recipe: _Recipe) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{name}-", dir=out) as folder:
        scratch = Path(folder)
        path = scratch / f"{name}.img"
        (scratch / "data").mkdir()
        more = recipe.make(scratch, path)
        facts = {
            "name": name,
            "size": path.stat().st_size,
            "sha256": disk.digest(path),
            **more,
            "stamp": recipe.stamp,
        }
        path.replace(out / path.name)
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def _known(out: Path, name: str) -> dict[str, Any]:
    try:
        known = json.loads((out / f"{name}.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _stamp(wanted: list[packages.Package], sources: Iterable[str]) -> str:
    """Return a digest of everything that goes in: packages and recipes (files, or folders of
    them)."""
    whole = hashlib.sha256(repr(wanted).encode())
    for source in sources:
        place = CHECKOUT / source
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".xml"):
                whole.update(str(path.relative_to(CHECKOUT)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


if __name__ == "__main__":
    needed = {"sfdisk", "mkfs.fat", "mcopy", "mke2fs", "debugfs", "dpkg-deb"}
    for program in needed | ({"mmdebstrap"} if set(debian.VARIANTS) & set(sys.argv) else set()):
        if shutil.which(program) is None:
            raise SystemExit(
                f"{program} is missing; Debian's packages fdisk, dosfstools, mtools, e2fsprogs and,"
                " for Debian's images, mmdebstrap have what is needed"
            )
    raise SystemExit(main())
