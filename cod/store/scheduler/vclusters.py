"""Virtual clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, filterfalse
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from cod.model import Subnet, Vcluster
from cod.states import NodeState, ReclaimState, VclusterState
from cod.store import dns_zones, vcms
from cod.store import tables as t
from cod.store.engine import Among, Tx, nested, rows_among, slices
from cod.store.nodes import nodes
from cod.store.rows import RowChange, Rows, insert_all, update_all
from cod.store.scheduler import address_blocks

_v = t.vclusters.c
ROWS = Rows(Vcluster, t.vclusters, noun="vcluster", name="live_name")
get, known, by_name, named = ROWS.get, ROWS.known, ROWS.by_name, ROWS.named
# one text a vcluster: large ones have many nodes
_HOSTNAMES = (
    select(t.nodes.c.vcluster_id, func.group_concat(t.nodes.c.hostname))
    .where(Among(t.nodes.c.vcluster_id, "holders"))
    .group_by(t.nodes.c.vcluster_id)
)
_FIRM = (_v.state == VclusterState.ACTIVE, _v.drain_until.is_(None), _v.preemptible.is_(False))


def every(tx: Tx, states: Iterable[str] = (), group_id: int | None = None) -> list[Vcluster]:
    """Return vclusters in any of `states` (empty: all live ones), by id; of one group or of all."""
    own = [] if group_id is None else [_v.group_id == group_id]
    condition = _v.state.in_(list(states)) if states else _v.live_name.is_not(None)
    return ROWS.every(tx, condition, *own, order=_v.id)


def lock(tx: Tx, vcluster_ids: Collection[int]) -> dict[int, Vcluster]:
    """Return those vclusters, by id. No other transaction changes them until this one ends."""
    return {one.id: one for one in ROWS.lock(tx, vcluster_ids)}


class Live(NamedTuple):
    """A live vcluster, with the fields of `model.Vcluster` that the manager's pass reads."""

    id: int
    name: str
    group_id: int
    state: str
    creation_size: int
    subnet: str | None
    expires_at: float | None
    drain_until: float | None
    warned: float | None
    lease_time: float
    isolated: bool
    preemptible: bool
    user_id: int | None


_LIVE = Rows(Live, t.vclusters)


def names(tx: Tx, vcluster_ids: Collection[int]) -> dict[int, str]:
    """Return the names of vclusters by their ids."""
    rows = rows_among(tx, select(_v.id, _v.name), _v.id, sorted(vcluster_ids))
    return {row[0]: row[1] for row in rows}


def live_rows() -> Select[Any]:
    """Return the query of `live`."""
    return _LIVE.select.where(_v.live_name.is_not(None)).order_by(_v.id)


def live(tx: Tx) -> list[Live]:
    """Return all live vclusters, by id."""
    return _LIVE.all(tx, live_rows())


def add(
    tx: Tx,
    *,
    name: str,
    group_id: int,
    template_id: int,
    size: int,
    attributes: str,
    lease_time: float,
    subnet: Subnet,
    now: float,
    isolated: bool = False,
    addresses: bool = True,
    network_prefix: int | None = None,
    user_id: int | None = None,
    **options: Any,
) -> Vcluster | None:
    """Add a pending vcluster with the lowest free blocks of `subnet` for `size` nodes and return
    it; None when too few blocks are free. A vcluster that is `isolated` gets no blocks, as it is in
    a network of its own. Without `addresses` it gets its blocks later. `options`: other fields that
    people can set.

    The name is unique among live vclusters; the caller checks that first, and the database has the
    last word.
    """
    with tx.begin_nested() as part:
        made = ROWS.add(
            tx,
            name=name,
            live_name=name,
            group_id=group_id,
            state=VclusterState.PENDING,
            template_id=template_id,
            size=size,
            creation_size=size,
            attributes=attributes,
            subnet=subnet.name,
            lease_time=lease_time,
            created_at=now,
            isolated=isolated,
            network_prefix=network_prefix,
            user_id=user_id,
            **options,
        )
        if addresses and not isolated and not address_blocks.claim(tx, made.id, subnet, size):
            part.rollback()
            return None
        tx.execute(insert(t.vcluster_history).values(_noted(made, "created", now)))
        dns_zones.touch(tx, [dns_zones.SITE, ("vcluster", name)], now)
        return made


