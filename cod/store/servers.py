"""The server's parts on each host, as each part reports itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import delete, func, insert, inspect, select

from cod.model import HostPart, ServerVersion
from cod.store import tables as t
from cod.store.engine import Tx, grouped
from cod.store.rows import Rows, upsert

SILENT = 60.0  # seconds without a renewal after which a part is taken to be down

_p, _h = t.server_parts.c, t.held_files.c
_ROWS = Rows(HostPart, t.server_parts)
_WRITE = upsert(
    t.server_parts, "addresses", "version", "database_schema", "started_at", "seen_at", "key"
)


def renew(tx: Tx, part: HostPart) -> None:
    """Replace the report of a part of the server."""
    _WRITE[tx.dialect.name].write(tx, asdict(part))


def find(tx: Tx, server: str, part: str) -> HostPart | None:
    """Return the last report of a part of the server; None if there is none."""
    return _ROWS.by(tx, server=server, part=part)


def every(tx: Tx) -> list[HostPart]:
    """Return all parts of all hosts, by host and part."""
    return _ROWS.every(tx, order=(_p.server, _p.part))


def running(tx: Tx, now: float) -> list[ServerVersion]:
    """Return the program versions that hosts run, by host. The database may have an older schema,
    without the table of parts: then none are returned."""
    if not inspect(tx).has_table(t.server_parts.name):
        return []
    columns = (_p.server, _p.version, _p.database_schema)
    query = select(*columns, func.max(_p.seen_at)).where(_p.seen_at > now - SILENT)
    rows = tx.execute(query.group_by(*columns).order_by(*columns)).all()
    return [ServerVersion(*row) for row in rows]


def hold(tx: Tx, server: str, names: Collection[str]) -> None:
    """Record which image files the host has."""
    before = set(tx.scalars(select(_h.name).where(_h.server == server)))
    release(tx, [(server, name) for name in before - set(names)])
    if new := sorted(set(names) - before):
        tx.execute(insert(t.held_files), [{"server": server, "name": name} for name in new])


def held_by_forgotten(tx: Tx, server: str) -> list[tuple[str, str]]:
    """Return the image files, as (host, name), of hosts without any part in the database, except
    those of `server`."""
    forgotten = _h.server.not_in(select(_p.server)), _h.server != server
    query = select(_h.server, _h.name).where(*forgotten).order_by(_h.server, _h.name)
    return [(host, name) for host, name in tx.execute(query)]


def release(tx: Tx, files: Collection[tuple[str, str]]) -> None:
    """Forget that hosts have these files, (host, name)."""
    for server, name in files:
        tx.execute(delete(t.held_files).where(_h.server == server, _h.name == name))


def release_all(tx: Tx) -> None:
    """Forget which hosts have which files."""
    if tx.execute(select(_h.server).limit(1)).first():  # as in `forget`
        tx.execute(delete(t.held_files))


def holders(tx: Tx, names: Collection[str]) -> dict[str, list[str]]:
    """Return the hosts that have each of these files, by name."""
    if not names:
        return {}
    query = select(_h.name, _h.server).where(_h.name.in_(names)).order_by(_h.server)
    return grouped(tx.execute(query).all())


def image_servers(tx: Tx, now: float) -> dict[str, HostPart]:
    """Return the image servers that run, by host."""
    found = _ROWS.every(tx, _p.part == "images", _p.seen_at > now - SILENT)
    return {each.server: each for each in found}


def forget(tx: Tx, before: float) -> None:
    """Forget parts that have not renewed their rows since `before`."""
    # a DELETE of nothing would lock the gap beside other parts' rows
    for server, part in tx.execute(select(_p.server, _p.part).where(_p.seen_at < before)).all():
        tx.execute(delete(t.server_parts).where(_p.server == server, _p.part == part))
