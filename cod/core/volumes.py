"""Changes of volumes that follow from other things: a vcluster that begins or ends, a group whose
members change.

A change raises the volume's sequence; `flows.volumes.exports` carries it out on the file server.
The rule that keeps volumes apart: a vcluster keeps its addresses until no attachment of it is left,
and an attachment goes when its file server has withdrawn the export
(`store.scheduler.vclusters.deserted`, `end`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cod import notice_texts
from cod.core import notices
from cod.model import (
    AskedVcluster,
    AskedVolume,
    FileServer,
    FlowContext,
    Group,
    NfsSecurity,
    Node,
    Refused,
    Site,
    Vcluster,
    Volume,
    VolumeMount,
)
from cod.policy import volumes as policy
from cod.policy.nodes import template
from cod.policy.people import kerberos
from cod.quantity import exact_span
from cod.states import NodeState
from cod.store import volumes
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import bindings

HOME = "home"


def changed(tx: Tx, volume: Volume, now: float, **columns: Any) -> int:
    """Set columns of the volume, and ask its file server to carry the change out. Return the
    change's sequence number. For a change that the file server need not know, call
    `store.volumes.change`."""
    sequence = policy.next_sequence(volume, now)
    columns |= {**volumes.UNTRIED, "sequence": sequence, "next_at": now}
    volumes.change(tx, volume.id, **columns)
    return sequence


def room(tx: Tx, group_id: int, site: Site, *, lock: bool = True) -> tuple[int, int | None]:
    """Return (bytes of a group's volumes, quota in bytes); a quota of None: no limit. `lock`: no
    other transaction adds volumes of the group until this one ends."""
    taken, own = volumes.taken(tx, group_id, lock=lock)
    return taken, site.volumes.quota if own is None else own


def create(
    tx: Tx,
    group: Group,
    name: str,
    size: int,
    context: FlowContext,
    *,
    kind: str = "data",
    server: FileServer,
    source: str = "",
    sec: NfsSecurity | None = None,
) -> Volume:
    """Record a new volume of the group, and return it; its file server creates it later. Raises
    `Refused`.

    name  the full name
    sec   the protection by NFS; None: the one in the site file
    """
    sec = sec or context.site.volumes.sec
    policy.check_size(size)
    kerberos.check_volume(sec, context.site.kerberos, server)
    if volumes.is_there(tx, name):
        raise Refused(
            "conflict",
            f"there is a volume {name!r} already, or a deleted one that is kept for a while",
            "name",
        )
    taken, most = room(tx, group.id, context.site)
    policy.check_quota(most, taken, size, group.name)
    made = volumes.add(
        tx,
        name=name,
        group_id=group.id,
        kind=kind,
        fileserver=server.name,
        path="",
        size=size,
        sec=sec,
        source=source,
        export_id=volumes.free_export(tx, server.name),
        sequence=int(context.now),
        next_at=context.now,
        created_at=context.now,
    )
    volumes.change(tx, made.id, path=policy.directory(server.root, made.id, name))
    return volumes.named(tx, name)


def home(tx: Tx, group: Group, context: FlowContext) -> Volume | None:
    """Return the group's home volume, made now if need be; None where the site has no file server.
    Raises `Refused`."""
    site, homes = context.site, volumes.homes(tx, group.id)
    if homes or not site.fileservers:
        return homes[0] if homes else None
    return create(
        tx,
        group,
        f"{group.name}/{HOME}",
        site.volumes.home_size,
        context,
        kind="home",
        server=site.fileservers[0],
    )


def attach_asked(
    tx: Tx, vcluster: Vcluster, group: Group, asked: AskedVcluster, context: FlowContext
) -> None:
    """Attach the volumes that a new vcluster of the group asks for, and the group's home volume if
    it mounts home directories. Raises `Refused`."""
    if context.site.volumes.homes if asked.homes is None else asked.homes:
        own = home(tx, group, context)
        if own is not None:
            attach(tx, own, vcluster, AskedVolume(own.name), context)
    for each in asked.mounts:
        full = each.volume if "/" in each.volume else f"{group.name}/{each.volume}"
        attach(tx, volumes.named(tx, full, lock=True), vcluster, each, context)


def attach(
    tx: Tx, volume: Volume, vcluster: Vcluster, asked: AskedVolume, context: FlowContext
) -> None:
    """Attach the volume to the vcluster, so that its nodes mount it. If it is attached already,
    change the mount to what is asked. Raises `Refused`."""
    site, now = context.site, context.now
    if volume.deleted_at is not None:
        raise Refused("conflict", f"volume {volume.name} is deleted: restore it first", "volume")
    default = (
        site.volumes.home_mount if volume.kind == "home" else f"/{volume.name.rpartition('/')[2]}"
    )
    mount = asked.mount or default
    policy.check_mount(mount)
    if asked.delete_after is not None and volume.kind == "home":
        raise Refused("invalid", "a home volume is kept", "delete_after")
    if asked.delete_after is not None and asked.delete_after < site.volumes.grace:
        least = exact_span(site.volumes.grace)
        why = f"a volume is kept for {least} after its vcluster's end at least"
        raise Refused("invalid", why, "delete_after")
    check_templates(tx, volume.sec, [vcluster.id])
    attached = volumes.attached_to(tx, vcluster.id)
    policy.check_apart(
        mount, [one.mount for one in attached if not one.leaving and one.volume_id != volume.id]
    )
    columns = {"mount": mount, "read_only": asked.read_only, "delete_after": asked.delete_after}
    own = next((one for one in attached if one.volume_id == volume.id), None)
    sequence = changed(tx, volume, now)
    if own is None:
        volumes.attach(
            tx,
            volume_id=volume.id,
            vcluster_id=vcluster.id,
            sequence=sequence,
            created_at=now,
            **columns,
        )
    else:
        volumes.change_attachment(tx, own.id, sequence=sequence, leaving=False, **columns)


def check_templates(tx: Tx, sec: NfsSecurity, vcluster_ids: Collection[int]) -> None:
    """Raise `Refused` if the templates that nodes of these vclusters run, or that new nodes would
    run, cannot mount a volume with the protection `sec`."""
    if sec != "sys":
        for name, document in templates.of_vclusters(tx, vcluster_ids):
            kerberos.check_template(sec, name, template.parse(document))


def detach(tx: Tx, volume: Volume, attachment_id: int, now: float) -> None:
    """Ask the file server to withdraw the volume's export to a vcluster; the attachment's row is
    deleted when that is done."""
    volumes.change_attachment(tx, attachment_id, leaving=True, sequence=changed(tx, volume, now))


def detach_all(tx: Tx, vcluster: Vcluster, now: float) -> bool:
    """Detach all volumes of a vcluster that ends. Return whether no volume is attached to it any
    more.

    A volume with `delete_after` that is attached to no other vcluster is deleted. Its group is
    told, and may restore the volume for `delete_after` seconds.
    """
    attached = volumes.attached_to(tx, vcluster.id)
    for one in attached:
        if one.leaving:
            continue
        volume = volumes.known(tx, one.volume_id, lock=True)
        detach(tx, volume, one.id, now)
        others = [other for other in volumes.attachments(tx, [volume.id]) if not other.leaving]
        if one.delete_after is not None and not others and volume.deleted_at is None:
            mark_deleted(
                tx, volume, now + one.delete_after, now, f"vcluster {vcluster.name} has ended"
            )
    return not attached


def mark_deleted(tx: Tx, volume: Volume, purge_at: float, now: float, cause: str) -> None:
    """Delete the volume: its data is kept until `purge_at`; its group is told."""
    volumes.change(tx, volume.id, deleted_at=now, purge_at=purge_at)
    notices.add(
        tx,
        **notice_texts.volume_deleted(volume.name, purge_at, cause),
        group_id=volume.group_id,
        now=now,
    )


def addresses_changed(tx: Tx, vcluster_id: int, now: float) -> None:
    """Have the vcluster's volumes exported to the addresses that it has now."""
    for one in volumes.attached_to(tx, vcluster_id):
        volume = volumes.get(tx, one.volume_id, lock=True)
        if volume is not None and not one.leaving:
            changed(tx, volume, now)


def gid_changed(tx: Tx, group_id: int, now: float) -> None:
    """Have the file servers give the group's volumes to the gid that the group has now."""
    for volume, _ in volumes.every(tx, frozenset({group_id})):
        changed(tx, volume, now)


def mounts(tx: Tx, vcluster_id: int, site: Site) -> list[VolumeMount]:
    """Return the volumes that the vcluster's nodes can mount now, by mount point."""
    addresses = {one.name: one.address for one in site.fileservers}
    return [
        policy.mount(volume, attachment, addresses[volume.fileserver])
        for volume, attachment in volumes.exported(tx, vcluster_id)
        if volume.fileserver in addresses
    ]


def automounts(tx: Tx, vcluster_id: int, site: Site) -> dict[str, dict[str, str]]:
    """Return the automounter's maps for a vcluster's nodes: for each map, the entries by key."""
    return policy.automounts(mounts(tx, vcluster_id, site))


def way_down(tx: Tx, node: Node) -> str:
    """Return 'file server NAME' if the node's system runs but waits for a mount from a failing file
    server; else ''."""
    if node.state != NodeState.BOOT or node.vcluster_id is None:
        return ""
    awaited = volumes.awaited_mounts(tx, [node.vcluster_id], failing=True)
    runs = any(one.state == "bound" for one in bindings.of_systems(tx, [node.id]))
    return f"file server {awaited[node.vcluster_id][0][1]}" if awaited and runs else ""
