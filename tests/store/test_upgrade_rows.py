"""A database of the release before, with people, groups and tokens in it, comes through the upgrade
whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from cod.flows.images import images
from cod.flows.images import templates as template_flows
from cod.flows.people import access, people, signin
from cod.model import Role
from cod.store import schema
from cod.store.database import connect
from cod.store.images import templates
from cod.store.people import groups
from cod.store.people import people as rows
from tests.conftest import upgrade
from tests.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.mariadb_always]

NOW = 1_000_000.0
BEFORE = (
    (
        "INSERT INTO users (id, name, full_name, email, created_at, disabled_at) VALUES "
        "(1, 'ann', 'Ann Example', 'ann@example.org', 1.0, NULL), (2, 'bob', '', '', 2.0, 3.0)"
    ),
    (
        "INSERT INTO `groups` (id, name, priority, email, webhook, created_at) VALUES (7,"
        " 'physics', 3, '', '', 1.0)"
    ),
    (
        "INSERT INTO group_permissions (group_id, user_id, role) VALUES (7, 1, 'owner'), (7, 2,"
        " 'member')"
    ),
    (
        "INSERT INTO api_tokens (id, name, user_id, scope, digest, created_at, expires_at) VALUES "
        f"(1, 'ci', NULL, 'admin', '{access.digest('cod_ci')}', 1.0, NULL), "
        f"(2, 'hers', 1, 'read', '{access.digest('cod_hers')}', 1.0, NULL)"
    ),
    (
        "INSERT INTO notices (id, at, kind, group_id, subject, about) VALUES (1, 1.0, 'test', 7,"
        " 's', 'a')"
    ),
)


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """A database of schema 0002 with rows in it."""
    if request.param == "sqlite":
        engine = connect(f"sqlite:///{tmp_path}/old.db")
    else:
        server: MariaDB = request.getfixturevalue("mariadb")
        engine = connect(server.url("older"))
    schema.migrate(engine, "0002")
    with engine.begin() as tx:
        for line in BEFORE:
            tx.execute(text(line))
    return engine


def test_people_groups_and_tokens_come_through_the_upgrade(before: Engine) -> None:
    assert schema.upgrade(before) == schema.head()
    with before.begin() as tx:
        ann, roles = people.one(tx, "ann")
        assert (ann.id, ann.email, ann.admin, ann.directory, ann.subject) == (
            1,
            "ann@example.org",
            False,
            "",
            None,
        )
        assert [(each.group, each.role) for each in roles] == [("physics", Role.OWNER)]
        assert rows.roles(tx, 2) == {7: Role.MEMBER}
        # who has no password gets in by a link
        tried = signin.attempt(tx, name="ann", address="192.0.2.1", now=NOW)
        assert (tried.user, tried.hash) == (ann, "")
        site, hers = (
            access.caller(tx, token, "192.0.2.1", NOW) for token in ("cod_ci", "cod_hers")
        )
        assert site is not None
        assert hers is not None
        assert (site.admin, site.writes, hers.admin, hers.writes, hers.groups) == (
            True,
            True,
            False,
            False,
            {7},
        )
        if before.dialect.name == "sqlite":  # and keys are looked at again
            assert tx.execute(text("PRAGMA foreign_keys")).scalar() == 1
    before.dispose()


def test_a_row_that_names_nobody_is_told(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/old.db")
    upgrade(engine)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("PRAGMA foreign_keys = OFF")
        driver.execute(
            "INSERT INTO group_permissions (group_id, user_id, role) VALUES (1, 1, 'owner')"
        )
        driver.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(schema.SchemaMismatch, match="the first in group_permissions"):
        schema.upgrade(engine)
    engine.dispose()


SOFTWARE = (
    (
        "INSERT INTO `groups` (id, name, priority, email, webhook, created_at) VALUES (1, 'site',"
        " 0, '', '', 1.0), (7, 'physics', 3, '', '', 1.0), (8, 'chemistry', 0, '', '', 1.0)"
    ),
    *(
        "INSERT INTO images (id, name, group_id, state, format, size, used, stored, sha256,"
        f" digest, created_at, reason, content, source) VALUES ({number}, '{name}', {owner},"
        f" 'ready', 'raw', {size}, 0, 0, '', 'd{number}', 1.0, '', 'disk', '')"
        for number, (name, owner, size) in enumerate(
            (("debian", 7, 4096), ("plain", "NULL", 512), ("golden", 1, 8192), ("n" * 63, 7, 1)), 1
        )
    ),
    *(
        "INSERT INTO config_templates (id, name, revision, group_id, document, digest, created_at)"
        f" VALUES ({number}, "
        f'\'{name}\', {revision}, {owner}, \'<template name="{name}"><image target="disk"'
        f' name="{image}"/>'
        "</template>', 'd', 1.0)"
        for number, (name, revision, owner, image) in enumerate(
            (
                ("web", 1, 7, "debian"),
                ("web", 2, 7, "plain"),
                ("batch", 1, "NULL", "plain"),
                ("old", 1, 1, "golden"),
            ),
            1,
        )
    ),
    *(
        "INSERT INTO uploads (id, name, group_id, size, `offset`, boot, sha256, plain, raw, actor,"
        f" created_at, expires_at) VALUES ('u-{name}', '{name}', {owner}, 10, 0, '', '', 0, 0, 'a',"
        " 1.0, 9e9)"
        for name, owner in (("coming", 7), ("shared", "NULL"))
    ),
    *(
        "INSERT INTO nodes (id, name, boot_mac, state, since, generation, attempts, reason, disk,"
        " released, progress_done, progress_total, progress_rate, power, power_driver,"
        f" power_address, power_seq) VALUES ({number}, 'n{number}', '52:54:00:00:00:0{number}',"
        " 'active', 1.0, 0, 0, '', 'dirty', 0, 0, 0, 0.0, 'on', 'none', '', 0)"
        for number in (1, 2, 3)
    ),
    *(
        "INSERT INTO captures (node_id, image, template, group_id, state, generation, secret,"
        f" digest, actor, asked_at, reason) VALUES ({node}, 'saved', '{template}', {owner},"
        " 'wanted', 0, '', '', 'a', 1.0, '')"
        for node, template, owner in ((1, "copy", 8), (2, "", 8), (3, "copy", "NULL"))
    ),
)


def test_names_of_groups_things_come_through_the_upgrade_in_full(before: Engine) -> None:
    """And templates go on with the images that their documents call by bare names."""
    schema.migrate(before, "0008")
    with before.begin() as tx:
        for table in ("notices", "api_tokens", "group_permissions", "`groups`"):
            tx.execute(text(f"DELETE FROM {table}"))
        for line in SOFTWARE:
            tx.execute(text(line))
    schema.migrate(before, "0009")
    with before.begin() as tx:  # MariaDB commits each table by itself: what was broken off
        tx.execute(text("UPDATE alembic_version SET version_num = '0008'"))
    schema.upgrade(before)
    with before.begin() as tx:
        names = lambda column, table: list(tx.scalars(text(f"SELECT {column} FROM {table}")))  # noqa: E731
        assert names("name", "images ORDER BY id") == [
            "physics/debian",
            "plain",
            "site/golden",
            "physics/" + "n" * 63,
        ]
        assert names("name", "config_templates ORDER BY id") == [
            "physics/web",
            "physics/web",
            "batch",
            "site/old",
        ]
        assert names("name", "uploads ORDER BY id") == ["physics/coming", "shared"]
        assert names("image", "captures ORDER BY node_id") == [
            "chemistry/saved",
            "chemistry/saved",
            "saved",
        ]
        assert names("template", "captures ORDER BY node_id") == ["chemistry/copy", "", "copy"]
        found = templates.for_matching(tx, [1, 2, 3, 4])
        assert [
            f'size="{size}"' in found[number]
            for number, size in ((1, 4096), (2, 512), (3, 512), (4, 8192))
        ] == [True] * 4
        assert [
            templates.usable(tx, name, 7).id for name in ("web", "web@1", "physics/web", "batch")
        ] == [2, 1, 2, 3]
        assert images.show(tx, name="physics/debian").used_by == ("physics/web@1",)
        again = template_flows.add(
            tx, document=templates.documents(tx, [2])[2], group="physics", now=NOW
        )
        assert (again.name, again.revision) == ("physics/web", 3), "the digest was another one's"
    before.dispose()


def test_users_and_groups_that_exist_get_posix_numbers(before: Engine) -> None:
    schema.upgrade(before)
    with before.begin() as tx:
        assert [(one.name, one.uid, one.gid) for one in rows.every(tx)] == [
            ("ann", 20_000, 20_000),
            ("bob", 20_001, 20_001),
        ]
        assert groups.named(tx, "physics").gid == 50_000
        assert people.create(tx, "carl", now=NOW).uid == 20_002
        assert groups.ensure(tx, "chemistry", NOW).gid == 50_001
