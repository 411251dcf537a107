"""Which parts of the server run on which host, as each part says of itself."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, select

from cod.model import HostPart
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows, upsert

SILENT = 60.0  # seconds without a renewal after which a part is taken to be down

_p = t.server_parts.c
_ROWS = Rows(HostPart, t.server_parts)
_WRITE = upsert(t.server_parts, "addresses", "version", "database_schema", "started_at", "seen_at")


def renew(tx: Tx, part: HostPart) -> None:
    """Write what a part says of itself over what it has said before."""
    tx.execute(_WRITE[tx.dialect.name], asdict(part))


def find(tx: Tx, server: str, part: str) -> HostPart | None:
    """Return what a part has said of itself last."""
    return _ROWS.find(tx, _p.server == server, _p.part == part)


def every(tx: Tx) -> list[HostPart]:
    """Return all parts of all hosts, by host and part."""
    return _ROWS.every(tx, order=(_p.server, _p.part))


def forget(tx: Tx, before: float) -> None:
    """Forget parts that have not renewed their rows since `before`."""
    # a DELETE of nothing would lock the gap beside other parts' rows
    for server, part in tx.execute(select(_p.server, _p.part).where(_p.seen_at < before)).all():
        tx.execute(delete(t.server_parts).where(_p.server == server, _p.part == part))
