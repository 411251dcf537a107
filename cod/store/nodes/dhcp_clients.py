"""What the boot decision needs of the database, for many clients at once and in few columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, bindparam, select, update

from cod.model import DhcpClient
from cod.store import tables as t
from cod.store.engine import Tx

_n = t.nodes.c
_SELECT: Select[Any] = (
    select(t.nics.c.mac, _n.id, _n.name, _n.state, _n.boot_mac, _n.boot_served_at, _n.template_id,
           t.vclusters.c.name, _n.relay, _n.circuit, _n.remote, _n.since,
           _n.attempts)
    .join_from(t.nics, t.nodes).outerjoin(t.vclusters, t.vclusters.c.id == _n.vcluster_id)
)


def by_macs(tx: Tx, macs: Collection[str]) -> dict[str, DhcpClient]:
    """The nodes that own those of `macs` that are known."""
    return {row[0]: DhcpClient(*row[1:]) for row in tx.execute(_SELECT.where(t.nics.c.mac.in_(macs))).all()}


def heard(tx: Tx, heard_: Sequence[DhcpClient]) -> None:
    """Write down through which relay, and from which switch port, those clients were heard now."""
    query = update(t.nodes).where(_n.id == bindparam("node")).values(
        relay=bindparam("by"), circuit=bindparam("port"), remote=bindparam("switch"))
    tx.execute(query, [{"node": client.id, "by": client.relay, "port": client.circuit, "switch": client.remote}
                       for client in sorted(heard_, key=lambda client: client.id)])  # in one order: no deadlocks
