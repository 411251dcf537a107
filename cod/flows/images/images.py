"""Images: asked for, taken in, listed, deleted.

Adding writes a row in state *ingesting* that names a file on the server. One ingester at a time
across all servers (a claim) takes such rows, the oldest of each group in turn, turns the files into
their served form and reports. If it dies on the way, the rows and the files are still there and the
next one begins anew; folders that no row names are removed by it too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from cod.core import image_quota, image_users
from cod.model import (
    Effect,
    Image,
    ImageRules,
    ImageView,
    Ingested,
    Refused,
    Result,
)
from cod.policy import image_uploads as policy
from cod.policy.people import names
from cod.store import servers
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.people import groups

room = image_quota.room

RULES = ImageRules()


def add(
    tx: Tx,
    *,
    name: str,
    source: str,
    sha256: str = "",
    plain: bool = False,
    raw: bool = False,
    group: str = "",
    now: float,
) -> Result[ImageView]:
    """Have the file `source` (a path on the server) taken in as the image `name`. The value is the
    image, ingesting.

    name    as `names.full` takes it
    sha256  what the file's must be, '' if nobody said
    plain   serve it as it is: a kernel or ramdisk
    raw     it may hold neither partition table nor file system
    group   whose it is; '' or 'site': the site's
    A failed image of that name and owner is replaced. Raises `Refused`.
    """
    owner = groups.owner_id(tx, group)
    name = names.full(groups.prefix(tx, owner), name)
    images.make_room(tx, name, owner)
    image = images.add(
        tx,
        name=name,
        group_id=owner,
        state="ingesting",
        format="",
        sha256=sha256,
        source=source,
        content=policy.wanted_content(plain, raw),
        created_at=now,
    )
    return Result(_view(image, groups.names(tx)), (Effect("wake", "images"),))


def next_waiting(
    tx: Tx,
    *,
    busy: Collection[int | None] = (),
    served: Mapping[int | None, float] | None = None,
    absent: Collection[int] = (),
) -> Image | None:
    """Return the image that is taken in next; None: there is nothing to do.

    busy, served  groups, as for `policy.image_uploads.next_turn`
    absent        images, by id, whose files the server does not have
    """
    waiting = [image for image in images.waiting(tx) if image.id not in absent]
    return policy.next_turn(waiting, busy, served or {})


def left(tx: Tx, *, image: Image, rules: ImageRules) -> int | None:
    """Return the bytes that the served form of an image may take by its group's quota; None: any
    number."""
    return image_quota.left(tx, image.group_id, rules, image.stored)


def is_served(tx: Tx, now: float) -> bool:
    """Return whether an image server runs, which makes images of uploads."""
    return bool(servers.image_servers(tx, now))


def unneeded(tx: Tx, *, present: frozenset[str], alone: bool = False) -> set[str]:
    """Return the folders among `present` that no image names, for the one server that takes images
    in to remove.

    alone  the site has no other server: what it had under another name, or others had, is forgotten
    """
    if alone:
        servers.release_all(tx)
    return set(present) - images.digests(tx)


def finish(tx: Tx, *, image_id: int, ingested: Ingested, rules: ImageRules = RULES) -> None:
    """The image is in its served form. Repeating it does no harm, nor does an image that was
    deleted meanwhile.

    Raises `Refused` when what is stored does not fit into the quota of its group, and when
    templates of the group, which have meant the site's image of that name, could not be installed
    with this one.
    """
    image = images.get(tx, image_id)
    if image is not None and image.state == "ingesting" and image.group_id is not None:
        image_quota.check(tx, image.group_id, ingested.stored, rules, image.stored)
        image_users.check(tx, replace(image, state="ready", **asdict(ingested)))
    images.change(tx, image_id, state="ready", source="", reason="", **asdict(ingested))


def fail(tx: Tx, *, image_id: int, reason: str) -> None:
    """Record that the file could not be taken in."""
    images.change(tx, image_id, state="failed", reason=reason, source="", stored=0)


def every(
    tx: Tx, groups: frozenset[int] | None = None, now: float | None = None
) -> list[ImageView]:
    """Return the images of these groups and the site (None: all) in the order of their names, each
    with the templates of these groups and the site that name it. `now`: those whose files no server
    that runs has say so."""
    return _views(tx, images.every(tx, groups), groups, now)


def show(
    tx: Tx, *, name: str, groups: frozenset[int] | None = None, now: float | None = None
) -> ImageView:
    """Return the image of that name; of the templates that name it, those of these groups and the
    site's. `now`: as for `every`. Raises `Refused`."""
    found = images.named(tx, [name]).get(name)
    if found is None:
        raise Refused("not_found", f"there is no image {name!r}", "name")
    return _views(tx, [found], groups, now)[0]


def _views(
    tx: Tx, found: Sequence[Image], seen: frozenset[int] | None, now: float | None
) -> list[ImageView]:
    users, owners = _users(tx, seen), groups.names(tx)
    views = [_view(image, owners, users.get(image.name, [])) for image in found]
    return views if now is None else _with_lost_files(tx, views, now)


def _with_lost_files(tx: Tx, views: Sequence[ImageView], now: float) -> list[ImageView]:
    """Return the images, with the reason of those whose files are on servers alone that do not
    run. A site of one server has no such images."""
    files = {image.name: _file(image) for image in views if image.state != "failed"}
    holders = servers.holders(tx, list(files.values()))
    hosts = servers.image_servers(tx, now) if holders else {}
    lost = {
        name: held
        for name, file in files.items()
        if (held := holders.get(file, [])) and not any(each in hosts for each in held)
    }
    return [
        replace(image, reason=policy.lost_files(image.state, lost[image.name]))
        if image.name in lost
        else image
        for image in views
    ]


def _file(image: Image) -> str:
    """Return the name by which servers say that they have the image's files."""
    return image.digest if image.state == "ready" else image.source.rpartition("/")[2]


def _users(tx: Tx, seen: frozenset[int] | None = None) -> dict[str, list[str]]:
    """Return the live templates, as 'name@revision', that write or boot each image, by the images'
    full names."""
    rows, users = templates.live(tx, seen), dict[str, list[str]]()
    full_names = templates.image_names(tx, rows)
    for row in rows:
        for name in set(full_names[row.id].values()):
            users.setdefault(name, []).append(f"{row.name}@{row.revision}")
    return users


def _view(image: Image, owners: Mapping[int | None, str], users: Sequence[str] = ()) -> ImageView:
    return ImageView(**asdict(image), group=owners[image.group_id], used_by=tuple(users))


def delete(tx: Tx, *, name: str) -> Result[None]:
    """Delete an image that no live template names; its folder goes when the ingester comes by.
    Raises `Refused`."""
    image = images.named(tx, [name], lock=True).get(name)
    if image is None:
        raise Refused("not_found", f"there is no image {name!r}", "name")
    if users := _users(tx).get(name):
        raise Refused("conflict", f"the image {name!r} is used by {', '.join(users)}", "name")
    images.remove(tx, image.id)
    return Result(None, (Effect("wake", "images"),))
