"""Digests of rows, by which the database tells whether rows have changed without sending them.
Otherwise a server of the database would send ten thousand rows, and the driver unpack them, only to
show that nothing has changed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, String, func, select

from cod.store.engine import Tx

Digest = tuple[int, int]


def digest(tx: Tx, query: Select[Any]) -> Digest | None:
    """Return the number of rows that `query` finds, and a checksum that changes with any row,
    whatever the rows' order. The first column must be the row's id. Return None for SQLite, which
    works in this process: reading the rows themselves is as quick.

    The checksum is a sum of the rows' CRC32: quicker than MD5 by 1 µs a row, and one change of four
    billion is missed. Each is multiplied by the row's id. Otherwise two rows that exchange a value
    would cancel each other once in 65,000 times, because a CRC32 is linear.
    """
    if tx.dialect.name == "sqlite":
        return None
    rows = query.order_by(None).subquery("rows_")
    # a null is empty, or NULL beside texts, which are in quotes
    line = (
        func.quote(one) if isinstance(one.type, String) else func.coalesce(one, "")
        for one in rows.columns
    )
    number = func.crc32(func.concat_ws(",", *line)) * next(iter(rows.columns))
    count, total = tx.execute(select(func.count(), func.sum(number)).select_from(rows)).one()
    return count, int(total or 0)
