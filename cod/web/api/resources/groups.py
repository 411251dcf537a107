"""Groups, and how they are told things."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from cod.choices import Wipe
from cod.flows.notices import notices
from cod.flows.people import groups, invitation_mail
from cod.flows.people.access import RequiredRight, offered
from cod.model import HIGHEST, LOWEST, Group, Right
from cod.pool import Tx
from cod.web.api.models import Body, DnsLabel, ListPage, Paged, Reply, ReplyOf, Seconds
from cod.web.api.resources.notices import DeliveryList, DeliveryQuery, DeliveryReply, NoticeReply
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Named,
    NamedNumber,
    Names,
    Shaped,
    as_it_is,
    in_parts,
    listed,
    manage,
    number,
    route,
    see,
)
from cod.wire import webhook

T = TypeVar("T")
Quota = Annotated[
    int,
    Field(
        ge=0,
        le=2**62,
        description="bytes that its images and open uploads may take; null: the site's default",
    ),
]
Gid = Annotated[int, Field(ge=LOWEST, le=HIGHEST, description="POSIX number on nodes")]
VolumeQuota = Annotated[
    int,
    Field(
        ge=0,
        le=2**62,
        description="bytes that its volumes may have together; null: the site's default",
    ),
]
Grace = Annotated[
    float,
    Field(
        ge=0,
        le=1e10,
        allow_inf_nan=False,
        description=(
            "seconds in which its vclusters give "
            "nodes back after a reclaim, as far as the site allows; null: the site's"
        ),
    ),
]

GroupWipe = Annotated[
    Literal[Wipe.ZERO, Wipe.PURGE],  # tables alone are for the site to allow
    Field(
        description=(
            "how the disks of nodes that it has had are erased at least: zero, or purge (disks that"
            " can do so erase themselves first); null: as the site says. The strictest of site,"
            " group and template holds"
        ),
    ),
]
Emails = Annotated[
    str, Field(max_length=6000, description="whom to tell: addresses, separated by commas")
]
Events = Annotated[
    list[Literal["notices", "vclusters", "nodes"]],
    Field(
        max_length=3,
        description=(
            "what is posted to the webhook: notices for people, what happens to vclusters, to nodes"
        ),
    ),
]
WebhookUrl = Annotated[
    str, Field(max_length=2000, description="http(s) URL that notices are posted to; '' for none")
]


class GroupCreate(Body):
    """A new group; leases in seconds."""

    name: DnsLabel
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000, description="larger goes first")
    default_lease: Seconds | None = None
    max_lease: Seconds | None = None
    email: Emails = ""
    webhook: WebhookUrl = ""
    events: Events = Field(default=["notices"])
    image_quota: Quota | None = None
    gid: Gid | None = Field(
        default=None, description="POSIX number on nodes; null: the next of the site's range"
    )
    volume_quota: VolumeQuota | None = None
    grace: Grace | None = None
    wipe: GroupWipe | None = None


class GroupPatch(Body):
    """What to change of a group; what is left out stays. A lease of null: the site's default, no
    limit; a quota, a grace or a wipe of null: the site's."""

    priority: int | None = Field(
        default=None, ge=-1_000_000, le=1_000_000, description="larger goes first"
    )
    default_lease: Seconds | None = None
    max_lease: Seconds | None = None
    email: Emails | None = None
    webhook: WebhookUrl | None = None
    events: Events | None = None
    image_quota: Quota | None = None
    gid: Gid | None = None
    volume_quota: VolumeQuota | None = None
    grace: Grace | None = None
    wipe: GroupWipe | None = None

    @model_validator(mode="after")
    def _something(self) -> GroupPatch:
        if not self.model_fields_set:
            raise ValueError("names nothing to change")
        for name in ("priority", "email", "webhook", "events", "gid"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null")
        return self


class WebhookSecret(Reply):
    """What the signature of a group's webhook is checked with."""

    group: str
    secret: str


class GroupReply(ReplyOf[Group]):
    """A group. `email`: addresses, separated by commas; `created_by`: the user who created it by
    the site's rule, null: an administrator did."""

    name: str
    priority: int
    default_lease: float | None
    max_lease: float | None
    email: str
    webhook: str
    events: tuple[str, ...]
    image_quota: int | None
    gid: int | None
    volume_quota: int | None
    grace: float | None
    wipe: GroupWipe | None
    created_at: float
    created_by: str | None


class GroupQuery(Paged):
    """Which groups to list."""

    sort: Literal["name", "-name", "priority", "-priority", "created_at", "-created_at"] = "name"


class GroupList(ListPage[GroupReply]):
    """Groups."""


def _secret(key: bytes, name: str, tx: Tx, new: bool = False) -> WebhookSecret:
    group = groups.new_secret(tx, name) if new else groups.one(tx, name)
    own = webhook.group_key(key, group.id, name, group.webhook_turn)
    return WebhookSecret(group=name, secret=webhook.secret(own))


def _creates(ask: Call[Names, GroupCreate]) -> list[RequiredRight]:
    """Let administrators create groups; and users, where the site's rule says so, which the flow
    looks at."""
    return [RequiredRight(Right.ANY if ask.site.groups.creators else Right.ADMIN)]


def _changes(ask: Call[Named, GroupPatch]) -> list[RequiredRight]:
    """Return how a group is told things, its grace and its wipe its owners may say; its priority
    and its leases are the administrators' to give. To who may not see the group there is none,
    whatever is asked."""
    seen = RequiredRight(Right.SEE, "group", ask.names.name)
    own = ask.body.model_fields_set <= groups.OWNERS_SAY
    right = Right.MANAGE if own else Right.ADMIN
    return [seen, RequiredRight(right, "group", ask.names.name)]


def _shown(ask: Call, group: Group) -> Group:
    """Return the group as who asks may see it: a webhook's path and query often are a secret, which
    is its owners'."""
    whole = not group.webhook or offered(ask.who, Right.MANAGE, group.id)
    return (
        group if whole else replace(group, webhook=f"{notices.host(('webhook', group.webhook))}/…")
    )


def _counted(ask: Call, flow: Flow[T]) -> Flow[T]:
    """Return a flow that has something sent to an address that its group's owners have chosen: so
    often in an hour."""

    def counted(tx: Tx) -> T:
        invitation_mail.count(tx, who=ask.who, rules=ask.site.signin, now=ask.now)
        return flow(tx)

    return counted


GROUPS = (
    route(
        "GET",
        "/groups",
        ANYBODY,
        "List groups",
        lambda a: in_parts(
            lambda tx: [_shown(a, one) for one in groups.every(tx, only=a.who.groups)],
            a.query.page,
            lambda one: (one.name,),
            name=attrgetter("name"),
            priority=attrgetter("priority"),
            created_at=attrgetter("created_at"),
        ),
        reply=listed(GroupList, GroupReply.of),
        query=GroupQuery,
    ),
    route(
        "GET",
        "/groups/{name}",
        see("group"),
        "Show a group",
        lambda a: lambda tx: _shown(a, groups.one(tx, a.names.name)),
        reply=GroupReply,
        names=Named,
    ),
    route(
        "POST",
        "/groups",
        _creates,
        "Create a group; a user who may do so by the site's rule is its owner",
        lambda a: partial(
            groups.create_for,
            who=a.who,
            users=a.site.groups,
            asked=a.body.model_dump(),
            now=a.now,
            rules=a.site.notices,
            posix=a.site.posix,
            policy=a.site.policy,
        ),
        reply=GroupReply,
        body=GroupCreate,
        status=201,
        makes="/groups/{name}",
    ),
    route(
        "PATCH",
        "/groups/{name}",
        _changes,
        "Change a group's priority, leases or notices",
        lambda a: partial(
            groups.change,
            name=a.names.name,
            changes=a.body.model_dump(exclude_unset=True),
            rules=a.site.notices,
            policy=a.site.policy,
            now=a.now,
        ),
        reply=GroupReply,
        body=GroupPatch,
        names=Named,
    ),
    route(
        "DELETE",
        "/groups/{name}",
        manage("group"),
        "Delete a group that owns nothing; owners delete one that a user created",
        lambda a: partial(groups.delete, name=a.names.name, admin=a.who.admin, now=a.now),
        status=204,
        names=Named,
    ),
    route(
        "GET",
        "/groups/{name}/webhook-secret",
        manage("group"),
        "Show what the signature of the group's webhook is checked with",
        lambda a: partial(_secret, a.webhook_key, a.names.name),
        reply=as_it_is(WebhookSecret),
        secret=True,
        names=Named,
    ),
    route(
        "POST",
        "/groups/{name}/webhook-secret",
        manage("group"),
        "Change what the signature of the group's webhook is checked with",
        lambda a: partial(_secret, a.webhook_key, a.names.name, new=True),
        reply=as_it_is(WebhookSecret),
        secret=True,
        names=Named,
    ),
    route(
        "GET",
        "/groups/{name}/deliveries",
        see("group"),
        "List what was, or is to be, delivered to a group",
        lambda a: partial(
            notices.deliveries,
            group=a.names.name,
            page=a.query.page,
            state=a.query.state,
            channel=a.query.channel,
        ),
        reply=listed(DeliveryList, DeliveryReply.of_pair),
        query=DeliveryQuery,
        names=Named,
    ),
    route(
        "POST",
        "/groups/{name}/deliveries/{id}/resend",
        manage("group"),
        "Deliver something once more",
        lambda a: _counted(
            a, partial(notices.again, group=a.names.name, send_id=number(a.names.id), now=a.now)
        ),
        reply=Shaped(DeliveryReply, DeliveryReply.of_pair),
        status=202,
        names=NamedNumber,
    ),
    route(
        "POST",
        "/groups/{name}/test-notice",
        manage("group"),
        "Send the group a test notice",
        lambda a: _counted(a, partial(notices.test, group=a.names.name, actor=a.actor, now=a.now)),
        reply=NoticeReply,
        status=202,
        makes="/notices/{id}",
        names=Named,
    ),
)
