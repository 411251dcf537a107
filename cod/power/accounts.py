"""Accounts on BMCs and outlets: the site file names them; their passwords are in files that are
read at each use.

A password is only in a `SignIn`, for as long as a command takes: never in the database, the log,
the API or an error.
"""

from __future__ import annotations

from cod.model import Site
from cod.power.driver import PowerError, SignIn
from cod.security import secretfile


class NoPassword(PowerError):
    """The file of an account's password cannot be used."""


def sign_in(site: Site, name: str | None) -> SignIn | None:
    """Return the account `name` with its current password; None if `name` is None. Raises
    `PowerError`."""
    if name is None:
        return None
    account = next((each for each in site.accounts if each.name == name), None)
    if account is None:
        raise PowerError(f"the site file has no [[account]] named {name!r}", lasting=True)
    try:
        return SignIn(account.user, secretfile.first_line(account.password_file))
    except secretfile.Unreadable as error:
        raise NoPassword(f"account {name}: {error}") from None
