"""Names (CNAME) that owners add to their vclusters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, fields

from sqlalchemy import delete, insert, select

from cod.model import VclusterName
from cod.store import tables as t
from cod.store.engine import Tx

_c = t.vcluster_names.c
_FIELDS = [f.name for f in fields(VclusterName)]
_SELECT = select(*(_c[name] for name in _FIELDS))


def of(tx: Tx, vcluster_id: int) -> dict[str, VclusterName]:
    """Return the names of a vcluster, in their order."""
    rows = tx.execute(_SELECT.where(_c.vcluster_id == vcluster_id).order_by(_c.name))
    return {row[1]: VclusterName(*row) for row in rows}


def of_live(tx: Tx, names: Collection[str]) -> dict[str, dict[str, VclusterName]]:
    """Return the names in the vclusters of those names that have not ended, by vcluster and
    name."""
    if not names:
        return {}
    v = t.vclusters.c
    query = (
        select(v.live_name, *_SELECT.selected_columns)
        .join_from(t.vcluster_names, t.vclusters, v.id == _c.vcluster_id)
        .where(v.live_name.in_(names))
    )
    found: dict[str, dict[str, VclusterName]] = {}
    for vcluster, *row in tx.execute(query):
        found.setdefault(vcluster, {})[row[1]] = VclusterName(*row)
    return found


def put(tx: Tx, name: VclusterName) -> None:
    """Add a name, or point it at another target."""
    remove(tx, name.vcluster_id, name.name)
    tx.execute(insert(t.vcluster_names).values(dict(zip(_FIELDS, astuple(name), strict=True))))


def remove(tx: Tx, vcluster_id: int, name: str) -> None:
    """Remove a name."""
    tx.execute(delete(t.vcluster_names).where(_c.vcluster_id == vcluster_id, _c.name == name))
