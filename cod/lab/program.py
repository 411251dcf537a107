"""COD itself as a program that the lab runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cod.model import Refused


def environment() -> dict[str, str]:
    """Return an environment in which other processes can import COD's modules."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def command(site_file: Path, *words: str) -> list[str]:
    """Return the command that runs `cod` with a site file."""
    return [sys.executable, "-m", "cod", "--site", str(site_file), *words]


def output(argv: Sequence[str], about: str) -> str:
    """Return the output of such a command. Raises `Refused` where the command fails; `about` names
    it."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise Refused("conflict", f"{about}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
