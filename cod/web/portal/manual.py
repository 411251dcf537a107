"""The manual as `make manual` builds it. Everybody may read it, because its pages hold nothing
about the site."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from cod.web.http.errors import HttpProblem
from cod.web.portal import assets
from cod.web.portal.answers import POLICY, Answer, PageRequest, redirect

ROOT = "/docs"
# The theme's style has its icons as data; scripts and styles are files, as everywhere.
HEADERS = {
    "Content-Security-Policy": POLICY.replace("img-src 'self'", "img-src 'self' data:"),
    "Cache-Control": "no-cache",
}


class Manual:
    """The manual in `folder`; None: the manual was not built."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._read: dict[str, assets.Asset] = {}

    @cached_property
    def _files(self) -> dict[str, Path]:
        """Return the manual's files by their names below the folder. A request's path is looked up
        here, and never becomes a path of the file system."""
        if self._folder is None:
            return {}
        return {
            str(path.relative_to(self._folder)): path
            for path in self._folder.rglob("*")
            if path.suffix in assets.KINDS and path.is_file()
        }

    def answer(self, asked: PageRequest) -> Answer:
        """Return a file of the manual, or a redirect to it. Raises `HttpProblem` (404)."""
        name = asked.path.removeprefix(f"{ROOT}/")
        if asked.path == ROOT or (name and f"{name}/index.html" in self._files):
            return redirect(f"{asked.path}/")
        if name.endswith("/") or not name:
            name += "index.html"
        if name in self._files:
            if name not in self._read:
                self._read[name] = assets.read(self._files[name])
            return assets.answer(asked, self._read[name], HEADERS)
        if not self._files:
            raise HttpProblem(
                404,
                "not_found",
                "This server has no manual. The Debian package has it; in the sources, build it"
                " with: make manual",
            )
        return redirect(f"{ROOT}/{self._by_name(name.removesuffix('/index.html'))}")

    def _by_name(self, page: str) -> str:
        """Return the path of the page with that name: messages name pages without their folders.
        Raises `HttpProblem` (404)."""
        found = [name for name in self._files if f"/{name}".endswith(f"/{page}/index.html")]
        if len(found) != 1 or "/" in page:
            raise HttpProblem(404, "not_found", "The manual has no such page.")
        return found[0].removesuffix("index.html")
