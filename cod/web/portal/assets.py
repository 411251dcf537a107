"""Style, script and pictures: read once, named after their content, so that browsers keep them for
ever."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is served. `packed`: by gzip, or b'' where that does not help."""

    name: str
    kind: str
    content: bytes
    packed: bytes
    tag: str


class Assets:
    """The assets in `folder`. A file `style.css` is served as `style.0123456789abcdef.css`."""

    def __init__(self, folder: Path) -> None:
        found = [_read(path) for path in sorted(folder.iterdir()) if path.suffix in KINDS]
        self._served = {each.name: each for each in found}
        self._names = {
            f"{each.name.split('.')[0]}.{each.name.rpartition('.')[2]}": each.name for each in found
        }

    def path(self, name: str) -> str:
        """Return where the file `name` is served. Raises KeyError."""
        return f"/assets/{self._names[name]}"

    def get(self, name: str) -> Asset | None:
        """Return what is served under that name."""
        return self._served.get(name)


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:16]
    packed = gzip.compress(content, 9, mtime=0)
    return Asset(
        f"{path.stem}.{tag}{path.suffix}",
        KINDS[path.suffix],
        content,
        packed if len(packed) < len(content) else b"",
        tag,
    )
