"""Recurring reservations (series), and the decisions on their starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import delete, select

from cod.model import Occurrence, Series
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows, theirs

T = TypeVar("T")
_s, _o = t.reservation_series.c, t.series_occurrences.c
ROWS = Rows(Series, t.reservation_series)
_OCCURRENCES = Rows(Occurrence, t.series_occurrences)
add, named = ROWS.add, ROWS.by_name


def every(tx: Tx) -> list[Series]:
    """Return all series."""
    return ROWS.every(tx, order=_s.id)


def locked(tx: Tx, series_id: int) -> Series | None:
    """Return the series, locked; None if it has ended."""
    return ROWS.get(tx, series_id, lock=True)


def of_groups(
    tx: Tx, groups: frozenset[int] | None, name: str | None = None
) -> list[tuple[Series, str]]:
    """Return the series of these groups (None: of all groups) by name, or the one of that name,
    each with its group's name."""
    query = (
        select(*ROWS.columns, t.groups.c.name.label("group_name"))
        .join_from(t.reservation_series, t.groups, _s.group_id == t.groups.c.id)
        .where(*theirs(_s.group_id, groups), *([] if name is None else [_s.name == name]))
        .order_by(_s.name)
    )
    return [(ROWS.read(row), row.group_name) for row in tx.execute(query)]


def clusters(
    tx: Tx, after: float, series_id: int | None = None
) -> dict[tuple[int, str], tuple[str, bool]]:
    """Return (state, whether it has had nodes) of the vclusters of starts later than `after`, for
    one series or for all, by series and name. Of several vclusters of one name in the series' group
    the newest counts."""
    v = t.vclusters.c
    query = (
        select(_o.series_id, v.name, v.state, v.leased_at)
        .join_from(t.series_occurrences, t.reservation_series, _o.series_id == _s.id)
        .join(t.vclusters, (v.name == _o.vcluster) & (v.group_id == _s.group_id))
        .where(_o.starts_at > after, *([] if series_id is None else [_o.series_id == series_id]))
        .order_by(v.id)
    )
    return {
        (row.series_id, row.name): (row.state, row.leased_at is not None)
        for row in tx.execute(query)
    }


def remove(tx: Tx, series_id: int) -> None:
    """Delete the series."""
    tx.execute(delete(t.series_occurrences).where(_o.series_id == series_id))
    ROWS.remove(tx, series_id)


def occurrences(tx: Tx, after: float, series_id: int | None = None) -> list[Occurrence]:
    """Return the decided starts later than `after`, of one series or of all."""
    own = [] if series_id is None else [_o.series_id == series_id]
    return _OCCURRENCES.every(tx, _o.starts_at > after, *own, order=_o.starts_at)


def decide(tx: Tx, one: Occurrence, forget: float) -> None:
    """Store the decision on a series' start in place of an earlier one, and delete the series'
    decisions on starts before `forget`."""
    same = (_o.series_id == one.series_id, _o.starts_at == one.starts_at)
    old = (_o.series_id == one.series_id, _o.starts_at < forget)
    for gone in (same, old):
        tx.execute(delete(t.series_occurrences).where(*gone))
    _OCCURRENCES.insert(tx, [one])


def apart(tx: Tx, flow: Callable[[Tx], T]) -> T:
    """Run `flow` in a savepoint and return its result. If it raises, its writes are undone."""
    with tx.begin_nested():
        return flow(tx)
