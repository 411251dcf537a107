"""The forms that request nodes: a new virtual cluster, and more nodes for an existing one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import Field

from cod import quantity
from cod.flows import views
from cod.flows.images import templates
from cod.flows.nodes import types
from cod.flows.people import groups
from cod.flows.people.access import RequiredRight, offered
from cod.flows.scheduler import vclusters
from cod.flows.volumes import volumes
from cod.model import (
    SITE,
    AskedNodes,
    AskedVcluster,
    Group,
    Refused,
    Request,
    Right,
    SingleRight,
    Vcluster,
    Who,
    set_values,
)
from cod.model import Page as ListPage
from cod.model import described as noun_fields
from cod.pool import Tx
from cod.web.api.models import REVISION, Query
from cod.web.api.resources.energy import Moment
from cod.web.api.resources.plan import MatchAsk
from cod.web.api.resources.requests import RequestSubmit
from cod.web.api.resources.vclusters import VclusterCreate, VclusterInFull
from cod.web.api.routes import Call, Named, Names, use
from cod.web.portal import formatting, forms, requirements_form
from cod.web.portal.documents import described, form_names
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.record_fields import readers, settings_of

MOST_VOLUMES = 3  # volumes that a new cluster's form has room for; more are attached afterwards
MOST_KINDS = 5  # kinds of nodes that one form asks for
NEW, MORE = "/vclusters/new", "/vclusters/{name}/ask"


class Changed(Query):
    """The request whose values the form begins with, and changes to it: see `model.Remedy`."""

    request: int = Field(default=0, ge=0, le=2**53, description="0: none")
    count: int = Field(default=0, ge=0, le=100_000, description="0: as it was")
    spread: bool = False


class NewQuery(Changed):
    """Initial values of the form: a template or a group, a time (seconds since the epoch) and a
    type of nodes picked in the calendar, and a preset's values."""

    template: str = Field(default="", max_length=REVISION)
    group: str = Field(default="", max_length=63)
    type: str = Field(default="", max_length=63)
    lease: str = Field(default="", max_length=40)
    preemptible: bool = False
    starts_at: Moment = None
    ends_at: Moment = None


class MoreQuery(Changed):
    """Number of kinds of nodes that the form has fields for."""

    kinds: int = Field(default=1, ge=1, le=MOST_KINDS)


def own_groups(tx: Tx, who: Who, single: SingleRight | None = None) -> list[Group]:
    """Return the groups that `who` may use, or in which `who` has the right `single`."""
    return [one for one in groups.every(tx, who.groups) if offered(who, Right.USE, one.id, single)]


def owners(tx: Tx, who: Who, single: SingleRight | None = None) -> list[tuple[str, str]]:
    """Return the possible owners of an image or template that `who` adds, also by the right
    `single`, as options of a field. The group `site` is left out, because the option "the site"
    means the same (`store.people.groups.owner_id`)."""
    site = [("", "the site")] if who.admin else []
    own = own_groups(tx, who, single=single)
    return site + [(one.name, one.name) for one in own if one.name != SITE]


def node_choices(tx: Tx, ask: Call) -> dict[str, Any]:
    """Return the templates, and the attributes of node types, that a form offers."""
    found = [one for one in templates.every(tx, groups=ask.who.groups) if one.retired_at is None]
    images = templates.image_names(tx, found)
    return {
        "templates": [described(one, images[one.id]) for one in found],
        "said": form_names(one.name for one in found),
        "choices": requirements_form.choices(types.every(tx)),
    }


def _before(tx: Tx, changed: Changed, now: float) -> dict[str, str]:
    """Return the values of the request that the form begins with, by the names of the fields of
    `MORE`; without a start that is over, which would be refused."""
    if not changed.request:
        return {}
    view = views.request(tx, changed.request)
    request = view.request
    found = {
        "spread": "true" if changed.spread or request.may_spread else "",
        "wait": "true" if request.may_wait else "",
    }
    if request.starts_at is not None and request.starts_at > now and request.duration is not None:
        found |= {
            "starts_at": formatting.typed(request.starts_at),
            "duration": quantity.exact_span(request.duration),
        }
    for place, one in enumerate(request.tuples[:MOST_KINDS]):
        name, _, _ = view.templates[place].partition("@")
        found |= {
            f"tuples.{place}.count": str(one.count),
            f"tuples.{place}.template": name,
            f"tuples.{place}.xml": one.attributes,
        }
    if changed.count:
        found["tuples.0.count"] = str(changed.count)
    return found


PRESETS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("1 node for 4 hours", {"count": 1, "lease": "4h"}),
    ("4 nodes for a day", {"count": 4, "lease": "1d"}),
    (
        "16 preemptible nodes for a week, of one type or several",
        {"count": 16, "lease": "1w", "preemptible": 1, "spread": 1},
    ),
)
"""What a form for a new cluster may begin with: words, and the query."""
_LATEST = ListPage(limit=20)
_MOST_PRESETS = 3  # presets made from the clusters requested last


