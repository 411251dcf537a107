"""Records of callers, of things' owners, and of people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cod.choices import Role as Role
from cod.choices import SingleRight as SingleRight
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.names import ONE_LINE
from cod.model.posix import HIGHEST, LOWEST
from cod.model.rights import Right

if TYPE_CHECKING:
    from cod.model.site import Site


@dataclass(frozen=True, slots=True)
class Who:
    """The caller of a flow: a person or a program.

    name     as the history and the audit show it: 'user:ann', 'token:ci', 'vcm:pool'
    admin    whether it is a site administrator
    writes   False: a token that may only read
    user_id  None: no person (a token of the site, the local administrator, a VCM)
    roles    roles by group id
    address  address that the request came from; '': the server itself
    local    whether the request came by the server's own UNIX socket
    only     the one group that its token is for; None: no limit
    session  id of the browser's session; None: it has none
    joined   when the user was created: SQLite may reuse the id of a deleted user
    singles  single rights by group id, in addition to the roles
    measures  whether it is a token that may only read metrics and the nodes to watch
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
    measures: bool = False

    @property
    def person(self) -> str:
        """The sign-in name of the calling person; '' if the caller is no person."""
        return "" if self.user_id is None else self.name.partition(":")[2].rpartition("@")[2]

    @property
    def owns(self) -> frozenset[int] | None:
        """The ids of the groups that the caller is an owner of; None: all groups."""
        return (
            None
            if self.admin
            else frozenset(group for group, role in self.roles.items() if role is Role.OWNER)
        )

    @property
    def groups(self) -> frozenset[int] | None:
        """The ids of the groups whose things the caller may see; None: all groups."""
        return None if self.admin or self.measures else frozenset(self.roles)


@dataclass(frozen=True, slots=True)
class FlowContext:
    """Arguments that every flow takes besides its transaction and its subject.

    now  seconds since the epoch
    who  the caller
    key  the client's id of this request, so that repeating the request changes nothing; None: none
    """

    site: Site
    now: float
    who: Who
    key: str | None = None

    @property
    def actor(self) -> str:
        """Return the caller's name, as the history shows it."""
        return self.who.name


@dataclass(frozen=True, slots=True)
class Owned:
    """A thing's owners, for decisions about rights.

    groups  ids of the groups that own it; empty: only the site owns it
    shared  whether everybody may see it, as the site's images and templates
    """

    groups: frozenset[int] = frozenset()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class User:
    """A row of `users` without its password. `absent_at`: since when the user's directory does not
    know the user, who then has no rights, as if disabled; None: it knows the user. `uid`, `gid`:
    the user's POSIX numbers on nodes."""

    id: Undescribed[int]
    name: Annotated[str, About("User")]
    full_name: Annotated[
        str,
        About(
            "Full name",
            about="full name",
            none="none",
            set_by=Right.ADMIN,
            longest=200,
            pattern=ONE_LINE,
        ),
    ]
    email: Annotated[
        str,
        About("E-mail", about="e-mail address", none="none", set_by=Right.ADMIN, longest=254),
    ]
    created_at: Annotated[float, About("Since", FieldKind.MOMENT)]
    disabled_at: Undescribed[float | None]
    admin: Annotated[
        bool,
        About(
            "Administrator",
            FieldKind.FLAG,
            "a site administrator",
            set_by=Right.ADMIN,
            level=FieldLevel.WIDE,
        ),
    ]
    directory: Annotated[
        str, About("Signs in", about="where the user signs in: '' here, ldap or oidc")
    ]
    subject: Undescribed[str | None]
    signed_in_at: Annotated[
        float | None,
        About("Signed in", FieldKind.MOMENT, none="never", closed=True, level=FieldLevel.WIDE),
    ] = None
    absent_at: Undescribed[float | None] = None
    uid: Annotated[
        int | None,
        About(
            "UID",
            FieldKind.NUMBER,
            "POSIX number on nodes, which the user's own group follows; files keep the old number",
            set_by=Right.ADMIN,
            least=LOWEST,
            most=HIGHEST,
        ),
    ] = None
    gid: Annotated[
        int | None,
        About(
            "GID",
            FieldKind.NUMBER,
            "POSIX number of the user's primary group",
            set_by=Right.ADMIN,
            level=FieldLevel.WIDE,
            least=LOWEST,
            most=HIGHEST,
        ),
    ] = None
    shell: Annotated[
        str,
        About(
            "Shell",
            about="login shell on nodes, from the user's directory",
            none="the site's",
            level=FieldLevel.WIDE,
        ),
    ] = ""
    home: Annotated[
        str,
        About(
            "Home",
            about="home directory on nodes, from the user's directory",
            none="the site's",
            level=FieldLevel.WIDE,
        ),
    ] = ""
    primary_group: Annotated[
        str,
        About(
            "Primary group",
            about="name of the group GID, from the user's directory",
            none="not known",
            level=FieldLevel.WIDE,
        ),
    ] = ""
    admin_given: Undescribed[bool] = False

    @property
    def disabled(
        self,
    ) -> Annotated[
        bool,
        About(
            "Disabled",
            FieldKind.FLAG,
            "all sessions end at once, and sign-in is refused",
            set_by=Right.ADMIN,
            level=FieldLevel.WIDE,
        ),
    ]:
        """Return whether an administrator has disabled the user."""
        return self.disabled_at is not None

    @property
    def absent(
        self,
    ) -> Annotated[
        bool,
        About("Absent", FieldKind.FLAG, "the directory does not know them", level=FieldLevel.WIDE),
    ]:
        """Return whether the user's directory no longer knows the user."""
        return self.absent_at is not None

    @property
    def able(self) -> bool:
        """Return whether the user may do anything at all."""
        return self.disabled_at is None and self.absent_at is None


