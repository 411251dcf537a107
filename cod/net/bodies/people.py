"""Bodies about people: users, members, links, keys, tokens, sessions, the audit."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from cod import model
from cod.net.bodies.base import Body, DnsLabel, Paged, Part, Reply, Seconds

UserName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,31}$", description="a sign-in name")]
TokenName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,29}$")]
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


class ProfilePatch(Body):
    """What to change of oneself."""

    full_name: Line | None = None
    email: Email | None = None


class UserReply(Reply):
    """A user. `directory`: where they sign in: '' here, ldap or oidc."""

    name: str
    full_name: str
    email: str
    admin: bool
    disabled: bool
    created_at: float
    directory: str

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


class Myself(Reply):
    """Who asks. `user` is null where that is no person."""

    name: str
    admin: bool
    writes: bool
    user: UserReply | None
    groups: list[Membership]

    @classmethod
    def of_who(cls, who: model.Who, user: model.User | None, roles: list[model.Member]) -> Myself:
        """From who asks, and what is known of them."""
        return cls(name=who.name, admin=who.admin, writes=who.writes, user=UserReply.of(user) if user else None,
                   groups=[Membership.model_validate(each) for each in roles])


def _user(user: model.User) -> dict[str, Any]:
    own = {key: getattr(user, key) for key in UserReply.model_fields if key != "disabled"}
    return own | {"disabled": user.disabled_at is not None}


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
    `unsent` says why not."""

    link: str
    mailed: bool
    unsent: str


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


# ---------------------------------------------------------------- signing in


class SignInBody(Body):
    """Name and password, for a token."""

    name: Annotated[str, Field(max_length=200)]
    password: Password
    token: TokenName = Field(description="what to call the token")
    scope: Literal["read", "write"] = "write"
    group: DnsLabel | Literal[""] = ""
    lifetime: Seconds | None = Field(default=43_200.0, description="seconds; null: for ever")


class PasswordChange(Body):
    """A new password, by one who knows the old one."""

    old: Password
    new: Password


class SessionsEnded(Reply):
    """How many browsers were signed out."""

    ended: int


class SessionReply(Reply):
    """A browser that is signed in."""

    id: int
    created_at: float
    last_seen: float
    expires_at: float
    address: str
    browser: str


class SessionList(Reply):
    """Browsers, the newest first."""

    items: list[SessionReply]


# ---------------------------------------------------------------- keys and tokens


class KeyAdd(Body):
    """A line of a .pub file. `name` stands in for its comment."""

    key: Annotated[str, Field(min_length=1, max_length=8000)]
    name: Line = ""


class KeyReply(Reply):
    """A public SSH key."""

    id: int
    name: str
    algorithm: str
    fingerprint: str
    key: str
    created_at: float


class KeyList(Reply):
    """Keys, in the order in which they came."""

    items: list[KeyReply]


class GroupKey(Reply):
    """A key that the nodes of a group's vclusters let in."""

    user: str
    name: str
    algorithm: str
    fingerprint: str

    @classmethod
    def of(cls, parts: tuple[str, model.SshKey]) -> GroupKey:
        """From the user's name and the row."""
        return cls(user=parts[0], name=parts[1].name, algorithm=parts[1].algorithm, fingerprint=parts[1].fingerprint)


class GroupKeyList(Reply):
    """Keys by user."""

    items: list[GroupKey]


class TokenMake(Body):
    """A token of one's own. `lifetime` in seconds; null: for ever. `group`: only for that group's things."""

    name: TokenName
    scope: Literal["read", "write"] = "write"
    group: DnsLabel | Literal[""] = ""
    lifetime: Seconds | None = None


class SiteToken(Body):
    """A token that acts as the site's administrator. `lifetime` in seconds; null: for ever."""

    name: TokenName
    scope: Literal["read", "admin"] = "read"
    lifetime: Seconds | None = None


class TokenReply(Reply):
    """A token: what it is called and may."""

    name: str
    scope: str
    group: str | None
    created_at: float
    expires_at: float | None

    @classmethod
    def of(cls, parts: tuple[model.ApiToken, str | None]) -> TokenReply:
        """From the row and its group's name."""
        own = {key: getattr(parts[0], key) for key in cls.model_fields if key not in ("group", "token")}
        return cls(**own, group=parts[1])


class TokenList(Reply):
    """Tokens, by name."""

    items: list[TokenReply]


class TokenMade(Reply):
    """A new token; itself shown this once."""

    name: str
    token: str


# ---------------------------------------------------------------- the audit


class AuditQuery(Paged):
    """Which rows of the audit to list."""

    group: str | None = Field(default=None, max_length=63)
    actor: str | None = Field(default=None, max_length=80, description="user:NAME, token:NAME …")
    action: str | None = Field(default=None, max_length=40, description="its beginning: 'vcluster', 'sign-in failed'")
    thing: str | None = Field(default=None, max_length=200)
    since: float | None = Field(default=None, description="seconds since the epoch")
    until: float | None = None
    sort: Literal["id", "-id"] = "-id"


class AuditReply(Reply):
    """A change that somebody made. `before` and `after`: what differs; null where there was or is nothing to say."""

    id: int
    at: float
    actor: str
    address: str
    action: str
    thing: str
    group: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @classmethod
    def of(cls, row: model.AuditRow) -> AuditReply:
        """From the row."""
        own = {key: getattr(row, key) for key in cls.model_fields}
        return cls(**own | {key: json.loads(own[key]) if own[key] else None for key in ("before", "after")})


class AuditList(Part):
    """Changes, the newest first."""

    items: list[AuditReply]
