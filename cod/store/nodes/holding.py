"""Holders of nodes: taking a node for a vcluster and giving it back, with all rows that depend on
the holder.

These rows are the node's own columns, its address in the vcluster's block (`bindings`), its
holder's right to use it (`node_permissions`) and its installation (`install_images`). Taking and
giving back are no transitions: the caller moves the node on in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import and_, func, or_, select, update

from cod.model import Assignment, InstallationRecord, Node, Vcluster
from cod.states import WRITING, Disk
from cod.store import dns_zones
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.images import templates
from cod.store.nodes import bindings, host_keys
from cod.store.nodes.nodes import Stale
from cod.store.rows import insert_all, remove_all
from cod.store.scheduler import reservations

_NOBODY: dict[str, Any] = dict.fromkeys(
    ("vcluster_id", "request_id", "position", "template_id", "hostname", "assigned_at")
)


def take(
    tx: Tx,
    node: Node,
    *,
    vcluster: Vcluster,
    request_id: int,
    template_id: int,
    hostname: str,
    now: float,
    position: int | None = None,
) -> Node:
    """Give a free node to `vcluster` and return the changed node. `position`: of the request's
    tuple.

    Raises `Stale` when the node has moved on or has a holder: then nothing may be committed.
    """
    columns = held_by(vcluster.id, request_id, position, template_id, hostname, now)
    nodes = t.nodes
    done = tx.execute(
        update(nodes)
        .values(**columns)
        .where(
            nodes.c.id == node.id,
            nodes.c.generation == node.generation,
            nodes.c.vcluster_id.is_(None),
        )
    )
    if done.rowcount != 1:
        raise Stale(node.id, node.generation)
    follow(tx, [Taken(node, vcluster, template_id, hostname)], now)
    return replace(node, **columns)


def held_by(
    vcluster_id: int,
    request_id: int,
    position: int | None,
    template_id: int,
    hostname: str,
    now: float,
) -> dict[str, Any]:
    """Return the columns of a node that the vcluster holds from `now` on."""
    return {
        "vcluster_id": vcluster_id,
        "request_id": request_id,
        "position": position,
        "template_id": template_id,
        "hostname": hostname,
        "assigned_at": now,
        "reason": "",
    }


class Taken(NamedTuple):
    """A node as it was before it was taken, and its new holder."""

    node: Node
    vcluster: Vcluster
    template_id: int
    hostname: str


def follow(tx: Tx, taken: Sequence[Taken], now: float) -> None:
    """Write the other rows that depend on nodes' new holders. The nodes' own rows are written
    already."""
    ids = [one.node.id for one in taken]
    _clear_rights(tx, ids)
    reservations.drop(tx, ids)
    host_keys.forget_all(tx, [one.node.id for one in taken if not _is_cached(one)])
    wanted = [
        bindings.Reserve(one.node.id, one.node.boot_mac, one.vcluster, one.hostname)
        for one in taken
    ]
    bindings.reserve_all(tx, wanted, now)
    insert_all(
        tx,
        t.node_permissions,
        [
            {"node_id": one.node.id, "group_id": one.vcluster.group_id, "right": "use"}
            for one in taken
        ],
    )
    insert_all(
        tx,
        t.install_images,
        [
            {
                "node_id": one.node.id,
                "generation": one.node.generation + 1,
                "template_id": one.template_id,
                "state": "pending",
                "at": now,
            }
            for one in taken
        ],
    )


def _is_cached(one: Taken) -> bool:
    """Return whether the node's disk holds the system that it will run, kept for its holder's
    group."""
    cached = (one.node.disk, one.node.cached_template_id, one.node.cached_group_id)
    return cached == (Disk.CACHED, one.template_id, one.vcluster.group_id)


def give_back(
    tx: Tx,
    node: Node,
    *,
    up_until: float | None,
    keep_disk: bool = False,
    one_group: bool = False,
    wipe: str = "",
) -> Node:
    """Take `node` from its holder and return the changed node; a node without a holder stays as it
    is.

    up_until   the time until which its system may use its address, for a node without a power
               driver; None: the node is switched off
    keep_disk  its disk holds its template, written whole, and may be kept for the same group;
               otherwise all disks count as dirty, because the holder may have written anywhere
    one_group  its disks hold no data of other groups than its holder's
    wipe       the weakest erasure of its disks that is allowed

    Raises `Stale` when the node has moved on.
    """
    if node.vcluster_id is None:
        return node
    columns = _NOBODY | {
        "released": node.vcluster_id,
        "attempts": 0,
        "disk": Disk.CACHED if keep_disk else Disk.DIRTY,
        "wipe": wipe,
    }
    columns["cached_template_id"] = node.template_id if keep_disk else None
    v = t.vclusters.c
    group_id, holder = tx.execute(select(v.group_id, v.name).where(v.id == node.vcluster_id)).one()
    columns["cached_group_id"] = group_id if keep_disk or one_group else None
    done = tx.execute(
        update(t.nodes)
        .values(**columns)
        .where(t.nodes.c.id == node.id, t.nodes.c.generation == node.generation)
    )
    if done.rowcount != 1:
        raise Stale(node.id, node.generation)
    subnets = [one.subnet for one in bindings.of_systems(tx, [node.id])]
    dns_zones.touch(tx, [("vcluster", holder), *(("subnet", subnet) for subnet in subnets)])
    bindings.release(tx, node.id, up_until)
    if not keep_disk:
        host_keys.forget(tx, node.id)
    _clear_rights(tx, [node.id])
    return replace(node, **columns)


def assignment(tx: Tx, node: Node) -> Assignment | None:
    """Return the system that the node will run for its holder; None without a holder."""
    if node.vcluster_id is None or node.template_id is None:
        return None
    c, v, k, r = t.config_templates.c, t.vclusters.c, t.node_types.c, t.request_tuples.c
    hardware = func.coalesce(select(k.attributes).where(k.id == node.type_id).scalar_subquery(), "")
    query = (
        select(c.id, c.document, v.group_id, hardware, c.name, c.digest)
        .join_from(t.config_templates, t.vclusters, v.id == node.vcluster_id)
        .where(c.id == node.template_id)
    )
    of_it = (
        r.template_id == node.template_id if node.position is None else r.position == node.position
    )
    asked = select(r.attributes).where(r.request_id == node.request_id, of_it)
    requires = tuple(dict.fromkeys(tx.scalars(asked.order_by(r.position))))
    found = Assignment(*tx.execute(query).one(), requires)
    return replace(found, document=templates.with_known(tx, {0: (found.name, found.document)})[0])


def set_installation(
    tx: Tx, node_id: int, state: str, reason: str, now: float, **columns: int
) -> None:
    """Record how far the node's installation is."""
    i = t.install_images
    tx.execute(
        update(i)
        .where(i.c.node_id == node_id)
        .values(state=state, reason=reason, at=now, **columns)
    )


