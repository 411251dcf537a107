"""Pages about maintenance windows: a list, the effect of a new window on leases, and one window."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cod.filters.language import LONGEST, LONGEST_LIST
from cod.flows.scheduler import maintenance
from cod.model import MaintenanceWindow, WindowView
from cod.pool import Tx
from cod.states import WindowState
from cod.web.api.models import Query
from cod.web.api.routes import ANYBODY, Names, Numbered, number
from cod.web.portal import forms
from cod.web.portal.page import Page, PageCall, act, to

LIST, SHOWN = "/maintenance", "/maintenance/{id}"
_TIMES = {"begins_at": forms.moment, "ends_at": forms.moment}
_OPEN = (WindowState.PLANNED, WindowState.RUNNING)


class MaintenanceQuery(Query):
    """Initial values of the form."""

    names: str = Field(default="", max_length=LONGEST_LIST)
    where: str = Field(default="", max_length=LONGEST)
    drain: bool = False


def word(view: WindowView) -> str:
    """Return the word for a window's state."""
    window = view.window
    if window.drain and window.state == WindowState.RUNNING and view.out < view.nodes:
        return "draining"
    return window.state


def is_open(window: MaintenanceWindow) -> bool:
    """Return whether the window can be changed or ended."""
    return window.state in _OPEN


def _list(tx: Tx, ask: PageCall[Names, MaintenanceQuery]) -> dict[str, Any]:
    found = maintenance.every(tx, site=ask.site, now=ask.now, groups=ask.who.groups)
    return {
        "planned": [view for view in found if is_open(view.window)],
        "over": [view for view in found if not is_open(view.window)],
        "word": word,
    }


def _one(tx: Tx, ask: PageCall[Numbered]) -> dict[str, Any]:
    window_id = number(ask.names.id)
    view = maintenance.show(
        tx, window_id=window_id, site=ask.site, now=ask.now, groups=ask.who.groups
    )
    names = maintenance.node_names(tx, window_id=window_id) if ask.who.admin else []
    return {"view": view, "names": names, "word": word, "open": is_open(view.window)}


PAGES = (
    Page(LIST, "maintenance.html", _list, ANYBODY, MaintenanceQuery),
    Page(SHOWN, "maintenance-window.html", _one, ANYBODY, nav=LIST),
)
ACTIONS = (
    act(f"{LIST}/check", f"POST {LIST}/check", LIST, again=LIST, convert=_TIMES),
    act(
        LIST,
        f"POST {LIST}",
        LIST,
        "Maintenance of {reply.what} is planned. Owners whose nodes are taken are told.",
        then=lambda ask, reply: f"{LIST}/{reply.id}",
        convert=_TIMES,
    ),
    act(
        f"{SHOWN}/change",
        f"PATCH {SHOWN}",
        SHOWN,
        "The maintenance is changed. Owners whose nodes are taken are told.",
        convert=_TIMES,
    ),
    act(
        f"{SHOWN}/end", f"DELETE {SHOWN}", SHOWN, "The maintenance is {reply.state}.", then=to(LIST)
    ),
)
