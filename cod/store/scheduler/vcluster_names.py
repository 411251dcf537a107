"""Names (CNAME) that owners add to their vclusters."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select

from cod.model import VclusterName
from cod.store import tables as t
from cod.store.engine import Tx, nested
from cod.store.rows import Rows

_c = t.vcluster_names.c
ROWS = Rows(VclusterName, t.vcluster_names)


def of(tx: Tx, vcluster_id: int) -> dict[str, VclusterName]:
    """Return the names of a vcluster, in order."""
    rows = ROWS.every(tx, _c.vcluster_id == vcluster_id, order=_c.name)
    return {one.name: one for one in rows}


def of_live(tx: Tx, names: Collection[str]) -> dict[str, dict[str, VclusterName]]:
    """Return the names that owners have added to the live vclusters `names`, by vcluster and
    name."""
    if not names:
        return {}
    v = t.vclusters.c
    query = (
        select(v.live_name, *ROWS.columns)
        .join_from(t.vcluster_names, t.vclusters, v.id == _c.vcluster_id)
        .where(v.live_name.in_(names))
    )
    rows = [(row[0], ROWS.read(row, 1)) for row in tx.execute(query)]
    return nested((vcluster, one.name, one) for vcluster, one in rows)


def put(tx: Tx, name: VclusterName) -> None:
    """Add a name, or point it at another target."""
    remove(tx, name.vcluster_id, name.name)
    ROWS.insert(tx, [name])


def remove(tx: Tx, vcluster_id: int, name: str) -> None:
    """Remove a name."""
    tx.execute(delete(t.vcluster_names).where(_c.vcluster_id == vcluster_id, _c.name == name))
