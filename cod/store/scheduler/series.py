"""Reservations that recur, and the starts of them that were decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import delete, insert, select

from cod.model import Occurrence, Series, SeriesView
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.people.access import theirs

T = TypeVar("T")
_s, _o = t.reservation_series.c, t.series_occurrences.c


def add(tx: Tx, **columns: Any) -> Series:
    """Add a series."""
    made = insert(t.reservation_series).values(columns | {"days": ",".join(columns["days"])})
    return Series(new_id(tx.execute(made)), **columns)


def every(tx: Tx) -> list[Series]:
    """Return all series."""
    return [_series(row) for row in tx.execute(select(t.reservation_series).order_by(_s.id))]


def locked(tx: Tx, series_id: int) -> Series | None:
    """Return the series, locked; None where it has ended."""
    query = select(t.reservation_series).where(_s.id == series_id)
    row = tx.execute(query.with_for_update()).one_or_none()
    return None if row is None else _series(row)


def named(tx: Tx, name: str) -> Series | None:
    """Return the series of that name."""
    row = tx.execute(select(t.reservation_series).where(_s.name == name)).one_or_none()
    return None if row is None else _series(row)


def views(
    tx: Tx, groups: frozenset[int] | None, after: float, name: str | None = None
) -> list[SeriesView]:
    """Return the series of these groups (None: of all), or the one of that name, with what was
    decided of starts later than `after`."""
    query = (
        select(t.reservation_series, t.groups.c.name.label("group_name"))
        .join_from(t.reservation_series, t.groups, _s.group_id == t.groups.c.id)
        .where(*theirs(_s.group_id, groups), *([] if name is None else [_s.name == name]))
        .order_by(_s.name)
    )
    found = tx.execute(query).all()
    decided: dict[int, list[Occurrence]] = {row.id: [] for row in found}
    for one in occurrences(tx, after):
        if one.series_id in decided:
            decided[one.series_id].append(one)
    return [SeriesView(_series(row), row.group_name, tuple(decided[row.id])) for row in found]


def remove(tx: Tx, series_id: int) -> None:
    """Delete the series."""
    tx.execute(delete(t.series_occurrences).where(_o.series_id == series_id))
    tx.execute(delete(t.reservation_series).where(_s.id == series_id))


def occurrences(tx: Tx, after: float, series_id: int | None = None) -> list[Occurrence]:
    """Return the starts later than `after` that were decided, of that series or of all."""
    query = select(t.series_occurrences).where(
        _o.starts_at > after, *([] if series_id is None else [_o.series_id == series_id])
    )
    return [Occurrence(*row) for row in tx.execute(query.order_by(_o.starts_at))]


def decide(tx: Tx, one: Occurrence, now: float) -> None:
    """Put down what was decided of a start, and forget the starts of its series that are over."""
    tx.execute(insert(t.series_occurrences).values(asdict(one)))
    old = delete(t.series_occurrences).where(_o.series_id == one.series_id, _o.starts_at < now)
    tx.execute(old)


def apart(tx: Tx, flow: Callable[[Tx], T]) -> T:
    """Return what `flow` returns. If it raises, nothing of what it did stays."""
    with tx.begin_nested():
        return flow(tx)


def _series(row: Any) -> Series:
    values = {name: getattr(row, name) for name in Series.__dataclass_fields__}
    return Series(**values | {"days": tuple(row.days.split(","))})
