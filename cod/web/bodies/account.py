"""Bodies about one's own account and the site's: who asks, signing in, sessions, keys, tokens, the audit."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from cod import model
from cod.web.bodies.base import Body, DnsLabel, Paged, Part, Reply, Seconds
from cod.web.bodies.people import Email, Line, Membership, Password, UserReply

TokenName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,29}$")]

# ---------------------------------------------------------------- oneself


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


class ProfilePatch(Body):
    """What to change of oneself."""

    full_name: Line | None = None
    email: Email | None = None


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
    """A key that the nodes of a group's vclusters let in. `line` is one of an authorized_keys file."""

    user: str
    name: str
    algorithm: str
    fingerprint: str
    line: str

    @classmethod
    def of(cls, parts: tuple[str, model.SshKey]) -> GroupKey:
        """From the user's name and the row."""
        user, key = parts
        return cls(user=user, name=key.name, algorithm=key.algorithm, fingerprint=key.fingerprint, line=key.line)


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
