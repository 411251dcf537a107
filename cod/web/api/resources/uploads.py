"""Uploads: files on their way in, by the tus protocol (docs/uploads)."""

from __future__ import annotations

import secrets
from functools import partial
from operator import attrgetter

from cod.flows.images import uploads
from cod.model import Upload
from cod.web.api.resources.software import UploadCreate, UploadQuery, UploadReply, adds
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Names,
    Numbered,
    in_parts,
    numbered_route,
    paged,
    route,
    see,
    use,
)


def _create(ask: Call[Names, UploadCreate]) -> Flow[Upload]:
    asked = ask.body
    return partial(
        uploads.create,
        upload_id=secrets.token_hex(16),
        name=asked.name,
        group=asked.group,
        size=asked.size,
        sha256=asked.sha256 or "",
        plain=asked.plain,
        raw=asked.raw,
        actor=ask.actor,
        rules=ask.site.images,
        now=ask.now,
    )


def _one(ask: Call[Numbered]) -> Flow[Upload]:
    return partial(uploads.one, upload_id=ask.names.id, now=ask.now)


UPLOADS = (
    route(
        "GET /uploads",
        ANYBODY,
        "List uploads under way",
        lambda a: in_parts(
            partial(uploads.every, groups=a.who.groups),
            a.query.page,
            attrgetter("name", "group"),
            name=attrgetter("name"),
            created_at=attrgetter("created_at"),
            expires_at=attrgetter("expires_at"),
        ),
        reply=paged(UploadReply, "Uploads under way."),
        query=UploadQuery,
    ),
    route(
        "POST /uploads",
        adds,
        "Start an upload, with or without its first piece",
        _create,
        reply=UploadReply,
        body=UploadCreate,
        upload=True,
        makes="/uploads/{id}",
    ),
    numbered_route(
        "GET /uploads/{id}",
        see("upload"),
        "Show an upload; HEAD tells where to go on",
        _one,
        reply=UploadReply,
        upload=True,
    ),
    numbered_route(
        "PATCH /uploads/{id}",
        use("upload"),
        "Send the next piece; the last one makes the image",
        _one,
        upload=True,
    ),
    numbered_route(
        "DELETE /uploads/{id}",
        use("upload"),
        "Give an upload up",
        lambda a: partial(uploads.drop, upload_id=a.names.id),
        upload=True,
    ),
)
