"""The schema's version: upgrading it, and refusing to run against one that this program cannot work
with. Migrations live in `schema/`.

A migration only expands, so that servers of the release before work on; what nothing has used since
a release may go, by a migration that names this release in `unused_since` (docs/upgrading.md).
`upgrade` puts down the oldest schema whose programs work with the new one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine

from cod import data
from cod.store import watermarks

OLDEST = "oldest schema"  # the mark: programs for this schema, and for later ones, work


class SchemaMismatch(Exception):
    """The database has another schema than this program; the sentence says what to do."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(data.path("schema")))
    config.set_main_option("version_locations", str(data.path("schema/migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _scripts() -> Iterator[Script]:
    return ScriptDirectory.from_config(_config()).walk_revisions()


def head() -> str:
    """Return the newest revision that this program knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def current(engine: Engine) -> str | None:
    """Return the database's revision; None when it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def releases() -> dict[str, dict[str, str]]:
    """Return the releases of COD by version: the commit of each, and its schema."""
    return tomllib.loads((data.path("schema") / "releases.toml").read_text())


def oldest() -> str:
    """Return the oldest schema whose programs work with `head()`."""
    made = releases()
    named = [getattr(script.module, "unused_since", None) for script in _scripts()]
    return max(made[release]["schema"] for release in (next(iter(made)), *filter(None, named)))


def check(engine: Engine) -> str:
    """Return '' where the database has this program's schema, and a sentence where it has a newer
    one that this program works with. Raises `SchemaMismatch` where it has any other."""
    have, want = current(engine), head()
    if have == want:
        return ""
    if have is None:
        raise SchemaMismatch("the database is empty: run `cod db upgrade` (or `cod init`) first")
    known = {script.revision for script in _scripts()}
    if have in known:
        servers = "servers may go on" if have >= oldest() else "stop all servers"
        raise SchemaMismatch(
            f"the database has the older schema {have}, this program needs {want}: "
            f"{servers}, `cod backup` with the version of before, then `cod db upgrade`"
        )
    with engine.connect() as tx:
        works_with = watermarks.at(tx, OLDEST)
    if works_with is not None and works_with <= int(want):
        return (
            f"the database has the newer schema {have}, with which this program, for {want}, works:"
            " install the newer version here, too"
        )
    raise SchemaMismatch(
        f"the database has schema {have}, which this program does not know: it was upgraded by a "
        "newer version of COD; install that version, or restore a backup made before"
    )


def check_own(engine: Engine) -> None:
    """Raise `SchemaMismatch` unless the database has exactly this program's schema: a backup by
    another one would leave out what it does not know."""
    if newer := check(engine):
        raise SchemaMismatch(newer)


def upgrade(engine: Engine) -> str:
    """Bring the schema to `head()`; returns the revision. Safe to repeat."""
    with engine.connect() as connection, _unbound(connection):
        command.upgrade(_config(connection), "head")
        connection.commit()
    with engine.begin() as tx:
        watermarks.move(tx, OLDEST, watermarks.at(tx, OLDEST), float(oldest()))
    return head()


@contextmanager
def _unbound(connection: Connection) -> Iterator[None]:
    """Let SQLite look at no foreign keys meanwhile: a table that is changed is made anew and takes
    the place of the old one, which may not go while rows name its own (SQLite, ALTER TABLE, section
    7). They are looked at afterwards."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
        if astray := driver.execute("PRAGMA foreign_key_check").fetchall():
            raise SchemaMismatch(
                f"{len(astray)} rows name others that are not there, the first in {astray[0][0]}: "
                "restore the backup"
            )
    finally:
        connection.rollback()  # what has failed; the next line has no effect within a transaction
        driver.execute("PRAGMA foreign_keys = ON")
