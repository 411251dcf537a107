"""Pages about images: a list with their users, one image, and the form that uploads a file."""

from __future__ import annotations

from typing import Any

from cod.flows.images import images, uploads
from cod.flows.people import groups
from cod.model import ImageView
from cod.pool import Tx
from cod.web.api.resources.software import IMAGES, ImageQuery, Verified
from cod.web.api.routes import ANYBODY, Call, Named, Names, see
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.pages.wizard import owners
from cod.web.portal.record_fields import columns_of, facts_of

LISTED = {
    *("name", "state", "format", "size", "used", "stored", "created_at", "reason", "group"),
    "used_by",
}
SHOWN, NEW = "/images/{name}", "/images/new"


def _list(tx: Tx, ask: PageCall[Names, ImageQuery]) -> dict[str, Any]:
    return {
        "found": IMAGES[0].call(ask)(tx),
        "rooms": _rooms(tx, ask),
        "uploads": uploads.every(tx, ask.who.groups),
        "served": images.is_served(tx, ask.now),
        "more": columns_of(ImageView, ask, LISTED),
    }


def _rooms(tx: Tx, ask: Call) -> list[tuple[str, int, int | None]]:
    """Return (group, bytes that its images have, bytes that they may have) for each of one's own
    groups."""
    own = [] if ask.who.admin else groups.every(tx, ask.who.groups)
    return [(one.name, *images.room(tx, group_id=one.id, rules=ask.site.images)) for one in own]


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    found = images.show(tx, name=ask.names.name, groups=ask.who.groups, now=ask.now)
    return {
        "image": found,
        "owner": found.group if found.group_id is not None else "the site",
        "told": facts_of(found, ask.now, without=ELSEWHERE),
    }


ELSEWHERE = frozenset(
    ("name", "group", "state", "reason", "size", "used", "stored", "sha256", "digest", "used_by")
)
"""Fields that the page has outside of its facts."""


def _new(tx: Tx, ask: Call) -> dict[str, Any]:
    return {
        "owners": owners(tx, ask.who),
        "rooms": _rooms(tx, ask),
        "uploads": uploads.every(tx, ask.who.groups),
        "served": images.is_served(tx, ask.now),
    }


PAGES = (
    Page("/images", "images.html", _list, ANYBODY, ImageQuery),
    Page(NEW, "image-new.html", _new, ANYBODY, nav="/images"),
    Page(SHOWN, "image.html", _one, see("image"), nav="/images"),
)


def _verified(ask: Call, reply: Verified) -> str:
    if reply.ok:
        return f"The image is intact: {reply.chunks} chunks were compared."
    return (
        f"The image is damaged: {len(reply.bad)} of {reply.chunks} chunks differ. Upload it again."
    )


ACTIONS = (
    act(
        SHOWN + "/delete",
        f"DELETE {SHOWN}",
        SHOWN,
        "Image {ask.names.name} is deleted.",
        then=to("/images"),
    ),
    act(SHOWN + "/verify", "POST", SHOWN, _verified),
    act("/uploads/{id}/drop", "DELETE /uploads/{id}", NEW, "The upload is cancelled."),
)
