"""Conflicts of addresses and identities, recorded for the API and the administrator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, exists, func, insert, select

from cod.model import Node
from cod.states import ConflictKind
from cod.store import tables as t
from cod.store.engine import Prepared, Tx
from cod.store.rows import insert_all

_c = t.conflicts.c


def add(
    tx: Tx,
    kind: str,
    about: str,
    now: float,
    *,
    subnet: str | None = None,
    address: int | None = None,
    mac: str | None = None,
) -> None:
    """Record a conflict; `about` is a sentence for people, `kind` a `ConflictKind`."""
    row = dict(kind=ConflictKind(kind), about=about, subnet=subnet, address=address, mac=mac)
    insert_all(tx, t.conflicts, [{"at": now, **row}])


def add_once(
    tx: Tx,
    kind: str,
    about: str,
    now: float,
    *,
    within: float,
    same: Collection[str] = ("mac",),
    subnet: str | None = None,
    address: int | None = None,
    mac: str | None = None,
) -> bool:
    """Record a conflict as `add` does, unless one of that kind with equal values of the columns
    `same` ('subnet', 'mac', 'about') was recorded in the last `within` seconds. Return whether it
    was recorded. A repeated conflict is therefore one row."""
    row = dict(kind=ConflictKind(kind), about=about, subnet=subnet, address=address, mac=mac)
    return _adding(tuple(same)).write(tx, {"at": now, **row, "after": now - within}) == 1


def add_of(tx: Tx, node: Node, kind: str, about: str, now: float, *, within: float) -> bool:
    """Record a conflict about a node as `add_once` does; conflicts with the same sentence are
    one."""
    return add_once(
        tx,
        kind,
        about,
        now,
        within=within,
        same=("mac", "about"),
        subnet=node.subnet,
        mac=node.boot_mac,
    )


@lru_cache
def _adding(same: tuple[str, ...]) -> Prepared:
    """Return the INSERT of a conflict, unless there is one of its kind after the time `after` with
    equal values, null or not, of the columns `same`."""
    columns = ("at", "kind", "subnet", "address", "mac", "about")
    row = {name: bindparam(name, type_=_c[name].type) for name in columns}
    seen = t.conflicts.alias().c
    alike = (seen[name].is_not_distinct_from(row[name]) for name in same)
    known = exists().where(seen.kind == row["kind"], seen.at > bindparam("after"), *alike)
    return Prepared(insert(t.conflicts).from_select(columns, select(*row.values()).where(~known)))


def count_since(tx: Tx, kind: str, since: float) -> int:
    """Return how many conflicts of that kind were recorded after `since`."""
    return tx.scalar(select(func.count()).where(_c.kind == kind, _c.at > since)) or 0


def newest(tx: Tx, kind: str, mac: str, since: float) -> str:
    """Return the sentence of the newest conflict of that kind about a MAC since `since`; '' if
    there is none."""
    query = select(_c.about).where(_c.kind == kind, _c.mac == mac, _c.at >= since)
    return tx.scalar(query.order_by(_c.id.desc()).limit(1)) or ""


def since(tx: Tx, kind: str, at: float) -> list[dict[str, Any]]:
    """Return the conflicts of that kind that were recorded after `at`, the oldest first, as
    dictionaries of the table's columns."""
    query = select(t.conflicts).where(_c.kind == kind, _c.at > at).order_by(_c.id)
    return [dict(row._mapping) for row in tx.execute(query)]


def every(tx: Tx, limit: int = 200, *, macs: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return conflicts, the newest first, as dictionaries of the table's columns; with `macs`, only
    those about these MACs."""
    query = select(t.conflicts).order_by(_c.id.desc()).limit(limit)
    if macs is not None:
        query = query.where(_c.mac.in_(macs))
    return [dict(row._mapping) for row in tx.execute(query)]
