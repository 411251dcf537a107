"""Who asks, and what a thing's owners are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What somebody is in a group, the strongest first."""

    OWNER = "owner"
    MEMBER = "member"
    VIEWER = "viewer"


class Right(StrEnum):
    """What a question asks for, of the thing that it is about.

    ANY     nothing but to be signed in
    SEE     to look at it
    USE     to change it as those who work with it do: vclusters, images, templates, power of nodes that one holds
    MANAGE  to say who else may, and how its group is told things
    ADMIN   what only the site's administrators may
    """

    ANY = "any"
    SEE = "see"
    USE = "use"
    MANAGE = "manage"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks.

    name     as the history and the audit show it: 'user:ann', 'token:ci', 'vcm:pool'
    admin    a site administrator
    writes   False: a token that may only look
    user_id  None: no person (a token of the site, the local administrator, a VCM)
    roles    by group id
    address  where the question came from; '': the server itself
    local    on the server's own UNIX socket
    """

    name: str
    admin: bool = False
    writes: bool = True
    user_id: int | None = None
    roles: Mapping[int, Role] = field(default_factory=dict)
    address: str = ""
    local: bool = False

    @property
    def groups(self) -> frozenset[int] | None:
        """The groups whose things it may see; None: all."""
        return None if self.admin else frozenset(self.roles)


@dataclass(frozen=True, slots=True)
class Owned:
    """What there is to know of a thing for deciding who may do what with it.

    groups  ids of those it belongs to; none: the site's alone
    shared  everybody may see it: the site's images and templates
    """

    groups: frozenset[int] = frozenset()
    shared: bool = False
