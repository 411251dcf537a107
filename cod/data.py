"""Finds the files that ship with COD: in the installed package (`cod/_data/…`) or, in a checkout,
at the top level."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Return the folder or file `name` ('schema', 'trampoline', 'images', 'web' or a path below one
    of them).

    Raises FileNotFoundError, with the name, when neither the package nor a checkout has it.
    """
    for base in (_PACKAGE / "_data", _PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise FileNotFoundError(
        f"COD's file {name!r} is neither in the installed package nor in a checkout"
    )


def built(name: str) -> Path | None:
    """Return the folder `name` that make has built beside the program ('manual', 'widgets'), in the
    installed package or in a checkout; None: it was not built."""
    for place in (name, f"build/{name}"):
        with suppress(FileNotFoundError):
            return path(place)
    return None
