"""Pages about node types, with their numbers of nodes and costs, and about blocks of nearby
nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

from cod.flows.nodes import blocks, types
from cod.model import Right, TypeView
from cod.pool import Tx
from cod.web.api.routes import ADMINS, Named
from cod.web.portal import requirements_form
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.record_fields import body_by, settings_of


def _type(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    view, members = types.show(tx, name=ask.names.name, site=ask.site, groups=ask.who.groups)
    energy = ask.site.energy
    marks = ("warm_low", "warm_high", "watts_off", "watts_idle", "watts_busy")
    none = {each: f"the site's, {getattr(energy, each):g}" for each in marks}
    settings = settings_of(view, Right.ADMIN, none=none)
    return {"view": view, "type": view.type, "members": members, "settings": settings}


def _block(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    return {"block": blocks.show(tx, name=ask.names.name)}


_TYPE, _BLOCK = "/types/{name}", "/blocks/{name}"

PAGES = (
    Page(
        "/types",
        "types.html",
        lambda tx, ask: {"types": types.every(tx), "spoken": requirements_form.spoken},
    ),
    Page(_TYPE, "type.html", _type, nav="/types"),
    Page(
        "/blocks",
        "blocks.html",
        lambda tx, ask: {"blocks": blocks.every(tx), "proposal": blocks.proposal(tx)},
        ADMINS,
    ),
    Page(_BLOCK, "block.html", _block, ADMINS, nav="/blocks"),
)
ACTIONS = (
    act(
        "/types/{name}/change",
        f"PATCH {_TYPE}",
        _TYPE,
        "{reply.name} is changed; the next plan goes by it.",
        then=lambda ask, reply: f"/types/{reply.name}",
        body=partial(body_by, TypeView, Right.ADMIN),
    ),
    act(
        "/types/{name}/forget",
        f"DELETE {_TYPE}",
        _TYPE,
        "{ask.names.name} is forgotten.",
        then=to("/types"),
    ),
    act("/blocks", "POST", "/blocks", "Block {reply.name} is created. Add nodes to it."),
    act("/blocks/proposal", "POST", "/blocks", "The proposed blocks are created."),
    act("/blocks/{name}/add", "POST", _BLOCK, "{reply.name} has {reply.nodes} nodes now."),
    act("/blocks/{name}/remove", "POST", _BLOCK, "{reply.name} has {reply.nodes} nodes now."),
    act(
        "/blocks/{name}/delete",
        f"DELETE {_BLOCK}",
        _BLOCK,
        "{ask.names.name} is deleted.",
        then=to("/blocks"),
    ),
)
