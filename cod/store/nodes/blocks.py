"""Blocks: groups of nodes that the administrator declares to be near each other on the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import case, func, insert, select, update
from sqlalchemy import delete as delete_

from cod.states import NodeState, ReclaimState
from cod.store import tables as t
from cod.store.engine import Tx, nested, new_id, slices
from cod.store.rows import Rows, only

_n = t.nodes.c
_b = t.node_blocks.c
PART = 1000  # nodes that are read at a time


def ensure(tx: Tx, name: str) -> int:
    """Return the id of the block with that name, and create the block if it is missing."""
    found = by_name(tx, name)
    return add(tx, name) if found is None else found


def add(tx: Tx, name: str) -> int:
    """Add a block; return its id."""
    return new_id(tx.execute(insert(t.node_blocks).values(name=name)))


def by_name(tx: Tx, name: str, *, lock: bool = False) -> int | None:
    """Return the id of the block with that name, with its row locked if `lock`."""
    query = select(_b.id).where(_b.name == name)
    found = tx.scalar(query.with_for_update() if lock else query)
    return None if found is None else int(found)


def names(tx: Tx, name: str | None = None) -> dict[int, str]:
    """Return the names of all blocks, by id; with a `name`, only that of the block of that name."""
    query = select(_b.id, _b.name).where(*only({_b.name: name}))
    return {row[0]: row[1] for row in tx.execute(query)}


def types(tx: Tx, block_id: int | None = None) -> dict[int, dict[str, int]]:
    """Return the number of nodes by block and type name ('': no type yet), for all blocks or for
    one."""
    query = (
        select(_n.block_id, func.coalesce(t.node_types.c.name, ""), func.count())
        .select_from(t.nodes)
        .outerjoin(t.node_types, _n.type_id == t.node_types.c.id)
        .group_by(_n.block_id, t.node_types.c.name)
    )
    query = query.where(_n.block_id.is_not(None) if block_id is None else _n.block_id == block_id)
    return nested(tx.execute(query))


def delete(tx: Tx, block_id: int) -> bool:
    """Delete an empty block, and remove it from reclaims that are over. Return False, and delete
    nothing, while an open reclaim names the block."""
    r = t.reclaims
    if (
        tx.scalar(
            select(r.c.id).where(r.c.block_id == block_id, r.c.state == ReclaimState.OPEN).limit(1)
        )
        is not None
    ):
        return False
    tx.execute(update(r).where(r.c.block_id == block_id).values(block_id=None))
    tx.execute(delete_(t.node_blocks).where(_b.id == block_id))
    return True


def put(tx: Tx, node_ids: Sequence[int], block_id: int | None) -> None:
    """Put nodes into a block; None: into no block."""
    for part in slices(node_ids):
        tx.execute(update(t.nodes).where(_n.id.in_(part)).values(block_id=block_id))


class Member(NamedTuple):
    """A node by name, and the id of its block."""

    id: int
    name: str
    block_id: int | None


_MEMBERS = Rows(Member, t.nodes)


def members(tx: Tx, block_id: int | None = None) -> list[Member]:
    """Return every node of the site, or of the block, by name."""
    return _MEMBERS.every(tx, *only({_n.block_id: block_id}), order=_n.name)


class Seen(NamedTuple):
    """A node's location as network messages have shown it: columns of `nodes`. `attributes` is None
    unless the node's report names a switch."""

    name: str
    block_id: int | None
    relay: str | None
    circuit: str | None
    remote: str | None
    boot_mac: str
    attributes: str | None


def seen(tx: Tx, *told_in: NodeState) -> Iterator[Seen]:
    """Yield every node except retired ones, by id. With `told_in`, only nodes in these states have
    `attributes`."""
    reported = case((_n.attributes.like("%<neighbour %"), _n.attributes))
    if told_in:
        reported = case((_n.state.in_(told_in), reported))
    query = select(
        _n.id, _n.name, _n.block_id, _n.relay, _n.circuit, _n.remote, _n.boot_mac, reported
    )
    query = query.where(_n.state != NodeState.RETIRED).order_by(_n.id).limit(PART)
    after: int | None = 0
    while after is not None:
        rows = tx.execute(query.where(_n.id > after)).all()
        yield from (Seen(*row[1:]) for row in rows)
        after = rows[-1][0] if len(rows) == PART else None
