"""Decisions about uploads: is there room for one; how much of its file can be believed after a
crash; whose file is taken in next; what is lost with a server. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cod.model import Image, Refused


def next_turn(
    waiting: Sequence[Image], busy: Collection[int | None], served: Mapping[int | None, float]
) -> Image | None:
    """Return the image of `waiting`, the oldest first, to take in next. None: each is of a group
    that has its turn.

    busy    groups, by id, of which an image is being taken in: a group has one turn at a time
    served  when each group's last turn began; the group that has waited longest is next
    """
    theirs = [image for image in waiting if image.group_id not in busy]
    return min(theirs, key=lambda image: served.get(image.group_id, 0.0), default=None)


def wanted_content(plain: bool, raw: bool) -> str:
    """Return what an image is said to hold before it is taken in: 'file' (served as it is), 'raw'
    (nothing that needs to be known here) or ''. Raises `Refused`."""
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
    taken  bytes that they have
    """
    if quota is not None and taken + size > quota:
        raise Refused(
            "quota",
            f"{size} bytes are too much for group {group}: its images and open uploads may have "
            f"{quota} bytes and have {taken}; delete some, or ask for a larger quota",
            "size",
        )


def check_open(present: int, most: int, what: str, group: str) -> None:
    """Raise `Refused` where the group has `most` of what it may have under way at once; 0: any
    number. `what`: its noun, such as 'open uploads'."""
    if most and present >= most:
        raise Refused(
            "slow_down", f"group {group} has {present} {what}, and may have {most}: end some first"
        )


def believed(offset: int, boot: str, here: str, length: int) -> int:
    """Return the bytes of an upload's file that are what was sent.

    offset  flushed to the disk, says the row
    boot    which boot of a host has written the file since; '': beyond `offset` it is not to be
            trusted
    here    this host's boot
    length  of the file

    A process that dies leaves what it has written in the system's memory, in order. With the system
    itself the order goes: what was not flushed may be holes, and only the row is certain. A file
    that is shorter was lost or replaced.
    """
    return length if length <= offset or (boot and boot == here) else offset


def lost_files(state: str, servers: Sequence[str]) -> str:
    """Return why an image in that state cannot be used, where no other than these servers, which do
    not run, have its files."""
    where = ", ".join(servers)
    if state == "ready":
        return f"Its files are only on {where}, which does not run."
    return f"The file that was uploaded is only on {where}, which does not run. Upload it again."
