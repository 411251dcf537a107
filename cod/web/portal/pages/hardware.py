"""Pages about node types and blocks: what the site has, what it costs, and which nodes are near each other."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows.nodes import blocks, types
from cod.pool import Tx
from cod.web.portal import attributes
from cod.web.portal.page import Action, Loading, Page, PageCall, api, to, together
from cod.web.routes import ADMINS, Call, Named


def _types(ask: Call) -> Loading:
    return together(types=types.every, spoken=lambda tx: attributes.spoken)


def _type(ask: PageCall[Named]) -> Loading:
    def load(tx: Tx) -> dict[str, Any]:
        view, members = types.show(tx, name=ask.names.name, site=ask.site, groups=ask.who.groups)
        return {"view": view, "type": view.type, "members": members, "energy": ask.site.energy}

    return load


def _blocks(ask: Call) -> Loading:
    return together(blocks=blocks.every, proposal=blocks.proposal)


def _block(ask: PageCall[Named]) -> Loading:
    return together(block=partial(blocks.show, name=ask.names.name))


_TYPE, _BLOCK = "/types/{name}", "/blocks/{name}"

PAGES = (
    Page("/types", "types.html", _types),
    Page(_TYPE, "type.html", _type, nav="/types"),
    Page("/blocks", "blocks.html", _blocks, ADMINS),
    Page(_BLOCK, "block.html", _block, ADMINS, nav="/blocks"),
)
ACTIONS = (
    Action("/types/{name}/change", api("PATCH", _TYPE), _TYPE, lambda ask, reply: f"/types/{reply.name}",
           lambda ask, reply: f"{reply.name} is changed; the next plan goes by it."),
    Action("/types/{name}/forget", api("DELETE", _TYPE), _TYPE, to("/types"),
           lambda ask, reply: f"{ask.names.name} is forgotten."),
    Action("/blocks", api("POST", "/blocks"), "/blocks", to("/blocks"),
           lambda ask, reply: f"Block {reply.name} is created. Add nodes to it."),
    Action("/blocks/proposal", api("POST", "/blocks/proposal"), "/blocks", to("/blocks"),
           lambda ask, reply: "The proposed blocks are created."),
    Action("/blocks/{name}/add", api("POST", "/blocks/{name}/add"), _BLOCK, to(_BLOCK),
           lambda ask, reply: f"{reply.name} has {reply.nodes} nodes now."),
    Action("/blocks/{name}/remove", api("POST", "/blocks/{name}/remove"), _BLOCK, to(_BLOCK),
           lambda ask, reply: f"{reply.name} has {reply.nodes} nodes now."),
    Action("/blocks/{name}/delete", api("DELETE", _BLOCK), _BLOCK, to("/blocks"),
           lambda ask, reply: f"{ask.names.name} is deleted."),
)
