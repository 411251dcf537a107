"""Owners' actions on their volumes: create, attach, resize, take snapshots, delete, restore.

Each flow changes rows and returns the volume as people see it; the file server carries the change
out later (`flows.volumes.exports`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cod.core import volumes as core
from cod.model import (
    AskedVolume,
    FileServer,
    FlowContext,
    NfsSecurity,
    Refused,
    Site,
    Snapshot,
    Volume,
    VolumeView,
)
from cod.policy import volumes as policy
from cod.policy.people import kerberos, names
from cod.states import VclusterState
from cod.store import volumes
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import vclusters

mounted, of_data = volumes.mounted, volumes.of_data
LAST = (VclusterState.RELEASING, VclusterState.ENDED)


def every(tx: Tx, *, now: float, group_ids: frozenset[int] | None = None) -> list[VolumeView]:
    """Return the volumes of the groups `group_ids` (None: of all), by name."""
    rows = volumes.every(tx, group_ids)
    attached = volumes.attachments(tx, [volume.id for volume, _ in rows])
    return [
        VolumeView(
            volume,
            group,
            policy.state(volume, now),
            [one for one in attached if one.volume_id == volume.id],
        )
        for volume, group in rows
    ]


def show(tx: Tx, *, name: str, now: float) -> VolumeView:
    """Return the volume with its attachments and snapshots. Raises `Refused`."""
    volume = volumes.named(tx, name)
    return VolumeView(
        volume,
        groups.get(tx, volume.group_id).name,
        policy.state(volume, now),
        volumes.attachments(tx, [volume.id]),
        volumes.snapshots(tx, [volume.id]),
    )


def create(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    size: int,
    group: str,
    fileserver: str = "",
    source: str = "",
    snapshot: str = "",
    sec: NfsSecurity | None = None,
) -> VolumeView:
    """Create a volume of `group`, and return it. Raises `Refused`.

    name        bare or in full
    fileserver  name of a file server; '': the first in the site file, or that of the source
    source      full name of a volume to copy; `snapshot`: the name of the snapshot to copy
    sec         how NFS protects it; None: as the source is, or as the site file says
    """
    owner = groups.named(tx, group, "group")
    full = names.full(owner.name, name, thing="a volume")
    if not source:
        server = _server(context.site, fileserver)
        core.create(tx, owner, full, size, context, server=server, sec=sec)
        return show(tx, name=full, now=context.now)
    origin = _kept(tx, source, "source")
    taken = [
        one.name
        for one in volumes.snapshots(tx, [origin.id])
        if one.made_at is not None and not one.leaving
    ]
    if snapshot not in taken:
        raise Refused(
            "not_found",
            f"volume {source} has no snapshot {snapshot!r} to copy: take one first",
            "snapshot",
        )
    if fileserver not in ("", origin.fileserver):
        raise Refused(
            "conflict",
            f"a copy of {source} is made on its own file server, {origin.fileserver}",
            "fileserver",
        )
    if size < origin.size:
        raise Refused("invalid", f"a copy of {source} needs at least {origin.size} bytes", "size")
    server = _server(context.site, origin.fileserver)
    core.create(
        tx,
        owner,
        full,
        size,
        context,
        server=server,
        source=_source(origin, snapshot),
        sec=sec or origin.sec,
    )
    return show(tx, name=full, now=context.now)


def attach(tx: Tx, context: FlowContext, *, asked: AskedVolume, vcluster: str) -> VolumeView:
    """Mount the volume on the nodes of a vcluster. Raises `Refused`."""
    holder = vclusters.by_name(tx, vcluster, lock=True)
    if holder is None or holder.state in LAST:
        raise Refused(
            "not_found", f"there is no vcluster {vcluster!r}, or it is ending", "vcluster"
        )
    core.attach(tx, volumes.named(tx, asked.volume, lock=True), holder, asked, context)
    return show(tx, name=asked.volume, now=context.now)


def detach(tx: Tx, context: FlowContext, *, name: str, vcluster: str) -> VolumeView:
    """Withdraw the volume from the nodes of a vcluster. Raises `Refused`."""
    volume = volumes.named(tx, name, lock=True)
    own = [one for one in volumes.attachments(tx, [volume.id]) if one.vcluster == vcluster]
    if not own:
        raise Refused(
            "conflict", f"volume {name} is not attached to vcluster {vcluster}", "vcluster"
        )
    if not own[-1].leaving:
        core.detach(tx, volume, own[-1].id, context.now)
    return show(tx, name=name, now=context.now)


def change(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    size: int | None = None,
    sec: NfsSecurity | None = None,
) -> VolumeView:
    """Change the volume's size to `size` bytes, and how NFS protects it (`sec`); None leaves either
    as it is. A volume that holds more data than its new size accepts no more data. If nothing
    differs, nothing is done. Raises `Refused`."""
    volume = _kept(tx, name)
    columns = {"size": size or volume.size, "sec": sec or volume.sec}
    if columns == {"size": volume.size, "sec": volume.sec}:
        return show(tx, name=name, now=context.now)
    if sec is not None and sec != volume.sec:
        server = _server(context.site, volume.fileserver)
        kerberos.check_volume(sec, context.site.kerberos, server)
        attached = volumes.attachments(tx, [volume.id])
        core.check_templates(tx, sec, [one.vcluster_id for one in attached if not one.leaving])
    if size is not None:
        _check_room(tx, volume, size, context.site)
    core.changed(tx, volume, context.now, **columns)
    return show(tx, name=name, now=context.now)


def _check_room(tx: Tx, volume: Volume, size: int, site: Site) -> None:
    """Raise `Refused` if the volume cannot have `size` bytes, by the limits of volumes or by its
    group's quota."""
    policy.check_size(size)
    taken, most = core.room(tx, volume.group_id, site)
    if size > volume.size:
        group = groups.get(tx, volume.group_id)
        policy.check_quota(most, taken - volume.size, size, group.name)


