"""The tables of the site file about people's accounts on nodes, and about groups that users create;
see `cod.site.tables`."""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cod.model import HIGHEST, LOWEST
from cod.site.values import LABEL, Mark, NotNegative, Priority, Table

Number = Annotated[int, Field(ge=LOWEST, le=HIGHEST, strict=True)]


class GroupsTable(Table):
    """Groups that users create (docs/people.md). Re-read on SIGHUP; groups that exist stay as they
    are."""

    creators: tuple[Annotated[str, Field(pattern=rf"{LABEL}|^\*$", max_length=63)], ...] = Field(
        (),
        description=(
            'groups whose owners and members may create groups; "*": every user may; empty: '
            "administrators alone"
        ),
    )
    most: int = Field(
        3, ge=1, le=10_000, description="groups that one user may have created at a time"
    )
    priority: Priority = Field(0, description="of such a group; larger goes first")
    shares: NotNegative = Field(
        1.0, description="what it is to have of the site, in proportion to the other groups'"
    )
    node_limit: Mark = Field(0, description="nodes that it may hold at once; 0: policy.node_limit")
    hours_limit: NotNegative = Field(
        0.0, description="node-hours that it may use in a month; 0: no limit"
    )
    max_lease: NotNegative = Field(
        0.0, description="seconds of a whole lease, with all extensions; 0: no limit"
    )
    parent: str = Field(
        "",
        pattern=rf"{LABEL}|^$",
        description="group that it is a subgroup of, so that such groups share what that group has",
    )


class AccountsTable(Table):
    """People's accounts on vclusters' nodes. Ranges and rules are re-read on SIGHUP; numbers that
    were given stay."""

    first_uid: Number = Field(
        20_000, description="first number that users get; their primary groups get the same"
    )
    last_uid: Number = Field(49_999, description="last of them")
    first_gid: Number = Field(50_000, description="first number that groups get")
    last_gid: Number = Field(59_999, description="last of them")
    shell: str = Field(
        "/bin/bash", pattern=r"^(/[A-Za-z0-9._+-]+)+$", max_length=100, description="login shell"
    )
    home: str = Field(
        "/home/{name}", max_length=100, description="home directory; {name} is the sign-in name"
    )
    sudo: Literal["members", "owners", "none"] = Field(
        "members",
        description=(
            "who may use sudo on nodes of a group's vclusters: members (and owners), owners or none"
        ),
    )
    administrators: bool = Field(
        False, description="site administrators have accounts on the nodes of every vcluster"
    )
    port: int = Field(
        389,
        ge=0,
        le=65535,
        description="LDAP with StartTLS, on each subnet's server address; 0: none",
    )
    tls_port: int = Field(636, ge=0, le=65535, description="LDAP over TLS; 0: none")

    @field_validator("home")
    @classmethod
    def _home(cls, home: str) -> str:
        fields = [
            (name, spec, turn)
            for _, name, spec, turn in Formatter().parse(home)
            if name is not None
        ]
        if (
            not home.startswith("/")
            or fields != [("name", "", None)]
            or any(each in home for each in ":\n")
        ):
            raise ValueError("should be an absolute path with {name} in it, such as /home/{name}")
        return home

    @model_validator(mode="after")
    def _coherent(self) -> AccountsTable:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _problems(table: AccountsTable) -> Iterator[str]:
    for kind in ("uid", "gid"):
        if getattr(table, f"first_{kind}") > getattr(table, f"last_{kind}"):
            yield f"first_{kind} should not be above last_{kind}"
    if table.first_uid <= table.last_gid and table.first_gid <= table.last_uid:
        yield (
            "the ranges of uids and gids should not overlap: users' own primary groups have the"
            " uids' numbers"
        )
    if table.port and table.port == table.tls_port:
        yield "port and tls_port should differ"
