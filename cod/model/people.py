"""The caller, a thing's owners, and the rows about people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cod.choices import Role as Role
from cod.choices import SingleRight as SingleRight
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.posix import HIGHEST, LOWEST
from cod.model.rights import Right

if TYPE_CHECKING:
    from cod.model.site import Site


@dataclass(frozen=True, slots=True)
class Who:
    """The person or program that asks.

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
    measures  a token that may read metrics and the nodes to watch, and nothing else
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
        return None if self.admin or self.measures else frozenset(self.roles)


@dataclass(frozen=True, slots=True)
class FlowContext:
    """Arguments that every flow takes beside its transaction and its subject.

    now  seconds since the epoch
    who  who asks
    key  the client's id for this request: repeated, it changes nothing; None: it has none
    """

    site: Site
    now: float
    who: Who
    key: str | None = None

    @property
    def actor(self) -> str:
        """Return the user or program that asks, as the history shows it."""
        return self.who.name


@dataclass(frozen=True, slots=True)
class Owned:
    """A thing's owners, as decisions about rights need them.

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
            pattern=r"^[^\x00-\x1f\x7f]*$",
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
        """Return whether an administrator has barred the user."""
        return self.disabled_at is not None

    @property
    def absent(
        self,
    ) -> Annotated[
        bool,
        About("Absent", FieldKind.FLAG, "the directory does not know them", level=FieldLevel.WIDE),
    ]:
        """Return whether the user's directory does not know them any more."""
        return self.absent_at is not None

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
    shell, home, primary_group   of a POSIX account there; '': it has none, or the site does not
               take it over
    keys       lines of SSH keys; None: they are not taken over
    roles      that groups of the directory give; None: not known at the moment
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
    """A role that a group of the directory gives: in the group of that name; '': the user is a
    site administrator."""

    group: str
    role: Role


@dataclass(frozen=True, slots=True)
class DirectorySyncResult:
    """Changes made by a comparison with the directory.

    added, gone, back, changed   names of users: new ones, those whom the directory does not know
            any more, those whom it knows again, those with other roles
    held    names of users who would have lost something, had they not been too many at once
    missing names that were asked for, and that the directory does not know
    """

    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody's role in a group, and single rights beside it. `shares`: in proportion to the
    other users' of the group, where it has users' shares. `given`: the role comes from a group of
    the user's directory."""

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
    """A step of a person's first day: 'key', 'template', 'request' or 'nodes'."""

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
