"""Images and templates."""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cod import model
from cod.flows.images import images, templates
from cod.flows.people.access import RequiredRight
from cod.images.verify import verify
from cod.pool import Tx
from cod.web.api.models import FULL, Body, OwnName, Paged, Reply, ReplyOf, Sha256
from cod.web.api.routes import (
    ADMINS,
    ANYBODY,
    Call,
    Flow,
    Names,
    Shaped,
    Worked,
    in_parts,
    named_route,
    owner,
    paged,
    route,
    see,
    seen,
    use,
)
from cod.wire import xmldoc

RAW = "take it in although it holds neither a partition table nor a file system that is known here"


class ImageAdd(Body):
    """A file on the server to take in as an image; only the local administrator may name one."""

    name: OwnName
    path: str = Field(min_length=1, max_length=4096, pattern="^/")
    sha256: Sha256 | None = None
    plain: bool = Field(default=False, description="serve it as it is: a kernel or ramdisk")
    raw: bool = Field(default=False, description=RAW)
    group: str = Field(default="", max_length=63, description="whose it is; empty: the site's")


class UploadCreate(Body):
    """A file that is to be sent piece by piece and to become an image."""

    name: OwnName
    size: int = Field(ge=0, le=2**63 - 1, description="bytes")
    group: str = Field(default="", max_length=63, description="whose it is; empty: the site's")
    sha256: Sha256 | None = None
    plain: bool = Field(default=False, description="serve it as it is: a kernel or ramdisk")
    raw: bool = Field(default=False, description=RAW)


class UploadReply(ReplyOf[model.Upload]):
    """A file on its way in: `offset` of its `size` bytes are on the server's disk. The server
    deletes it at `expires_at` unless more of it comes."""

    id: str
    name: str
    group: str
    size: int
    offset: int
    sha256: str
    plain: bool
    raw: bool
    actor: str
    created_at: float
    expires_at: float


class UploadQuery(Paged):
    sort: Literal["name", "-name", "created_at", "-created_at", "expires_at", "-expires_at"] = (
        "name"
    )


class ImageReply(ReplyOf[model.ImageView]):
    """An image. `used_by` has those of its users that the caller may see."""

    state: Literal["ingesting", "ready", "failed"]


class ImageQuery(Paged):
    sort: Literal[
        "name",
        "-name",
        "created_at",
        "-created_at",
        "stored",
        "-stored",
        "state",
        "-state",
        "group",
        "-group",
    ] = "name"


class Verified(Reply):
    """Result of reading an image again: `bad` names damaged chunks."""

    ok: bool
    chunks: int
    bad: list[str]


class TemplateDocument(Body):
    """A template's XML."""

    document: Annotated[str, Field(min_length=1, max_length=2**18)]
    group: str = Field(default="", max_length=63, description="whose it is; empty: the site's")


class TemplateQuery(Paged):
    sort: Literal["name", "-name", "created_at", "-created_at"] = "name"

    name: str = Field(
        default="", max_length=FULL, description="all revisions of this one, not the newest of each"
    )


class TemplateReply(ReplyOf[model.Template]):
    """A revision of a template."""

    name: str
    revision: int


class TemplateInFull(TemplateReply):
    """A revision of a template with its XML."""

    document: str


_TEMPLATES = paged(TemplateReply, "Templates.")


class TemplateFault(Reply):
    """One fault of a template's document."""

    line: int
    sentence: str


class TemplateCheck(Reply):
    """Faults of a template's document; none, if `ok`."""

    ok: bool
    faults: list[TemplateFault]


_READING = Lock()


def _read_again(ask: Call, image: model.Image) -> Verified:
    """Read the whole image, in a thread, and return whether it is intact. Only one image is read at
    a time, because there are ten threads, and people's sign-ins need them, too."""
    if not _READING.acquire(blocking=False):
        raise model.Refused(
            "busy", "another image is being read at this moment; try again when that is done"
        )
    try:
        found = verify(ask.images, image.digest)
    finally:
        _READING.release()
    return Verified(ok=not found.bad, chunks=found.chunks, bad=list(found.bad))


def read_template(document: str) -> Any:
    """Parse a template's document, which is slow, and return it. Raises `Refused`."""
    try:
        xmldoc.parse(document.encode(), "template")
    except xmldoc.BadDocument as fault:
        raise model.Refused("invalid", str(fault), "document") from None
    return templates.read(document)


def _faults(ask: Call[Names, TemplateDocument]) -> Any:
    """Return the parsed document, or the faults that it has without a look at the database."""
    try:
        xmldoc.parse(ask.body.document.encode(), "template")
        return templates.read(ask.body.document)
    except xmldoc.BadDocument as fault:
        return [TemplateFault(line=fault.line, sentence=fault.reason)]
    except model.Refused as fault:
        return [
            TemplateFault(line=_line(ask.body.document, fault.sentence), sentence=fault.sentence)
        ]