def _presets(tx: Tx, ask: Call) -> list[tuple[str, dict[str, Any]]]:
    """Return `PRESETS`, and the latest clusters that the person's groups requested."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for view in views.request_list(tx, page=_LATEST, groups=ask.who.groups):
        software = ", ".join(dict.fromkeys(each.partition("@")[0] for each in view.templates))
        nodes = formatting.count(sum(each.count for each in view.request.tuples), "node")
        words = f"As {view.vcluster}: {nodes} with {software}"
        found.setdefault(view.vcluster, (words, {"request": view.request.id}))
    return [*PRESETS, *found.values()][: len(PRESETS) + _MOST_PRESETS]


_NOTHING = AskedVcluster("", 0, "", "")
_BY_HAND = ("preemptible", "isolated", "homes")  # the page has fields of its own for them


def _new(tx: Tx, ask: PageCall[Names, NewQuery]) -> dict[str, Any]:
    if ask.query.request:
        was, asked = _again(tx, ask.query, ask.now)
    else:
        was = _picked(tx, ask.query)
        asked = replace(_NOTHING, preemptible=ask.query.preemptible)
    return node_choices(tx, ask) | {
        "preemptible": asked.preemptible,
        "settings": settings_of(asked, Right.USE, without=_BY_HAND),
        "groups": own_groups(tx, ask.who),
        "presets": _presets(tx, ask),
        "default_lease": ask.site.policy.default_lease,
        "was": was,
        "sizes": _sizes(ask),
        "most_volumes": MOST_VOLUMES,
        "volumes": [
            one.volume.name
            for one in volumes.every(tx, now=ask.now, group_ids=ask.who.groups)
            if one.volume.kind == "data"
            and one.volume.deleted_at is None
            and offered(ask.who, Right.USE, one.volume.group_id)
        ],
    }


def _again(tx: Tx, query: NewQuery, now: float) -> tuple[dict[str, str], AskedVcluster]:
    """Return the fields, and the cluster to ask for, with the values of an earlier request."""
    was, view = _before(tx, query, now), views.request(tx, query.request)
    made = views.vcluster_alone(tx, f"{view.vcluster}@{view.request.vcluster_id}")
    cluster = made.vcluster
    was |= {
        "name": cluster.name,
        "group": made.group,
        "lease": quantity.exact_span(cluster.lease_time),
        "isolated": "true" if cluster.isolated else "",
        "size": was["tuples.0.count"],
        "template": was["tuples.0.template"],
        "xml": was["tuples.0.xml"],
    }
    return was, replace(_NOTHING, **set_values(Vcluster, cluster))


def _picked(tx: Tx, query: NewQuery) -> dict[str, str]:
    """Return the fields with the values that were picked in the calendar."""
    found = {
        name: formatting.typed(at)
        for name, at in (("starts_at", query.starts_at), ("ends_at", query.ends_at))
        if at is not None
    }
    if query.count:
        found["size"] = str(query.count)
    if query.lease:
        found["lease"] = query.lease
    if query.spread:
        found["spread"] = "true"
    if query.type:
        found |= requirements_form.of_type(types.every(tx), query.type)
    return found


def _sizes(ask: Call) -> list[tuple[str, str]]:
    """Return the sizes of an isolated cluster's subnet as options of a field; none if the site has
    no VLANs."""
    found = vclusters.network_sizes(ask.site)
    return (
        [
            ("", "As large as the site's default, or as its nodes need"),
            *((str(prefix), f"/{prefix}: up to {room} nodes") for prefix, room in found),
        ]
        if found
        else []
    )


def _more(tx: Tx, ask: PageCall[Named, MoreQuery]) -> dict[str, Any]:
    view, was = views.vcluster_alone(tx, ask.names.name), _before(tx, ask.query, ask.now)
    if view.vcluster.ended_at is not None:
        raise Refused("not_found", f"vcluster {view.vcluster.name} has ended", "name")
    kinds = max(ask.query.kinds, sum(name.endswith(".count") for name in was))
    asked = AskedNodes(())
    if was:
        request = views.request(tx, ask.query.request).request
        asked = replace(asked, **set_values(Request, request))
    return node_choices(tx, ask) | {
        "view": view,
        "v": view.vcluster,
        "most": MOST_KINDS,
        "was": was,
        "kinds": kinds,
        "settings": settings_of(asked, Right.USE),
    }


def _seen(ask: PageCall[Names, Changed]) -> list[RequiredRight]:
    """Return the rights to see the request that the form begins with."""
    return [
        (
            RequiredRight(Right.SEE, "request", str(ask.query.request))
            if ask.query.request
            else RequiredRight(Right.ANY)
        )
    ]


PAGES = (
    Page(NEW, "vcluster-new.html", _new, _seen, NewQuery, "/vclusters"),
    Page(
        MORE,
        "vcluster-ask.html",
        _more,
        lambda ask: [*use("vcluster")(ask), *_seen(ask)],
        MoreQuery,
        "/vclusters",
    ),
)


# ---------------------------------------------------------------- forms


def _wanted(fields: Fields) -> dict[str, Any]:
    """Return the body of a new virtual cluster."""
    rows = [f"volumes.{place}." for place in range(MOST_VOLUMES)]
    unused = tuple(row for row in rows if not fields.one(f"{row}volume"))
    kept = Fields(
        {name: texts for name, texts in fields.values.items() if not name.startswith(unused)}
    )
    moment = forms.moments(fields)
    spans: dict[str, Callable[[str], Any]] = {
        "lease": quantity.read_span,
        "starts_at": moment,
        "ends_at": moment,
        **readers(AskedVcluster),
    } | {f"{row}delete_after": quantity.read_span for row in rows}
    made = forms.body_of(VclusterCreate, requirements_form.without(kept), spans)
    return (
        made | _ticked(fields, *_MAY_BE_LEFT) | {"attributes": requirements_form.document(fields)}
    )


_MAY_BE_LEFT = [
    each.name for each in noun_fields(AskedVcluster) if each.type is bool and each.optional
]


def _ticked(fields: Fields, *names: str) -> dict[str, bool]:
    """Return which of these check boxes are ticked. A box that the form does not have is left out,
    and the site's rules decide."""
    return {name: fields.one(name) == "true" for name in names if name in fields.all("boxes")}


