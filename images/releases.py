"""Packages of another Debian release than this system's, from the same archive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from images import debian
from trampoline.recipe import packages

TRIXIE, UNSTABLE = "trixie", "sid"
LISTS_LAST = 86400.0  # seconds for which lists of packages are taken for those of today
SETTINGS = """\
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{folder}/lists";
Dir::State::status "/dev/null";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""


def sources(suite: str) -> str:
    """Return a release's lines for sources.list, from where apt is set up to fetch this system's.
    Raises PackagesMissing."""
    lines = debian.sources().splitlines()
    if suite == UNSTABLE:  # it has no updates and no archive for security
        lines = [line for line in lines if f" {debian.SUITE} " in line]
    return "".join(f"{line}\n".replace(f" {debian.SUITE}", f" {suite}") for line in lines)


@contextmanager
def apt(suite: str, folder: Path) -> Iterator[None]:
    """Let apt's programs know the packages of a release, and no others. Raises PackagesMissing.

    folder  where its lists are kept; nothing of the system's own apt is touched
    """
    if suite == debian.SUITE:
        yield
        return
    for name in ("lists", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(sources(suite))
    settings, updated = folder / "apt.conf", folder / "updated"
    settings.write_text(SETTINGS.format(folder=folder.resolve()))
    before = os.environ.get("APT_CONFIG")
    os.environ["APT_CONFIG"] = str(settings.resolve())
    try:
        if not updated.exists() or time.time() > updated.stat().st_mtime + LISTS_LAST:
            packages.run("apt-get", "update", "--error-on=any")
            updated.touch()
        yield
    finally:
        del os.environ["APT_CONFIG"]
        if before is not None:
            os.environ["APT_CONFIG"] = before
