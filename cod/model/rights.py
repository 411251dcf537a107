"""Rights of people."""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    """A right that an action needs on a thing.

    ANY     the caller only has to be signed in
    SEE     to see the thing
    USE     to work with the thing: change vclusters, images and templates, and switch nodes that
            the caller's group holds
    MANAGE  to manage the group that owns the thing: its members, settings and notices
    ADMIN   to do what only site administrators may
    """

    ANY = "any"
    SEE = "see"
    USE = "use"
    MANAGE = "manage"
    ADMIN = "admin"
