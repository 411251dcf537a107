"""Public parts of the SSH host keys that nodes were installed with, and the salt of those that are
being installed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, insert, select, update

from cod.model import HostKey
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.rows import Rows, remove_all

_k = t.host_keys.c
_ROWS = Rows(HostKey, t.host_keys)


def of_nodes(tx: Tx, node_ids: Collection[int]) -> dict[int, list[HostKey]]:
    """Return the keys of those nodes that have any."""
    found: dict[int, list[HostKey]] = {}
    for part in slices(list(node_ids)):
        query = (
            select(_k.node_id, *_ROWS.columns)
            .where(_k.node_id.in_(part))
            .order_by(_k.node_id, _k.algorithm)
        )
        for row in tx.execute(query):
            found.setdefault(row[0], []).append(_ROWS.read(row, 1))
    return found


def salt(tx: Tx, node_id: int, order_id: str) -> str:
    """Return the salt of the keys that this order installs; '' if the order has none yet."""
    query = select(_k.salt).where(_k.node_id == node_id, _k.order_id == order_id).with_for_update()
    return tx.scalar(query.limit(1)) or ""


def put(tx: Tx, node_id: int, key: HostKey, *, order_id: str, salt: str, now: float) -> bool:
    """Note the key that this order installs, in place of all that the node had; return whether that
    is a change."""
    if of_nodes(tx, [node_id]) == {node_id: [key]}:
        return False
    forget(tx, node_id)
    tx.execute(
        insert(t.host_keys).values(
            node_id=node_id,
            algorithm=key.algorithm,
            key=key.key,
            order_id=order_id,
            salt=salt,
            made_at=now,
        )
    )
    return True


def written(tx: Tx, node_id: int) -> None:
    """Drop the salt: the private part is on the node's disk, or the order is over."""
    tx.execute(update(t.host_keys).where(_k.node_id == node_id, _k.salt != "").values(salt=""))


def forget(tx: Tx, node_id: int) -> bool:
    """Forget the keys of a node whose disk no longer holds them. Return whether there were any."""
    return tx.execute(delete(t.host_keys).where(_k.node_id == node_id)).rowcount > 0


def forget_all(tx: Tx, node_ids: Sequence[int]) -> None:
    """Forget the keys of all those nodes."""
    remove_all(tx, _k.node_id, node_ids)
