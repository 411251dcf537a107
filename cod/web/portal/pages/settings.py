"""Pages about the site's settings: a list, and one setting with its changes and the form to change
it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from cod.flows import site_settings
from cod.model import SiteSetting
from cod.pool import Tx
from cod.web.api.routes import ADMINS, Call, Named
from cod.web.portal.page import Page, PageCall, act

LIST, SHOWN = "/settings", "/settings/{name}"
SOURCES = {"default": "default", "file": "site file", "change": "changed here"}


def _place(setting: SiteSetting) -> str:
    """Return the table that a setting is in: 'policy', 'subnet.0'; '' for the file's own keys."""
    return setting.name.rpartition(".")[0]


def _list(tx: Tx, ask: Call) -> dict[str, Any]:
    found = site_settings.every(tx, rules=ask.rules)
    return {
        "tables": [(place, list(some)) for place, some in groupby(found, _place)],
        "problems": [each for each in found if each.problem],
        "sources": SOURCES,
    }


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    view = site_settings.show(tx, name=ask.names.name, rules=ask.rules)
    return {
        "one": view.setting,
        "history": list(zip(view.history, view.texts, strict=True)),
        "sources": SOURCES,
    }


PAGES = (
    Page(LIST, "settings.html", _list, ADMINS),
    Page(SHOWN, "setting.html", _one, ADMINS, nav=LIST),
)
ACTIONS = (
    act(
        SHOWN,
        f"PATCH {SHOWN}",
        SHOWN,
        "{reply.name} is {reply.text} on all servers.",
        # the text as typed: the API converts it by the setting's kind
        body=lambda fields: {"value": fields.one("value")},
    ),
    act(f"{SHOWN}/undo", f"POST {SHOWN}/undo", SHOWN, "{reply.name} is {reply.text} again."),
    act(
        f"{SHOWN}/take-back",
        f"PATCH {SHOWN}",
        SHOWN,
        "{reply.name} is {reply.text}, as in the site file.",
        body=lambda fields: {"value": None},
    ),
)
