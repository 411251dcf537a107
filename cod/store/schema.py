"""The version of the database's schema: upgrading it, and refusing a schema that this program
cannot work with. Migrations live in `schema/`. An empty database gets its tables at once, as the
migrations would leave them (`tests/store/test_schema.py`).

A migration only expands the schema, so that servers of the previous release go on working. Columns
and tables that no program has used since a release are dropped by a migration that names this
release in `unused_since` (docs/upgrading). Before `upgrade` changes anything, it records the oldest
schema whose programs work with the new one: from then on, older programs refuse to run.

Alembic and the modules of all migrations are imported only for an upgrade. A server that only
checks whether it may start would need a fifth more CPU time for its start.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import (
    Column,
    ColumnClause,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    column,
    event,
    insert,
    inspect,
    select,
    table,
    update,
)

from cod import data
from cod.store import tables as t
from cod.store import watermarks

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import Script, ScriptDirectory


_UNLESS = tuple(
    (re.compile(rf"^(\s*{change})\b"), rf"\1 {unless}")
    for change, unless in (
        ("CREATE TABLE", "IF NOT EXISTS"),
        (r"CREATE (?:UNIQUE )?INDEX", "IF NOT EXISTS"),
        (r"DROP (?:TABLE|INDEX)", "IF EXISTS"),
        (r"ALTER TABLE \S+ ADD COLUMN", "IF NOT EXISTS"),
        (r"ALTER TABLE \S+ ADD CONSTRAINT \S+ (?:FOREIGN KEY|UNIQUE)", "IF NOT EXISTS"),
        (r"ALTER TABLE \S+ DROP (?:COLUMN|INDEX|FOREIGN KEY|CONSTRAINT)", "IF EXISTS"),
    )
)
"""MariaDB's statements that change tables, and what makes each pass over what is done already."""


VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""The table of Alembic, which has one row: the database's revision."""


class SchemaMismatch(Exception):
    """The database has another schema than this program; the sentence says what to do."""


class Migration(NamedTuple):
    """A migration that a database lacks. `expands`: programs of the previous release work after
    it."""

    revision: str
    about: str
    expands: bool