def _asked(fields: Fields) -> dict[str, Any]:
    """Return the body of a request. A kind of nodes whose number is empty is left out."""
    places = sorted(
        {
            int(name.split(".")[1])
            for name in fields.values
            if re.match(r"tuples\.[0-9]{1,3}\.", name)
        }
    )
    kept = [
        place
        for place in places
        if fields.one(f"tuples.{place}.count").strip() or place == places[0]
    ]
    dropped = tuple(f"tuples.{place}." for place in places if place not in kept)
    rest = {
        name: texts
        for name, texts in fields.values.items()
        if not name.startswith((*dropped, "vcluster"))
    }
    prefixes = [f"tuples.{place}." for place in kept]
    moment = forms.moments(fields)
    made = forms.body_of(
        RequestSubmit,
        requirements_form.without(Fields(rest), prefixes),
        {"starts_at": moment, "before": moment, "duration": quantity.read_span}
        | readers(AskedNodes),
    )
    for one, prefix in zip(made.get("tuples", []), prefixes, strict=False):
        if isinstance(one, dict):
            one["attributes"] = requirements_form.document(fields, prefix)
    return made


def _supposed(fields: Fields, prefix: str = "", count: str = "size") -> dict[str, Any]:
    """Return the body of `POST /match`, which shows the prospects of the request."""
    texts = {
        "count": fields.one(prefix + count) or "1",
        "template": fields.one(prefix + "template"),
        "group": fields.one("group"),
        "vcluster": fields.one("vcluster"),
    }
    names = ("name", "lease", "spread", "preemptible", "starts_at", "ends_at")
    texts |= {name: fields.one(name).strip() for name in names}
    if fields.one("starts_at"):
        texts["lease"] = texts["lease"] or fields.one("duration").strip()
    plain = Fields({name: [text] for name, text in texts.items() if text})
    moment = forms.moments(fields)
    read = {"lease": quantity.read_span, "starts_at": moment, "ends_at": moment}
    made = forms.body_of(MatchAsk, plain, read) | _ticked(fields, "isolated")
    return made | {"attributes": requirements_form.document(fields, prefix)}


def _helped(count: str) -> Callable[[Fields], Fields]:
    """Return an edit that copies a chosen remedy ('38 spread') or proposal ('12 2026-12-14T08:00
    END', with an end if one was typed) into the fields. `count` is the field for the number of
    nodes."""

    def helped(fields: Fields) -> Fields:
        number, _, spread = fields.one("remedy").partition(" ")
        found = {"spread": "true"} if spread else {}
        fewer, *times = fields.one("proposal").split(" ")
        found |= dict(zip(("starts_at", "ends_at"), times, strict=False))
        if number or fewer:
            found[count] = number or fewer
        kept = {
            name: texts
            for name, texts in fields.values.items()
            if name not in ("remedy", "proposal")
        }
        return Fields(kept | {name: [text] for name, text in found.items()})

    return helped


def _came(ask: Call[Names, VclusterCreate], reply: VclusterInFull) -> str:
    if ask.body.starts_at is not None:
        return f"{reply.name} is reserved. Its nodes come at the start."
    return f"{reply.name} is requested. Its nodes come as soon as they are free."


ACTIONS = (
    act(
        "/vclusters",
        "POST",
        NEW,
        _came,
        then=lambda ask, reply: f"/vclusters/{reply.name}",
        body=_wanted,
    ),
    act(
        "/vclusters/{name}/requests",
        "POST",
        MORE,
        lambda ask, reply: f"The nodes are {'reserved' if reply.starts_at else 'requested'}.",
        then=to("/vclusters/{name}"),
        body=_asked,
    ),
    act(
        "/vclusters/check",
        "POST /match",
        NEW,
        body=_supposed,
        again="/vclusters",
        edit=_helped("size"),
    ),
    act(
        "/vclusters/{name}/check",
        "POST /match",
        MORE,
        again="/vclusters/{name}/requests",
        body=lambda fields: _supposed(fields, "tuples.0.", "count"),
        edit=_helped("tuples.0.count"),
    ),
)
