"""Pages about templates: a list, one template with its revisions and their differences, and an
editor."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from cod.flows import views
from cod.flows.images import images, templates
from cod.flows.nodes import types
from cod.flows.people import groups
from cod.flows.people.access import RequiredRight
from cod.model import SITE, ImageView, Template, owner_of
from cod.pool import Tx
from cod.web.api.models import FULL, REVISION, Query
from cod.web.api.resources.software import TemplateQuery, TemplateReply, listed_templates
from cod.web.api.routes import ANYBODY, Call, Named, Names, see, seen
from cod.web.http.errors import HttpProblem
from cod.web.portal import requirements_form, templateform
from cod.web.portal.answers import Answer, PageRequest
from cod.web.portal.documents import described, form_names
from cod.web.portal.forms import Fields
from cod.web.portal.front import Portal, filled
from cod.web.portal.page import Page, PageCall, SessionAction, act, to
from cod.web.portal.pages.wizard import owners

MOST_COMPARED = 600  # lines of a document
SHOWN, NEW, AS_XML, AS_FORM = "/templates/{name}", "/templates/new", "/templates", "/templates/form"


class NewQuery(Query):
    """Initial values of the form: the template to copy, or the image to write; and the view."""

    like: str = Field(default="", max_length=REVISION)
    image: str = Field(default="", max_length=FULL)
    view: str = Field(default="", max_length=8)


class OneQuery(Query):
    """The revision to compare with."""

    since: int = Field(default=0, ge=0, le=2**31, description="0: the one before")


def _list(tx: Tx, ask: PageCall[Names, TemplateQuery]) -> dict[str, Any]:
    """Return the newest revision of each template, as the API's route lists them."""
    found = listed_templates(ask)(tx)
    images = templates.image_names(tx, list(found))
    return {"found": found.each(lambda one: described(one, images[one.id])), "names": _names(tx)}


def _names(tx: Tx) -> dict[int | None, str]:
    """Return groups' names by id."""
    return {None: "the site", **{one.id: one.name for one in groups.every(tx)}}


def _one(tx: Tx, ask: PageCall[Named, OneQuery]) -> dict[str, Any]:
    found = templates.resolve(tx, name=ask.names.name)
    revisions = sorted(templates.every(tx, name=found.name), key=lambda one: -one.revision)
    before = next((one for one in revisions if one.revision == ask.query.since), None) or next(
        (one for one in revisions if one.revision < found.revision), None
    )
    return {
        "t": found,
        "about": described(found, templates.image_names(tx, [found])[found.id]),
        "revisions": revisions,
        "before": before,
        "changes": changes(before, found) if before else [],
        "owner": _names(tx)[found.group_id],
        "users": [
            one
            for one in views.vcluster_list(tx, groups=ask.who.groups)
            if one.template.partition("@")[0] == found.name
        ],
    }


def changes(before: Template, after: Template) -> list[tuple[str, str]]:
    """Return the differences line by line: ('+', '-', ' ' or '@', the line)."""
    old, new = before.document.splitlines(), after.document.splitlines()
    if max(len(old), len(new)) > MOST_COMPARED:  # the time of a comparison grows with the square
        return [("@", f"Not compared: one of the two has more than {MOST_COMPARED} lines.")]
    lines = difflib.unified_diff(old, new, n=3, lineterm="")
    return [(line[:1], line[1:]) for line in lines if not line.startswith(("---", "+++"))]


# ---------------------------------------------------------------- the editor


def _begun(ask: PageCall[Names, NewQuery]) -> list[RequiredRight]:
    return [seen("template", ask.query.like)]


