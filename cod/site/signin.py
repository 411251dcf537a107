"""The tables of the site file about signing in; see `cod.site.tables`."""

from __future__ import annotations

import string
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from cod.site.values import AbsolutePath, NotNegative, Positive, Table


class SignInTable(Table):
    """How people sign in. Re-read on SIGHUP."""

    url: str = Field(
        "",
        max_length=200,
        description=(
            "where browsers reach the portal, for links that COD makes: https://cod.example.org;"
            " not set: the first of `api.names` and the port of `api.listen`"
        ),
    )
    idle: Positive = Field(
        43_200.0, description="seconds without a click after which a browser is signed out"
    )
    life: Positive = Field(604_800.0, description="seconds after which it is signed out anyhow")
    invitation: Positive = Field(
        604_800.0, description="seconds that a link is good for, where nothing else is said"
    )
    letters: int = Field(
        20,
        ge=1,
        le=100_000,
        description=(
            "letters with links, and test notices, that one person may "
            "have sent in an hour; administrators as many as all"
        ),
    )
    letters_in_all: int = Field(200, ge=1, le=100_000, description="the same of everybody together")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (
            parts.scheme not in ("https", "http")
            or not parts.netloc
            or parts.path.strip("/")
            or parts.query
        ):
            raise ValueError("should be https://NAME or https://NAME:PORT")
        return url.rstrip("/")


class LdapTable(Table):
    """Sign-in by an LDAP directory (needs the extra `ldap`). Without `url` there is none. Re-read
    on SIGHUP."""

    url: str = Field(
        "",
        pattern=r"^(ldaps?://[A-Za-z0-9.:\[\]-]+)?$",
        description="ldaps://HOST or ldap://HOST, with :PORT where it is another",
    )
    tls: Literal["starttls", "tls", "none"] = Field(
        "tls", description="tls (ldaps), starttls (ldap), or none: then passwords travel readable"
    )
    ca_file: AbsolutePath | None = Field(
        None, description="PEM file of the certificate authorities to trust; not set: the system's"
    )
    base: str = Field(
        "", max_length=400, description="where people are looked for: ou=people,dc=example,dc=org"
    )
    filter: str = Field(
        "(uid={name})", max_length=400, description="who {name} is; what somebody types is escaped"
    )
    user: str = Field(
        "", max_length=400, description="DN to look for people as; empty: anonymously"
    )
    password_file: AbsolutePath | None = Field(
        None, description="file whose first line is its password (mode 0600)"
    )
    create: bool = Field(
        True, description="who is found there and unknown here gets an account, in no group yet"
    )
    check: NotNegative = Field(
        3600.0,
        description=(
            "seconds between two looks whether those who are signed in, or have "
            "tokens or keys, are still found there; 0: never"
        ),
    )

    @model_validator(mode="after")
    def _coherent(self) -> LdapTable:
        fields = [
            name for _, name, _, _ in string.Formatter().parse(self.filter) if name is not None
        ]
        if not fields or set(fields) != {"name"}:
            raise ValueError("filter should hold {name}, and nothing else in braces")
        if self.url and not self.base:
            raise ValueError("base should be set: where people are looked for")
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("user and password_file should be set both, or neither")
        if self.url and (self.tls == "tls") != self.url.startswith("ldaps://"):
            raise ValueError(
                'tls should be "tls" for ldaps://, and "starttls" or "none" for ldap://'
            )
        return self


class OidcTable(Table):
    """Sign-in by an OpenID Connect provider (needs the extra `oidc`). None without `issuer`.
    Re-read on SIGHUP."""

    issuer: str = Field(
        "",
        max_length=400,
        pattern=r"^(https?://[^\s?#]+)?$",
        description="the provider's URL, below which is /.well-known/openid-configuration",
    )
    client_id: str = Field(
        "",
        max_length=400,
        description="by which it knows this site; its redirect URI is URL/sign-in/oidc",
    )
    secret_file: AbsolutePath | None = Field(
        None, description="file whose first line is the client's secret (mode 0600)"
    )
    scope: str = Field("openid profile email", max_length=400, description="what is asked of it")
    name_claim: str = Field(
        "preferred_username",
        max_length=100,
        description="what becomes the sign-in name of somebody who is new",
    )
    label: str = Field("Single sign-on", max_length=60, description="on the button")
    create: bool = Field(
        True, description="who is known there and not here gets an account, in no group yet"
    )
    life: Positive = Field(
        86_400.0,
        description=(
            "seconds after which who came in by it is signed out, if "
            "`signin.life` is longer: to come in again they have to be known there"
        ),
    )
    tokens: NotNegative = Field(
        7_776_000.0,
        description=(
            "seconds after their last sign-in after which the tokens of "
            "such users wait for the next one; 0: never"
        ),
    )

    @model_validator(mode="after")
    def _coherent(self) -> OidcTable:
        if self.issuer and not (self.client_id and self.secret_file):
            raise ValueError("client_id and secret_file should be set")
        return self
