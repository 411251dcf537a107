"""Volumes, the vclusters that mount them, and their snapshots.

A claim of a change is the triple (`claimed_by`, `attempts`, `sequence`). A server whose claim was
taken over, or whose volume was changed again meanwhile, therefore cannot overwrite newer results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Integer, bindparam, delete, func, or_, select

from cod.model import AddressBlock, Attachment, Refused, Snapshot, Volume, VolumeTask
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx, grouped
from cod.store.rows import Rows, only, theirs
from cod.store.scheduler import address_blocks

_v, _a, _s = t.volumes.c, t.volume_attachments.c, t.volume_snapshots.c
ROWS = Rows(Volume, t.volumes, noun="volume")
_ATTACHED = Rows(
    Attachment,
    t.volume_attachments,
    elsewhere={"vcluster": t.vclusters.c.name},
    source=t.volume_attachments.join(t.vclusters, t.vclusters.c.id == _a.vcluster_id),
)
_SNAPSHOTS = Rows(Snapshot, t.volume_snapshots)
get, known, named = ROWS.get, ROWS.known, ROWS.named
add, change, shorten = ROWS.add, ROWS.set, ROWS.shorten
attach, change_attachment, add_snapshot = _ATTACHED.add, _ATTACHED.set, _SNAPSHOTS.add
# made once: each server asks every second
_DUE = (
    ROWS.select.where(or_(_v.sequence > _v.applied, _v.purge_at <= bindparam("now")))
    .where(or_(_v.claim_expires.is_(None), _v.claim_expires <= bindparam("now")))
    .where(_v.next_at <= bindparam("now"), _v.fileserver.in_(bindparam("own", expanding=True)))
    .order_by(_v.next_at, _v.id)
    .limit(bindparam("limit", type_=Integer))
)
_ORPHANED = ROWS.select.where(
    _v.sequence > _v.applied,
    _v.reason == "",
    _v.fileserver.not_in(bindparam("own", expanding=True)),
)
UNTRIED: Mapping[str, Any] = {
    "attempts": 0,
    "claimed_by": None,
    "claim_expires": None,
    "reason": "",
    "told": False,
}
"""Columns of a volume with a change that its file server has not been told yet."""
FIRST_EXPORT = 1000  # numbers below are left to exports that are made by hand
LAST_EXPORT = 65_000  # NFS-Ganesha has 16 bits for them


def is_there(tx: Tx, name: str) -> bool:
    """Return whether a volume has that full name, also a deleted one whose row remains."""
    return ROWS.exists(tx, _v.name == name)


def every(tx: Tx, groups: frozenset[int] | None = None) -> list[tuple[Volume, str]]:
    """Return volumes by name, with their groups' names; those of `groups` only (None: all)."""
    query = select(*ROWS.columns, t.groups.c.name).join(t.groups, t.groups.c.id == _v.group_id)
    rows = tx.execute(query.where(*theirs(_v.group_id, groups)).order_by(_v.name))
    return [(ROWS.read(row), row[-1]) for row in rows]


def of_data(tx: Tx, name: str | None = None) -> list[Volume]:
    """Return the volumes that are neither homes nor deleted, by name; with a `name`, only the
    volume of that name."""
    own = only({_v.name: name})
    return ROWS.every(tx, _v.kind == "data", _v.deleted_at.is_(None), *own, order=_v.name)


def homes(tx: Tx, group_id: int) -> list[Volume]:
    """Return the home volumes of a group, at most one of which is not deleted."""
    return ROWS.every(tx, _v.group_id == group_id, _v.kind == "home", _v.deleted_at.is_(None))


def taken(tx: Tx, group_id: int, *, lock: bool = True) -> tuple[int, int | None]:
    """Return (bytes of a group's volumes, the group's own quota of them or None). `lock`: other
    transactions that lock this sum wait for this one, and then see what it adds."""
    if lock:
        watermarks.one_at_a_time(tx, "volumes")
    own = tx.scalar(select(t.groups.c.volume_quota).where(t.groups.c.id == group_id))
    return int(tx.scalar(select(func.sum(_v.size)).where(_v.group_id == group_id)) or 0), own


