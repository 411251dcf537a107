"""Rows behind the metadata service: the node whose system has an address, and the other nodes of
its vcluster."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import and_, bindparam, select

from cod.model import Assignment, Node, ipv4
from cod.states import OWN_SYSTEM, ReclaimState
from cod.store import tables as t
from cod.store.engine import Prepared, Tx
from cod.store.nodes import nodes

_b, _n, _v, _r = t.bindings.c, t.nodes.c, t.vclusters.c, t.reclaims.c
_AT = Prepared(
    select(
        *nodes.ROWS.columns,
        _b.mac,
        _b.subnet,
        _v.name,
        t.groups.c.name,
        _v.expires_at,
        _v.drain_until,
        t.config_templates.c.revision,
        t.node_types.c.name,
        t.node_blocks.c.name,
        t.install_images.c.generation,
        t.reservations.c.promised_at,
        _r.deadline,
        _v.group_id,
        t.config_templates.c.name,
        t.config_templates.c.document,
        t.config_templates.c.digest,
    )
    .select_from(t.bindings)
    .join(t.nodes, _n.id == _b.node_id)
    .join(t.vclusters, _v.id == _n.vcluster_id)
    .join(t.groups, t.groups.c.id == _v.group_id)
    .join(t.config_templates, t.config_templates.c.id == _n.template_id)
    .outerjoin(t.node_types, t.node_types.c.id == _n.type_id)
    .outerjoin(t.node_blocks, t.node_blocks.c.id == _n.block_id)
    .outerjoin(t.install_images, t.install_images.c.node_id == _n.id)
    .outerjoin(t.reservations, t.reservations.c.node_id == _n.id)
    .outerjoin(
        t.reclaims,
        and_(
            _r.id == t.reservations.c.reclaim_id,
            _r.vcluster_id == _n.vcluster_id,
            _r.state == ReclaimState.OPEN,
        ),
    )
    .where(
        _b.address == bindparam("number"),
        _b.kind == "vcluster",
        _b.mac.is_not(None),
        _n.state.in_(OWN_SYSTEM),
    )
)


class Found(NamedTuple):
    """A node in its own system, with its template and the names of its vcluster and group.

    mac, subnet  of the binding of its address
    wanted       without the parts that only priming needs
    revision     of its template
    primed       generation of the node in which it was primed last
    taken_at     the time by which an open reclaim takes it: promised by its VCM, or the reclaim's
                 deadline; None: there is none
    """

    node: Node
    mac: str
    subnet: str
    wanted: Assignment
    vcluster: str
    group: str
    expires_at: float | None
    drain_until: float | None
    revision: int
    node_type: str
    block: str
    primed: int | None
    taken_at: float | None


def at(tx: Tx, address: str) -> Found | None:
    """Return the node whose system, running or booting, has that address in its vcluster; None if
    there is none. Addresses of boot pools are not considered."""
    try:
        number = ipv4(address)
    except OSError:
        return None
    row = _AT.row(tx, {"number": number})
    if row is None:
        return None
    node = nodes.ROWS.read(row)
    (
        mac,
        subnet,
        vcluster,
        group,
        expires,
        drain,
        revision,
        kind,
        block,
        primed,
        promised,
        deadline,
        group_id,
        name,
        document,
        digest,
    ) = row[nodes.ROWS.width :]
    wanted = Assignment(node.template_id or 0, document, group_id, name=name, digest=digest)
    return Found(
        node,
        mac,
        subnet,
        wanted,
        vcluster,
        group,
        expires,
        drain,
        revision,
        kind or "",
        block or "",
        primed,
        None if deadline is None else min(promised or deadline, deadline),
    )


def peers(tx: Tx, vcluster_id: int) -> list[tuple[str, int, str]]:
    """Return host name, address and state of each node of the vcluster that has an address, by
    address."""
    query = (
        select(_n.hostname, _b.address, _n.state)
        .join_from(t.bindings, t.nodes, _n.id == _b.node_id)
        .where(
            _n.vcluster_id == vcluster_id,
            _b.kind == "vcluster",
            _b.state != "left",
            _n.hostname.is_not(None),
        )
        .order_by(_b.address)
    )
    return [(row[0], row[1], row[2]) for row in tx.execute(query)]
