"""Decisions about uploads: is there room for one; how much of its file can be believed after a crash. Pure."""

from __future__ import annotations

from cod.model import Refused


def check_quota(quota: int | None, taken: int, size: int, group: str) -> None:
    """Raise `Refused` unless `size` bytes more fit.

    quota  bytes that the group's images and open uploads may have; None: no limit
    taken  bytes that they have
    """
    if quota is not None and taken + size > quota:
        raise Refused("quota", f"{size} bytes are too much for group {group}: its images and open uploads may have "
                      f"{quota} bytes and have {taken}; delete some, or ask for a larger quota", "size")


def believed(offset: int, boot: str, here: str, length: int) -> int:
    """The bytes of an upload's file that are what was sent.

    offset  flushed to the disk, says the row
    boot    which boot of a host has written the file since; '': beyond `offset` it is not to be trusted
    here    this host's boot
    length  of the file

    A process that dies leaves what it has written in the system's memory, in order. With the system itself the order
    goes: what was not flushed may be holes, and only the row is certain. A file that is shorter was lost or replaced.
    """
    return length if length <= offset or (boot and boot == here) else offset
