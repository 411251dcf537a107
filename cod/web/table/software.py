"""Routes about images and templates."""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import Any

from cod import model
from cod.flows.images import images, templates
from cod.flows.people.access import Claim
from cod.images.verify import verify
from cod.model import Right
from cod.web import bodies as b
from cod.web.routes import ADMINS, ANYBODY, Ask, in_parts, listed, owner, route, see, use
from cod.web.table.documents import checked
from cod.wire import xmldoc

_READING = Lock()


def _read_again(ask: Ask, image: model.Image) -> b.Verified:
    """In a thread: reads the whole image. One at a time: there are ten threads, and people sign in by them, too."""
    if not _READING.acquire(blocking=False):
        raise model.Refused("busy", "another image is being read at this moment; try again when that is done")
    try:
        found = verify(ask.images, image.digest)
    finally:
        _READING.release()
    return b.Verified(ok=not found.bad, chunks=found.chunks, bad=list(found.bad))


def _read_template(ask: Ask) -> Any:
    """In a thread: the document, read. Raises `Refused`."""
    return templates.read(checked(ask.body.document, "template", "document"))


def _faults(ask: Ask) -> Any:
    """In a thread: the document, read; or the faults that it shows before the database is asked."""
    try:
        xmldoc.parse(ask.body.document.encode(), "template")
        return templates.read(ask.body.document)
    except xmldoc.Refused as fault:
        return [b.TemplateFault(line=fault.line, sentence=fault.reason)]
    except model.Refused as fault:
        return [b.TemplateFault(line=_line(ask.body.document, fault.sentence), sentence=fault.sentence)]


def _check_template(tx: Any, read: Any, document: str, group: str) -> list[b.TemplateFault]:
    if isinstance(read, list):
        return read
    try:
        templates.check(tx, configuration=read, group=group)
    except model.Refused as fault:
        return [b.TemplateFault(line=_line(document, fault.sentence), sentence=fault.sentence)]
    return []


def _line(document: str, sentence: str) -> int:
    """Return the line of the document that has the first value which the sentence quotes; 0 where none has."""
    quoted = re.search(r"'([^']+)'", sentence)
    if quoted is None:
        return 0
    return next((number for number, line in enumerate(document.split("\n"), 1) if f'"{quoted[1]}"' in line), 0)


def _adds(ask: Ask) -> list[Claim]:
    """Members and owners of the group that it shall belong to; for the site, its administrators."""
    return [owner(ask.body.group)]


def _lists(ask: Ask) -> list[Claim]:
    """Everybody who is signed in; those of one template, who may look at it."""
    return [Claim(Right.SEE, "template", ask.query.name) if ask.query.name else Claim(Right.ANY)]


def _checks(ask: Ask) -> list[Claim]:
    """Everybody who is signed in; for a group, who is in it."""
    return [Claim(Right.SEE, "group", ask.body.group) if ask.body.group else Claim(Right.ANY)]


IMAGES = (
    route("GET", "/images", ANYBODY, "List images",
          lambda a: in_parts(partial(images.every, groups=a.who.groups), a.query.page, attrgetter("name", "group"),
                             name=attrgetter("name"), created_at=attrgetter("created_at"), group=attrgetter("group"),
                             stored=attrgetter("stored"), state=attrgetter("state")),
          shape=listed(b.ImageList, b.ImageReply.model_validate), reply=b.ImageList, query=b.ImageQuery),
    route("GET", "/images/{name}", see("image"), "Show an image",
          lambda a: partial(images.show, name=a.names["name"], groups=a.who.groups), reply=b.ImageReply),
    route("POST", "/images", ADMINS, "Take in a file of the server as an image",
          lambda a: partial(images.add, name=a.body.name, source=a.body.path, sha256=a.body.sha256 or "",
                            plain=a.body.plain, raw=a.body.raw, group=a.body.group, now=a.now),
          reply=b.ImageReply, body=b.ImageAdd, status=202, local=True, makes="/images/{name}"),
    route("POST", "/images/{name}/verify", use("image"), "Read an image again and compare every chunk with its digest",
          lambda a: partial(images.show, name=a.names["name"]), work=_read_again, reply=b.Verified, quiet=True,
          dear=True),
    route("DELETE", "/images/{name}", use("image"), "Delete an image that no template names",
          lambda a: partial(images.delete, name=a.names["name"]), status=204),
)
TEMPLATES = (
    route("GET", "/templates", _lists, "List templates: the newest revision of each, or all of one",
          lambda a: in_parts(partial(templates.every, name=a.query.name, groups=a.who.groups), a.query.page,
                             lambda one: (one.name,), name=lambda one: f"{one.name}@{one.revision:09}",
                             created_at=attrgetter("created_at")),
          shape=listed(b.TemplateList, b.TemplateReply.model_validate), reply=b.TemplateList, query=b.TemplateQuery),
    route("GET", "/templates/{name}", see("template"), "Show a template: 'name' or 'name@revision'",
          lambda a: partial(templates.resolve, name=a.names["name"]), reply=b.TemplateInFull),
    route("POST", "/templates", _adds,
          "Add a template; a changed document becomes a new revision",
          lambda a: partial(templates.add, document=a.body.document, configuration=a.prepared, group=a.body.group,
                            now=a.now),
          reply=b.TemplateReply, body=b.TemplateDocument, status=201, before=_read_template, dear=True,
          makes="/templates/{name}@{revision}"),
    route("POST", "/templates/check", _checks, "Say what is wrong with a template's document; nothing is stored",
          lambda a: partial(_check_template, read=a.prepared, document=a.body.document, group=a.body.group),
          shape=lambda faults: b.TemplateCheck(ok=not faults, faults=faults), reply=b.TemplateCheck,
          body=b.TemplateDocument, quiet=True, before=_faults, dear=True),
    route("DELETE", "/templates/{name}", use("template"),
          "Retire a revision, or all of a template's, that nothing uses",
          lambda a: partial(templates.retire, name=a.names["name"], now=a.now),
          shape=listed(b.TemplateList, b.TemplateReply.model_validate), reply=b.TemplateList),
)
