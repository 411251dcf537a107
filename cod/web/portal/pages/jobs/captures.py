"""The page where a node's disk is made into an image, with the progress."""

from __future__ import annotations

from typing import Any

from cod.flows import views
from cod.flows.nodes import captures
from cod.flows.people.access import offered
from cod.model import CaptureView, Refused, Right, SingleRight
from cod.pool import Tx
from cod.states import CaptureState, NodeState
from cod.web.api.resources.jobs.captures import CAPTURES, CaptureQuery, CaptureWish
from cod.web.api.routes import ANYBODY, Call, Named, Names, see
from cod.web.portal.forms import Fields, body_of
from cod.web.portal.page import Page, PageCall, act
from cod.web.portal.pages.wizard import owners

NODE = "/nodes/{name}"
SHOWN = NODE + "/capture"
_OPEN = (CaptureState.WANTED, CaptureState.RUNNING)
_CAN = (NodeState.ACTIVE, NodeState.INACTIVE, NodeState.OFF)


def _list(tx: Tx, ask: PageCall[Names, CaptureQuery]) -> dict[str, Any]:
    return {"found": CAPTURES[0].call(ask)(tx)}


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    name = ask.names.name
    view = views.node(tx, name, ask.site.policy)
    last = _last(tx, name, ask)
    holder = views.vcluster_alone(tx, view.vcluster) if view.vcluster else None
    group = holder.vcluster.group_id if holder else None
    may = offered(ask.who, Right.USE, group, SingleRight.CAPTURE)
    return {
        "view": view,
        "node": view.node,
        "last": last,
        "holder": holder,
        "may": may,
        "under_way": last is not None and last.state in _OPEN,
        "can_be": view.node.state in _CAN,
        "owner": holder.group if holder else "",
        "owners": owners(tx, ask.who, SingleRight.CAPTURE),
    }


def _last(tx: Tx, name: str, ask: Call) -> CaptureView | None:
    """Return the node's newest capture; None if there is none that the caller may see."""
    try:
        return captures.show(tx, name=name, groups=ask.who.groups)
    except Refused:
        return None


PAGES = (
    Page("/captures", "captures.html", _list, ANYBODY, CaptureQuery, "/images"),
    Page(SHOWN, "capture.html", _one, see("node"), nav="/images"),
)


def _request_body(fields: Fields) -> dict[str, Any]:
    """Return the body. An empty name means that no template is made; a part of the disk never gets
    one."""
    made = body_of(CaptureWish, Fields({"image": fields.all("image")}), {})
    part = fields.one("part").strip()
    what: dict[str, Any] = {"template": "" if part else fields.one("template").strip()}
    if part:
        number = int(part) if part.isascii() and part.isdigit() and len(part) < 9 else part
        what |= {"map": True} if part == "map" else {"partition": number}
    return made | what | {"group": fields.one("group")}


ACTIONS = (
    act(
        SHOWN,
        "POST",
        SHOWN,
        "{reply.node} is being made into the image {reply.image}.",
        body=_request_body,
    ),
    act(
        SHOWN + "/cancel",
        f"DELETE {SHOWN}",
        SHOWN,
        "The capture is cancelled. The node returns to its previous state.",
    ),
)
