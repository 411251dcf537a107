"""Files that are served as they are. Style, script and pictures of the portal are named after their
content, so that browsers keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cod.web.http.request import gzips
from cod.web.portal.answers import HTML, Answer, PageRequest

KINDS = {
    ".html": HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".sh": "text/plain; charset=utf-8",
    ".toml": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file in the form in which it is served. `packed` is its gzip form, or b'' if that is not
    smaller."""

    name: str
    kind: str
    content: bytes
    packed: bytes
    tag: str


class Assets:
    """The assets in `folders`. `paths` has the path of each file by its name: `style.css` is at
    `/assets/style.0123456789abcdef.css`."""

    def __init__(self, *folders: Path) -> None:
        paths = [path for folder in folders for path in sorted(folder.iterdir())]
        found = [read(path) for path in paths if path.suffix in KINDS]
        self._served = {each.name: each for each in found}
        self.paths = {
            f"{each.name.split('.')[0]}.{each.name.rpartition('.')[2]}": f"/assets/{each.name}"
            for each in found
        }

    def get(self, name: str) -> Asset | None:
        """Return the file that is served under that name; None if there is none."""
        return self._served.get(name)


def read(path: Path) -> Asset:
    """Return a file, which has one of the suffixes in `KINDS`. Raises OSError."""
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:16]
    return Asset(
        f"{path.stem}.{tag}{path.suffix}", KINDS[path.suffix], content, _packed(content), tag
    )


@cache  # all portals of a process have the same files
def _packed(content: bytes) -> bytes:
    packed = gzip.compress(content, 9, mtime=0)
    return packed if len(packed) < len(content) else b""


def answer(asked: PageRequest, found: Asset, headers: Mapping[str, str]) -> Answer:
    """Return the file, or 304 if the browser's copy is current."""
    headers = {"ETag": f'"{found.tag}"', "Vary": "Accept-Encoding", **headers}
    if asked.header("if-none-match") == headers["ETag"]:
        return Answer(304, headers=headers)
    if found.packed and gzips(asked.header("accept-encoding") or ""):
        return Answer(200, found.packed, found.kind, headers | {"Content-Encoding": "gzip"})
    return Answer(200, found.content, found.kind, headers)
