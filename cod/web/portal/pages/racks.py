"""The map of the site: a square for each node, grouped by rack or by another property."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from markupsafe import Markup, escape

from cod.flows import views
from cod.flows.views import Square
from cod.pool import Tx
from cod.web.api.models import Query
from cod.web.api.routes import ADMINS, Names
from cod.web.portal import formatting
from cod.web.portal.page import Page, PageCall

BY: Mapping[str, tuple[str, Callable[[Square], str]]] = {
    "rack": ("Rack or block", lambda one: one.block),
    "type": ("Type", lambda one: one.type),
    "group": ("Group", lambda one: one.group),
    "state": ("State", lambda one: formatting.node_word(one.state)[0]),
}
_NONE = {"rack": "In no rack", "type": "Not reported yet", "group": "Held by nobody", "state": ""}
_CLASSES = {
    "good": "",
    "rest": " class=r",
    "sleep": " class=r",
    "wait": " class=w",
    "bad": " class=b",
    "busy": " class=y",
}
_PLACES = {"rack": "blocks", "type": "types", "group": "groups"}


class MapQuery(Query):
    """The property by which nodes are grouped."""

    by: Literal["rack", "type", "group", "state"] = "rack"


def _map(tx: Tx, ask: PageCall[Names, MapQuery]) -> dict[str, Any]:
    key = BY[ask.query.by][1]
    found: defaultdict[str, list[Square]] = defaultdict(list)
    for one in views.squares(tx):
        found[key(one)].append(one)
    parts = [
        (name or _NONE[ask.query.by], name, Counter(one.state for one in some), _squares(some))
        for name, some in sorted(found.items(), key=lambda each: (not each[0], each[0]))
    ]
    whole = Counter(one.state for some in found.values() for one in some)
    return {
        "parts": parts,
        "whole": whole,
        "place": _PLACES.get(ask.query.by, ""),
        "by": [(name, title) for name, (title, _) in BY.items()],
    }


def _squares(some: Sequence[Square]) -> Markup:
    """Return a square for each node. The square is a link, whose text has the node's name and
    state; screen readers read the text, and browsers show it under the pointer or the focus. As a
    page may have thousands of squares, each is made without a template and is a few bytes long:
    addresses are relative, and the most frequent colour has no class."""
    return Markup("".join(map(_square, some)))


def _square(one: Square) -> str:
    word, tone = formatting.node_word(one.state)
    title = f"{one.name} {word} {one.vcluster}".rstrip()
    return f"<a{_CLASSES[tone]} href=nodes/{quote(one.name)}><b>{escape(title)}</b></a>"


PAGES = (Page("/map", "map.html", _map, ADMINS, MapQuery, shared=True),)
