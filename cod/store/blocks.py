"""Blocks: nodes that are near each other on the network, as the administrator groups them."""

from __future__ import annotations

from sqlalchemy import insert, select

from cod.store import tables as t
from cod.store.engine import Tx, new_id


def ensure(tx: Tx, name: str) -> int:
    """The id of the block with that name, made now if need be."""
    found = tx.scalar(select(t.node_blocks.c.id).where(t.node_blocks.c.name == name))
    return new_id(tx.execute(insert(t.node_blocks).values(name=name))) if found is None else int(found)


def names(tx: Tx) -> dict[int, str]:
    """The names of all blocks, by id."""
    return {row[0]: row[1] for row in tx.execute(select(t.node_blocks.c.id, t.node_blocks.c.name))}
