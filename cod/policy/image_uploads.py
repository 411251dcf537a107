"""Decisions about uploads of images: room in a quota, the valid part of a file after a crash, the
image to ingest next, and files that are lost with a server. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cod.model import Image, Refused


def next_turn(
    waiting: Sequence[Image], busy: Collection[int | None], served: Mapping[int | None, float]
) -> Image | None:
    """Return the image to ingest next. None: an image of each waiting group is being ingested.

    waiting  the waiting images, the oldest first
    busy     ids of the groups of which an image is being ingested: one of a group at a time
    served   when the last ingest of each group began; the group that has waited longest is next
    """
    theirs = [image for image in waiting if image.group_id not in busy]
    return min(theirs, key=lambda image: served.get(image.group_id, 0.0), default=None)


def wanted_content(plain: bool, raw: bool) -> str:
    """Return the content that is requested for an image before it is ingested: 'file' (served as it
    is), 'raw' (a disk or partition that is not examined), or '' (to be found out). Raises `Refused`
    if both are requested."""
    if plain and raw:
        raise Refused(
            "invalid",
            "an image is plain (a kernel or RAM disk, served as it is) or raw (a disk or "
            "partition whose content is not known here), not both",
            "raw",
        )
    return "file" if plain else "raw" if raw else ""


def check_quota(quota: int | None, taken: int, size: int, group: str) -> None:
    """Raise `Refused` unless `size` bytes more fit.

    quota  bytes that the group's images and open uploads may have; None: no limit
    taken  bytes that they have now
    """
    if quota is not None and taken + size > quota:
        raise Refused(
            "quota",
            f"{size} bytes are too much for group {group}: its images and open uploads may have "
            f"{quota} bytes and have {taken}; delete some, or ask for a larger quota",
            "size",
        )


def check_open(present: int, most: int, what: str, group: str) -> None:
    """Raise `Refused` if the group has `most` or more things under way; `most` 0: no limit. `what`:
    the noun for them, such as 'open uploads'."""
    if most and present >= most:
        raise Refused(
            "slow_down", f"group {group} has {present} {what}, and may have {most}: end some first"
        )


def believed(offset: int, boot: str, here: str, length: int) -> int:
    """Return how many bytes of an upload's file can be trusted to be what was sent.

    offset  bytes that are flushed to the disk, by the upload's row
    boot    id of the host's boot that has written the rest; '': unknown, the rest is not trusted
    here    id of this host's present boot
    length  length of the file

    When a process dies, all that it has written is still in the system's memory, in order. When the
    system crashes, data that was not flushed may have holes, and only `offset` is certain. A file
    that is shorter than `offset` was lost or replaced.
    """
    return length if length <= offset or (boot and boot == here) else offset


def lost_files(state: str, servers: Sequence[str]) -> str:
    """Return why an image in `state` cannot be used: its files are only on `servers`, which do not
    run."""
    where = ", ".join(servers)
    if state == "ready":
        return f"Its files are only on {where}, which does not run."
    return f"The file that was uploaded is only on {where}, which does not run. Upload it again."
