"""Finds the files that ship with COD: in the installed package (`cod/_data/…`) or, in a checkout,
at the top level."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Return the folder or file `name` ('schema', 'trampoline', 'images', 'web' or a path below one
    of them).

    Raises FileNotFoundError, naming what is missing, when neither place has it.
    """
    for base in (_PACKAGE / "_data", _PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise FileNotFoundError(
        f"COD's file {name!r} is neither in the installed package nor in a checkout"
    )