def _new(tx: Tx, ask: PageCall[Names, NewQuery]) -> dict[str, Any]:
    like = templates.resolve(tx, name=ask.query.like) if ask.query.like else None
    found = images.every(tx, groups=ask.who.groups)
    chosen = next((one for one in found if one.name == ask.query.image), None)
    names = form_names(one.name for one in found)
    disks = _named(found, "disk", names)
    offered = owners(tx, ask.who)
    filled: Fields | None
    if like:
        filled = templateform.fields_of(like.document)
    elif chosen and chosen.state == "ready":
        filled = templateform.begun(names[chosen.name], chosen.content)
    elif ask.query.image:  # there is no such image, or it is not ready
        filled = templateform.begun("", "disk")
    else:
        preferred = ("", SITE, *(group for group, _ in offered[:1]))
        near = (name for name in disks if owner_of(name) in preferred)
        filled = templateform.begun(next(near, ""), "disk")
    source = like or chosen
    owner = source.group_id if source else None
    return {
        "chosen": chosen,
        "like": like,
        "text": like.document if like else "",
        "filled": filled,
        "was": (filled or Fields()).one,
        "owners": offered,
        "owner": _names(tx)[owner] if owner is not None else "",
        "disks": disks,
        "partitions": _named(found, "partition", names),
        "files": _named(found, "file", names),
        "choices": requirements_form.choices(types.every(tx)),
        "form": templateform,
    }


def _named(found: Iterable[ImageView], content: str, names: Mapping[str, str]) -> list[str]:
    return [names[one.name] for one in found if one.content == content and one.state == "ready"]


PAGES = (
    Page("/templates", "templates.html", _list, ANYBODY, TemplateQuery),
    Page(NEW, "template-new.html", _new, _begun, NewQuery, "/templates"),
    Page(SHOWN, "template.html", _one, see("template"), OneQuery, "/templates"),
)


def _from_form(fields: Fields) -> dict[str, Any]:
    if wrong := templateform.missing(fields):
        raise HttpProblem(422, "invalid", next(iter(wrong.values())), next(iter(wrong)), wrong)
    return {"document": templateform.document(fields), "group": fields.one("group")}


def _from_xml(fields: Fields) -> dict[str, Any]:
    return {"document": fields.one("document"), "group": fields.one("group")}


async def _to_xml(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Show the form's template as XML."""
    typed = {"document": [templateform.document(fields)], "group": [fields.one("group")]}
    return await _viewed(portal, asked, AS_XML, Fields(typed))


async def _to_form(portal: Portal, asked: PageRequest, fields: Fields) -> Answer:
    """Show the XML's template as a form."""
    found = templateform.fields_of(fields.one("document"))
    if found is None:
        sentence = "The document is not XML, or uses elements that the form does not show."
        return await _viewed(portal, asked, AS_XML, fields, HttpProblem(422, "invalid", sentence))
    typed = Fields({**found.values, "group": [fields.one("group")]})
    return await _viewed(portal, asked, AS_FORM, typed)


async def _viewed(
    portal: Portal, asked: PageRequest, path: str, typed: Fields, wrong: HttpProblem | None = None
) -> Answer:
    form = filled(asked, typed, wrong)
    form.path = path
    return await portal.page_with(asked, NEW, form, wrong.status if wrong else 200)


def _saved(ask: Call, reply: TemplateReply) -> str:
    return f"{reply.name} is saved as revision {reply.revision}."


def _template_page(ask: Call, reply: TemplateReply) -> str:
    return f"/templates/{reply.name}"


ACTIONS = (
    act(AS_XML, "POST /templates", NEW, _saved, then=_template_page, body=_from_xml),
    act(AS_FORM, "POST /templates", NEW, _saved, then=_template_page, body=_from_form),
    act("/templates/check", "POST", NEW, body=_from_xml, again=AS_XML),
    act("/templates/form/check", "POST /templates/check", NEW, body=_from_form, again=AS_FORM),
    SessionAction("/templates/as-xml", NEW, _to_xml),
    SessionAction("/templates/as-form", NEW, _to_form),
    act(
        SHOWN + "/retire",
        f"DELETE {SHOWN}",
        SHOWN,
        "{ask.names.name} is retired: nothing new can run it.",
        then=to("/templates"),
    ),
)
