"""A database of the release before, with people, groups and tokens in it, comes through the upgrade whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Engine, text

from cod.flows import people, signin, tokens
from cod.model import Role
from cod.store import people as rows
from cod.store import schema
from cod.store.engine import connect
from tests.mariadb import MariaDB

NOW = 1_000_000.0
BEFORE = (
    "INSERT INTO users (id, name, full_name, email, created_at, disabled_at) VALUES "
    "(1, 'ann', 'Ann Example', 'ann@example.org', 1.0, NULL), (2, 'bob', '', '', 2.0, 3.0)",
    "INSERT INTO `groups` (id, name, priority, email, webhook, created_at) VALUES (7, 'physics', 3, '', '', 1.0)",
    "INSERT INTO group_permissions (group_id, user_id, role) VALUES (7, 1, 'owner'), (7, 2, 'member')",
    "INSERT INTO api_tokens (id, name, user_id, scope, digest, created_at, expires_at) VALUES "
    f"(1, 'ci', NULL, 'admin', '{tokens.digest('cod_ci')}', 1.0, NULL), "
    f"(2, 'hers', 1, 'read', '{tokens.digest('cod_hers')}', 1.0, NULL)",
    "INSERT INTO notices (id, at, kind, group_id, subject, about) VALUES (1, 1.0, 'test', 7, 's', 'a')",
)


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """A database of schema 0002 with rows in it."""
    if request.param == "sqlite":
        engine = connect(f"sqlite:///{tmp_path}/old.db")
    else:
        server: MariaDB = request.getfixturevalue("mariadb")
        engine = connect(server.url("older"))
    with engine.connect() as connection:
        command.upgrade(schema._config(connection), "0002")
        connection.commit()
    with engine.begin() as tx:
        for line in BEFORE:
            tx.execute(text(line))
    return engine


def test_people_groups_and_tokens_come_through_the_upgrade(before: Engine) -> None:
    assert schema.upgrade(before) == schema.head()
    with before.begin() as tx:
        ann, roles = people.one(tx, "ann")
        assert (ann.id, ann.email, ann.admin, ann.directory, ann.subject) == (1, "ann@example.org", False, "", None)
        assert [(each.group, each.role) for each in roles] == [("physics", Role.OWNER)]
        assert rows.roles(tx, 2) == {7: Role.MEMBER}
        tried = signin.attempt(tx, name="ann", address="192.0.2.1", now=NOW)  # who has no password gets in by a link
        assert (tried.user, tried.hash) == (ann, "")
        site, hers = (tokens.caller(tx, token, "192.0.2.1", NOW) for token in ("cod_ci", "cod_hers"))
        assert site is not None
        assert hers is not None
        assert (site.admin, site.writes, hers.admin, hers.writes, hers.groups) == (True, True, False, False, {7})
        if before.dialect.name == "sqlite":  # and keys are looked at again
            assert tx.execute(text("PRAGMA foreign_keys")).scalar() == 1
    before.dispose()


def test_a_row_that_names_nobody_is_told(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/old.db")
    schema.upgrade(engine)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("PRAGMA foreign_keys = OFF")
        driver.execute("INSERT INTO group_permissions (group_id, user_id, role) VALUES (1, 1, 'owner')")
        driver.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(schema.SchemaMismatch, match="the first in group_permissions"):
        schema.upgrade(engine)
    engine.dispose()
