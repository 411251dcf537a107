"""How Sphinx builds the manual: `make manual`, decision 0070."""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from docs import generated  # noqa: E402

project = "Cluster-on-Demand"
version = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
exclude_patterns = ["examples", "systemd"]
nitpicky = True
myst_heading_anchors = 4
# Examples are cut short with an ellipsis; measured tables begin at the third level; decisions are
# in their own list alone.
suppress_warnings = ["misc.highlighting_failure", "myst.header", "toc.not_included"]
highlight_language = "none"
html_theme = "furo"
html_title = f"{project} {version}"
html_favicon = "../web/assets/mark.svg"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {"footer_icons": []}


def fill(_app: Any, _name: str, source: list[str]) -> None:
    """Put in what is made of the program."""
    source[0] = generated.filled(source[0])


INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


# What the theme leaves out, for readers who hear the page or have no pointer.
ACCESSIBLE = {
    'role="heading">': 'role="heading" aria-level="2">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    "<pre>": '<pre tabindex="0">',
}


def externalise(app: Any, error: Exception | None) -> None:
    """Move scripts and styles that stand in pages into files: the portal's Content-Security-Policy
    runs no others. Add what makes pages accessible."""
    if error:
        return
    out = Path(app.outdir)
    for page in out.rglob("*.html"):
        up = "../" * (len(page.relative_to(out).parts) - 1)

        def moved(found: re.Match[str], up: str = up) -> str:
            kind, text = found.groups()
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            name = f"_static/{digest}.{'js' if kind == 'script' else 'css'}"
            (out / name).write_text(text)
            if kind == "script":
                return f'<script src="{up}{name}"></script>'
            return f'<link rel="stylesheet" href="{up}{name}">'

        text = INLINE.sub(moved, page.read_text())
        for before, after in ACCESSIBLE.items():
            text = text.replace(before, after)
        page.write_text(re.sub(r' style="(display|opacity): ([^;"]+);?"', r' \1="\2"', text))


def setup(app: Any) -> None:
    app.connect("source-read", fill)
    app.connect("build-finished", externalise)
