"""Routes about nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows import views
from cod.flows.nodes import consoles, nodes
from cod.web import bodies as b
from cod.web import console
from cod.web.routes import ADMINS, ANYBODY, Call, Flow, listed, route, see, use


def _on_node(flow: Flow, ask: Call) -> Flow:
    """An administrator's word about a node: the flow with what every such flow wants."""
    said = {} if ask.body is None else ask.body.model_dump()
    return partial(flow, name=ask.names["name"], site=ask.site, now=ask.now, actor=ask.actor, **said)


def _changes(body: Any) -> dict[str, Any]:
    """What a patch names; the node's new name is `new_name` to the flow."""
    said = body.model_dump(exclude_unset=True)
    return {"new_name" if key == "name" else key: value for key, value in said.items()}


NODES = (
    route("GET", "/nodes", ANYBODY, "List nodes",
          lambda a: partial(views.node_list, page=a.query.page, policy=a.site.policy, groups=a.who.groups,
                            **a.query.filters),
          shape=listed(b.NodeList, b.NodeReply.of), reply=b.NodeList, query=b.NodeQuery),
    route("GET", "/nodes/{name}", see("node"), "Show a node with its report, bindings and history",
          lambda a: partial(views.node_in_full, name=a.names["name"], policy=a.site.policy, groups=a.who.groups),
          reply=b.NodeInFull),
    route("GET", "/nodes/{name}/history", see("node"), "List a node's transitions",
          lambda a: partial(views.node_history, name=a.names["name"], page=a.query.page, groups=a.who.groups),
          shape=listed(b.HistoryList, b.Move.model_validate), reply=b.HistoryList, query=b.HistoryQuery),
    route("PATCH", "/nodes/{name}", ADMINS, "Rename a node, or change its block, its power switch or its kept disks",
          lambda a: partial(nodes.change, name=a.names["name"], site=a.site, now=a.now, actor=a.actor,
                            **_changes(a.body)),
          reply=b.NodeReply, body=b.NodePatch),
    route("POST", "/nodes/{name}/approve", ADMINS, "Accept a new machine: its disks are the site's from now on",
          partial(_on_node, nodes.approve), reply=b.NodeReply),
    route("GET", "/nodes/{name}/power", ADMINS, "List what was wished of a node's power lately, and what came of it",
          lambda a: partial(nodes.power_wishes, name=a.names["name"]),
          shape=lambda rows: b.WishList(items=[b.WishReply.model_validate(row) for row in rows]), reply=b.WishList),
    route("POST", "/nodes/{name}/power", use("node"), "Wish a node on, off or power-cycled",
          partial(_on_node, nodes.power), reply=b.NodeReply, body=b.PowerWish, status=202),
    route("GET", "/nodes/{name}/console", use("node"), "Show what a node wrote on its serial console",
          lambda a: partial(consoles.readable, name=a.names["name"], rules=a.site.consoles,
                            everything=a.who.admin, now=a.now),
          work=lambda a, found: console.shown(a.consoles, found, a.query.since, a.query.bytes),
          reply=b.ConsoleReply, query=b.ConsoleQuery, secret=True),
    route("POST", "/nodes/{name}/quarantine", ADMINS, "Set a node aside",
          partial(_on_node, nodes.quarantine), reply=b.NodeReply, body=b.Because),
    route("POST", "/nodes/{name}/restore", ADMINS, "Bring a node back from quarantine or retirement",
          partial(_on_node, nodes.restore), reply=b.NodeReply),
    route("POST", "/nodes/{name}/retire", ADMINS, "Take a node out of the site",
          partial(_on_node, nodes.retire), reply=b.NodeReply),
)
