"""Who asks, what a thing's owners are, and the rows about people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cod.choices import Role as Role
from cod.choices import SingleRight as SingleRight


class Right(StrEnum):
    """What a question asks for, of the thing that it is about.

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


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks.

    name     as the history and the audit show it: 'user:ann', 'token:ci', 'vcm:pool'
    admin    a site administrator
    writes   False: a token that may only look
    user_id  None: no person (a token of the site, the local administrator, a VCM)
    roles    by group id; singles: single rights beside them
    address  where the question came from; '': the server itself
    local    on the server's own UNIX socket
    only     the one group that its token is for; None: no limit
    session  id of the browser's session; None: it asks otherwise
    joined   when the user was made: SQLite gives the id of one who was deleted to the next
    """

    name: str
    admin: bool = False
    writes: bool = True
    user_id: int | None = None
    roles: Mapping[int, Role] = field(default_factory=dict)
    address: str = ""
    local: bool = False
    only: int | None = None
    session: int | None = None
    joined: float | None = field(default=None, compare=False)
    singles: Mapping[int, frozenset[SingleRight]] = field(default_factory=dict)

    @property
    def person(self) -> str:
        """The sign-in name of who it is; '' where it is no person."""
        return "" if self.user_id is None else self.name.partition(":")[2].rpartition("@")[2]

    @property
    def owns(self) -> frozenset[int] | None:
        """The groups that it is an owner of; None: all."""
        return (
            None
            if self.admin
            else frozenset(group for group, role in self.roles.items() if role is Role.OWNER)
        )

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


@dataclass(frozen=True, slots=True)
class User:
    """A row of `users` without its password. `absent_at` is set while the directory that it signs
    in by does not know it: then it may as little as one who is disabled. `uid`, `gid`: its POSIX
    numbers on nodes."""

    id: int
    name: str
    full_name: str
    email: str
    created_at: float
    disabled_at: float | None
    admin: bool
    directory: str
    subject: str | None
    signed_in_at: float | None = None
    absent_at: float | None = None
    uid: int | None = None
    gid: int | None = None

    @property
    def able(self) -> bool:
        """Return whether the user may do anything at all."""
        return self.disabled_at is None and self.absent_at is None


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody as a directory knows them.

    subject    what stays the same about them there, with the directory before it:
               'oidc:248289761001'
    directory  'oidc' or 'ldap'
    name       what they are called there; what becomes the sign-in name of somebody new
    uid, gid   POSIX numbers there; None: it has none
    """

    subject: str
    directory: str
    name: str
    full_name: str = ""
    email: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody's role in a group, and single rights beside it. `shares`: in proportion to the
    other users' of the group, where it has users' shares."""

    group: str
    user: str
    full_name: str
    email: str
    role: Role
    rights: tuple[SingleRight, ...] = ()
    shares: float = 1.0


@dataclass(frozen=True, slots=True)
class WebSession:
    """A row of `web_sessions` without its digest."""

    id: int
    user_id: int
    created_at: float
    last_seen: float
    expires_at: float
    address: str
    browser: str


@dataclass(frozen=True, slots=True)
class Invitation:
    """A row of `invitations` without its digest, with the names of its group and its user."""

    id: int
    group_id: int | None
    group: str | None
    role: str
    user_id: int | None
    user: str | None
    email: str
    invited_by: str
    created_at: float
    expires_at: float
    used_at: float | None


@dataclass(frozen=True, slots=True)
class SshKey:
    """A row of `ssh_keys`."""

    id: int
    user_id: int
    name: str
    algorithm: str
    key: str
    fingerprint: str
    created_at: float

    @property
    def line(self) -> str:
        """Return the key as a line of an authorized_keys file."""
        return f"{self.algorithm} {self.key}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row of `audit`, with the name of its group if that is still there. `before` and `after` are
    JSON or ''."""

    id: int
    at: float
    actor: str
    address: str
    action: str
    thing: str
    group: str | None
    before: str
    after: str
