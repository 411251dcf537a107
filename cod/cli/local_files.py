"""Files that commands read, and files that they keep for a person: logins in $XDG_CONFIG_HOME, and
a cache of the server's answers in $XDG_CACHE_HOME."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryFile

import click

TEXT_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
"""A file that `text_of` reads."""


def text_of(file: Path) -> str:
    """Return the text of a file; '-' is standard input. Raises `click.ClickException`."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.ClickException(f"{file} is not UTF-8") from None


def config_folder() -> Path:
    """Return the folder of a person's settings, which may not exist yet."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cod"


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cod"


def writable(folder: Path, mode: int = 0o700) -> None:
    """Make a folder, with this mode, unless it is there. Raises `click.ClickException` if files
    cannot be made in it."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be written to: {error.strerror}") from None


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all. Raises
    `click.ClickException`."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
