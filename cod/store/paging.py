"""Pages of lists out of the database by keyset: a page begins at a condition on the index, not at
an offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from cod.model.paging import COUNTED, Listed, Page, cursor, place
from cod.store.engine import Tx


def page_of(
    tx: Tx,
    query: Select[Any],
    page: Page,
    keys: Mapping[str, ColumnElement[Any]],
    default: str,
    unique: ColumnElement[Any],
    *,
    count: bool = True,
) -> Listed[Any]:
    """Return the rows of one page of `query`, which has no order yet.

    keys    columns to order by; none may be null
    unique  decides between rows with the same key
    count   count the whole list, too: up to `COUNTED` rows

    Raises `Refused`.
    """
    name, down = page.key(default)
    key = keys[name]
    start = place(page, default)
    beyond = query if start is None else query.where(_beyond(key, unique, *start, down=down))
    order = [key.desc(), unique.desc()] if down else [key, unique]
    order = order[:1] if key is unique else order
    rows = list(tx.execute(beyond.add_columns(key, unique).order_by(*order).limit(page.limit + 1)))
    more = len(rows) > page.limit
    shown = rows[: page.limit]
    after = cursor(page.sort or default, shown[-1][-2], shown[-1][-1]) if more else None
    total = len(shown) if count else None
    if count and (more or start is not None):  # else this is the whole list
        some = query.with_only_columns(unique).limit(COUNTED + 1).subquery()
        total = tx.scalar(select(func.count()).select_from(some)) or 0
        total = total if total <= COUNTED else None
    return Listed([row[:-2] for row in shown], after, total)


def merged(parts: Sequence[Listed[Any]], page: Page, default: str) -> Listed[Any]:
    """Merge the pages `parts` of several lists into one page. Each list is ordered by a unique key,
    which is the first value of its rows; `default` is the order where `page` names none."""
    rows = sorted(chain.from_iterable(parts), key=itemgetter(0), reverse=page.key(default)[1])
    shown = rows[: page.limit]
    more = len(rows) > page.limit or any(part.next for part in parts)
    last = shown[-1][0] if shown else None
    return Listed(shown, cursor(page.sort or default, last, last) if more else None)


def _beyond(
    key: ColumnElement[Any], unique: ColumnElement[Any], value: Any, last: Any, *, down: bool
) -> Any:
    if key is unique:
        return key < value if down else key > value
    if down:
        return and_(key <= value, or_(key < value, unique < last))
    return and_(key >= value, or_(key > value, unique > last))


def contains(text: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Return the condition that a text contains `part`, whatever the case. For a column whose
    collation distinguishes case, pass `func.lower` of the column."""
    wanted = part.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return text.like(f"%{wanted}%", escape="!")


def having(q: str, *texts: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Return the condition that one of the texts contains `q`, whatever the case; none for ''."""
    return [or_(*(contains(func.lower(text), q) for text in texts))] if q else []
