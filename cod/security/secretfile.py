"""Secrets in files: passwords that the site file names, and keys that COD makes for itself.
Standard library only.

A secret is read from its file each time that it is used. Only the file's owner can read it or,
where several parts of the server run as different users and need it, their group.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cod.security import partusers

LONGEST = 4096  # bytes read of a file


class Unreadable(Exception):
    """The file cannot be used; the sentence names it and says why."""


def first_line(path: str | Path) -> str:
    """Return the first line of the file. Raises `Unreadable`."""
    try:
        # O_NONBLOCK: the opening of a FIFO must not wait
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            mode = found.st_mode
            raw = file.read(LONGEST) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise Unreadable(f"the secret file {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise Unreadable(f"the secret file {path} is no regular file")
    if (allowed := exposed(found)) is not None:
        raise Unreadable(
            f"the secret file {path} may be read by others (mode {allowed:04o}): chmod 600 it"
        )
    try:
        line = raw.decode().split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError:
        raise Unreadable(f"the secret file {path} is not UTF-8 text") from None
    if not line or "\0" in line:
        raise Unreadable(f"the secret file {path} has nothing in its first line")
    return line


def exposed(found: os.stat_result) -> int | None:
    """Return the mode of a file that others than its owner and the server's parts may use; None:
    nobody else may."""
    mode = stat.S_IMODE(found.st_mode)
    # looked up only where needed: the host may have to ask a directory for groups
    shared = 0o040 if mode & 0o040 and found.st_gid in partusers.group_ids() else 0
    return mode if mode & 0o077 & ~shared else None


def key(path: Path, size: int = 32) -> bytes:
    """Return the key of `size` bytes that the file holds in hex. A missing file is made. Raises
    `Unreadable`.

    When several processes make the file at once, one succeeds, and all read its key.
    """
    if not path.exists():
        _make(path, secrets.token_hex(size))
    text = first_line(path)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise Unreadable(
            f"the secret file {path} should hold {2 * size} hexadecimal digits; remove it to have a"
            " new one made"
        )
    return found


def _make(path: Path, line: str) -> None:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
        ) as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        # link(2) succeeds for one of several processes; rename(2) would replace another's key
        with suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise Unreadable(f"the secret file {path} cannot be made: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write `content` to the file atomically, readable by its owner alone. Raises OSError."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make `folder`, for its owner alone, and lock it: other processes and threads of this host
    wait here until the block is left. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
