"""The key that the site and its secondaries share, from the file that the site file names."""

from __future__ import annotations

import os
from functools import lru_cache

from cod.model import Site
from cod.net.dns import tsig
from cod.security import secretfile


class NoKey(Exception):
    """The key's file cannot be used; the sentence says why."""


def read(site: Site) -> tsig.TransferKey | None:
    """Return the key that the file has now; None if the site file names no file. Raises `NoKey`."""
    path = site.dns.transfer_key_file
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError as error:
        raise NoKey(f"the secret file {path} cannot be read: {error.strerror}") from None
    return _read(path, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=1)
def _read(path: str, *version: int) -> tsig.TransferKey:
    """Return the key in that version of the file, which is cached. Each datagram with a secondary's
    address needs the key, and anybody can forge that address, so a datagram must not cost a
    read."""
    try:
        return tsig.key(secretfile.first_line(path))
    except secretfile.Unreadable as error:
        raise NoKey(str(error)) from None
    except ValueError as error:
        raise NoKey(f"the first line of {path} {error}") from None
