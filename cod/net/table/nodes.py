"""Routes about nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows import nodes, views
from cod.net import bodies as b
from cod.net.routes import ADMINS, ANYBODY, Ask, Flow, route, see, use


def _page(ask: Ask) -> Flow:
    return partial(_one_more, limit=ask.query.limit, policy=ask.site.policy, groups=ask.who.groups,
                   **ask.query.model_dump(exclude={"limit"}))


def _one_more(tx: Any, *, limit: int, **filters: Any) -> tuple[list[Any], int]:
    """One row more than asked for tells whether there is a next page."""
    return views.node_list(tx, limit=limit + 1, **filters), limit


def _node_page(found: tuple[list[Any], int]) -> b.NodeList:
    rows, limit = found
    more = len(rows) > limit
    return b.NodeList(items=[b.NodeReply.of(row) for row in rows[:limit]],
                      next=rows[limit - 1].node.name if more else None)


def _on_node(flow: Flow, ask: Ask) -> Flow:
    """An administrator's word about a node: the flow with what every such flow wants."""
    said = {} if ask.body is None else ask.body.model_dump()
    return partial(flow, name=ask.names["name"], site=ask.site, now=ask.now, actor=ask.actor, **said)


def _changes(body: Any) -> dict[str, Any]:
    """What a patch names; the node's new name is `new_name` to the flow."""
    said = body.model_dump(exclude_unset=True)
    return {"new_name" if key == "name" else key: value for key, value in said.items()}


NODES = (
    route("GET", "/nodes", ANYBODY, "List nodes", _page, shape=_node_page, reply=b.NodeList, query=b.NodeQuery),
    route("GET", "/nodes/{name}", see("node"), "Show a node with its report, bindings and history",
          lambda a: partial(views.node_in_full, name=a.names["name"], policy=a.site.policy), reply=b.NodeInFull),
    route("PATCH", "/nodes/{name}", ADMINS, "Rename a node, or change its block or how it is switched",
          lambda a: partial(nodes.change, name=a.names["name"], site=a.site, **_changes(a.body)),
          reply=b.NodeReply, body=b.NodePatch),
    route("POST", "/nodes/{name}/approve", ADMINS, "Accept a new machine: its disks are the site's from now on",
          partial(_on_node, nodes.approve), reply=b.NodeReply),
    route("POST", "/nodes/{name}/power", use("node"), "Wish a node on, off or power-cycled",
          partial(_on_node, nodes.power), reply=b.NodeReply, body=b.PowerWish, status=202),
    route("POST", "/nodes/{name}/quarantine", ADMINS, "Set a node aside",
          partial(_on_node, nodes.quarantine), reply=b.NodeReply, body=b.Because),
    route("POST", "/nodes/{name}/restore", ADMINS, "Bring a node back from quarantine or retirement",
          partial(_on_node, nodes.restore), reply=b.NodeReply),
    route("POST", "/nodes/{name}/retire", ADMINS, "Take a node out of the site",
          partial(_on_node, nodes.retire), reply=b.NodeReply),
)
