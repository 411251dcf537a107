"""Images in their served form."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import select

from cod.model import Image, Refused
from cod.model import possible_names as full_names
from cod.states import CaptureState
from cod.store import tables as t
from cod.store.engine import Among, Tx
from cod.store.rows import Rows, theirs_or_shared

_c = t.images.c
_UNDER_WAY = (CaptureState.WANTED, CaptureState.RUNNING)  # captures that are to become images
ROWS = Rows(Image, t.images)
_NAMED = ROWS.select.where(Among(_c.name, "names"))
get, add, change, remove = ROWS.get, ROWS.add, ROWS.set, ROWS.remove


def named(tx: Tx, names: Collection[str], *, lock: bool = False) -> dict[str, Image]:
    """Return the images that have one of these full names, by name. `lock`: their rows are locked
    until the commit."""
    query = _NAMED.with_for_update() if lock else _NAMED
    return {image.name: image for image in ROWS.all(tx, query, {"names": list(names)})}


def resolve(tx: Tx, names: Collection[str], group: str, *, lock: bool = False) -> dict[str, Image]:
    """Return the images that `names` mean in templates of `group` ('': of the site), by the names
    as given."""
    return meant_by(tx, {group: names}, lock=lock)[group]


def meant_by(
    tx: Tx, names: Mapping[str, Collection[str]], *, lock: bool = False
) -> dict[str, dict[str, Image]]:
    """Return the images that names mean in templates of several groups, by group and name as given.

    If a group and the site have an image of the same bare name, a ready image has precedence: while
    the group's own image is being ingested, or has failed, templates go on with the site's.
    """
    found_by_name = named(
        tx,
        {
            full
            for group, each in names.items()
            for name in each
            for full in full_names(name, group)
        },
        lock=lock,
    )
    found: dict[str, dict[str, Image]] = {group: {} for group in names}
    for group, each in names.items():
        for name in each:
            images = [
                found_by_name[full] for full in full_names(name, group) if full in found_by_name
            ]
            if images:
                found[group][name] = next(
                    (one for one in images if one.state == "ready"), images[0]
                )
    return found


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[Image]:
    """Return the images of these groups and of the site, by name (None: all images)."""
    return ROWS.every(tx, *theirs_or_shared(_c.group_id, groups), order=_c.name)


def waiting(tx: Tx) -> list[Image]:
    """Return the images that are still to be ingested, the oldest first."""
    return ROWS.every(tx, _c.state == "ingesting", order=(_c.created_at, _c.id))


def taken_in(tx: Tx, image_id: int, **columns: object) -> None:
    """Record the outcome of taking an image in, unless an outcome is recorded already."""
    ROWS.set_where(tx, _c.id == image_id, _c.state == "ingesting", source="", **columns)


def check_free(tx: Tx, name: str, owner: int | None) -> Image | None:
    """Raise `Refused` unless the owner may create an image of that name. Return the failed image
    that the new one replaces, if there is one."""
    before = named(tx, [name], lock=True).get(name)
    if before and (before.state != "failed" or before.group_id != owner):
        raise Refused("conflict", f"there is an image {name!r} already", "name")
    under_way = tx.execute(
        select(t.uploads.c.id, t.uploads.c.group_id).where(t.uploads.c.name == name)
    ).one_or_none()
    if under_way:
        own = f": go on with {under_way[0]}, or delete it" if under_way[1] == owner else ""
        raise Refused("conflict", f"an upload of {name!r} is under way already{own}", "name")
    if tx.scalar(
        select(t.captures.c.image).where(
            t.captures.c.image == name, t.captures.c.state.in_(_UNDER_WAY)
        )
    ):
        raise Refused("conflict", f"a node is being captured as {name!r} already", "name")
    return before


def make_room(tx: Tx, name: str, owner: int | None) -> None:
    """Check that the name is free, as `check_free` does, and remove a failed image that has it."""
    if before := check_free(tx, name, owner):
        remove(tx, before.id)


def sources(tx: Tx) -> set[str]:
    """Return the files that are still to be ingested."""
    return set(tx.scalars(select(_c.source).where(_c.source != "")))


def digests(tx: Tx) -> set[str]:
    """Return the digests whose folders are needed: those of ready images, and of captures that are
    about to become images."""
    coming = select(t.captures.c.digest).where(
        t.captures.c.digest != "", t.captures.c.state.in_(_UNDER_WAY)
    )
    return {
        digest
        for query in (select(_c.digest).where(_c.state == "ready"), coming)
        for digest in tx.scalars(query)
    }
