"""The hosts of the site's servers: each part reports that it runs, and people see which do."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from cod.model import DatabaseHost, HostPart, ServersView, ServerVersion, ServerView
from cod.store import claims, servers, watermarks
from cod.store.engine import Tx
from cod.store.mariadb import writer
from cod.store.servers import SILENT

RENEWAL = 15.0  # seconds
FORGOTTEN = 7 * 86400.0  # seconds after which a part that is down is not listed any more
_MANAGER = "manager"


def renew(tx: Tx, *, part: HostPart) -> tuple[str, ...]:
    """Note that a part runs. Return the addresses of another host that uses the part's name, () if
    there is none."""
    before = servers.find(tx, part.server, part.part)
    servers.renew(tx, part)
    servers.forget(tx, part.seen_at - FORGOTTEN)
    # two hosts with one name write in turn; a restart with another site file is only one host
    alive = before is not None and before.seen_at > part.seen_at - SILENT
    if before is None or not alive or before.started_at <= part.started_at:
        return ()
    return before.addresses if before.addresses != part.addresses else ()


def every(tx: Tx, *, now: float, database: tuple[DatabaseHost, ...] = ()) -> ServersView:
    """Return the hosts by name, and the hosts of their database, of which `database` are those that
    were asked lately."""
    manager = claims.owner(tx, _MANAGER, now)
    found = groupby(servers.every(tx), lambda each: each.server)
    hosts = tuple(_view(name, list(parts), manager, now) for name, parts in found)
    leased = writer.host(tx)
    writers = {each.name for each in database} if len(database) == 1 else {leased}
    asked = tuple(replace(each, is_writer=each.name in writers) for each in database)
    return ServersView(hosts, leased, asked)


def running(tx: Tx, *, now: float) -> list[ServerVersion]:
    """Return the programs that hosts run, for an upgrade. A program of release 0.1 does not report
    itself: if it is the manager, it is known by its claim, and has no version and no schema
    here."""
    found = servers.running(tx, now)
    manager = claims.owner(tx, _MANAGER, now)
    if manager and manager not in {each.name for each in found}:
        found.append(ServerVersion(manager, "", "", now))
    return found


def is_too_old(tx: Tx, *, schema: str) -> bool:
    """Return whether the database was upgraded, or is about to be, to a schema that programs for
    `schema` do not work with."""
    return (watermarks.at(tx, watermarks.OLDEST_SCHEMA) or 0.0) > int(schema)


def _view(name: str, parts: list[HostPart], manager: str, now: float) -> ServerView:
    newest = max(parts, key=lambda each: each.seen_at)
    silent = tuple(each.part for each in parts if each.seen_at <= now - SILENT)
    return ServerView(
        name,
        newest.addresses,
        tuple(each.part for each in parts if each.part not in silent),
        silent,
        newest.version,
        newest.database_schema,
        newest.started_at,
        newest.seen_at,
        manages=name == manager,
    )