@dataclass(frozen=True, slots=True)
class Identity:
    """A person, as a directory describes them.

    subject    the directory's permanent id of the person, with the directory in front:
               'oidc:248289761001'
    directory  'oidc' or 'ldap'
    name       the person's name there, which becomes the sign-in name of a new user
    uid, gid   POSIX numbers there; None: it has none
    shell, home, primary_group   of the POSIX account there; '': there is none, or the site does not
               use them
    keys       lines of SSH keys; None: the site does not use them
    roles      roles that groups of the directory give; None: unknown at the moment
    """

    subject: str
    directory: str
    name: str
    full_name: str = ""
    email: str = ""
    uid: int | None = None
    gid: int | None = None
    shell: str = ""
    home: str = ""
    primary_group: str = ""
    keys: tuple[str, ...] | None = None
    roles: tuple[GivenRole, ...] | None = None


class GivenRole(NamedTuple):
    """A role that a group of the directory gives, in the group with the name `group`; '': it makes
    the user a site administrator."""

    group: str
    role: Role


@dataclass(frozen=True, slots=True)
class DirectorySyncResult:
    """The changes by a comparison with the directory, as names of users.

    added   new users
    gone    users whom the directory no longer knows
    back    users whom it knows again
    changed  users with changed roles
    held    users who were to lose rights, but kept them because they were too many at once
    missing  names that were asked for and that the directory does not know
    """

    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A user's role in a group, and their single rights there.

    shares  weight relative to the group's other users, if the group has users' shares
    given   whether the role comes from a group of the user's directory
    """

    group: str
    user: str
    full_name: str
    email: str
    role: Role
    rights: tuple[SingleRight, ...] = ()
    shares: float = 1.0
    given: bool = False


@dataclass(frozen=True, slots=True)
class FirstStep:
    """One of the first steps of a new user: 'key', 'template', 'request' or 'nodes'."""

    name: str
    done: bool


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
    """A row of `ssh_keys`. `given`: it comes from the user's directory."""

    id: int
    user_id: int
    name: str
    algorithm: str
    key: str
    fingerprint: str
    created_at: float
    given: bool = False

    @property
    def line(self) -> str:
        """Return the key as a line of an authorized_keys file."""
        return f"{self.algorithm} {self.key}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row of `audit`, with the name of its group if the group still exists. `before` and `after`
    are JSON or ''."""

    id: int
    at: float
    actor: str
    address: str
    action: str
    thing: str
    group: str | None
    before: str
    after: str
