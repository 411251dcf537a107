"""Groups, and the addresses to which their notices go."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import ClassVar, Literal, TypeVar

from cod.flows.notices import notices
from cod.flows.people import groups, invitation_mail
from cod.flows.people.access import RequiredRight, offered
from cod.model import Group, Right
from cod.pool import Tx
from cod.web.api.models import CreateOf, DnsLabel, Paged, PatchOf, Reply, ReplyOf
from cod.web.api.resources.notices import DeliveryQuery, DeliveryReply, NoticeReply
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Named,
    Names,
    Shaped,
    as_it_is,
    in_parts,
    manage,
    named_route,
    number,
    paged,
    part_route,
    route,
    see,
)
from cod.wire import webhook

T = TypeVar("T")


class GroupCreate(CreateOf[Group]):
    """A new group; leases in seconds. A gid of null: the next of the site's range."""

    defaults: ClassVar = {"events": ["notices"]}
    name: DnsLabel


class GroupPatch(PatchOf[Group]):
    """Changes to a group. A field that is left out stays as it is."""


class WebhookSecret(Reply):
    """Secret that verifies the signature of a group's webhook."""

    group: str
    secret: str


class GroupReply(ReplyOf[Group]):
    """A group."""


class GroupQuery(Paged):
    sort: Literal["name", "-name", "priority", "-priority", "created_at", "-created_at"] = "name"


def _secret(key: bytes, name: str, tx: Tx, new: bool = False) -> WebhookSecret:
    group = groups.new_secret(tx, name) if new else groups.one(tx, name)
    own = webhook.group_key(key, group.id, name, group.webhook_turn)
    return WebhookSecret(group=name, secret=webhook.secret(own))


def _creates(ask: Call[Names, GroupCreate]) -> list[RequiredRight]:
    """Return the rights of administrators; of all users, where the site's rule says so, which the
    flow checks."""
    return [RequiredRight(Right.ANY if ask.site.groups.creators else Right.ADMIN)]


def _changes(ask: Call[Named, GroupPatch]) -> list[RequiredRight]:
    """Return the rights of owners of the group, for the fields that owners set; of administrators,
    for all others. A group is not found for users who cannot see it."""
    seen = RequiredRight(Right.SEE, "group", ask.names.name)
    own = ask.body.model_fields_set <= groups.OWNERS_SAY
    right = Right.MANAGE if own else Right.ADMIN
    return [seen, RequiredRight(right, "group", ask.names.name)]


def _shown(ask: Call, group: Group) -> Group:
    """Return the group as the caller may see it. Only owners see a webhook's path and query, which
    often are a secret."""
    whole = not group.webhook or offered(ask.who, Right.MANAGE, group.id)
    return (
        group if whole else replace(group, webhook=f"{notices.host(('webhook', group.webhook))}/…")
    )


def _counted(ask: Call, flow: Flow[T]) -> Flow[T]:
    """Return `flow` with a limit on how often it runs in an hour. The flow sends something to an
    address that the group's owners have chosen."""

    def counted(tx: Tx) -> T:
        invitation_mail.count(tx, who=ask.who, rules=ask.site.signin, now=ask.now)
        return flow(tx)

    return counted


GROUPS = (
    route(
        "GET /groups",
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
        reply=paged(GroupReply, "Groups."),
        query=GroupQuery,
    ),
    named_route(
        "GET /groups/{name}",
        see("group"),
        "Show a group",
        lambda a: lambda tx: _shown(a, groups.one(tx, a.names.name)),
        reply=GroupReply,
    ),
    route(
        "POST /groups",
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
        makes="/groups/{name}",
    ),
    named_route(
        "PATCH /groups/{name}",
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
    ),
    named_route(
        "DELETE /groups/{name}",
        manage("group"),
        "Delete a group that owns nothing; owners delete one that a user created",
        lambda a: partial(groups.delete, name=a.names.name, admin=a.who.admin, now=a.now),
    ),
    named_route(
        "GET /groups/{name}/webhook-secret",
        manage("group"),
        "Show what the signature of the group's webhook is checked with",
        lambda a: partial(_secret, a.webhook_key, a.names.name),
        reply=as_it_is(WebhookSecret),
        secret=True,
    ),
    named_route(
        "POST /groups/{name}/webhook-secret",
        manage("group"),
        "Change what the signature of the group's webhook is checked with",
        lambda a: partial(_secret, a.webhook_key, a.names.name, new=True),
        reply=as_it_is(WebhookSecret),
        secret=True,
    ),
    named_route(
        "GET /groups/{name}/deliveries",
        see("group"),
        "List what was, or is to be, delivered to a group",
        lambda a: partial(
            notices.deliveries,
            group=a.names.name,
            page=a.query.page,
            state=a.query.state,
            channel=a.query.channel,
        ),
        reply=paged(Shaped(DeliveryReply, DeliveryReply.of_pair), "Deliveries, the newest first."),
        query=DeliveryQuery,
    ),
    part_route(
        "POST /groups/{name}/deliveries/{id}/resend",
        manage("group"),
        "Deliver something once more",
        lambda a: _counted(
            a, partial(notices.again, group=a.names.name, send_id=number(a.names.id), now=a.now)
        ),
        reply=Shaped(DeliveryReply, DeliveryReply.of_pair),
        status=202,
    ),
    named_route(
        "POST /groups/{name}/test-notice",
        manage("group"),
        "Send the group a test notice",
        lambda a: _counted(a, partial(notices.test, group=a.names.name, actor=a.actor, now=a.now)),
        reply=NoticeReply,
        status=202,
        makes="/notices/{id}",
    ),
)
