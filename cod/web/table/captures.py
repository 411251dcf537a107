"""Routes about captures: nodes' disks on their way into images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from cod.flows.nodes import captures
from cod.flows.people.access import Claim
from cod.model import Right
from cod.web import bodies as b
from cod.web.routes import ANYBODY, Ask, Flow, in_parts, listed, owner, route, see, use


def _wants(ask: Ask) -> Sequence[Claim]:
    """Who works with the node, and with the things of the group that shall have the image."""
    node = Claim(Right.USE, "node", ask.names["name"])
    if ask.body.group is None:
        return (node,)
    return (node, owner(ask.body.group))


def _want(ask: Ask) -> Flow:
    return partial(captures.want, name=ask.names["name"], image=ask.body.image, template=ask.body.template,
                   group=ask.body.group, secret=os.urandom(32).hex(), site=ask.site, now=ask.now, actor=ask.actor)


CAPTURES = (
    route("GET", "/captures", ANYBODY, "List the newest capture of each node",
          lambda a: in_parts(partial(captures.every, groups=a.who.groups), a.query.page,
                             lambda one: (one.node, one.image), "node", node=attrgetter("node"),
                             asked_at=attrgetter("asked_at")),
          shape=listed(b.CaptureList, b.CaptureReply.model_validate), reply=b.CaptureList, query=b.CaptureQuery),
    route("GET", "/nodes/{name}/capture", see("node"), "Show a node's newest capture",
          lambda a: partial(captures.show, name=a.names["name"], groups=a.who.groups), reply=b.CaptureReply),
    route("POST", "/nodes/{name}/capture", _wants,
          "Save a node's disk as an image: an active node reboots for it, and then goes on",
          _want, reply=b.CaptureReply, body=b.CaptureWish, status=202),
    route("DELETE", "/nodes/{name}/capture", use("node"), "Cancel a node's capture: it goes back to where it was",
          lambda a: partial(captures.cancel, name=a.names["name"], site=a.site, now=a.now, actor=a.actor),
          reply=b.CaptureReply),
)