def take_snapshot(tx: Tx, context: FlowContext, *, name: str, snapshot: str) -> VolumeView:
    """Order a snapshot of the volume with the name `snapshot`. Raises `Refused`."""
    volume = _kept(tx, name)
    names.full("", snapshot, "snapshot", thing="a snapshot")
    existing = [one.name for one in volumes.snapshots(tx, [volume.id])]
    if snapshot in existing:
        raise Refused("conflict", f"volume {name} has a snapshot {snapshot!r} already", "snapshot")
    policy.check_snapshots(volume, len(existing))
    volumes.add_snapshot(
        tx,
        volume_id=volume.id,
        name=snapshot,
        sequence=core.changed(tx, volume, context.now),
        created_at=context.now,
    )
    return show(tx, name=name, now=context.now)


def delete_snapshot(tx: Tx, context: FlowContext, *, name: str, snapshot: str) -> VolumeView:
    """Order the deletion of a snapshot, which cannot be undone. Raises `Refused`."""
    volume = volumes.named(tx, name, lock=True)
    found = next((one for one in volumes.snapshots(tx, [volume.id]) if one.name == snapshot), None)
    if found is None:
        raise Refused("not_found", f"volume {name} has no snapshot {snapshot!r}", "snapshot")
    _not_copied(tx, volume, [found], "snapshot")
    volumes.drop_snapshot(tx, found.id, core.changed(tx, volume, context.now))
    return show(tx, name=name, now=context.now)