def _config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(data.path("schema")))
    config.set_main_option("version_locations", str(data.path("schema/migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@cache
def _directory(_schema: Path) -> ScriptDirectory:
    """Return the migrations. Their modules are imported once a process."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def _scripts() -> Iterator[Script]:
    return _directory(data.path("schema")).walk_revisions()


def revisions() -> list[str]:
    """Return the revisions that this program knows, the oldest first. The name of a migration's
    file begins with its revision."""
    return sorted(path.name[:4] for path in data.path("schema/migrations").glob("[0-9]*.py"))


def head() -> str:
    """Return the newest revision that this program knows."""
    return revisions()[-1]


def current(engine: Engine) -> str | None:
    """Return the database's revision; None when it is empty."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(VERSION.name):
            return None
        revision: str | None = connection.scalar(select(VERSION.c.version_num))
        return revision


def releases() -> dict[str, dict[str, str]]:
    """Return the releases of COD by version, each with its commit and its schema."""
    return tomllib.loads((data.path("schema") / "releases.toml").read_text())


def first() -> str:
    """Return the schema of the first release."""
    return next(iter(releases().values()))["schema"]


def oldest() -> str:
    """Return the oldest schema whose programs work with `head()`."""
    made = releases()
    texts = (path.read_text() for path in data.path("schema/migrations").glob("[0-9]*.py"))
    named = filter(None, (re.search(r'^unused_since = "(.+)"$', text, re.M) for text in texts))
    return max((first(), *(made[release[1]]["schema"] for release in named)))


def pending(engine: Engine) -> list[Migration]:
    """Return the migrations that the database lacks, in order. Raises `SchemaMismatch` if its
    schema is newer than this program's, or if an upgrade to a schema that is too new has begun."""
    have = current(engine)
    if have is not None and have not in revisions():
        raise SchemaMismatch(_newer(have))
    if have is not None:
        _refuse_begun(engine)
    lacking = [
        Migration(
            script.revision,
            script.doc,
            # from the first release on, each says what it contracts
            script.revision > first() and not hasattr(script.module, "unused_since"),
        )
        for script in takewhile(lambda script: script.revision != have, _scripts())
    ]
    return lacking[::-1]


def check(engine: Engine) -> str:
    """Return '' if the database has this program's schema, and a sentence for people if it has a
    newer one that this program works with. Raises `SchemaMismatch` for any other schema."""
    have, want = current(engine), head()
    if have is None:
        raise SchemaMismatch("the database is empty: run `cod db upgrade` (or `cod init`) first")
    if have in revisions()[:-1]:
        servers = "servers may go on" if have >= oldest() else "stop all servers"
        raise SchemaMismatch(
            f"the database has the older schema {have}, this program needs {want}: "
            f"{servers}, `cod backup` with the version of before, then `cod db upgrade`"
        )
    if have == want:
        _refuse_begun(engine)
        return ""
    works_with = _oldest_marked(engine)
    if works_with is not None and works_with <= int(want):
        return (
            f"the database has the newer schema {have}, with which this program, for {want}, works:"
            " install the newer version here, too"
        )
    raise SchemaMismatch(_newer(have))


def _refuse_begun(engine: Engine) -> None:
    works_with = _oldest_marked(engine)
    if works_with is not None and works_with > int(head()):
        raise SchemaMismatch(
            "an upgrade of the database to a schema that this program does not work with has"
            " begun: install the newer version, and repeat its `cod db upgrade`"
        )


def _oldest_marked(engine: Engine) -> float | None:
    """Return the oldest schema whose programs work with the database; None if that is not
    recorded."""
    with engine.connect() as tx:
        has_marks = inspect(tx).has_table(t.marks.name)
        return watermarks.at(tx, watermarks.OLDEST_SCHEMA) if has_marks else None


def _newer(have: str) -> str:
    return (
        f"the database has schema {have}, which this program does not know: it was upgraded by a "
        "newer version of COD; install that version, or restore a backup made before"
    )


def check_own(engine: Engine) -> None:
    """Raise `SchemaMismatch` unless the database has exactly this program's schema: a backup of
    another schema would lack the columns and tables that this program does not know."""
    if newer := check(engine):
        raise SchemaMismatch(newer)


def upgrade(engine: Engine) -> str:
    """Bring the schema to `head()` and return its revision. A repetition does no harm. Raises
    `SchemaMismatch` if the schema is newer."""
    if current(engine) is None:
        _create(engine)
    else:
        if pending(engine):
            _mark_oldest(engine)  # before an older program can meet what it does not work with
        migrate(engine)
    _mark_oldest(engine)
    return head()


def _create(engine: Engine) -> None:
    """Create all tables in a database without a version, and record today's version last. MariaDB
    commits each table by itself, so a creation that was killed is continued; tables that another
    program version has created are refused."""
    with engine.begin() as tx:
        existing = {
            name: {each["name"] for each in inspect(tx).get_columns(name)}
            for name in t.metadata.tables.keys() & set(inspect(tx).get_table_names())
        }
        for name, columns in existing.items():
            if columns != set(t.metadata.tables[name].columns.keys()):
                raise SchemaMismatch(
                    f"the database has no version, and a table {name} of another version of COD:"
                    " name an empty database, or restore the backup"
                )
        t.metadata.create_all(tx)
        VERSION.create(tx, checkfirst=True)
        tx.execute(insert(VERSION).values(version_num=head()))


def migrate(engine: Engine, revision: str = "head") -> None:
    """Run the migrations that the database lacks, up to `revision`."""
    from alembic import command

    with engine.connect() as connection, _unbound(connection):
        _pass_over(connection)
        command.upgrade(_config(connection), revision)
        connection.commit()


def _pass_over(connection: Connection) -> None:
    """Let MariaDB skip changes that were made already. It commits each change of a table by itself,
    so a migration that was killed has left some changes, and is run again from its beginning."""

    def adapted(
        _connection: object, _cursor: object, statement: str, values: object, *_: object
    ) -> tuple[str, object]:
        for change, unless in _UNLESS:
            statement = change.sub(unless, statement)
        return statement, values

    if getattr(connection.dialect, "is_mariadb", False):
        event.listen(connection, "before_cursor_execute", adapted, retval=True)


def _mark_oldest(engine: Engine) -> None:
    """Store `oldest`. The table may be that of an older schema, which has fewer columns."""
    name: ColumnClause[str] = column("name")
    marks = table(t.marks.name, name, column("at"))
    with engine.begin() as tx:
        if not inspect(tx).has_table(t.marks.name):
            return
        mark = {"name": watermarks.OLDEST_SCHEMA, "at": float(oldest())}
        known = update(marks).where(name == mark["name"]).values(at=mark["at"])
        if tx.execute(known).rowcount == 0:
            tx.execute(insert(marks).values(mark))


@contextmanager
def _unbound(connection: Connection) -> Iterator[None]:
    """Turn SQLite's foreign keys off meanwhile, and check them afterwards. To alter a table, a new
    one takes the old one's place, and the old one cannot be dropped while rows refer to its rows
    (SQLite, ALTER TABLE, section 7)."""
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
