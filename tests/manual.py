"""Where the pages of the manual are. Names are unique, so that pages can move."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Without decisions and the lists of contents.
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.parent.name != "decisions" and page.stem != "index"
]


def page(name: str, below: Path = DOCS) -> Path:
    """Return the page `name` of the manual. Raises `ValueError` if no page or several have it."""
    (found,) = below.rglob(f"{name}.md")
    return found


def linked(text: str, start: Path) -> str:
    """Return Markdown whose links `](NAME.md)` lead from the page `start` to the pages named so."""
    return re.sub(
        r"(?<=\]\()([a-z0-9-]+)(?=\.md)",
        lambda link: os.path.relpath(page(link[1]), start.parent).removesuffix(".md"),
        text,
    )
