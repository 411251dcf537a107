"""Settings of sign-in, and of the groups that people may create."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from cod.model.keys import (
    LABEL,
    AbsolutePath,
    Limits,
    Mark,
    NotNegative,
    NotNegativeSeconds,
    PositiveSeconds,
    Priority,
    Read,
    SiteTable,
    site_key,
)


def _portal_url(url: str) -> str:
    parts = urlsplit(url)
    if url and (
        parts.scheme not in ("https", "http")
        or not parts.netloc
        or parts.path.strip("/")
        or parts.query
    ):
        raise ValueError("should be https://NAME or https://NAME:PORT")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class LdapGroup(SiteTable):
    """A group of the LDAP directory whose members get a role here, at their sign-in or at the next
    look (`ldap.check`), and lose it when they leave that group. Re-read on SIGHUP."""

    dn: str = site_key(
        "",
        "its name in the directory: cn=physics,ou=groups,dc=example,dc=org; members are those of"
        " member, uniqueMember and memberUid",
        min_length=1,
        max_length=400,
    )
    role: Literal["administrator", "owner", "member", "viewer"] = site_key(
        "member", "administrator of the site; or owner, member or viewer of `group`"
    )
    group: str = site_key(
        "", "group here that the role is in; empty for administrators", pattern=rf"{LABEL}|^$"
    )


Taken = Literal["keys", "shell", "home"]


@dataclass(frozen=True, slots=True)
class Ldap(SiteTable):
    """Sign-in by an LDAP directory (needs the extra `ldap`). Without `url` there is none. Re-read
    on SIGHUP."""

    url: str = site_key(
        "",
        "ldaps://HOST or ldap://HOST, with :PORT where it is another",
        pattern=r"^(ldaps?://[A-Za-z0-9.:\[\]-]+)?$",
    )
    tls: Literal["starttls", "tls", "none"] = site_key(
        "tls", "tls (ldaps), starttls (ldap), or none: then passwords travel readable"
    )
    ca_file: AbsolutePath | None = site_key(
        None, "PEM file of the certificate authorities to trust; not set: the system's"
    )
    base: str = site_key(
        "", "where people are looked for: ou=people,dc=example,dc=org", max_length=400
    )
    filter: str = site_key(
        "(uid={name})", "who {name} is; what somebody types is escaped", max_length=400
    )
    user: str = site_key("", "DN to look for people as; empty: anonymously", max_length=400)
    password_file: AbsolutePath | None = site_key(
        None, "file whose first line is its password (mode 0600)"
    )
    create: bool = site_key(
        True, "who is found there and unknown here gets an account, in no group yet"
    )
    check: NotNegativeSeconds = site_key(
        3600.0,
        "seconds between two looks whether those who are signed in, or have "
        "tokens, keys or roles, are still found there, and which roles `ldap_group` gives; 0:"
        " never",
    )
    name_attribute: str = site_key(
        "uid",
        "attribute that has the sign-in name of people who have not signed in yet",
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        max_length=60,
    )
    take: tuple[Taken, ...] = site_key(
        ("keys", "shell"),
        "taken over for accounts on nodes: keys (sshPublicKey), shell (loginShell), home"
        " (homeDirectory)",
    )
    group_base: str = site_key(
        "",
        "where names of primary groups are looked for by gidNumber (posixGroup); empty: they are"
        " not taken over",
        max_length=400,
    )
    groups: tuple[LdapGroup, ...] = field(default=(), metadata={"exclude": True})


@dataclass(frozen=True, slots=True)
class Oidc(SiteTable):
    """Sign-in by an OpenID Connect provider (needs the extra `oidc`). None without `issuer`.
    Re-read on SIGHUP."""

    issuer: str = site_key(
        "",
        "the provider's URL, below which is /.well-known/openid-configuration",
        max_length=400,
        pattern=r"^(https?://[^\s?#]+)?$",
    )
    client_id: str = site_key(
        "", "by which it knows this site; its redirect URI is URL/sign-in/oidc", max_length=400
    )
    secret_file: AbsolutePath | None = site_key(
        None, "file whose first line is the client's secret (mode 0600)"
    )
    scope: str = site_key("openid profile email", "what is asked of it", max_length=400)
    name_claim: str = site_key(
        "preferred_username", "what becomes the sign-in name of somebody who is new", max_length=100
    )
    label: str = site_key("Single sign-on", "on the button", max_length=60)
    create: bool = site_key(
        True, "who is known there and not here gets an account, in no group yet"
    )
    life: PositiveSeconds = site_key(
        86_400.0,
        "seconds after which who came in by it is signed out, if "
        "`signin.life` is longer: to come in again they have to be known there",
    )
    tokens: NotNegativeSeconds = site_key(
        7_776_000.0,
        "seconds after their last sign-in after which the tokens of "
        "such users wait for the next one; 0: never",
    )


@dataclass(frozen=True, slots=True)
class SignInKeys(SiteTable):
    """Sign-in of people. Re-read on SIGHUP."""

    url: Annotated[str, Read(_portal_url)] = site_key(
        "",
        "where browsers reach the portal, for links that COD makes: https://cod.example.org;"
        " not set: the first of `api.names` and the port of `api.listen`",
        max_length=200,
        fixed="nobody could sign in by a wrong one",
    )
    idle: PositiveSeconds = site_key(
        43_200.0,
        "seconds without a click after which a browser is signed out",
        fixed="a short one locks everybody out",
    )
    life: PositiveSeconds = site_key(
        604_800.0,
        "seconds after which it is signed out anyhow",
        fixed="a short one locks everybody out",
    )
    invitation: PositiveSeconds = site_key(
        604_800.0, "seconds that a link is good for, where nothing else is said"
    )
    letters: int = site_key(
        20,
        "letters with links, and test notices, that one person may "
        "have sent in an hour; administrators as many as all",
        ge=1,
        le=100_000,
    )
    letters_in_all: int = site_key(200, "the same of everybody together", ge=1, le=100_000)


@dataclass(frozen=True, slots=True)
class SignInRules(SignInKeys):
    """Settings of sign-in, with those of the directory and the OpenID Connect provider.

    named  the site file says where the portal is; else `url` has the host's own name, which others
           may not be able to look up
    """

    named: bool = False
    ldap: Ldap = field(default_factory=Ldap)
    oidc: Oidc = field(default_factory=Oidc)


@dataclass(frozen=True, slots=True)
class GroupRules(SiteTable):
    """Groups that users create (docs/people). Re-read on SIGHUP; groups that exist stay as they
    are."""

    creators: tuple[
        Annotated[str, Limits({"pattern": rf"{LABEL}|^\*$", "max_length": 63})], ...
    ] = site_key(
        (),
        'groups whose owners and members may create groups; "*": every user may; empty: '
        "administrators alone",
    )
    most: int = site_key(3, "groups that one user may have created at a time", ge=1, le=10_000)
    priority: Priority = site_key(0, "of such a group; larger goes first")
    shares: NotNegative = site_key(
        1.0, "what it is to have of the site, in proportion to the other groups'"
    )
    node_limit: Mark = site_key(0, "nodes that it may hold at once; 0: policy.node_limit")
    hours_limit: NotNegative = site_key(
        0.0, "node-hours that it may use in a month; 0: no limit", unit="node-hours"
    )
    max_lease: NotNegativeSeconds = site_key(
        0.0, "seconds of a whole lease, with all extensions; 0: no limit"
    )
    parent: str = site_key(
        "",
        "group that it is a subgroup of, so that such groups share what that group has",
        pattern=rf"{LABEL}|^$",
    )