def change(tx: Tx, vcluster: Vcluster, now: float, **columns: Any) -> Vcluster:
    """Set columns and return the changed vcluster. Changes that matter to its owners are recorded
    in its history."""
    changed = replace(vcluster, **columns)
    change_all(tx, [(vcluster, changed, columns)], now)
    return changed


def change_all(
    tx: Tx, changes: Sequence[tuple[Vcluster, Vcluster, Mapping[str, Any]]], now: float
) -> None:
    """Write changes of vclusters, (before, after, columns) each, as `change` does."""
    whole: dict[int, dict[str, Any]] = {}  # of one that changes twice, both
    for before, _, columns in changes:
        whole.setdefault(before.id, {}).update(columns)
    update_all(tx, t.vclusters, [RowChange({"id": one}, new) for one, new in whole.items() if new])
    history = [
        _noted(after, event, now)
        for before, after, _ in changes
        if (event := _event(before, after))
    ]
    insert_all(tx, t.vcluster_history, history)


def _event(before: Vcluster, after: Vcluster) -> str | None:
    differ = (
        event
        for event, column in EVENTS.items()
        if getattr(before, column) != getattr(after, column)
    )
    return next(differ, None)


EVENTS = {
    "state": "state",
    "draining": "drain_until",
    "lease": "expires_at",
    "size": "size",
    "ready": "ready_at",
}
"""What is written to a vcluster's history, and the column whose change it is; of several the
first."""


def _noted(vcluster: Vcluster, event: str, now: float) -> dict[str, Any]:
    """Return the history's row for an event of the vcluster."""
    return dict(
        vcluster_id=vcluster.id,
        at=now,
        event=event,
        state=vcluster.state,
        size=vcluster.size,
        expires_at=vcluster.expires_at,
    )


def end(tx: Tx, vcluster: Vcluster, now: float) -> Vcluster:
    """End the vcluster: its name and addresses become free, and its VCM is revoked.

    Raises RuntimeError while a volume is exported to it: the next vcluster with these addresses
    could mount the volume.
    """
    if tx.scalar(
        select(t.volume_attachments.c.id)
        .where(t.volume_attachments.c.vcluster_id == vcluster.id)
        .limit(1)
    ):
        raise RuntimeError(
            f"vcluster {vcluster.name} cannot end: volumes are exported to its addresses"
        )
    vcms.revoke(tx, vcluster.id)
    address_blocks.give_back(tx, vcluster.id)
    dns_zones.touch(tx, [dns_zones.SITE, ("vcluster", vcluster.name)], now)
    for table in (t.vcluster_names, t.vcluster_former_names):
        tx.execute(delete(table).where(table.c.vcluster_id == vcluster.id))
    ROWS.set(tx, vcluster.id, live_name=None)
    return change(tx, vcluster, now, state=VclusterState.ENDED, ended_at=now)


def rename(tx: Tx, vcluster: Vcluster, name: str, now: float) -> Vcluster:
    """Give the vcluster another name. No other vcluster can have the former name while this one
    exists."""
    f, o = t.vcluster_former_names.c, t.series_occurrences.c
    tx.execute(delete(t.vcluster_former_names).where(f.name == name))
    tx.execute(insert(t.vcluster_former_names).values(name=vcluster.name, vcluster_id=vcluster.id))
    series = select(t.reservation_series.c.id).where(
        t.reservation_series.c.group_id == vcluster.group_id
    )
    tx.execute(
        update(t.series_occurrences)
        .where(o.vcluster == vcluster.name, o.series_id.in_(series))
        .values(vcluster=name)
    )
    subnets = {("subnet", one.subnet) for one in address_blocks.of(tx, vcluster.id)}
    names = {("vcluster", one) for one in (vcluster.name, name)}
    dns_zones.touch(tx, [dns_zones.SITE, *names, *subnets], now)
    ROWS.set(tx, vcluster.id, live_name=name)
    return change(tx, vcluster, now, name=name)


