"""The page where nodes of a cluster are installed again, with the progress."""

from __future__ import annotations

from typing import Any

from cod.flows import views
from cod.flows.images import templates
from cod.flows.people.access import offered
from cod.flows.scheduler import reinstalls
from cod.model import Right
from cod.pool import Tx
from cod.web.api.models import Query
from cod.web.api.routes import Named, see
from cod.web.http.errors import HttpProblem
from cod.web.portal import formatting
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act

CLUSTER = "/vclusters/{name}"
SHOWN = f"{CLUSTER}/reinstall"


class ReinstallQuery(Query):
    """Initial value of the form."""

    where: str = ""


def _page(tx: Tx, ask: PageCall[Named, ReinstallQuery]) -> dict[str, Any]:
    view = views.vcluster_alone(tx, ask.names.name)
    found = templates.every(tx, groups=ask.who.groups)
    return {
        "view": view,
        "v": view.vcluster,
        "held": sum(view.states.values()),
        "every": reinstalls.under_way(tx, ask.names.name),
        "may": offered(ask.who, Right.USE, view.vcluster.group_id),
        "templates": [one.name for one in found if one.retired_at is None],
    }


def _body(fields: Fields) -> dict[str, Any]:
    """Return the body, without empty fields."""
    body: dict[str, Any] = {
        "nodes": fields.one("nodes").split(),
        "where": fields.one("where").strip(),
        "template": fields.one("template").strip() or None,
    }
    at_once = fields.one("at_once").strip()
    if at_once:
        body["at_once"] = int(at_once) if at_once.isascii() and at_once.isdigit() else at_once
    return body


def _sure(fields: Fields) -> dict[str, Any]:
    """Return the body. Raises `HttpProblem` unless a check box confirms that the disks may be
    erased."""
    if not fields.one("sure"):
        why = "tick this: what is on the disks is lost"
        raise HttpProblem(422, "invalid", why, "sure", {"sure": why})
    return _body(fields)


PAGES = (Page(SHOWN, "reinstall.html", _page, see("vcluster"), ReinstallQuery, "/vclusters"),)
ACTIONS = (
    act(f"{SHOWN}/check", "POST", SHOWN, again=SHOWN, body=_body),
    act(
        SHOWN,
        "POST",
        SHOWN,
        lambda ask, reply: f"{formatting.count(len(reply.items), 'node')} will be reinstalled.",
        body=_sure,
    ),
    act(
        f"{SHOWN}/stop",
        f"DELETE {SHOWN}",
        SHOWN,
        "Nodes that had not begun keep their system.",
    ),
)
