"""Whether rows are what they were, asked of the database without fetching them: ten thousand rows
are read to be told that nothing has changed, and a server on the network has to send, and its
driver to unpack, each of them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, cast, func, select
from sqlalchemy.dialects import mysql

from cod.store.engine import Tx

Digest = tuple[int, int]


def digest(tx: Tx, query: Select[Any]) -> Digest | None:
    """Return how many rows `query` finds, and a number that changes with any of them; their order
    means nothing.

    The number is a sum: in an exclusive or, two rows that are alike would cancel each other,
    whatever they say.

    None where that would not be quicker than to read them: SQLite has them in this very process.
    """
    if tx.dialect.name == "sqlite":
        return None
    rows = query.order_by(None).subquery("rows_")
    # a null is NULL, a text is in quotes
    line = func.concat_ws(",", *(func.quote(column) for column in rows.columns))
    bits = cast(func.conv(func.left(func.md5(line), 16), 16, 10), mysql.BIGINT(unsigned=True))
    count, total = tx.execute(select(func.count(), func.sum(bits)).select_from(rows)).one()
    return count, int(total or 0)
