"""Links of Markdown pages lead to files and headings that exist, and pages that the code names
exist: `docs/NAME`, which the portal serves, or a path."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from tests.manual import DOCS, ROOT

TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
]
MARKDOWN = [path for path in TRACKED if path.suffix == ".md" and path.exists()]
CODE = [
    path
    for path in TRACKED
    if path.suffix in {".py", ".rng", ".js", ".html", ".sh", ".toml", ".conf", ".service"}
    and path.exists()
]
NAMES = {path.stem for path in DOCS.rglob("*.md")}


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MyST and the forges make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(
            next(name for n in range(99) if (name := f"{slug}-{n}" if n else slug) not in found)
        )
    return found


def test_links_lead_somewhere() -> None:
    assert not {str(page.relative_to(ROOT)): lost for page in MARKDOWN if (lost := dead(page))}


def dead(page: Path) -> list[str]:
    """Return a page's links that lead nowhere."""
    found = []
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if re.match("[a-z]+:", target):
            continue
        there = (page.parent / target).resolve() if target else page
        if there.suffix != ".md" or "<!-- generated: " in there.read_text():
            anchor = ""  # Sphinx knows those that are filled in
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(f"{target}#{anchor}")
    return found


def test_pages_that_code_names_exist() -> None:
    lost = []
    for path in CODE:
        for name in re.findall(r"(?<![\w/])docs/([a-z][\w./-]*\w)", path.read_text()):
            if name not in NAMES and not list(DOCS.glob(f"{name}*")):
                lost.append(f"{path.relative_to(ROOT)}: docs/{name}")
    assert lost == []
