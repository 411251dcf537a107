"""Rights of people."""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    """A right that a request needs on its subject.

    ANY     nothing but to be signed in
    SEE     to look at it
    USE     to change it as those who work with it do: vclusters, images, templates, power of nodes
            that one holds
    MANAGE  to say who else may, and how its group is told things
    ADMIN   what only the site's administrators may
    """

    ANY = "any"
    SEE = "see"
    USE = "use"
    MANAGE = "manage"
    ADMIN = "admin"