def free_export(tx: Tx, fileserver: str) -> int:
    """Return a free export number of the file server: the number after the highest, or the lowest
    unused one when the highest is taken. Raises `Refused` if all are used."""
    used = set(tx.scalars(select(_v.export_id).where(_v.fileserver == fileserver)))
    after = max(used, default=FIRST_EXPORT - 1) + 1
    if after <= LAST_EXPORT:
        return after
    for number in range(FIRST_EXPORT, LAST_EXPORT + 1):
        if number not in used:
            return number
    raise Refused(
        "conflict", f"file server {fileserver} has as many exports as it can number", "fileserver"
    )


def remove(tx: Tx, volume_id: int) -> None:
    """Delete the row, and those of its attachments and snapshots."""
    tx.execute(delete(t.volume_attachments).where(_a.volume_id == volume_id))
    tx.execute(delete(t.volume_snapshots).where(_s.volume_id == volume_id))
    ROWS.remove(tx, volume_id)


# ---------------------------------------------------------------- attachments


def attachments(tx: Tx, volumes: Collection[int]) -> list[Attachment]:
    """Return the attachments of those volumes, by id, including those that are being removed."""
    return _ATTACHED.every(tx, _a.volume_id.in_(volumes), order=_a.id)


def attached_to(tx: Tx, vcluster_id: int) -> list[Attachment]:
    """Return the vcluster's attachments, by id, including those that are being removed."""
    return _ATTACHED.every(tx, _a.vcluster_id == vcluster_id, order=_a.id)


def mounted(
    tx: Tx, vcluster_id: int, *conditions: ColumnElement[bool]
) -> list[tuple[Volume, Attachment]]:
    """Return the vcluster's volumes with their attachments, including those that are being removed,
    by mount point."""
    query = (
        select(*ROWS.columns, *_ATTACHED.columns)
        .join_from(t.volume_attachments, t.volumes, _v.id == _a.volume_id)
        .join(t.vclusters, t.vclusters.c.id == _a.vcluster_id)
        .where(_a.vcluster_id == vcluster_id, *conditions)
        .order_by(_a.mount)
    )
    return [(ROWS.read(row), _ATTACHED.read(row, ROWS.width)) for row in tx.execute(query)]


def exported(tx: Tx, vcluster_id: int) -> list[tuple[Volume, Attachment]]:
    """Return the volumes that the vcluster's nodes can mount now, with their attachments, by mount
    point: their file servers have exported them."""
    carried_out = _v.applied >= _a.sequence, _v.made_at.is_not(None)
    return mounted(tx, vcluster_id, _a.leaving.is_(False), *carried_out)


def awaited_mounts(
    tx: Tx, vcluster_ids: Collection[int], *, failing: bool = False
) -> dict[int, list[tuple[str, str]]]:
    """Return, by vcluster, the mounts that its nodes cannot have yet: (mount point, file server),
    by mount point. `failing`: only those that the file server was asked for and has not carried
    out."""
    query = (
        select(_a.vcluster_id, _a.mount, _v.fileserver)
        .join_from(t.volume_attachments, t.volumes, _v.id == _a.volume_id)
        .where(
            _a.vcluster_id.in_(list(vcluster_ids)),
            _a.leaving.is_(False),
            (_v.applied < _a.sequence) | _v.made_at.is_(None),
            *([_v.reason != ""] if failing else []),
        )
        .order_by(_a.mount)
    )
    return grouped((row[0], (row[1], row[2])) for row in tx.execute(query))


