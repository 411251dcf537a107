"""The schema's version: upgrading it, and refusing to run against another one. Migrations live in
`schema/`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from cod import data


class SchemaMismatch(Exception):
    """The database has another schema than this program; the sentence says what to do."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(data.path("schema")))
    config.set_main_option("version_locations", str(data.path("schema/migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """Return the newest revision that this program knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def current(engine: Engine) -> str | None:
    """Return the database's revision; None when it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def check(engine: Engine) -> None:
    """Raise `SchemaMismatch` unless the database has exactly this program's schema."""
    have, want = current(engine), head()
    if have == want:
        return
    if have is None:
        raise SchemaMismatch("the database is empty: run `cod db upgrade` (or `cod init`) first")
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if have in known:
        raise SchemaMismatch(
            f"the database has the older schema {have}, this program needs {want}: "
            "stop all servers, `cod db backup`, then `cod db upgrade`"
        )
    raise SchemaMismatch(
        f"the database has schema {have}, which this program does not know: it was upgraded by a "
        "newer version of COD; install that version, or restore a backup made before"
    )


def upgrade(engine: Engine) -> str:
    """Bring the schema to `head()`; returns the revision. Safe to repeat."""
    with engine.connect() as connection, _unbound(connection):
        command.upgrade(_config(connection), "head")
        connection.commit()
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
