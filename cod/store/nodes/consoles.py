"""Which nodes have a console that could be followed, and where."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select

from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx

_n = t.nodes.c


def of_drivers(tx: Tx, drivers: Collection[str]) -> Sequence[Any]:
    """Return (id, name, driver, address, account, vcluster, assigned at) of the nodes with a power
    driver among `drivers`, in the order of their ids, without retired nodes."""
    return tx.execute(
        select(
            _n.id,
            _n.name,
            _n.power_driver,
            _n.power_address,
            _n.power_account,
            _n.vcluster_id,
            _n.assigned_at,
        )
        .where(_n.power_driver.in_(list(drivers)), _n.state != NodeState.RETIRED)
        .order_by(_n.id)
    ).all()
