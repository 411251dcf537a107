"""Node types: equivalence classes of nodes, added as nodes are discovered."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import exc, func, insert, select, update

from cod.model import NodeType
from cod.store import tables as t
from cod.store.engine import Tx, nested
from cod.store.rows import Rows, only

# columns that administrators set
_GIVEN = ("cost", "warm_low", "warm_high", "watts_off", "watts_idle", "watts_busy")
_k = t.node_types.c
ROWS = Rows(NodeType, t.node_types, noun="node type")
get, by_name, named, change = ROWS.known, ROWS.by_name, ROWS.named, ROWS.set


def every(tx: Tx, name: str | None = None) -> list[NodeType]:
    """Return all types, by id; with a `name`, only the type of that name."""
    return ROWS.every(tx, *only({_k.name: name}), order=_k.id)


def names(tx: Tx) -> dict[int, str]:
    """Return the names of all types, by id."""
    return {row[0]: row[1] for row in tx.execute(select(_k.id, _k.name))}


def known(tx: Tx, canonical: str) -> NodeType | None:
    """Return the type with those canonical attributes (`policy.hardware.equal.canonical`)."""
    return ROWS.by(tx, digest=_digest(canonical))


def of(
    tx: Tx, canonical: str, now: float, *, system: str = "", like: NodeType | None = None
) -> NodeType:
    """Return the type with those canonical attributes, and add it if it is new. `system` is the
    product among them (`equal.system`). A new type takes cost, marks and watts from `like`.

    A rack of equal machines reports at once, to several servers: the second server uses the type
    that the first one has added.
    """
    found = known(tx, canonical)
    if found is not None:
        return found
    digest = _digest(canonical)
    product = _digest(system) if system else None
    own = {"cost": 1.0} if like is None else {name: getattr(like, name) for name in _GIVEN}
    number = (tx.scalar(select(func.max(_k.id))) or 0) + 1
    # an administrator may have given the first name to another type
    for name in (f"type{number}", f"type-{digest[:12]}"):
        with suppress(exc.IntegrityError), tx.begin_nested():
            tx.execute(
                insert(t.node_types).values(
                    name=name,
                    digest=digest,
                    attributes=canonical,
                    product=product,
                    created_at=now,
                    **own,
                )
            )
        found = known(tx, canonical)
        if found is not None:
            return found
    raise AssertionError("the type can neither be found nor made")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def states(tx: Tx, type_id: int | None = None) -> dict[int, dict[str, int]]:
    """Return the number of nodes by type and state, for all types or for one; types without nodes
    are left out."""
    n = t.nodes.c
    query = select(n.type_id, n.state, func.count()).group_by(n.type_id, n.state)
    query = query.where(n.type_id.is_not(None) if type_id is None else n.type_id == type_id)
    return nested(tx.execute(query))


class Sibling(NamedTuple):
    """A type, and how many nodes have it."""

    name: str
    attributes: str
    nodes: int


def most_like(tx: Tx, system: str) -> Sibling | None:
    """Return the most frequent type of the product; None if no node is of this product."""
    n = t.nodes.c
    count = func.count(n.id)
    query = (
        select(n.type_id, count)
        .join(t.node_types, n.type_id == _k.id)
        .where(_k.product == _digest(system))
        .group_by(n.type_id)
        .order_by(count.desc(), n.type_id)
        .limit(1)
    )
    row = tx.execute(query).first()
    if row is None:
        return None
    kind = get(tx, row[0])
    return Sibling(kind.name, kind.attributes, row[1])


def delete_unused(tx: Tx, type_id: int) -> bool:
    """Delete a type; return False while a node or a past reclaim names it."""
    try:
        with tx.begin_nested():
            ROWS.remove(tx, type_id)
    except exc.IntegrityError:
        return False
    return True


class Reported(NamedTuple):
    """A node's id, its type, and its last report."""

    id: int
    type_id: int | None
    attributes: str
    reported_at: float


def reported(tx: Tx, after: int, limit: int) -> list[Reported]:
    """Return nodes that have reported and have ids above `after`, by id."""
    n = t.nodes.c
    query = select(n.id, n.type_id, n.attributes, n.reported_at).where(
        n.id > after, n.attributes.is_not(None)
    )
    return [Reported(*row) for row in tx.execute(query.order_by(n.id).limit(limit))]


def put(tx: Tx, node: Reported, type_id: int) -> bool:
    """Set the node's type, unless the node has reported again meanwhile; return whether it was
    set."""
    n = t.nodes.c
    query = (
        update(t.nodes)
        .where(n.id == node.id, n.reported_at == node.reported_at)
        .values(type_id=type_id)
    )
    return tx.execute(query).rowcount == 1
