"""Serials of the site's DNS zones. A change raises them in its own transaction, so that all servers
answer with the same serial."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import and_, bindparam, case, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from cod.store import tables as t
from cod.store.engine import Among, Tx
from cod.store.rows import insert_all

Key = tuple[str, str]
"""Kind and key of a zone, as in `policy.dns.Zone`."""

SITE: Key = ("site", "")
_z = t.dns_zones.c
_KINDS = ("site", "vcluster", "subnet")
# made once: a batch of grants raises many
_NAMED = or_(*(and_(_z.kind == kind, Among(_z.key, kind)) for kind in _KINDS))
_THERE = select(_z.kind, _z.key).where(_NAMED)
_RAISE = (
    update(t.dns_zones)
    .where(_NAMED)
    .values(serial=case((_z.serial >= bindparam("least"), _z.serial + 1), else_=bindparam("least")))
)


def touch(tx: Tx, zones: Collection[Key], now: float = 0.0) -> None:
    """Raise the serials of those zones: by one, or to `now` if that is higher. After a restore
    `now` exceeds the serials that were given out since the backup."""
    least = int(now)
    keys: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for kind, key in sorted(set(zones)):
        keys[kind].append(key)
    if tx.execute(_RAISE, {"least": least, **keys}).rowcount < len(set(zones)):
        existing = {(row[0], row[1]) for row in tx.execute(_THERE, keys)}
        new = [
            {"kind": kind, "key": key, "serial": max(least, 1), "digest": ""}
            for kind, key in sorted(set(zones) - existing)
        ]
        insert_all(tx, t.dns_zones, new)


def touch_all(tx: Tx, now: float) -> None:
    """Raise the serials of all zones."""
    tx.execute(
        update(t.dns_zones).values(
            serial=case((_z.serial >= int(now), _z.serial + 1), else_=int(now))
        )
    )


def serials(tx: Tx, zones: Collection[Key] | None = None) -> dict[Key, int]:
    """Return the serials of those zones, of all if None. A zone without a row has never changed:
    its serial is 1."""
    if zones is not None and not zones:
        return {}
    query = select(_z.kind, _z.key, _z.serial)
    return {
        (row[0], row[1]): row[2]
        for row in tx.execute(query if zones is None else query.where(_any(zones)))
    }


def configure(tx: Tx, digest: str, now: float) -> bool:
    """Record the digest of the site file's part of the zones. If it differs from the one recorded
    before, raise all serials and return True."""
    row = tx.execute(select(_z.digest).where(_any([SITE])).with_for_update()).one_or_none()
    if row is not None and row[0] == digest:
        return False
    if row is None:
        touch(tx, [SITE], now)
    touch_all(tx, now)
    tx.execute(update(t.dns_zones).where(_any([SITE])).values(digest=digest))
    return True


def _any(zones: Collection[Key]) -> ColumnElement[bool]:
    keys: dict[str, list[str]] = {}
    for kind, key in sorted(set(zones)):
        keys.setdefault(kind, []).append(key)
    return or_(*(and_(_z.kind == kind, _z.key.in_(of)) for kind, of in keys.items()))
