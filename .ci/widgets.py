"""Fetches what the portal's consoles and charts are drawn by, into build/widgets:

    python3 .ci/widgets.py            fetch what is not there yet
    python3 .ci/widgets.py bom FILE   enter what is there into a bill of materials (CycloneDX)

xterm.js and uPlot are packages of the npm registry, pinned by version and by the sha512 of the
package. npm's own client fetches them, from the registry that it is set to; what is in them is
looked at here. Nothing of a package is run. Without npm or its registry the portal does without:
consoles and charts are plain then. A package that is not the pinned one is an error.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

BUILT = Path(__file__).resolve().parents[1] / "build/widgets"
STAMP = "widgets.json"  # what is there, by which it is known whether anything is to be fetched
MOST = 4 << 20  # bytes of one file
PATIENCE = 120.0  # seconds for one package


@dataclass(frozen=True, slots=True)
class Widget:
    """A package: its integrity as npm writes it, and which of its files are shipped under which
    names."""

    name: str
    version: str
    integrity: str
    licence: str
    files: Mapping[str, str]


WIDGETS = (
    Widget(
        "@xterm/xterm",
        "6.0.0",
        "sha512-TQwDdQGtwwDt+2cgKDLn0IRaSxYu1tSUjgKarSDkUM0ZNiSRXFpjxEsvc/Zg"
        "c5kq5omJ+V0a8/kIM2WD3sMOYg==",
        "MIT",
        {"lib/xterm.js": "xterm.js", "css/xterm.css": "xterm.css", "LICENSE": "xterm.LICENSE"},
    ),
    Widget(
        "@xterm/addon-fit",
        "0.11.0",
        "sha512-jYcgT6xtVYhnhgxh3QgYDnnNMYTcf8ElbxxFzX0IZo+vabQqSPAjC3c1wJrK"
        "B5E19VwQei89QCiZZP86DCPF7g==",
        "MIT",
        {"lib/addon-fit.js": "xterm-fit.js", "LICENSE": "xterm-fit.LICENSE"},
    ),
    Widget(
        "uplot",
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgS"
        "LMasNuGGzQm/ep3tOkyTxpiQIw==",
        "MIT",
        {
            "dist/uPlot.iife.min.js": "uplot.js",
            "dist/uPlot.min.css": "uplot.css",
            "LICENSE": "uplot.LICENSE",
        },
    ),
)


class Away(Exception):
    """A package cannot be had now: no npm, or no registry."""


class Wrong(Exception):
    """A package is not the pinned one, or not what a package may be."""


def packed(widget: Widget, npm: str = "npm") -> bytes:
    """Return the package as npm's client has it. Raises `Away`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"{widget.name}@{widget.version}", "--ignore-scripts"]
        command += ["--pack-destination", folder, "--fetch-retries", "1", "--loglevel", "error"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
            )
        except FileNotFoundError:
            raise Away(f"there is no {npm} here (apt-get install npm)") from None
        except subprocess.TimeoutExpired:
            raise Away(f"npm did not bring {widget.name} in {PATIENCE:.0f} s") from None
        found = [*Path(folder).glob("*.tgz")]
        if done.returncode or len(found) != 1:
            why = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[0]
            raise Away(f"npm cannot bring {widget.name} {widget.version}: {why}")
        return found[0].read_bytes()


def unpacked(widget: Widget, package: bytes) -> dict[str, bytes]:
    """Return the files that are shipped, by the names that they get. Raises `Wrong`: another
    digest, a file that is missing or too long, or anything in it that does not belong into a
    package of npm's (links, devices, names that lead out of it)."""
    name = f"{widget.name} {widget.version}"
    told = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    if told != widget.integrity:
        raise Wrong(f"{name} is not the pinned package: it has {told}")
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or "\\" in member.name:
                    raise Wrong(f"{name} has a file outside of itself: {member.name!r}")
                if not (member.isreg() or member.isdir()):
                    raise Wrong(f"{name} has something else than files: {member.name!r}")
                into = widget.files.get(str(PurePosixPath(*path.parts[1:])))
                if into is None or not member.isreg():
                    continue
                if member.size > MOST:
                    raise Wrong(f"{member.name!r} of {name} is {member.size} bytes long")
                content = archive.extractfile(member)
                assert content is not None
                found[into] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Wrong(f"{name} cannot be read: {error}") from error
    if missing := sorted(set(widget.files.values()) - found.keys()):
        raise Wrong(f"{name} lacks {', '.join(missing)}")
    return found


def stamp() -> str:
    """Return what the built folder says of itself: its packages and their digests."""
    return json.dumps(
        [
            {
                "name": one.name,
                "version": one.version,
                "integrity": one.integrity,
                "licence": one.licence,
                "files": sorted(one.files.values()),
            }
            for one in WIDGETS
        ],
        indent=1,
    )


def is_built(folder: Path) -> bool:
    """Return whether the pinned packages are there."""
    try:
        return (folder / STAMP).read_text() == stamp() and all(
            (folder / name).is_file() for one in WIDGETS for name in one.files.values()
        )
    except FileNotFoundError:
        return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let no other process build `folder` meanwhile: two makes run at once, or tests beside one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    held = os.open(folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def build(folder: Path, fetch: Callable[[Widget], bytes] = packed) -> None:
    """Put the files of all packages into `folder`, or leave it as it is. Raises `Away`, `Wrong`."""
    files = {name: text for one in WIDGETS for name, text in unpacked(one, fetch(one)).items()}
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "widgets"
        made.mkdir()
        for name, content in files.items():
            (made / name).write_bytes(content)
        (made / STAMP).write_text(stamp())
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def enter(bill: Path, folder: Path) -> None:
    """Enter the packages that are in `folder` into a bill of materials, where there are any."""
    if not (folder / STAMP).is_file():
        return
    listed = json.loads(bill.read_text())
    for one in json.loads((folder / STAMP).read_text()):
        purl = f"pkg:npm/{quote(one['name'], safe='/')}@{one['version']}"
        scope, _, name = one["name"].rpartition("/")
        digest = base64.b64decode(one["integrity"].removeprefix("sha512-")).hex()
        listed["components"].append(
            {
                "type": "library",
                "bom-ref": purl,
                **({"group": scope} if scope else {}),
                "name": name,
                "version": one["version"],
                "purl": purl,
                "licenses": [{"license": {"id": one["licence"]}}],
                # of the package that the files were taken from
                "hashes": [{"alg": "SHA-512", "content": digest}],
            }
        )
    bill.write_text(json.dumps(listed, indent=2) + "\n")


def main(words: list[str]) -> int:
    """Build, or enter into a bill of materials."""
    if words[:1] == ["bom"]:
        enter(Path(words[1]), BUILT)
        return 0
    with alone(BUILT):
        return 0 if is_built(BUILT) else fetched()


def fetched() -> int:
    """Build, and return what the program ends with."""
    try:
        build(BUILT)
    except Away as away:
        shutil.rmtree(BUILT, ignore_errors=True)  # of other pins
        print(
            f"without xterm.js and uPlot: {away}. The portal's consoles and charts are plain;"
            " make widgets tries again",
            file=sys.stderr,
        )
    except Wrong as wrong:
        print(f"{wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
