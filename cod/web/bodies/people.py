"""Bodies about people: users, members, links."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from cod import model
from cod.web.bodies.base import Body, Paged, Part, Reply, Seconds

UserName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,31}$", description="a sign-in name")]
RoleName = Literal["owner", "member", "viewer"]
Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Email = Annotated[str, Field(max_length=254)]
Password = Annotated[SecretStr, Field(min_length=1, max_length=1000)]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=200)]

# ---------------------------------------------------------------- users


class UserQuery(Paged):
    """Which users to list."""

    sort: Literal["name", "-name", "created_at", "-created_at"] = "name"


class UserCreate(Body):
    """A new user; the answer has a link by which they set their password."""

    name: UserName
    full_name: Line = ""
    email: Email = ""
    admin: bool = Field(default=False, description="a site administrator")
    mail: bool = Field(default=False, description="send the link to `email`")


class UserPatch(Body):
    """What to change of a user."""

    full_name: Line | None = None
    email: Email | None = None
    admin: bool | None = None
    disabled: bool | None = Field(default=None, description="true: signed out everywhere at once, and may not sign in")


class UserReply(Reply):
    """A user. `directory`: where they sign in: '' here, ldap or oidc; `absent`: it does not know them any more;
    `signed_in_at`: when they last did, null: never, or not to be told."""

    closed = frozenset({"signed_in_at"})

    name: str
    full_name: str
    email: str
    admin: bool
    disabled: bool
    created_at: float
    directory: str
    absent: bool
    signed_in_at: float | None

    @classmethod
    def of(cls, user: model.User) -> UserReply:
        """From the row."""
        return cls(**_user(user))


class UserList(Part):
    """Users."""

    items: list[UserReply]


class Membership(Reply):
    """What somebody is in a group."""

    group: str
    role: str


class UserInFull(UserReply):
    """A user, and what they are in the groups that whoever asks may see."""

    groups: list[Membership]

    @classmethod
    def of_parts(cls, parts: tuple[model.User, list[model.Member]]) -> UserInFull:
        """From the row and the roles."""
        return cls(**_user(parts[0]), groups=[Membership.model_validate(each) for each in parts[1]])


def _user(user: model.User) -> dict[str, Any]:
    own = {key: getattr(user, key) for key in UserReply.model_fields if key not in ("disabled", "absent")}
    return own | {"disabled": user.disabled_at is not None, "absent": user.absent_at is not None}


# ---------------------------------------------------------------- members


class MemberSet(Body):
    """What somebody is to be in a group. `force`: the group may be without an owner, as administrators may want."""

    role: RoleName
    force: bool = False


class MemberReply(Reply):
    """Somebody's role in a group."""

    group: str
    user: str
    full_name: str
    email: str
    role: str


class MemberList(Reply):
    """The members of a group, by name."""

    items: list[MemberReply]


# ---------------------------------------------------------------- links


class Invite(Body):
    """Whom to invite. `lifetime` in seconds; null: the site's."""

    role: RoleName = "member"
    email: Email = ""
    lifetime: Seconds | None = None
    mail: bool = Field(default=False, description="send the link to `email`")


class SiteInvite(Body):
    """Whom to invite to the site, into no group."""

    email: Email = ""
    lifetime: Seconds | None = None
    mail: bool = False


class Renew(Body):
    """How long the link is good for, in seconds; null: the site's."""

    lifetime: Seconds | None = None
    mail: bool = False


class InvitationReply(Reply):
    """A link that can still be used. `user`: it sets a new password for that one."""

    id: int
    group: str | None
    role: str
    user: str | None
    email: str
    invited_by: str
    created_at: float
    expires_at: float


class InvitationList(Reply):
    """Links that can still be used, the newest first."""

    items: list[InvitationReply]


class Invited(InvitationReply):
    """A new link, shown this once. Its secret is behind the '#': browsers do not send that. `mailed`: to `email`;
    `unsent` says why not. `fingerprint`: SHA-256 of the web server's certificate, hex, by which a browser that warns of
    it can be told that it is the right one; empty: it has none of its own."""

    link: str
    mailed: bool
    unsent: str
    fingerprint: str = ""


class Accept(Body):
    """What a link is accepted with. For a new password `name` and the rest are not looked at."""

    secret: Secret
    password: Password
    name: Annotated[str, Field(max_length=32)] = ""
    full_name: Line = ""
    email: Email = ""


class Accepted(Reply):
    """Whose account it is."""

    user: str
