"""Node types: equivalence classes of nodes, made as nodes are discovered."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from sqlalchemy import exc, func, insert, select, update

from cod.model import NodeType
from cod.store import tables as t
from cod.store.engine import Tx

_COLUMNS = [t.node_types.c[f.name] for f in fields(NodeType)]


def _type(row: Sequence[Any]) -> NodeType:
    return NodeType(*row)


def every(tx: Tx) -> list[NodeType]:
    """All types, by id."""
    return [_type(row) for row in tx.execute(select(*_COLUMNS).order_by(t.node_types.c.id))]


def of(tx: Tx, canonical: str, now: float) -> NodeType:
    """The type with those canonical attributes (`policy.match.canonical`), made now if they were never seen.

    A rack of equal machines reports at once, to several servers: whoever is second takes what the first has made.
    """
    digest = hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()
    query = select(*_COLUMNS).where(t.node_types.c.digest == digest)
    row = tx.execute(query).one_or_none()
    if row is not None:
        return _type(row)
    number = (tx.scalar(select(func.max(t.node_types.c.id))) or 0) + 1
    for name in (f"type{number}", f"type-{digest[:12]}"):  # an administrator may have given the first to another
        with suppress(exc.IntegrityError), tx.begin_nested():
            tx.execute(insert(t.node_types).values(
                name=name, digest=digest, attributes=canonical, cost=1.0, created_at=now))
        row = tx.execute(query).one_or_none()
        if row is not None:
            return _type(row)
    raise AssertionError("the type can neither be found nor made")


def change(tx: Tx, type_id: int, **columns: Any) -> None:
    """Set a type's name or cost."""
    tx.execute(update(t.node_types).where(t.node_types.c.id == type_id).values(**columns))