def _check_template(tx: Tx, read: Any, document: str, group: str) -> list[TemplateFault]:
    if isinstance(read, list):
        return read
    try:
        templates.check(tx, configuration=read, group=group)
    except model.Refused as fault:
        return [TemplateFault(line=_line(document, fault.sentence), sentence=fault.sentence)]
    return []


def _line(document: str, sentence: str) -> int:
    """Return the number of the line with the value that the sentence quotes first; 0 if no line has
    it."""
    quoted = re.search(r"'([^']+)'", sentence)
    if quoted is None:
        return 0
    return next(
        (number for number, line in enumerate(document.split("\n"), 1) if f'"{quoted[1]}"' in line),
        0,
    )


def adds(ask: Call[Names, TemplateDocument | UploadCreate]) -> list[RequiredRight]:
    """Return the rights of members and owners of the group that gets the image or template; for the
    site, of its administrators."""
    return [owner(ask.body.group)]


def _lists(ask: Call[Names, BaseModel, TemplateQuery]) -> list[RequiredRight]:
    """Return the rights of everybody who is signed in; for the revisions of one template, of
    everybody in its group."""
    return [seen("template", ask.query.name)]


def listed_templates(
    ask: Call[Names, BaseModel, TemplateQuery],
) -> Flow[model.Listed[model.Template]]:
    """Return the newest revision of each template, or all of one."""
    return in_parts(
        partial(templates.every, name=ask.query.name, groups=ask.who.groups),
        ask.query.page,
        lambda one: (one.name,),
        name=lambda one: f"{one.name}@{one.revision:09}",
        created_at=attrgetter("created_at"),
    )


def _checks(ask: Call[Names, TemplateDocument]) -> list[RequiredRight]:
    """Return the rights of everybody who is signed in; for a group, of everybody in it."""
    return [seen("group", ask.body.group, "group")]


IMAGES = (
    route(
        "GET /images",
        ANYBODY,
        "List images",
        lambda a: in_parts(
            partial(images.every, groups=a.who.groups, now=a.now),
            a.query.page,
            attrgetter("name", "group"),
            name=attrgetter("name"),
            created_at=attrgetter("created_at"),
            group=attrgetter("group"),
            stored=attrgetter("stored"),
            state=attrgetter("state"),
        ),
        reply=paged(ImageReply, "Images."),
        query=ImageQuery,
    ),
    named_route(
        "GET /images/{name}",
        see("image"),
        "Show an image",
        lambda a: partial(images.show, name=a.names.name, groups=a.who.groups, now=a.now),
        reply=ImageReply,
    ),
    route(
        "POST /images",
        ADMINS,
        "Add a file of the server as an image",
        lambda a: partial(
            images.add,
            name=a.body.name,
            source=a.body.path,
            sha256=a.body.sha256 or "",
            plain=a.body.plain,
            raw=a.body.raw,
            group=a.body.group,
            now=a.now,
        ),
        reply=ImageReply,
        body=ImageAdd,
        status=202,
        local=True,
        makes="/images/{name}",
    ),
    named_route(
        "POST /images/{name}/verify",
        use("image"),
        "Read an image again and compare every chunk with its digest",
        lambda a: partial(images.show, name=a.names.name),
        reply=Worked(Verified, _read_again),
        quiet=True,
        dear=True,
    ),
    named_route(
        "DELETE /images/{name}",
        use("image"),
        "Delete an image that no template names",
        lambda a: partial(images.delete, name=a.names.name),
    ),
)

TEMPLATES = (
    route(
        "GET /templates",
        _lists,
        "List templates: the newest revision of each, or all of one",
        listed_templates,
        reply=_TEMPLATES,
        query=TemplateQuery,
    ),
    named_route(
        "GET /templates/{name}",
        see("template"),
        "Show a template: 'name' or 'name@revision'",
        lambda a: partial(templates.resolve, name=a.names.name),
        reply=TemplateInFull,
        # its document may hold secrets
        audit_view=lambda a: lambda tx: TemplateReply.of(templates.resolve(tx, name=a.names.name)),
    ),
    route(
        "POST /templates",
        adds,
        "Add a template; a changed document becomes a new revision",
        lambda a: partial(
            templates.add,
            document=a.body.document,
            configuration=a.prepared,
            group=a.body.group,
            now=a.now,
        ),
        reply=TemplateReply,
        body=TemplateDocument,
        before=lambda a: read_template(a.body.document),
        dear=True,
        makes="/templates/{name}@{revision}",
    ),
    route(
        "POST /templates/check",
        _checks,
        "Check a template's document; nothing is stored",
        lambda a: partial(
            _check_template, read=a.prepared, document=a.body.document, group=a.body.group
        ),
        reply=Shaped(TemplateCheck, lambda faults: TemplateCheck(ok=not faults, faults=faults)),
        body=TemplateDocument,
        quiet=True,
        before=_faults,
        dear=True,
    ),
    named_route(
        "DELETE /templates/{name}",
        use("template"),
        "Retire a revision, or all of a template's, that nothing uses",
        lambda a: partial(templates.retire, name=a.names.name, now=a.now),
        reply=_TEMPLATES,
    ),
)
