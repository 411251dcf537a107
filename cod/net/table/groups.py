"""Routes about groups, and what they are told."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows import groups, notices
from cod.net import bodies as b
from cod.net.routes import listed, number, route
from cod.wire import webhook


def _secret(key: bytes, name: str, tx: Any) -> b.WebhookSecret:
    group = groups.one(tx, name)
    return b.WebhookSecret(group=name, secret=webhook.secret(webhook.group_key(key, group.id, name)))


GROUPS = (
    route("GET", "/groups", "List groups", lambda a: groups.every,
          shape=listed(b.GroupList, b.GroupReply.model_validate), reply=b.GroupList),
    route("GET", "/groups/{name}", "Show a group", lambda a: partial(groups.one, name=a.names["name"]),
          reply=b.GroupReply),
    route("POST", "/groups", "Create a group",
          lambda a: partial(groups.create, now=a.now, local_webhooks=a.site.notices.local_webhooks,
                            **a.body.model_dump()),
          reply=b.GroupReply, body=b.GroupCreate, status=201),
    route("PATCH", "/groups/{name}", "Change a group's priority, its leases, or how it is told things",
          lambda a: partial(groups.change, name=a.names["name"], changes=a.body.model_dump(exclude_unset=True),
                            local_webhooks=a.site.notices.local_webhooks, now=a.now),
          reply=b.GroupReply, body=b.GroupPatch),
    route("DELETE", "/groups/{name}", "Remove a group that owns nothing",
          lambda a: partial(groups.delete, name=a.names["name"]), status=204),
    route("GET", "/groups/{name}/webhook-secret", "Show what the signature of the group's webhook is checked with",
          lambda a: partial(_secret, a.webhook_key, a.names["name"]), reply=b.WebhookSecret, secret=True),
    route("POST", "/groups/{name}/test-notice", "Send the group a test notice",
          lambda a: partial(notices.test, group=a.names["name"], actor=a.actor, now=a.now),
          reply=b.NoticeReply, status=202),
)

NOTICES = (
    route("GET", "/notices", "List notices: the newest, or those after one; oldest first",
          lambda a: partial(notices.every, **a.query.model_dump()),
          shape=listed(b.NoticeList, b.NoticeReply.of), reply=b.NoticeList, query=b.NoticeQuery),
    route("GET", "/notices/{id}", "Show a notice and how its deliveries stand",
          lambda a: partial(notices.one, notice_id=number(a.names["id"])), reply=b.NoticeReply),
)
