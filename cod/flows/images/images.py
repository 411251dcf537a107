"""Images: asked for, taken in, listed, deleted.

Adding writes a row in state *ingesting* that names a file on the server. One ingester at a time
across all servers (a claim) takes such rows, the oldest of each group in turn, turns the files into
their served form and reports. If an ingester dies meanwhile, the rows and the files are still there
and the next ingester begins anew. It also removes folders that no row names.
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
from cod.store import claims, servers
from cod.store.claims import Claim
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
    """Add the image `name`, to be made of the file `source` (a path on the server); return the
    image, which is in state ingesting. It replaces a failed image of the same name and owner.
    Raises `Refused`.

    name    a name as `names.full` accepts it
    sha256  the digest that the file must have, '' for any
    plain   serve the file unchanged, as a kernel or ramdisk
    raw     the file may have neither a partition table nor a file system
    group   the owner; '' or 'site': the site
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
    """Return the image to make next; None: there is nothing to do.

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
    """Return the folders among `present` that no image names: the ingester removes them.

    alone  the site has no other server: forget the files of other servers, and those that this
           server had under a former name
    """
    if alone:
        servers.release_all(tx)
    return set(present) - images.digests(tx)


def finish(
    tx: Tx,
    *,
    image_id: int,
    ingested: Ingested,
    rules: ImageRules = RULES,
    claim: Claim | None = None,
) -> None:
    """Record that an image is in its served form. A repeated call does no harm, nor does a call for
    an image that was deleted meanwhile.

    claim  the ingester's claim; `claims.Lost` is raised if another server has it now

    Raises `Refused` if the stored bytes do not fit into the group's quota, or if templates of the
    group that use the site's image of that name now could not be installed with the new image.
    """
    if claim is not None:
        claims.confirm(tx, claim)
    image = images.get(tx, image_id)
    if image is not None and image.state == "ingesting" and image.group_id is not None:
        image_quota.check(tx, image.group_id, ingested.stored, rules, image.stored)
        image_users.check(tx, replace(image, state="ready", **asdict(ingested)))
    images.taken_in(tx, image_id, state="ready", reason="", **asdict(ingested))


def fail(tx: Tx, *, image_id: int, reason: str, claim: Claim | None = None) -> None:
    """Record that the file could not be taken in. `claim`: as for `finish`."""
    if claim is not None:
        claims.confirm(tx, claim)
    images.taken_in(tx, image_id, state="failed", reason=reason, stored=0)


def every(
    tx: Tx, groups: frozenset[int] | None = None, now: float | None = None
) -> list[ImageView]:
    """Return the images of these groups and the site (None: all), by name, each with the templates
    of these groups and the site that name it. With `now`, the `reason` of an image tells if no
    running server has its files."""
    return _views(tx, images.every(tx, groups), groups, now)


def show(
    tx: Tx, *, name: str, groups: frozenset[int] | None = None, now: float | None = None
) -> ImageView:
    """Return the image of that name, with the templates of these groups and the site that name it.
    `now`: as for `every`. Raises `Refused`."""
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
    """Return the images, with a reason for each whose files are only on servers that do not run. A
    site of one server has no such images."""
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
    """Delete an image that no live template names; the ingester removes its folder later. Raises
    `Refused`."""
    image = images.named(tx, [name], lock=True).get(name)
    if image is None:
        raise Refused("not_found", f"there is no image {name!r}", "name")
    if users := _users(tx).get(name):
        raise Refused("conflict", f"the image {name!r} is used by {', '.join(users)}", "name")
    images.remove(tx, image.id)
    return Result(None, (Effect("wake", "images"),))
