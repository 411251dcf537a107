"""Routes about node types and blocks."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any

from cod.flows.nodes import blocks, types
from cod.web import bodies as b
from cod.web.routes import ADMINS, ANYBODY, Call, Flow, in_parts, listed, route


def _type_changes(ask: Call) -> Flow:
    said = ask.body.model_dump(exclude_unset=True)
    said = {"new_name" if key == "name" else key: value for key, value in said.items()}
    return partial(types.change, name=ask.names["name"], site=ask.site, **said)


def _texts(view: Any) -> list[str]:
    return [view.type.name, *(value for _, value in view.facts)]


TYPES = (
    route("GET", "/types", ANYBODY, "List node types with their nodes by state",
          lambda a: in_parts(types.every, a.query.page, _texts, name=attrgetter("type.name"),
                             cost=attrgetter("type.cost"), created_at=attrgetter("type.created_at"),
                             nodes=lambda one: sum(one.states.values())),
          shape=listed(b.TypeList, b.TypeReply.of), reply=b.TypeList, query=b.TypeQuery),
    route("POST", "/types/refresh", ADMINS, "Work out nodes' types anew by the site's rules, some nodes at a time",
          lambda a: partial(types.refresh, site=a.site, now=a.now, **a.body.model_dump()),
          reply=b.TypeRefreshed, body=b.TypeRefresh),
    route("GET", "/types/{name}", ANYBODY, "Show a node type with its attributes and nodes",
          lambda a: partial(types.show, name=a.names["name"], site=a.site, groups=a.who.groups), reply=b.TypeInFull),
    route("PATCH", "/types/{name}", ADMINS, "Rename a node type, or change its cost, marks or watts", _type_changes,
          reply=b.TypeReply, body=b.TypePatch),
    route("DELETE", "/types/{name}", ADMINS, "Forget a node type that has no nodes",
          lambda a: partial(types.delete, name=a.names["name"]), status=204),
)
BLOCKS = (
    route("GET", "/blocks", ANYBODY, "List blocks with their nodes by type",
          lambda a: in_parts(blocks.every, a.query.page, lambda one: (one.name,), name=attrgetter("name"),
                             nodes=lambda one: sum(one.types.values())),
          shape=listed(b.BlockList, b.BlockReply.of), reply=b.BlockList, query=b.BlockQuery),
    route("POST", "/blocks", ADMINS, "Create a block", lambda a: partial(blocks.create, name=a.body.name),
          reply=b.BlockReply, body=b.BlockCreate, status=201, makes="/blocks/{name}"),
    route("GET", "/blocks/proposal", ADMINS,
          "Show which blocks the network suggests, and why", lambda a: blocks.proposal,
          reply=b.ProposalReply),
    route("POST", "/blocks/proposal", ADMINS, "Make the blocks that the network suggests, all or some",
          lambda a: partial(blocks.apply, only=a.body.blocks), reply=b.ProposalReply, body=b.ProposalApply),
    route("GET", "/blocks/{name}", ADMINS, "Show a block", lambda a: partial(blocks.show, name=a.names["name"]),
          reply=b.BlockReply),
    route("DELETE", "/blocks/{name}", ADMINS, "Delete a block that has no nodes",
          lambda a: partial(blocks.delete, name=a.names["name"]), status=204),
    route("POST", "/blocks/{name}/add", ADMINS, "Put nodes into a block",
          lambda a: partial(blocks.put, name=a.names["name"], nodes=a.body.nodes),
          reply=b.BlockReply, body=b.BlockNodes),
    route("POST", "/blocks/{name}/remove", ADMINS, "Take nodes out of a block",
          lambda a: partial(blocks.remove, name=a.names["name"], nodes=a.body.nodes),
          reply=b.BlockReply, body=b.BlockNodes),
)
