"""Routes about groups."""

from __future__ import annotations

from functools import partial

from cod.flows import groups
from cod.net import bodies as b
from cod.net.routes import listed, route

GROUPS = (
    route("GET", "/groups", "List groups", lambda a: groups.every,
          shape=listed(b.GroupList, b.GroupReply.model_validate), reply=b.GroupList),
    route("POST", "/groups", "Create a group",
          lambda a: partial(groups.create, now=a.now, **a.body.model_dump()),
          reply=b.GroupReply, body=b.GroupCreate, status=201),
)
