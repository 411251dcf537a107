"""Faults listed in by_hand.toml, in what only whole machines show, and the test file of each."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parent / "by_hand.toml"


@dataclass(frozen=True)
class ByHand:
    """One change of a file, and the tests that catch it: arguments of pytest.

    booted  whether its tests boot the trampoline, whose ramdisk holds the file
    """

    name: str
    file: str
    old: str
    new: str
    caught_by: str
    booted: bool = True


def listed() -> list[ByHand]:
    return [ByHand(**fault) for fault in tomllib.loads(LIST.read_text())["fault"]]


def run(tree: Path, only: str) -> None:
    """Run each fault against its tests in a copied tree, with a ramdisk of it if it is booted."""
    linked = tree / "build" / "trampoline"
    built = linked.resolve()
    linked.unlink()
    shutil.copytree(built, linked, symlinks=True)
    survived = list[str]()
    for fault in (fault for fault in listed() if fault.name.startswith(only)):
        path = tree / fault.file
        text = path.read_text()
        path.write_text(text.replace(fault.old, fault.new, 1))
        try:
            caught = _is_caught(fault, tree)
        finally:
            path.write_text(text)
        survived += [] if caught else [fault.name]
        print(f"{fault.name}: {'caught' if caught else 'SURVIVED'}", flush=True)
    if survived:
        raise SystemExit(f"not caught: {', '.join(survived)}")


def _is_caught(fault: ByHand, tree: Path) -> bool:
    """Return whether a test fails. Raises CalledProcessError where nothing can be built or run."""
    python = [".venv/bin/python", "-m"]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    if fault.booted:
        build = [*python, "trampoline.build", "lab"]
        subprocess.run(build, cwd=tree, env=environment, check=True)
    test = [*python, "pytest", "-qx", "-p", "no:cacheprovider", *shlex.split(fault.caught_by)]
    run = subprocess.run(test, cwd=tree, env=environment)
    if run.returncode > 1:  # interrupted, wrong usage, no test found
        run.check_returncode()
    return run.returncode == 1