def former_names(tx: Tx, vcluster_id: int) -> list[str]:
    """Return the names that the vcluster had before it was renamed."""
    f = t.vcluster_former_names.c
    return list(tx.scalars(select(f.name).where(f.vcluster_id == vcluster_id).order_by(f.name)))


def renamed(tx: Tx, names: Collection[str]) -> dict[str, str]:
    """Return the present names of vclusters that were renamed, by those of `names` that they
    had."""
    f = t.vcluster_former_names.c
    query = select(f.name, _v.name).join(t.vclusters, _v.id == f.vcluster_id)
    return {row[0]: row[1] for row in tx.execute(query.where(f.name.in_(names)))} if names else {}


def deserted(tx: Tx) -> list[Vcluster]:
    """Return the releasing vclusters that can end, by id: they hold no nodes, and no nodes are on
    their way back from them.

    A node that was taken out of service on its way back does not count: it may never come. A
    vcluster to which a volume is still exported cannot end: its addresses stay its own until the
    file server has withdrawn the export.
    """
    n = t.nodes.c
    aside = (NodeState.QUARANTINED, NodeState.RETIRED)
    left = select(n.id).where(
        ((n.released == _v.id) & n.state.not_in(aside)) | (n.vcluster_id == _v.id)
    )
    exported = select(t.volume_attachments.c.id).where(t.volume_attachments.c.vcluster_id == _v.id)
    empty = _v.state == VclusterState.RELEASING, ~left.exists(), ~exported.exists()
    return ROWS.every(tx, *empty, order=_v.id)


def free_hostnames(tx: Tx, vcluster_ids: Collection[int]) -> dict[int, Iterator[str]]:
    """Return, for each vcluster, an endless iterator of host names (n1, n2 …) that none of its
    nodes has."""
    taken: dict[int, str] = {}
    for part in slices(sorted(vcluster_ids)):
        taken |= {row[0]: row[1] for row in tx.execute(_HOSTNAMES, {"holders": part}).all()}
    return {
        one: filterfalse(used.__contains__, (f"n{number}" for number in count(1)))
        for one in vcluster_ids
        for used in [set((taken.get(one) or "").split(","))]
    }


def active_nodes(tx: Tx, vcluster_id: int) -> int:
    """Return how many nodes of the vcluster are active."""
    n = t.nodes.c
    return nodes.ROWS.count(tx, n.vcluster_id == vcluster_id, n.state == NodeState.ACTIVE)


def held_by_groups(tx: Tx, now: float, *group_ids: int) -> Counter[int]:
    """Return how many nodes each group (all groups, if none is named) holds, in active vclusters
    whose leases have not run out. Nodes of draining and of preemptible vclusters do not count."""
    query = (
        select(_v.group_id, func.count())
        .join_from(t.vclusters, t.nodes, t.nodes.c.vcluster_id == _v.id)
        .where(*_lasting(now, group_ids))
        .group_by(_v.group_id)
    )
    return Counter({group_id: int(nodes_) for group_id, nodes_ in tx.execute(query)})


def held_by_groups_and_types(tx: Tx) -> dict[int, Counter[int]]:
    """Return how many nodes of each type each group's vclusters hold, without preemptible ones."""
    n = t.nodes.c
    query = (
        select(_v.group_id, n.type_id, func.count())
        .join_from(t.vclusters, t.nodes, n.vcluster_id == _v.id)
        .where(n.type_id.is_not(None), _v.preemptible.is_(False))
        .group_by(_v.group_id, n.type_id)
    )
    found: dict[int, Counter[int]] = {}
    for group_id, type_id, nodes_ in tx.execute(query):
        found.setdefault(group_id, Counter())[type_id] = nodes_
    return found


def leaving_by_groups(tx: Tx, now: float, *group_ids: int) -> Counter[int]:
    """Return how many of the nodes that `held_by_groups` counts have still to leave by reclaims."""
    c = t.reclaims.c
    query = (
        select(_v.group_id, func.sum(c["count"] - c.given))
        .join_from(t.vclusters, t.reclaims, c.vcluster_id == _v.id)
        .where(c.state == ReclaimState.OPEN, *_lasting(now, group_ids))
        .group_by(_v.group_id)
    )
    return Counter({group_id: int(nodes_) for group_id, nodes_ in tx.execute(query)})


