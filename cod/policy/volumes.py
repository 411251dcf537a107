"""Decisions about volumes: allowed mount points, sizes and snapshots, the clients of exports, the
automounter's maps, and when a failed change is tried again. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, summarize_address_range

from cod.model import AddressRange, Attachment, ExportClient, Refused, Volume, VolumeMount

SMALLEST = 2**20  # bytes
FIRST_PAUSE = 2.0  # seconds after the first failure, twice as long after each further one
# no change is given up: an export has to be removed, however long its file server is away
LONGEST_PAUSE = 300.0
MOST_SNAPSHOTS = 100  # snapshots of a volume: with thousands, file systems become slow
TELL = 5  # failures after which people are told: about a minute
MASTER, DIRECT = "auto.master", "auto.direct"  # names of the automounter's maps
_MOUNT = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]{0,62}){1,4}")
_SYSTEM = frozenset(
    re.findall(
        r"\S+",
        "bin boot dev etc lib lib32 lib64 libx32 lost+found net nix proc root run sbin snap sys tmp"
        " usr var",
    )
)
"""Top-level folders of nodes' operating systems."""
_FREE = {"usr": frozenset({"local"})}
"""Folders inside these at which, or below which, volumes may be mounted all the same."""
_TAKEN = {
    "var": frozenset(
        re.findall(
            r"\S+",
            "account adm backups cache crash db empty games lib lock log mail nis opt run spool tmp"
            " www yp",
        )
    )
}
"""Folders at which, or below which, no volumes may be mounted, although others beside them, such as
/var/scratch, are free."""


def check_mount(mount: str) -> None:
    """Raise `Refused` unless nodes can mount a volume there without losing their system."""
    first, second, *_ = [*mount.removeprefix("/").split("/"), ""]
    if not _MOUNT.fullmatch(mount) or ".." in mount:
        raise Refused(
            "invalid",
            f"{mount!r} is no mount point: an absolute path such as /data, of letters, digits, "
            "'.', '_' and '-', at most four names deep",
            "mount",
        )
    free = second in _FREE.get(first, ()) or (second and second not in _TAKEN.get(first, {second}))
    if first in _SYSTEM and not free:
        raise Refused(
            "invalid",
            f"{mount} belongs to the nodes' operating system: choose another mount point, such "
            "as /data",
            "mount",
        )


def check_apart(mount: str, others: Iterable[str]) -> None:
    """Raise `Refused` if `mount` is the same as, inside, or above another mount point of the
    vcluster."""
    for other in others:
        if mount == other or mount.startswith(f"{other}/") or other.startswith(f"{mount}/"):
            raise Refused(
                "conflict",
                f"the vcluster mounts another volume at {other}: choose a mount point apart "
                "from it",
                "mount",
            )


def check_size(size: int) -> None:
    """Raise `Refused` for a volume that is too small for a file system's bookkeeping."""
    if size < SMALLEST:
        raise Refused("invalid", f"a volume needs at least {SMALLEST} bytes", "size")


def check_quota(quota: int | None, taken: int, size: int, group: str) -> None:
    """Raise `Refused` unless `size` bytes more fit into the group's `quota` (None: no limit)."""
    if quota is not None and taken + size > quota:
        raise Refused(
            "quota",
            f"{size} bytes are too much for group {group}: its volumes may have {quota} bytes and"
            f" have {taken}; delete some, or ask for a larger quota. A deleted volume counts until"
            " it is erased",
            "size",
        )


def check_snapshots(volume: Volume, taken: int) -> None:
    """Raise `Refused` if the volume, which has `taken` snapshots, cannot have another one."""
    if taken >= MOST_SNAPSHOTS:
        raise Refused(
            "conflict",
            f"volume {volume.name} has {taken} snapshots, which is the limit: delete one first",
            "snapshot",
        )
    if volume.enforced in ("none", "project"):
        raise Refused(
            "conflict",
            f"file server {volume.fileserver} cannot take snapshots: its volumes are on a file "
            "system without them. Snapshots need Btrfs or ZFS",
            "name",
        )


def clients(blocks: Iterable[tuple[AddressRange, bool]]) -> tuple[ExportClient, ...]:
    """Return the clients of an export: networks that cover exactly the addresses of `blocks`, which
    are (block, whether it may only read)."""
    return tuple(
        ExportClient(str(network), read_only)
        for block, read_only in blocks
        for network in summarize_address_range(IPv4Address(block.first), IPv4Address(block.last))
    )


def mount(volume: Volume, attachment: Attachment, address: str) -> VolumeMount:
    """Return the mount of a volume on nodes. It is mounted with nosuid and nodev, because users of
    other nodes can write to it."""
    mode = "ro" if attachment.read_only else "rw"
    options = f"fstype=nfs4,{mode},hard,nosuid,nodev"
    if volume.sec != "sys":  # without this option a node would try sys first
        options += f",sec={volume.sec}"
    return VolumeMount(volume.name, volume.kind, attachment.mount, address, volume.path, options)


def automounts(mounts: Iterable[VolumeMount]) -> dict[str, dict[str, str]]:
    """Return the automounter's maps for those mounts, in the format of autofs(5): map name -> key
    -> entry.

    Data volumes are in a direct map. Each home volume has an indirect map of its own, whose only
    key `*` stands for any user.
    """
    master: dict[str, str] = {}
    maps = {MASTER: master}
    for one in mounts:
        if one.kind == "home":
            name = "auto" + one.mount.replace("/", ".")
            master[one.mount] = name
            maps[name] = {"*": f"-{one.options} {one.source}/&"}
        else:
            master["/-"] = DIRECT
            maps.setdefault(DIRECT, {})[one.mount] = f"-{one.options} {one.source}"
    return maps


def directory(root: str, volume_id: int, name: str) -> str:
    """Return the path of a new volume. The number distinguishes it from earlier volumes of the same
    name."""
    return f"{root.rstrip('/')}/{name.replace('/', '.')}-{volume_id}"


def next_sequence(volume: Volume, now: float) -> int:
    """Return the sequence number of a change. Numbers follow the clock, so that a database that was
    restored from a backup still gives numbers newer than those that a file server has seen."""
    return max(volume.sequence + 1, int(now))


def retry_after(attempts: int) -> float:
    """Return the seconds to wait after the failed attempt number `attempts`."""
    return min(FIRST_PAUSE * 2.0 ** min(attempts - 1, 10), LONGEST_PAUSE)


def state(volume: Volume, now: float) -> str:
    """Return the volume's state for people: 'making', 'changing', 'ready', 'trouble', 'deleted' or
    'erasing'."""
    if volume.purge_at is not None:
        return "erasing" if volume.purge_at <= now else "deleted"
    if volume.reason:
        return "trouble"
    if volume.made_at is None:
        return "making"
    return "changing" if volume.applied < volume.sequence else "ready"
