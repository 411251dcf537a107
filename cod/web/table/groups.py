"""Routes about groups, and what they are told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from cod.flows.notices import notices
from cod.flows.people import groups, invitation_mail
from cod.flows.people.access import Claim, offered
from cod.model import Group, Right
from cod.web import bodies as b
from cod.web.routes import ADMINS, ANYBODY, Call, Flow, in_parts, listed, manage, number, route, see
from cod.wire import webhook


def _secret(key: bytes, name: str, tx: Any, new: bool = False) -> b.WebhookSecret:
    group = groups.new_secret(tx, name) if new else groups.one(tx, name)
    own = webhook.group_key(key, group.id, name, group.webhook_turn)
    return b.WebhookSecret(group=name, secret=webhook.secret(own))


def _changes(ask: Call) -> list[Claim]:
    """How a group is told things its owners may say; its priority and its leases are the administrators' to give."""
    own = {"email", "webhook", "events", "default_lease"}
    right = Right.MANAGE if ask.body.model_fields_set <= own else Right.ADMIN
    return [Claim(right, "group", ask.names["name"])]


def _shown(ask: Call, flow: Flow) -> Flow:
    """One group of `flow`, or a list of them, as who asks may see them: a webhook's path and query often are a secret,
    which is its owners'."""
    def one(group: Group) -> Group:
        whole = not group.webhook or offered(ask.who, Right.MANAGE, group.id)
        return group if whole else replace(group, webhook=f"{notices.host(('webhook', group.webhook))}/…")

    def shown(tx: Any) -> Any:
        found = flow(tx)
        return one(found) if isinstance(found, Group) else [one(each) for each in found]

    return shown


def _counted(ask: Call, flow: Flow) -> Flow:
    """A flow that has something sent to an address that its group's owners have chosen: so often in an hour."""
    def counted(tx: Any) -> Any:
        invitation_mail.count(tx, who=ask.who, rules=ask.site.signin, now=ask.now)
        return flow(tx)

    return counted


GROUPS = (
    route("GET", "/groups", ANYBODY, "List groups",
          lambda a: in_parts(_shown(a, partial(groups.every, only=a.who.groups)), a.query.page, lambda one: (one.name,),
                             name=attrgetter("name"), priority=attrgetter("priority"),
                             created_at=attrgetter("created_at")),
          shape=listed(b.GroupList, b.GroupReply.model_validate), reply=b.GroupList, query=b.GroupQuery),
    route("GET", "/groups/{name}", see("group"), "Show a group",
          lambda a: _shown(a, partial(groups.one, name=a.names["name"])), reply=b.GroupReply),
    route("POST", "/groups", ADMINS, "Create a group",
          lambda a: partial(groups.create, now=a.now, rules=a.site.notices,
                            **a.body.model_dump()),
          reply=b.GroupReply, body=b.GroupCreate, status=201, makes="/groups/{name}"),
    route("PATCH", "/groups/{name}", _changes, "Change a group's priority, its leases, or how it is told things",
          lambda a: partial(groups.change, name=a.names["name"], changes=a.body.model_dump(exclude_unset=True),
                            rules=a.site.notices, now=a.now),
          reply=b.GroupReply, body=b.GroupPatch),
    route("DELETE", "/groups/{name}", ADMINS, "Remove a group that owns nothing any more",
          lambda a: partial(groups.delete, name=a.names["name"]), status=204),
    route("GET", "/groups/{name}/webhook-secret", manage("group"),
          "Show what the signature of the group's webhook is checked with",
          lambda a: partial(_secret, a.webhook_key, a.names["name"]), reply=b.WebhookSecret, secret=True),
    route("POST", "/groups/{name}/webhook-secret", manage("group"),
          "Change what the signature of the group's webhook is checked with",
          lambda a: partial(_secret, a.webhook_key, a.names["name"], new=True), reply=b.WebhookSecret, secret=True),
    route("GET", "/groups/{name}/deliveries", see("group"), "List what was, or is to be, delivered to a group",
          lambda a: partial(notices.deliveries, group=a.names["name"], page=a.query.page, **a.query.filters),
          shape=listed(b.DeliveryList, b.DeliveryReply.of_pair), reply=b.DeliveryList, query=b.DeliveryQuery),
    route("POST", "/groups/{name}/deliveries/{id}/resend", manage("group"), "Deliver something once more",
          lambda a: _counted(a, partial(notices.again, group=a.names["name"], send_id=number(a.names["id"]),
                                        now=a.now)),
          shape=b.DeliveryReply.of_pair, reply=b.DeliveryReply, status=202),
    route("POST", "/groups/{name}/test-notice", manage("group"), "Send the group a test notice",
          lambda a: _counted(a, partial(notices.test, group=a.names["name"], actor=a.actor, now=a.now)),
          reply=b.NoticeReply, status=202, makes="/notices/{id}"),
)

NOTICES = (
    route("GET", "/notices", ANYBODY, "List notices",
          lambda a: partial(notices.every, page=a.query.page, groups=a.who.groups, **a.query.filters),
          shape=listed(b.NoticeList, b.NoticeReply.of), reply=b.NoticeList, query=b.NoticeQuery),
    route("GET", "/notices/{id}", see("notice", "id"), "Show a notice and how its deliveries stand",
          lambda a: partial(notices.one, notice_id=number(a.names["id"])), reply=b.NoticeReply),
)
