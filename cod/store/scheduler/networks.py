"""Networks of isolated vclusters: each vcluster's VLAN and subnet."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import and_, delete, or_, select

from cod.model import VclusterNetwork
from cod.states import VclusterState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_n = t.vcluster_networks.c
ROWS = Rows(VclusterNetwork, t.vcluster_networks)
_LARGEST = 2**12  # addresses of a subnet, /20


def of(tx: Tx, vcluster_id: int) -> VclusterNetwork | None:
    """Return the vcluster's network; None if it has none."""
    return ROWS.by(tx, vcluster_id=vcluster_id)


def of_each(tx: Tx, vcluster_ids: Collection[int]) -> dict[int, VclusterNetwork]:
    """Return the networks of those vclusters that have one, by vcluster."""
    return {one.vcluster_id: one for one in ROWS.among(tx, _n.vcluster_id, vcluster_ids)}


def of_subnets(tx: Tx, vlans: Collection[int], addresses: Collection[int]) -> list[VclusterNetwork]:
    """Return the networks that use one of these VLANs or may contain one of these addresses."""
    spans = [
        and_(_n.first_address <= each, _n.first_address > each - _LARGEST) for each in addresses
    ]
    if not vlans and not spans:
        return []
    return ROWS.every(tx, or_(_n.vlan.in_(vlans), *spans))


def every(tx: Tx) -> list[VclusterNetwork]:
    """Return the networks of live vclusters, by VLAN."""
    v = t.vclusters.c
    query = ROWS.select.join(t.vclusters, v.id == _n.vcluster_id)
    return ROWS.all(tx, query.where(v.state != VclusterState.ENDED).order_by(_n.vlan))


def taken(tx: Tx) -> list[VclusterNetwork]:
    """Return all networks in use, by address, including those of ended vclusters."""
    return ROWS.every(tx, order=_n.first_address)


def add(tx: Tx, network: VclusterNetwork) -> None:
    """Add the network of a vcluster. Raises IntegrityError when another server was quicker."""
    ROWS.insert(tx, [network])


def free(tx: Tx, in_use: Collection[int]) -> None:
    """Delete the networks of ended vclusters, except those with VLANs in `in_use`: switch ports are
    still in these VLANs."""
    ended = select(t.vclusters.c.id).where(t.vclusters.c.state == VclusterState.ENDED)
    tx.execute(
        delete(t.vcluster_networks).where(_n.vcluster_id.in_(ended), _n.vlan.not_in(list(in_use)))
    )
