"""Backup and restore, the same file for SQLite and MariaDB: gzip'd JSON lines, a header, then the
rows table by table.

A backup does not know what happened after it was made, so after a restore no node is believed. Open
connections and boot secrets are forgotten, requests about power are dropped, and every node's disks
count as dirty. A node that was free or between states is in state *trampoline*, where it must
report before anything else, and is wiped if nobody holds it. Active nodes stay active. File servers
are asked again for everything that volumes need. People sign in anew, and invitation links are made
anew: links that were used or withdrawn after the backup would work again.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Engine, LargeBinary, case, delete, insert, select, update

from cod.states import UNBELIEVED, BurninState, Disk, NodeState
from cod.store import schema, stories, watermarks
from cod.store import tables as t
from cod.store.engine import Tx, snapshot
from cod.store.notices import events

_BATCH = 1000
_FORGOTTEN = (
    t.sessions,
    t.boot_secrets,
    t.claims,
    t.captures,
    t.reinstalls,
    t.web_sessions,
    t.invitations,
    t.switches,
)
# A backup leaves out the lease of the database's writer, and a restore does not change the lease.
_TABLES = [
    table
    for table in t.metadata.sorted_tables
    if table not in (t.database_lease, t.server_parts, t.held_files)  # of the moment alone
]


class BadBackup(Exception):
    """The file is not a backup of this schema, or is cut short. Nothing was changed."""


def backup(engine: Engine, path: Path) -> int:
    """Write every row to `path` (a consistent snapshot, visible only when complete); return the
    number of rows.

    The file is readable by its owner alone, like the database: both contain how each machine is
    switched and the secrets of agents.
    """
    schema.check_own(engine)
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            with gzip.open(file, "wt", encoding="utf-8") as text:
                rows = _write(engine, text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # of a full disk, say
    return rows


def _write(engine: Engine, text: TextIO) -> int:
    rows = 0
    text.write(json.dumps({"cod": "backup", "schema": schema.current(engine)}) + "\n")
    with snapshot(engine) as connection:
        for table in _TABLES:
            for row in connection.execute(select(table)):
                values = {
                    column.name: base64.b64encode(value).decode()
                    if isinstance(value, bytes)
                    else value
                    for column, value in zip(table.columns, row, strict=True)
                }
                text.write(json.dumps([table.name, values]) + "\n")
                rows += 1
    text.write(json.dumps({"end": rows}) + "\n")
    return rows


def restore(
    engine: Engine, path: Path, now: float, *, replace: bool = False, hold: bool = True
) -> int:
    """Read the backup at `path` into the database; return the number of rows. With `hold` the site
    is held from then on, until its machines were compared with the rows.

    Raises BadBackup when the file is damaged or of another schema, or when the database has
    people's entries and `replace` is not set. One transaction restores everything or nothing.
    """
    check(engine, path, replace=replace)
    with engine.begin() as tx:
        for table in reversed(_TABLES):
            tx.execute(delete(table))
        rows = _load(tx, path)
        events.note_loss(tx, "")
        _disbelieve(tx, now)
        watermarks.forget(tx, watermarks.HOLD)
        watermarks.forget(tx, watermarks.DATABASE)  # what servers have seen was another's
        if hold:
            stories.begin_hold(tx, "it was restored from a backup", now)
        else:
            tx.execute(delete(t.node_stories))
        return rows


def check(engine: Engine, path: Path, *, replace: bool = False) -> None:
    """Raise what `restore` would raise for this schema, file header and database, and change
    nothing. A file that is cut short passes: only its header is read."""
    schema.check_own(engine)
    _header(_lines(path), path)
    with engine.connect() as tx:
        if not replace and (name := _worked_with(tx)):
            raise BadBackup(
                f"the database holds {name} already: restore into an empty one, or say --replace"
            )


def read(path: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one table of the backup at `path`. Values of binary columns are not
    decoded."""
    return (line[1] for line in _lines(path) if isinstance(line, list) and line[0] == table)


def _worked_with(tx: Tx) -> str:
    """Return the name of a kind of thing that people have entered into the database; '' if the
    database is as `cod init` made it."""
    for name, table in (
        ("nodes", t.nodes),
        ("users", t.users),
        ("vclusters", t.vclusters),
        ("images", t.images),
        ("templates", t.config_templates),
        ("tokens", t.api_tokens),
    ):
        if tx.execute(select(table).limit(1)).first():
            return name
    return "groups" if len(tx.execute(select(t.groups.c.id).limit(2)).all()) > 1 else ""


def _lines(path: Path) -> Iterator[Any]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)
    except (OSError, EOFError, ValueError) as error:
        raise BadBackup(f"{path}: not a COD backup, or damaged: {error}") from None


def _header(lines: Iterator[Any], path: Path) -> None:
    header = next(lines, None)
    if not isinstance(header, dict) or header.get("cod") != "backup":
        raise BadBackup(f"{path}: not a COD backup")
    if header["schema"] != schema.head():
        raise BadBackup(
            f"{path} was made with schema {header['schema']}, this program has {schema.head()}: "
            "restore it with the version that made it, then upgrade"
        )


def _load(tx: Tx, path: Path) -> int:
    lines = _lines(path)
    _header(lines, path)
    rows, name = 0, ""
    waiting: list[dict[str, Any]] = []
    for line in lines:
        if isinstance(line, dict):
            _insert(tx, name, waiting)
            if line.get("end") != rows:
                raise BadBackup(f"{path}: {rows} rows where {line.get('end')} were written")
            return rows
        if line[0] != name or len(waiting) >= _BATCH:
            _insert(tx, name, waiting)
            name, waiting = line[0], []
        waiting.append(line[1])
        rows += 1
    raise BadBackup(f"{path}: cut short after {rows} rows")


def _insert(tx: Tx, name: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = t.metadata.tables.get(name)
    if table is None:
        raise BadBackup(f"unknown table {name!r}")
    binary = [c.name for c in table.columns if isinstance(c.type, LargeBinary)]
    for row in rows:
        row.update({key: base64.b64decode(row[key]) for key in binary if row.get(key) is not None})
    tx.execute(insert(table), rows)


def _disbelieve(tx: Tx, now: float) -> None:
    for table in _FORGOTTEN:
        tx.execute(delete(table))
    stories.tell_anew(tx, now)
    tx.execute(update(t.keytabs).values(sealed=None))  # newer keys may have been made since
    a = t.power_actions  # generations have gone back: a wish of then would be taken for one of now
    tx.execute(
        update(a)
        .where(a.c.done_at.is_(None))
        .values(
            done_at=now,
            claimed_by=None,
            claim_expires=None,
            error="dropped: restored from a backup",
        )
    )
    b = t.burnins
    tx.execute(
        update(b)
        .where(b.c.ended_at.is_(None))
        .values(
            state=BurninState.CANCELLED, ended_at=now, secret="", reason="restored from a backup"
        )
    )
    n = t.nodes
    # A system that runs may have been installed after the backup, for another group. Its disks are
    # foreign, so that they are erased whole when the node is given back, and kept for nobody.
    disk = case((n.c.state == NodeState.ACTIVE, Disk.FOREIGN), else_=Disk.DIRTY)
    tx.execute(
        update(n).values(disk=disk, cached_template_id=None, cached_group_id=None, last_seen=None)
    )
    stories.move_to_trampoline(
        tx,
        UNBELIEVED,
        actor="restore",
        cause="restored from a backup: counts as dirty until it reports",
        now=now,
    )
