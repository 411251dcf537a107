"""Asking for nodes: a new virtual cluster, and more nodes for one that there is."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from cod.flows import groups, templates, types, views
from cod.flows.access import offered
from cod.model import Group, Right, Who
from cod.net import bodies as b
from cod.net.bodies.base import Query
from cod.net.portal import attributes, forms
from cod.net.portal.documents import described
from cod.net.portal.forms import Fields
from cod.net.portal.pages import Action, Page, api, to
from cod.net.routes import ANYBODY, Ask, Flow, use

MOST_KINDS = 5  # kinds of nodes that one form asks for
NEW, MORE = "/vclusters/new", "/vclusters/{name}/ask"


class NewQuery(Query):
    """What is chosen already: a template or a group that one comes from."""

    template: str = Field(default="", max_length=80)
    group: str = Field(default="", max_length=63)


class MoreQuery(Query):
    """For how many kinds of nodes there are fields."""

    kinds: int = Field(default=1, ge=1, le=MOST_KINDS)


def own_groups(tx: Any, who: Who, right: Right = Right.USE) -> list[Group]:
    """The groups that `who` has that right on."""
    return [one for one in groups.every(tx, who.groups) if offered(who, right, one.id)]


def _choices(tx: Any, ask: Ask) -> dict[str, Any]:
    found = [described(one) for one in templates.every(tx, groups=ask.who.groups) if one.retired_at is None]
    return {"templates": found, "choices": attributes.choices(types.every(tx))}


def _new(ask: Ask) -> Flow:
    def load(tx: Any) -> dict[str, Any]:
        return _choices(tx, ask) | {
            "groups": own_groups(tx, ask.who), "default_lease": ask.site.policy.default_lease}

    return load


def _more(ask: Ask) -> Flow:
    def load(tx: Any) -> dict[str, Any]:
        view = views.vcluster_alone(tx, ask.names["name"])
        return _choices(tx, ask) | {"view": view, "v": view.vcluster, "most": MOST_KINDS}

    return load


PAGES = (
    Page(NEW, "vcluster-new.html", _new, ANYBODY, NewQuery, "/vclusters"),
    Page(MORE, "vcluster-ask.html", _more, use("vcluster"), MoreQuery, "/vclusters"),
)


# ---------------------------------------------------------------- forms


def _wanted(fields: Fields) -> dict[str, Any]:
    """The body of a new virtual cluster."""
    made = forms.body_of(b.VclusterCreate, attributes.without(fields), {"lease": forms.seconds})
    return made | {"attributes": attributes.document(fields)}


def _asked(fields: Fields) -> dict[str, Any]:
    """The body of a request; kinds of nodes whose number was left empty are none."""
    places = sorted({int(name.split(".")[1]) for name in fields.values if re.match(r"tuples\.[0-9]{1,3}\.", name)})
    kept = [place for place in places if fields.one(f"tuples.{place}.count").strip() or place == places[0]]
    dropped = tuple(f"tuples.{place}." for place in places if place not in kept)
    rest = {name: texts for name, texts in fields.values.items() if not name.startswith((*dropped, "vcluster"))}
    prefixes = [f"tuples.{place}." for place in kept]
    made = forms.body_of(b.RequestSubmit, attributes.without(Fields(rest), prefixes), {})
    for one, prefix in zip(made.get("tuples", []), prefixes, strict=False):
        if isinstance(one, dict):
            one["attributes"] = attributes.document(fields, prefix)
    return made


def _supposed(fields: Fields, prefix: str = "", count: str = "size") -> dict[str, Any]:
    """The body of the question what would come of it."""
    texts = {"count": fields.one(prefix + count) or "1", "template": fields.one(prefix + "template"),
             "group": fields.one("group"), "vcluster": fields.one("vcluster"), "spread": fields.one("spread")}
    plain = Fields({name: [text] for name, text in texts.items() if text})
    return forms.body_of(b.MatchAsk, plain, {}) | {"attributes": attributes.document(fields, prefix)}


def _came(ask: Ask, reply: b.VclusterInFull) -> str:
    return f"{reply.name} is asked for. Its nodes come as soon as they are free."


ACTIONS = (
    Action("/vclusters", api("POST", "/vclusters"), NEW, lambda ask, reply: f"/vclusters/{reply.name}", _came,
           body=_wanted),
    Action("/vclusters/{name}/requests", api("POST", "/vclusters/{name}/requests"), MORE, to("/vclusters/{name}"),
           lambda ask, reply: "The nodes are asked for.", body=_asked),
    Action("/vclusters/check", api("POST", "/match"), NEW, to(NEW), body=_supposed, again="/vclusters"),
    Action("/vclusters/{name}/check", api("POST", "/match"), MORE, to(MORE), again="/vclusters/{name}/requests",
           body=lambda fields: _supposed(fields, "tuples.0.", "count")),
)
