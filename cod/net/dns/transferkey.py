"""The key that the site and its secondaries share, from the file that the site file names."""

from __future__ import annotations

from cod.model import Site
from cod.net.dns import tsig
from cod.security import secretfile


class NoKey(Exception):
    """The key's file cannot be used; the sentence says why."""


def read(site: Site) -> tsig.TransferKey | None:
    """Return the key as it is now; None where the site file names none. Raises `NoKey`."""
    if site.dns.transfer_key_file is None:
        return None
    try:
        return tsig.key(secretfile.first_line(site.dns.transfer_key_file))
    except secretfile.Unreadable as error:
        raise NoKey(str(error)) from None
    except ValueError as error:
        raise NoKey(f"the first line of {site.dns.transfer_key_file} {error}") from None