def delete(tx: Tx, context: FlowContext, *, name: str) -> VolumeView:
    """Delete the volume: its data is kept for the site's grace, in which `restore` undoes it.
    Deleting it again changes nothing. Raises `Refused`."""
    now = context.now
    volume = volumes.named(tx, name, lock=True)
    attached = [one.vcluster for one in volumes.attachments(tx, [volume.id]) if not one.leaving]
    if attached:
        raise Refused(
            "conflict",
            f"volume {name} is attached to {', '.join(attached)}: detach it first",
            "name",
        )
    if volume.deleted_at is None:
        _not_copied(tx, volume, volumes.snapshots(tx, [volume.id]), "name")
        core.mark_deleted(
            tx, volume, now + context.site.volumes.grace, now, f"{context.actor} deleted it"
        )
    return show(tx, name=name, now=now)


def restore(tx: Tx, context: FlowContext, *, name: str) -> VolumeView:
    """Undo the deletion of a volume that is still kept. Raises `Refused`."""
    volume = volumes.named(tx, name, lock=True)
    if volume.purge_at is None:
        raise Refused("conflict", f"volume {name} is not deleted", "name")
    if volume.purge_at <= context.now:
        raise Refused("conflict", f"the data of volume {name} is being erased", "name")
    volumes.change(tx, volume.id, deleted_at=None, purge_at=None)
    return show(tx, name=name, now=context.now)


def remake(tx: Tx, context: FlowContext, *, name: str) -> VolumeView:
    """Order a new, empty directory for a volume that the file server has lost. Raises
    `Refused`."""
    core.changed(tx, _kept(tx, name), context.now, made_at=None, enforced="")
    return show(tx, name=name, now=context.now)


def forget(tx: Tx, context: FlowContext, *, name: str) -> VolumeView:
    """Remove the volume from the database alone, because its file server is gone for good. Raises
    `Refused` while the site file names that server: its exports could still be reached."""
    volume = volumes.named(tx, name, lock=True)
    if any(one.name == volume.fileserver for one in context.site.fileservers):
        raise Refused(
            "conflict",
            f"file server {volume.fileserver} is in the site file: delete the volume instead, or "
            "take the file server out of the site file first",
            "name",
        )
    view = VolumeView(volume, groups.get(tx, volume.group_id).name, "erasing")
    volumes.remove(tx, volume.id)
    return view


def room(tx: Tx, *, group: str, site: Site) -> tuple[int, int | None]:
    """Return (bytes of a group's volumes, quota in bytes); a quota of None: no limit."""
    return core.room(tx, groups.named(tx, group).id, site, lock=False)


def _kept(tx: Tx, name: str, field: str = "name") -> Volume:
    volume = volumes.named(tx, name, lock=True)
    if volume.deleted_at is not None:
        raise Refused("conflict", f"volume {name} is deleted: restore it first", field)
    return volume


def _not_copied(tx: Tx, volume: Volume, snapshots: Iterable[Snapshot], field: str) -> None:
    """Raise `Refused` while another volume is yet to be made from one of the snapshots."""
    for one in snapshots:
        copy = volumes.waits_for(tx, _source(volume, one.name))
        if copy is not None:
            raise Refused(
                "conflict",
                f"volume {copy} is being copied from snapshot {one.name}: try again when it is "
                "ready",
                field,
            )


def _source(volume: Volume, snapshot: str) -> str:
    """Return a snapshot's name in the form of `WantedVolume.source`."""
    return f"{volume.id}/{snapshot}"


def _server(site: Site, name: str) -> FileServer:
    if not site.fileservers:
        raise Refused(
            "conflict",
            "this site has no file server: an administrator adds a [[fileserver]] to the site file",
            "fileserver",
        )
    for server in site.fileservers:
        if name in ("", server.name):
            return server
    known = ", ".join(one.name for one in site.fileservers)
    raise Refused(
        "not_found", f"there is no file server {name!r}; the site has {known}", "fileserver"
    )


def servers(tx: Tx, *, site: Site) -> list[tuple[FileServer, list[Volume]]]:
    """Return the site's file servers with their volumes, without COD's address and keys for SSH."""
    return [
        (
            replace(one, ssh="", ssh_key=None, known_hosts=None),
            list(volumes.of_server(tx, one.name).values()),
        )
        for one in site.fileservers
    ]
