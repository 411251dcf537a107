"""Uploads: created, grown, complete, given up.

An upload's row has the name and length that its client announced, and the number of bytes that are
known to be on disk. The bytes are in a file of the upload's name in the folder of incoming files;
`web.http.uploads.intake` writes them. When all bytes are there, one transaction replaces the row
with an image in state *ingesting*: nobody ever sees half of a file as an image, or an image without
its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cod.core import image_quota
from cod.model import Effect, Image, ImageRules, Refused, Result, Upload
from cod.policy.image_uploads import believed, wanted_content
from cod.policy.people import names
from cod.store.engine import Tx
from cod.store.images import images, uploads
from cod.store.people import groups

every = uploads.every


def create(
    tx: Tx,
    *,
    upload_id: str,
    name: str,
    group: str,
    size: int,
    sha256: str = "",
    plain: bool = False,
    raw: bool = False,
    actor: str,
    rules: ImageRules,
    now: float,
) -> Upload:
    """Create an upload of `size` bytes, which will become the image `name` of that group; return
    the upload. Raises `Refused`.

    name       a name as `names.full` accepts it
    upload_id  random; a second call with the same id returns the existing upload
    group      the group's name; '' or 'site': the site, which has no quota
    sha256     the digest that the file must have, '' for any
    plain, raw  as for `flows.images.images.add`
    """
    if again := uploads.get(tx, upload_id):
        return again
    wanted_content(plain, raw)
    if size < 1:
        raise Refused("invalid", "the file is empty", "size")
    owner = groups.owner_id(tx, group)
    name = names.full(groups.prefix(tx, owner), name)
    images.check_free(tx, name, owner)
    image_quota.check(tx, owner, size, rules)
    image_quota.check_upload(tx, owner, rules)
    uploads.add(
        tx,
        id=upload_id,
        name=name,
        group_id=owner,
        size=size,
        offset=0,
        sha256=sha256,
        plain=plain,
        raw=raw,
        actor=actor,
        created_at=now,
        expires_at=now + rules.keep_uploads,
    )
    return one(tx, upload_id, now=now)


def one(tx: Tx, upload_id: str, *, now: float) -> Upload:
    """Return the upload of that id, unless it has expired. Raises `Refused`."""
    return _live(uploads.get(tx, upload_id), now)


def kept(upload: Upload, boot: str, length: int) -> int:
    """Return how many bytes of the upload a host has whose file of it has `length` bytes. `boot`:
    id of that host's boot."""
    return min(upload.size, believed(upload.offset, upload.boot, boot, length))


def begin(
    tx: Tx,
    *,
    seen: Upload,
    length: int,
    boot: str,
    checked: bool = False,
    check: Callable[[Upload], object] | None = None,
    now: float,
) -> Upload:
    """Begin a piece: the caller holds the file, has flushed it to the disk, and will write to it.
    Return the upload with the piece's offset. Raises `Refused`.

    seen     the upload as it was read before the file was held. The row alone is not enough: if an
             earlier run of this flow has been committed, the row would vouch for too many bytes
    length   of the file now
    boot     id of the boot of the host that writes
    checked  the piece has a checksum: its bytes do not count before `grown` is called
    check    called with the upload and its offset: nothing is changed if it raises
    """
    upload = _live(uploads.get(tx, seen.id, lock=True), now)
    offset = min(kept(row, boot, length) for row in (upload, seen))
    if check is not None:
        check(replace(upload, offset=offset))
    writer = "" if checked else boot
    if (offset, writer) != (upload.offset, upload.boot):
        uploads.change(tx, seen.id, offset=offset, boot=writer)
    return one(tx, seen.id, now=now)


def grown(tx: Tx, *, upload_id: str, offset: int, rules: ImageRules, now: float) -> Upload:
    """Note that the first `offset` bytes are on disk. Raises `Refused` if the upload was given up
    meanwhile."""
    upload = _live(uploads.get(tx, upload_id, lock=True), now)
    uploads.change(
        tx, upload_id, offset=min(offset, upload.size), expires_at=now + rules.keep_uploads
    )
    return one(tx, upload_id, now=now)


def complete(
    tx: Tx,
    *,
    upload_id: str,
    name: str,
    source: str,
    sha256: str,
    format: str,
    size: int,
    now: float,
) -> Result[Image]:
    """Replace a complete upload with the image `name`, in state ingesting; return the image. Raises
    `Refused`.

    source  the path of the file
    sha256  the digest of the file
    format  of the file, by its first bytes; `size`: of the image on a disk, 0 if they do not tell
    """
    upload = uploads.get(tx, upload_id, lock=True)
    if upload is None:
        # The image that an earlier run of this flow made of the upload, if the outcome of that
        # run's commit was not known.
        became = images.named(tx, [name]).get(name)
        if became is None or (became.source != source and became.sha256 != sha256):
            raise _gone()
        return Result(became)
    if upload.sha256 not in ("", sha256):
        raise Refused("invalid", f"the file's sha256 is {sha256}, not {upload.sha256}", "sha256")
    uploads.remove(tx, upload_id)
    images.make_room(tx, name, upload.group_id)
    image = images.add(
        tx,
        name=name,
        group_id=upload.group_id,
        state="ingesting",
        format=format,
        size=size,
        stored=upload.size,
        sha256=sha256,
        source=source,
        content=wanted_content(upload.plain, upload.raw),
        created_at=now,
    )
    return Result(image, (Effect("wake", "images"),))


def drop(tx: Tx, *, upload_id: str) -> Upload:
    """Give an upload up, and return it. Raises `Refused` if there is none."""
    upload = uploads.get(tx, upload_id, lock=True)
    if upload is None:
        raise _gone()
    uploads.remove(tx, upload_id)
    return upload


def sweep(tx: Tx, *, now: float) -> list[Upload]:
    """Give up the uploads that have expired, and return them."""
    old = uploads.expired(tx, now)
    for upload in old:
        uploads.remove(tx, upload.id)
    return old


def files(tx: Tx) -> frozenset[str]:
    """Return the names of files that rows refer to: uploads' ids, and paths of images that are yet
    to be taken in."""
    return frozenset([*(upload.id for upload in uploads.every(tx)), *images.sources(tx)])


def _live(upload: Upload | None, now: float) -> Upload:
    if upload is None or upload.expires_at <= now:
        raise _gone()
    return upload


def _gone() -> Refused:
    return Refused(
        "not_found", "there is no such upload: it is complete, was given up, or never was", "id"
    )
