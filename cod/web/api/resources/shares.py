"""Shares of the site: the groups' shares, limits and guarantees, and their present use of them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from cod.flows.scheduler import shares
from cod.flows.scheduler.shares import GroupShare, GroupUse, TypeShare, UsedSpan, UserShare
from cod.web.api.models import DnsLabel, Patch, Reply, ReplyOf
from cod.web.api.routes import ADMINS, ANYBODY, Shaped, listed, named_route, route, see

Nodes = Annotated[int, Field(ge=0, le=10_000_000)]
Shares = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class SharePatch(Patch):
    """Changes to a group's entitlements. A field that is left out stays as it is. Null means the
    site's default for a node limit, and no limit for node-hours."""

    may_be_null = frozenset({"node_limit", "hours_limit", "parent"})
    shares: Shares | None = Field(
        default=None,
        description="what it is to have of the site, in proportion to the other groups'",
    )
    guarantee: Nodes | None = Field(
        default=None, description="nodes that are not taken from it for others"
    )
    node_limit: Nodes | None = Field(default=None, description="nodes that it may hold at once")
    type_limits: dict[DnsLabel, Nodes] | None = Field(
        default=None,
        max_length=100,
        description="nodes of types that it may hold at once, all of them anew",
    )
    type_guarantees: dict[DnsLabel, Nodes] | None = Field(
        default=None,
        max_length=100,
        description="nodes of types that are not taken from it for others, all of them anew",
    )
    type_shares: dict[DnsLabel, Shares] | None = Field(
        default=None,
        max_length=100,
        description="what it is to have of nodes of types, all of them anew",
    )
    hours_limit: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = Field(
        default=None, description="node-hours that it may use in a month"
    )
    parent: DnsLabel | None = Field(
        default=None, description="the group that it is a subgroup of; null: of none"
    )
    user_shares: bool | None = Field(
        default=None, description="its requests are ranked by what their users have used"
    )


class SharePreviewBody(SharePatch):
    """A change of a group's entitlements to be tried in a simulation that ends now."""

    beside = frozenset({"days"})
    days: Annotated[int, Field(ge=1, le=28)] = Field(
        default=14, description="days of the site's own requests that are simulated"
    )


class GroupWaitReply(Reply):
    """Average seconds that a group's requests wait until their systems run, simulated without the
    change (`before`) and with it (`after`)."""

    group: str
    requests: int
    before: float
    after: float


class SharePreviewReply(Reply):
    """Effect that a change would have had in the last days, by the simulator. Both columns are
    simulated with the same requests, so that they differ by the change alone.

    idle_before, idle_after: part of the site's nodes that nobody held, 0 to 1
    """

    days: float
    nodes: int
    groups: list[GroupWaitReply]
    idle_before: float
    idle_after: float
    sentence: str


class TypeShareReply(ReplyOf[TypeShare], whole=True):
    """A group's entitlement to nodes of a type that is kept apart from all others. `shares`: null:
    the group's shares of the site hold for them, too. The other fields are as those of the group.
    """


class ShareReply(ReplyOf[GroupShare], whole=True):
    """A group's entitlements, and its present use of the site. Usage is in node-hours, weighted by
    the costs of types, and fades.

    guaranteed_from: when the group can have all nodes that it is guaranteed, as leases of other
    groups end; null: the site has too few nodes. share: the group's part of the site, 0 to 1;
    share_nodes: the same in nodes; null: shares are off. ratio: the group's share divided by its
    usage (or dominant share, by the site's rule); null: the group has used nothing, or shares are
    off. factor, rank: by the site's rule; the best is 1. ranked: number of groups with a rank.
    recent_hours: node-hours of the last 14 days; evenness: Jain's index of the groups' node-hours
    in these days per unit of their shares, the same for all groups. types: entitlements to types
    whose nodes are kept apart. user_shares: the group's requests are ranked by the usage of their
    users
    """

    types: list[TypeShareReply]


class UserShareReply(ReplyOf[UserShare], whole=True):
    """A user's share and usage in a group that has users' shares.

    user: '' for all virtual clusters whose creator is not known. share: the user's part of the
    group, 0 to 1; usage: in node-hours, weighted by the costs of types; it fades. ratio: the user's
    share divided by the usage; null: the user has used nothing. rank: the best is 1; null: users
    are not ranked
    """


class OthersPartReply(Reply):
    """Use of the site by other groups of higher, equal or lower `priority`: their `part` of the
    site, 0 to 1."""

    priority: Literal["higher", "equal", "lower"]
    groups: int
    part: float


class UsedSpanReply(ReplyOf[UsedSpan], whole=True):
    """Average number of nodes in the day (UTC) that begins `at`, as far as it was counted: the
    group's own nodes, those of groups of higher, equal and lower priority, and free nodes."""


class GroupUseReply(ReplyOf[GroupUse], whole=True):
    """Use of the site in the last 30 days by a group and by the others, and the part that was free;
    parts are 0 to 1.

    share: null: shares are off. sentence: for people; changes: what would let the group use more
    """

    others: list[OthersPartReply]
    changes: list[str]
    days: list[UsedSpanReply]


SHARES = (
    route(
        "GET /shares",
        ANYBODY,
        "List groups' shares, usage, guarantees and limits",
        lambda a: partial(shares.every, only=a.who.groups, site=a.site, now=a.now),
        reply=listed(ShareReply, "Groups, the best rank first."),
    ),
    named_route(
        "GET /shares/{name}",
        see("group"),
        "Show a group's share, usage, guarantee and limits",
        lambda a: partial(shares.one, name=a.names.name, site=a.site, now=a.now),
        reply=ShareReply,
    ),
    named_route(
        "GET /shares/{name}/users",
        see("group"),
        "List the shares, usage and ranks of a group's users",
        lambda a: partial(shares.of_users, name=a.names.name, site=a.site, now=a.now),
        reply=listed(UserShareReply, "Users of a group, the best rank first."),
    ),
    named_route(
        "GET /shares/{name}/use",
        see("group"),
        "Show what a group used of the site, what others did, and what would change it",
        lambda a: partial(shares.used, name=a.names.name, site=a.site, now=a.now),
        reply=GroupUseReply,
    ),
    named_route(
        "POST /shares/{name}/preview",
        ADMINS,
        "Simulate the last days with another share, guarantee and limits; nothing is changed",
        lambda a: partial(
            shares.preview,
            name=a.names.name,
            changes=a.body.model_dump(exclude_unset=True, exclude={"days"}),
            days=a.body.days,
            site=a.site,
            now=a.now,
        ),
        reply=Shaped(SharePreviewReply, SharePreviewReply.model_validate),
        body=SharePreviewBody,
        quiet=True,
        dear=True,
        simulated=True,
    ),
    named_route(
        "PATCH /shares/{name}",
        ADMINS,
        "Change a group's share, guarantee and limits",
        lambda a: partial(
            shares.change,
            name=a.names.name,
            changes=a.body.model_dump(exclude_unset=True),
            site=a.site,
            now=a.now,
        ),
        reply=ShareReply,
        body=SharePatch,
    ),
)