def clients(tx: Tx, volume_id: int) -> list[tuple[AddressBlock, bool]]:
    """Return the address blocks to which a volume is exported, in order, and whether each may only
    read."""
    b = t.vcluster_blocks.c
    query = (
        select(*address_blocks.ROWS.columns, _a.read_only)
        .join(t.vcluster_blocks, b.vcluster_id == _a.vcluster_id)
        .where(_a.volume_id == volume_id, _a.leaving.is_(False))
        .order_by(b.first_address)
    )
    return [(address_blocks.ROWS.read(row), row[-1]) for row in tx.execute(query)]


def forget_left(tx: Tx, volume_id: int, sequence: int) -> int:
    """Delete the attachments whose exports the change `sequence` has withdrawn; return how many."""
    left = (_a.volume_id == volume_id, _a.leaving.is_(True), _a.sequence <= sequence)
    return tx.execute(delete(t.volume_attachments).where(*left)).rowcount


# ---------------------------------------------------------------- snapshots


def snapshots(tx: Tx, volumes: Collection[int]) -> list[Snapshot]:
    """Return the snapshots of those volumes, the oldest first."""
    return _SNAPSHOTS.every(tx, _s.volume_id.in_(volumes), order=(_s.created_at, _s.id))


def drop_snapshot(tx: Tx, snapshot_id: int, sequence: int) -> None:
    """Have the snapshot deleted by the change `sequence`."""
    _SNAPSHOTS.set(tx, snapshot_id, leaving=True, sequence=sequence)


def settle_snapshots(tx: Tx, volume_id: int, sequence: int, now: float) -> None:
    """Record that the change `sequence` has made the new snapshots and deleted the leaving ones."""
    done = (_s.volume_id == volume_id, _s.sequence <= sequence)
    tx.execute(delete(t.volume_snapshots).where(*done, _s.leaving.is_(True)))
    _SNAPSHOTS.set_where(tx, *done, _s.made_at.is_(None), made_at=now)


def waits_for(tx: Tx, source: str) -> str | None:
    """Return a volume that is yet to be copied from `source`; None: there is none."""
    return tx.scalar(select(_v.name).where(_v.source == source, _v.made_at.is_(None)).limit(1))


# ---------------------------------------------------------------- carrying out


def due(tx: Tx, now: float, limit: int, fileservers: Collection[str]) -> list[Volume]:
    """Return volumes of those file servers whose changes are due, the longest due first."""
    return ROWS.all(tx, _DUE, {"now": now, "limit": limit, "own": list(fileservers)})


def orphaned(tx: Tx, fileservers: Collection[str]) -> list[Volume]:
    """Return volumes with an open change whose file server is not one of `fileservers`, unless
    their rows say so already."""
    return ROWS.all(tx, _ORPHANED, {"own": list(fileservers)})


def claim(tx: Tx, volume: Volume, server: str, now: float, until: float) -> Volume | None:
    """Claim one attempt at the volume's newest change until `until`; None if another server has
    claimed it first."""
    return ROWS.claim(tx, volume.id, server, now, until, _v.attempts == volume.attempts)


def holds(tx: Tx, task: VolumeTask) -> Volume | None:
    """Return the task's volume, locked, if the claim is still valid: no other attempt has begun,
    and the volume was not changed again."""
    volume = get(tx, task.volume_id, lock=True)
    if volume is None:
        return None
    claim = (volume.claimed_by, volume.attempts, volume.sequence)
    return volume if claim == (task.server, task.attempts, task.sequence) else None


def of_server(tx: Tx, fileserver: str) -> Mapping[int, Volume]:
    """Return the file server's volumes, by the numbers of their exports."""
    return {one.export_id: one for one in ROWS.every(tx, _v.fileserver == fileserver)}


def repeat(tx: Tx, volume_ids: Sequence[int], now: float) -> None:
    """Have the present state of those volumes carried out again, because their file server lost
    it."""
    ROWS.set_where(tx, _v.id.in_(volume_ids), applied=0, next_at=now)