def recorded(tx: Tx, node_id: int, generation: int | None) -> InstallationRecord:
    """Return what is known of the node in that generation: what its history says, and its present
    installation, if that is the one of this generation, or runs what it left on the disk."""
    h, v, i, c = t.node_history.c, t.vclusters.c, t.install_images.c, t.config_templates.c
    past = (
        select(h.to_state, v.id, v.created_at)
        .select_from(t.node_history)
        .outerjoin(t.vclusters, v.id == h.vcluster_id)
        .where(h.node_id == node_id, h.generation == generation)
        .order_by(h.id.desc())
    )
    written = select(func.max(h.generation)).where(h.node_id == node_id, h.to_state.in_(WRITING))
    runs_cached = and_(i.state == "done", written.scalar_subquery() == generation)
    present = (
        select(c.digest, i.state == "pending")
        .join_from(t.install_images, t.config_templates, c.id == i.template_id)
        .where(i.node_id == node_id, or_(i.generation == generation, runs_cached))
    )
    return InstallationRecord(
        *(tx.execute(past).first() or ("", None, None)), *(tx.execute(present).first() or ())
    )


def set_installed(tx: Tx, node_ids: Sequence[int], now: float) -> None:
    """Record that those nodes are installed."""
    i = t.install_images
    for part in slices(node_ids):
        tx.execute(update(i).where(i.c.node_id.in_(part)).values(state="done", reason="", at=now))


def _clear_rights(tx: Tx, node_ids: Sequence[int]) -> None:
    for table in (t.node_permissions, t.install_images):
        remove_all(tx, table.c.node_id, node_ids)
