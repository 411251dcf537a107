"""Names and addresses of vclusters' nodes, for DNS. They are read from the bindings themselves, so
they are right as soon as a binding is committed."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import and_, or_, select

from cod.store import tables as t
from cod.store.engine import Tx

_b, _n, _v = t.bindings.c, t.nodes.c, t.vclusters.c
_MEMBERS = (
    select(_n.hostname, _v.live_name, _b.address, _n.id)
    .join_from(t.bindings, t.nodes, _n.id == _b.node_id)
    .join(t.vclusters, _v.id == _n.vcluster_id)
    .where(_b.kind == "vcluster", _b.state != "left")  # a system that nobody knows has that
)


def vclusters(tx: Tx, names: Collection[str]) -> set[str]:
    """Return those of the names that belong to vclusters that have not ended."""
    return set(tx.scalars(select(_v.live_name).where(_v.live_name.in_(names)))) if names else set()


class Host(NamedTuple):
    """A node at its address in its vcluster."""

    node_id: int
    address: int


def hosts(tx: Tx, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], Host]:
    """Return the nodes of those of the (hostname, vcluster) pairs that exist."""
    if not pairs:
        return {}
    wanted: dict[str, list[str]] = {}
    for host, vcluster in sorted(pairs):
        wanted.setdefault(vcluster, []).append(host)
    within = or_(
        *(
            and_(_v.live_name == vcluster, _n.hostname.in_(hosts))
            for vcluster, hosts in wanted.items()
        )
    )
    return {(row[0], row[1]): Host(row[3], row[2]) for row in tx.execute(_MEMBERS.where(within))}


def of_vcluster(tx: Tx, vcluster_id: int) -> dict[str, Host]:
    """Return the nodes of a vcluster by host name, in the order of their addresses."""
    rows = tx.execute(_MEMBERS.where(_v.id == vcluster_id).order_by(_b.address))
    return {row[0]: Host(row[3], row[2]) for row in rows}


def named(tx: Tx, addresses: Collection[int]) -> dict[int, tuple[str, str]]:
    """Return (hostname, vcluster) of the node at each address."""
    if not addresses:
        return {}
    return {
        row[2]: (row[0], row[1]) for row in tx.execute(_MEMBERS.where(_b.address.in_(addresses)))
    }


def named_between(tx: Tx, first: int, last: int) -> dict[int, tuple[str, str]]:
    """Return (hostname, vcluster) of the node at each address of a range, in the order of the
    addresses."""
    rows = tx.execute(_MEMBERS.where(_b.address.between(first, last)).order_by(_b.address))
    return {row[2]: (row[0], row[1]) for row in rows}
