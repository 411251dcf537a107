"""The page of the search in the header: things with the words in them, as far as the person may see
them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field

from cod.flows.people.access import guarded
from cod.model import Listed, Refused
from cod.pool import Tx
from cod.web.api.models import REVISION, Query
from cod.web.api.resources.groups import GroupQuery
from cod.web.api.resources.nodes import NodeQuery
from cod.web.api.resources.people import UserQuery
from cod.web.api.resources.requests import RequestQuery
from cod.web.api.resources.software import ImageQuery, TemplateQuery
from cod.web.api.resources.vclusters import VclusterQuery
from cod.web.api.resources.volumes import VolumeQuery
from cod.web.api.routes import Names, Numbered
from cod.web.portal.links import url
from cod.web.portal.page import Page, PageCall, api

SHOWN = 8  # things of a kind
WORDS = 8  # words that are searched for; each costs a search, so others are ignored


class SearchQuery(Query):
    q: str = Field(default="", max_length=REVISION)


@dataclass(frozen=True, slots=True)
class FoundKind:
    """The first few things of a kind. `more` is the page that has all of them; '': there is
    none."""

    title: str
    kind: str
    things: Listed[Any]
    more: str


def _load(tx: Tx, ask: PageCall[Names, Any]) -> dict[str, Any]:
    # the database would end the text at a NUL character, and then find everything
    printed = "".join(each if each.isprintable() else " " for each in ask.query.q)
    words = printed.split()[:WORDS]
    text = " ".join(words)
    if not text:
        return {"found": [], "request": None, "sought": ""}
    # each word is quoted, because it may have a meaning in filters
    where = " ".join(f'"{word}"' for word in text.replace('"', " ").split())
    asked: tuple[tuple[str, str, BaseModel], ...] = (
        ("Nodes", "nodes", NodeQuery(where=where, limit=SHOWN)),
        ("Virtual clusters", "vclusters", VclusterQuery(q=text, limit=SHOWN)),
        ("Requests", "requests", RequestQuery(q=text, limit=SHOWN)),
        ("Templates", "templates", TemplateQuery(q=text, limit=SHOWN)),
        ("Images", "images", ImageQuery(q=text, limit=SHOWN)),
        ("Volumes", "volumes", VolumeQuery(q=text, limit=SHOWN)),
        ("Groups", "groups", GroupQuery(q=text, limit=SHOWN)),
        ("People", "users", UserQuery(q=text, limit=SHOWN)),
    )
    found = []
    for title, kind, query in asked:
        things = _answered(tx, f"GET /{kind}", replace(ask, query=query))
        if things:
            found.append(FoundKind(title, kind, things, _more(kind, where, text, ask.who.admin)))
    return {"found": found, "request": _request(tx, ask, text.removeprefix("#")), "sought": text}


def _more(kind: str, where: str, text: str, admin: bool) -> str:
    if kind == "users":
        return url("people", q=text) if admin else ""
    return url("nodes", where=where) if kind == "nodes" else url(kind, q=text)


def _request(tx: Tx, ask: PageCall[Names, Any], number: str) -> Any:
    """Return the request of that number; None if there is none that the person may see."""
    with suppress(Refused):
        if number.isdigit():
            numbered = replace(ask, names=Numbered(id=number), query=None)
            return _answered(tx, "GET /requests/{id}", numbered)
    return None


def _answered(tx: Tx, operation: str, ask: PageCall[Any, Any]) -> Any:
    """Return the value of that route of the API, under the person's rights. Raises `Refused`."""
    route = api(operation)
    return guarded(tx, flow=route.call(ask), who=ask.who, claims=route.claims(ask))


PAGES = (Page("/search", "search.html", _load, query=SearchQuery),)
