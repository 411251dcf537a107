"""Verifiers of the secrets that machines boot with, and of the sessions that agents get for them
(see wire/confd)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, delete

from cod.model import Binding, BootSecret, Node
from cod.store import tables as t
from cod.store.engine import Among, Prepared, Tx
from cod.store.nodes import bindings, nodes
from cod.store.rows import Rows, remove_all

_s = t.boot_secrets.c
ROWS = Rows(BootSecret, t.boot_secrets)
get, spend = ROWS.get, ROWS.remove
_WITH_NODE = Prepared(
    ROWS.select.add_columns(*nodes.ROWS.columns)
    .outerjoin(t.nics, t.nics.c.mac == _s.mac)
    .outerjoin(t.nodes, t.nodes.c.id == t.nics.c.node_id)
    .where(_s.id == bindparam("secret"))
)
_OF_BOUND = Prepared(
    bindings.WITH_NODE.add_columns(*ROWS.columns)
    .outerjoin(t.boot_secrets, _s.mac == t.bindings.c.mac)
    .order_by(_s.expires_at.desc(), _s.id)
)
_OF_MACS = Prepared(ROWS.select.where(Among(_s.mac, "macs")).order_by(_s.expires_at.desc(), _s.id))


def of_bound(
    tx: Tx, mac: str, address: str, now: float
) -> tuple[tuple[Binding, Node] | None, list[BootSecret]]:
    """Return what `bindings.with_node` does, and what `of_mac` does; no verifiers for None."""
    rows = bindings.with_others(tx, _OF_BOUND, mac, address, now)
    found = rows[0][:2] if rows else None
    return found, [ROWS.read(row) for _, _, row in rows if row[0] is not None]


def with_node(tx: Tx, secret_id: str) -> tuple[BootSecret, Node | None] | None:
    """Return the verifier of that id, and the node that has its MAC; None: there is no such
    verifier."""
    row = _WITH_NODE.row(tx, {"secret": secret_id})
    if row is None:
        return None
    node = None if row[ROWS.width] is None else nodes.ROWS.read(row, ROWS.width)
    return ROWS.read(row), node


def of_mac(tx: Tx, mac: str) -> list[BootSecret]:
    """Return all verifiers of a machine, the last to expire first."""
    return of_macs(tx, [mac])


def of_macs(tx: Tx, macs: Collection[str]) -> list[BootSecret]:
    """Return all verifiers of those MACs, the last to expire first."""
    return ROWS.all(tx, _OF_MACS, {"macs": list(macs)})


def add(tx: Tx, secret: BootSecret) -> None:
    """Store a verifier."""
    ROWS.insert(tx, [secret])


def put(tx: Tx, spent: str, secret: BootSecret) -> None:
    """Store a verifier in place of the one with the id `spent`."""
    ROWS.set(tx, spent, **dict(zip(ROWS.names, ROWS.values(secret), strict=True)))


def spend_all(tx: Tx, ids: Collection[str]) -> None:
    """Delete verifiers by their ids."""
    remove_all(tx, _s.id, list(ids))


def purge(tx: Tx, now: float) -> None:
    """Delete the expired verifiers of all machines."""
    tx.execute(delete(t.boot_secrets).where(_s.expires_at <= now))
