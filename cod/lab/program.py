"""This program as a process of the lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cod.model import Refused


def environment() -> dict[str, str]:
    """Return the environment in which another process finds this program."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def command(site_file: Path, *words: str) -> list[str]:
    """Return the command that runs `cod` with a site file."""
    return [sys.executable, "-m", "cod", "--site", str(site_file), *words]


def output(argv: Sequence[str], about: str) -> str:
    """Return what such a command prints. Raises `Refused` where it fails; `about` names it."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise Refused("conflict", f"{about}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