def kept_of_types(
    tx: Tx, types: Collection[int], now: float, *group_ids: int
) -> Counter[tuple[int, int]]:
    """Return the counts of `held_by_groups` for nodes of these types, minus the nodes that have
    still to leave by reclaims, by group and type."""
    n, r = t.nodes.c, t.reclaims.c
    where = _lasting(now, group_ids)
    held = (
        select(_v.group_id, n.type_id, func.count())
        .join_from(t.vclusters, t.nodes, n.vcluster_id == _v.id)
        .where(n.type_id.in_(types), *where)
        .group_by(_v.group_id, n.type_id)
    )
    leaving = (
        select(_v.group_id, r.type_id, func.sum(r["count"] - r.given))
        .join_from(t.vclusters, t.reclaims, r.vcluster_id == _v.id)
        .where(r.state == ReclaimState.OPEN, r.type_id.in_(types), *where)
        .group_by(_v.group_id, r.type_id)
    )
    found: Counter[tuple[int, int]] = Counter()
    for query, sign in ((held, 1), (leaving, -1)):
        for group_id, type_id, nodes_ in tx.execute(query):
            found[group_id, type_id] += sign * int(nodes_)
    return found


def _lasting(now: float, group_ids: Collection[int]) -> tuple[ColumnElement[bool], ...]:
    return (
        _v.state == VclusterState.ACTIVE,
        _v.drain_until.is_(None),
        _v.preemptible.is_(False),
        or_(_v.expires_at.is_(None), _v.expires_at > now),
        *([_v.group_id.in_(group_ids)] if group_ids else ()),
    )


def floors_by_groups(tx: Tx) -> dict[int, int]:
    """Return, by group, the sum of the creation sizes of the vclusters in `floors`."""
    query = select(_v.group_id, func.sum(_v.creation_size)).where(*_FIRM)
    return {group: int(size) for group, size in tx.execute(query.group_by(_v.group_id))}


def floors(tx: Tx) -> list[tuple[int, int, int, int, float]]:
    """Return (id, group, creation size, size, end of the lease) of each active vcluster that is
    neither draining nor preemptible."""
    query = select(_v.id, _v.group_id, _v.creation_size, _v.size, _v.expires_at).where(*_FIRM)
    return [(*row[:4], row[4] or float("inf")) for row in tx.execute(query)]


def held_of_types(tx: Tx, types: Collection[int]) -> dict[int, dict[int, int]]:
    """Return how many nodes of these types each vcluster holds, by its id and the type's."""
    n = t.nodes.c
    query = (
        select(n.vcluster_id, n.type_id, func.count())
        .where(n.vcluster_id.is_not(None), n.type_id.in_(types))
        .group_by(n.vcluster_id, n.type_id)
    )
    return nested(tx.execute(query))


def held(tx: Tx, vcluster_id: int) -> int:
    """Return how many nodes the vcluster holds."""
    return nodes.ROWS.count(tx, t.nodes.c.vcluster_id == vcluster_id)


def held_each(tx: Tx, vcluster_ids: Collection[int]) -> Counter[int]:
    """Return how many nodes each of the vclusters holds."""
    n = t.nodes.c
    query = select(n.vcluster_id, func.count()).group_by(n.vcluster_id)
    rows = rows_among(tx, query, n.vcluster_id, sorted(vcluster_ids))
    return Counter({row[0]: row[1] for row in rows})


def held_by_type(tx: Tx) -> list[tuple[int, str | None, int, float | None]]:
    """Return counts of the nodes that vclusters hold: (vcluster's id, type's name, nodes, time of
    the first assignment)."""
    n = t.nodes.c
    query = (
        select(n.vcluster_id, t.node_types.c.name, func.count(), func.min(n.assigned_at))
        .select_from(t.nodes)
        .outerjoin(t.node_types, n.type_id == t.node_types.c.id)
        .where(n.vcluster_id.is_not(None))
        .group_by(n.vcluster_id, t.node_types.c.name)
    )
    return [(row[0], row[1], row[2], row[3]) for row in tx.execute(query)]
