"""Settings that were changed while the servers ran. Rows are only added: the newest row of each
name is in force."""

from __future__ import annotations

from sqlalchemy import func, insert, select

from cod.model import SettingChange
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_c = t.setting_changes.c
_ROWS = Rows(SettingChange, t.setting_changes)


def newest(tx: Tx) -> int:
    """Return the id of the newest change; 0 if there is none."""
    return tx.scalar(select(func.max(_c.id))) or 0


def current(tx: Tx) -> list[SettingChange]:
    """Return the newest change of each setting, by id."""
    ids = select(func.max(_c.id)).group_by(_c.name)
    return _ROWS.every(tx, _c.id.in_(ids), order=_c.id)


def history(tx: Tx, name: str, most: int | None = None) -> list[SettingChange]:
    """Return the changes of a setting, the newest first."""
    return _ROWS.every(tx, _c.name == name, order=_c.id.desc(), limit=most)


def add(tx: Tx, *, name: str, value: str | None, actor: str, now: float) -> None:
    """Add a change of a setting."""
    row = {"at": now, "actor": actor[:80], "name": name, "value": value}
    tx.execute(insert(t.setting_changes).values(row))
