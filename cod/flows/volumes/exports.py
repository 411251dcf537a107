"""Changes of volumes that file servers have to carry out: those that are due, and their outcomes.

A change describes the whole wanted state of a volume (`model.WantedVolume`), so that it replaces
all changes before it, and repeating it does no harm. A failed change is tried again without end,
with longer and longer pauses: until an export is withdrawn, the vcluster's addresses cannot be
given to others. People are told after `policy.volumes.TELL` failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cod import notice_texts
from cod.core import notices
from cod.core.nodes import transitions
from cod.model import Effect, Group, HomeDirectory, Result, Site, Volume, VolumeTask, WantedVolume
from cod.policy import volumes as policy
from cod.store import volumes as store
from cod.store.engine import Tx
from cod.store.people import groups, ldap_rows

MOST_HOMES = 10_000
LINGERS = 5.0  # seconds that a command of a server that died may still take


def began(tx: Tx, server: str, now: float) -> None:
    """Shorten the claims of a server whose edge has just started to `LINGERS` seconds: the changes
    that it claimed before are not being carried out."""
    store.shorten(tx, server, now + LINGERS)


def claim(
    tx: Tx, server: str, room: Mapping[str, int], site: Site, now: float, lease: float
) -> list[VolumeTask]:
    """Claim due changes for `lease` seconds, of at most `room[name]` volumes for each file
    server."""
    left = {name: count for name, count in room.items() if count > 0}
    tasks = []
    for volume in store.due(tx, now, 100, list(left)):
        if (
            left[volume.fileserver] > 0
            and (claimed := store.claim(tx, volume, server, now, now + lease)) is not None
        ):
            left[volume.fileserver] -= 1
            tasks.append(
                VolumeTask(
                    claimed.id,
                    claimed.name,
                    claimed.fileserver,
                    claimed.sequence,
                    server,
                    claimed.attempts,
                    wanted(tx, claimed, site, now),
                )
            )
    for volume in store.orphaned(tx, [one.name for one in site.fileservers]):
        _trouble(tx, volume, f"the site file has no file server {volume.fileserver!r}", now)
    return tasks


def wanted(tx: Tx, volume: Volume, site: Site, now: float) -> WantedVolume:
    """Return the state of the volume that its file server has to reach."""
    erase = volume.purge_at is not None and volume.purge_at <= now
    group = groups.get(tx, volume.group_id)
    snapshots = store.snapshots(tx, [volume.id])
    return WantedVolume(
        volume.id,
        volume.name,
        volume.export_id,
        volume.path,
        volume.size,
        volume.sequence,
        may_make=volume.made_at is None,
        source=volume.source if volume.made_at is None else "",
        clients=() if erase else policy.clients(store.clients(tx, volume.id)),
        snapshots=tuple(one.name for one in snapshots if not one.leaving),
        dropped=tuple(one.name for one in snapshots if one.leaving),
        kind=volume.kind,
        sec=volume.sec,
        erase=erase,
        gid=group.gid,
        homes=tuple(_homes(tx, group, site)) if volume.kind == "home" else (),
    )


def _homes(tx: Tx, group: Group, site: Site) -> Iterator[HomeDirectory]:
    """Yield the home directories of users with an account on the nodes of the group's vclusters."""
    admins = site.posix.administrators or group.name == groups.SITE
    for user in ldap_rows.users(tx, group.id, admins, limit=MOST_HOMES):
        yield HomeDirectory(user.name, user.uid, user.gid)


def succeeded(tx: Tx, task: VolumeTask, enforced: str, now: float) -> Result[bool]:
    """Record that the file server has carried the change out; return whether the claim was still
    valid.

    enforced  how the file server limits the volume to its size
    """
    volume = store.holds(tx, task)
    if volume is None:
        return Result(False)
    if volume.told:
        _trouble_over(tx, volume, now)
    wake = (Effect("wake", "manager"),)  # a vcluster that waited for it can end
    if task.wanted.erase:
        store.remove(tx, volume.id)
        notices.add(
            tx, **notice_texts.volume_erased(volume.name), group_id=volume.group_id, now=now
        )
        return Result(True, wake)
    store.change(
        tx,
        volume.id,
        applied=task.sequence,
        attempts=0,
        claimed_by=None,
        claim_expires=None,
        reason="",
        told=False,
        enforced=enforced,
        made_at=volume.made_at or now,
        next_at=now,
    )
    store.forget_left(tx, volume.id, task.sequence)
    store.settle_snapshots(tx, volume.id, task.sequence, now)
    for one in store.attachments(tx, [volume.id]):
        transitions.tell_if_ready(tx, one.vcluster_id, now)
    return Result(True, wake)


def failed(
    tx: Tx, task: VolumeTask, error: str, now: float, *, goes_on: bool = False
) -> float | None:
    """Record that the attempt failed with `error`; return when it is tried again, or None if the
    claim was no longer valid.

    goes_on  nothing is wrong, but there is so much to delete that another attempt has to go on
    """
    volume = store.holds(tx, task)
    if volume is None:
        return None
    next_at = now + (policy.FIRST_PAUSE if goes_on else policy.retry_after(task.attempts))
    columns = {"attempts": 0} if goes_on else {"reason": error}
    store.change(tx, volume.id, next_at=next_at, claimed_by=None, claim_expires=None, **columns)
    if not goes_on and task.attempts >= policy.TELL:
        _trouble(tx, volume, error, now)
    return next_at


def _trouble(tx: Tx, volume: Volume, error: str, now: float) -> None:
    """Record the error with the volume, and tell the volume's group and the administrators once."""
    store.change(tx, volume.id, reason=error, told=True)
    if not volume.told:
        for group_id in (volume.group_id, None):
            notices.add(
                tx,
                **notice_texts.volume_trouble(volume.name, volume.fileserver, error),
                group_id=group_id,
                now=now,
            )


def _trouble_over(tx: Tx, volume: Volume, now: float) -> None:
    """Tell the volume's group and the administrators that its trouble is over."""
    for group_id in (volume.group_id, None):
        text = notice_texts.volume_trouble_over(volume.name, volume.fileserver)
        notices.add(tx, **text, group_id=group_id, now=now)


def compared(tx: Tx, fileserver: str, found: Mapping[int, int], now: float) -> list[int]:
    """Compare a file server's exports with the database, and have changes that it has lost carried
    out again. Return the ids of exports that belong to no volume: they have to be withdrawn.

    found  the sequence numbers of the file server's exports, by export id
    """
    known = store.of_server(tx, fileserver)
    settled = {
        number: one for number, one in known.items() if one.applied and one.applied == one.sequence
    }
    store.repeat(
        tx, [one.id for number, one in settled.items() if found.get(number) != one.applied], now
    )
    return [number for number in found if number not in known]
