"""Images: asked for, taken in, listed, deleted.

Adding writes a row in state *ingesting* that names a file on the server. One ingester at a time across all servers (a
claim) takes the oldest such row, turns the file into its served form and reports. If it dies on the way, the row and
the file are still there and the next one begins anew; folders that no row names are removed by it too.
"""

from __future__ import annotations

from dataclasses import asdict

from cod.model import Effect, Image, Ingested, Refused, Result
from cod.policy import names, template
from cod.store import claims, images, templates
from cod.store.engine import Tx

_CLAIM, _CLAIM_SECONDS = "ingest", 30.0


def add(
    tx: Tx, *, name: str, source: str, sha256: str = "", plain: bool = False, group_id: int | None = None, now: float
) -> Result:
    """Have the file `source` (a path on the server) taken in as the image `name`. The value is the image, ingesting.

    sha256  what the file's must be, '' if nobody said
    plain   serve it as it is: a kernel or ramdisk
    A failed image of that name is replaced. Raises `Refused`.
    """
    names.check_image(name)
    before = images.named(tx, [name], lock=True).get(name)
    if before and before.state != "failed":
        raise Refused("conflict", f"there is an image {name!r} already", "name")
    if before:
        images.remove(tx, before.id)
    image = images.add(tx, name=name, group_id=group_id, state="ingesting", format="", sha256=sha256, source=source,
                       content="file" if plain else "", created_at=now)
    return Result(image, (Effect("wake", "images"),))


def take(tx: Tx, *, owner: str, now: float) -> Image | None:
    """The image that `owner` shall take in now, or go on with: renews its claim for 30 s. None: nothing to do, or
    another server is at it."""
    image = images.oldest_waiting(tx)
    return image if image and claims.hold(tx, _CLAIM, owner, now, _CLAIM_SECONDS) else None


def unneeded(tx: Tx, *, owner: str, present: frozenset[str], now: float) -> set[str]:
    """Those of the folders `present` that no image names and that may be removed now; `owner` as for `take`."""
    return set(present) - images.digests(tx) if claims.hold(tx, _CLAIM, owner, now, _CLAIM_SECONDS) else set()


def finish(tx: Tx, *, image_id: int, ingested: Ingested) -> None:
    """The image is in its served form. Repeating it does no harm, nor does an image that was deleted meanwhile."""
    images.change(tx, image_id, state="ready", source="", reason="", **asdict(ingested))


def fail(tx: Tx, *, image_id: int, reason: str) -> None:
    """The file could not be taken in."""
    images.change(tx, image_id, state="failed", reason=reason, source="")


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[Image]:
    """Images by name, of these groups and the site's (None: all)."""
    return images.every(tx, groups)


def show(tx: Tx, *, name: str) -> Image:
    """The image of that name. Raises `Refused`."""
    found = images.named(tx, [name]).get(name)
    if found is None:
        raise Refused("not_found", f"there is no image {name!r}", "name")
    return found


def delete(tx: Tx, *, name: str) -> Result:
    """Delete an image that no live template names; its folder goes when the ingester comes by. Raises `Refused`."""
    image = images.named(tx, [name], lock=True).get(name)
    if image is None:
        raise Refused("not_found", f"there is no image {name!r}", "name")
    users = [f"{row.name}@{row.revision}" for row in templates.live(tx)
             if name in template.image_names(template.parse(row.document))]
    if users:
        raise Refused("conflict", f"the image {name!r} is used by {', '.join(users)}", "name")
    images.remove(tx, image.id)
    return Result(None, (Effect("wake", "images"),))
