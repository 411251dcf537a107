"""Makes node images: `python -m images.build NAME... [--out DIR]`, NAME one of hello-a, hello-b, opaque, execd.

Writes DIR/NAME.img, a sparse raw disk, and DIR/NAME.json with its facts: name, version, size (bytes), sha256 of the
whole image, digest (what the running image says about itself), stamp (of the inputs). The same inputs give the same
bytes; nothing is done when the inputs are those of the last time. Needs no root and no network but the distribution's
packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from images import disk, execd, hello, linux, opaque
from trampoline.recipe import packages

CHECKOUT = Path(__file__).resolve().parent.parent
NAMES = (*hello.HELLOS, "opaque", execd.NAME)
SOURCES = ("images", "trampoline/recipe")


def main(arguments: list[str] | None = None) -> int:
    """The command; prints a line for each image."""
    parser = argparse.ArgumentParser(prog="python -m images.build", description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="+", choices=NAMES)
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build/images")
    parser.add_argument("--cache", type=Path, default=CHECKOUT / "build/cache/images")
    options = parser.parse_args(arguments)
    for name in options.name:
        facts = build(name, options.out, options.cache)
        used = (options.out / f"{name}.img").stat().st_blocks * 512
        print(f"{name} {facts['version']}: {facts['size'] >> 20} MiB, {used >> 20} MiB used, sha256 {facts['sha256']}")
    return 0


def build(name: str, out: Path, cache: Path) -> dict[str, Any]:
    """Make one image unless it is up to date; returns its facts."""
    with packages.alone(cache):
        wanted = [] if name == "opaque" else packages.wanted(linux.PACKAGES)
        root = packages.exactly(execd.PACKAGES) if name == execd.NAME else []
        stamp = _stamp([*wanted, *root])
        known = _known(out, name)
        if known.get("stamp") == stamp and (out / f"{name}.img").is_file():
            return known
        return _make(name, out, packages.unpacked(wanted, cache) if wanted else None,
                     packages.unpacked(root, cache / name) if root else None, stamp)


def _make(name: str, out: Path, tools: Path | None, root: Path | None, stamp: str) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{name}-", dir=out) as scratch:
        path = Path(scratch) / f"{name}.img"
        (Path(scratch) / "data").mkdir()
        if tools is None:
            more = opaque.make(path)
        elif root is None:
            more = hello.make(hello.HELLOS[name], tools, Path(scratch), path)
        else:
            more = execd.make(tools, root, Path(scratch), path)
        facts = {"name": name, "size": path.stat().st_size, "sha256": disk.digest(path), **more, "stamp": stamp}
        path.replace(out / path.name)
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def _known(out: Path, name: str) -> dict[str, Any]:
    try:
        known = json.loads((out / f"{name}.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _stamp(wanted: list[packages.Package]) -> str:
    """Of everything that goes in: the packages and the recipes."""
    whole = hashlib.sha256(repr(wanted).encode())
    for folder in SOURCES:
        for path in sorted((CHECKOUT / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".xml"):
                whole.update(str(path.relative_to(CHECKOUT)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


if __name__ == "__main__":
    for program in ("sfdisk", "mkfs.fat", "mcopy", "mke2fs", "debugfs", "dpkg-deb"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing; .ci/install-system installs what is needed")
    raise SystemExit(main())
