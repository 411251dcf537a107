"""Runs the recipes of the trampoline and of images that ship with this program, from a wheel as
well as from a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cod import data


def trampoline(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m trampoline.build` with these words; `options` are those of
    `subprocess.run`."""
    return _run("trampoline.build", *words, **options)


def image(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m images.build` with these words; `options` are those of `subprocess.run`."""
    return _run("images.build", *words, **options)


def oci(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m images.oci` with these words; `options` are those of `subprocess.run`."""
    return _run("images.oci", *words, **options)


def inspection(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m images.inspection` with these words; `options` are those of
    `subprocess.run`."""
    return _run("images.inspection", *words, **options)


def _run(module: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a recipe. A recipe packs its own sources and the program's, which must lie side by side
    as in a checkout: therefore they are copied."""
    with TemporaryDirectory() as tree:
        _copy(Path(data.__file__).parent, Path(tree, "cod"))
        for name in ("images", "trampoline"):
            _copy(data.path(name), Path(tree, name))
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=tree,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": tree},
            **options,
        )


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("_data", "__pycache__"))
