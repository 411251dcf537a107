"""Upgraded schema equals fresh schema; a server refuses another schema; backups come back whole and
disbelieved."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, Table, delete, event, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError

from cod.flows.people import access, invitations, people, signin
from cod.model import SignInRules
from cod.states import Disk, NodeState
from cod.store import backup, schema
from cod.store import tables as t
from cod.store.database import connect
from cod.store.nodes import nodes
from tests.conftest import upgrade
from tests.later import CONTRACTS, later
from tests.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.mariadb_always]


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes empty databases without any table, by name."""
    if request.param == "sqlite":
        return lambda name: f"sqlite:///{tmp_path}/{name}.db"
    server: MariaDB = request.getfixturevalue("mariadb")
    return server.url


@pytest.fixture
def url(url_of: Callable[[str], str]) -> str:
    """An empty database without any table."""
    return url_of("upgraded")


def test_upgraded_schema_equals_fresh_schema(url_of: Callable[[str], str]) -> None:
    """Also where MariaDB is told each change of a table twice, as after an upgrade that was killed
    anywhere. Columns may differ in their order: nothing reads them by their place."""
    upgraded, fresh = (connect(url_of(name)) for name in ("upgraded", "fresh"))
    if upgraded.dialect.name != "sqlite":
        event.listen(upgraded, "after_cursor_execute", change_again)
    with pytest.raises(schema.SchemaMismatch, match="empty"):
        schema.check(upgraded)
    schema.migrate(upgraded)
    for engine in (upgraded, fresh):
        assert schema.upgrade(engine) == schema.head()
        schema.upgrade(engine)  # again: harmless
        schema.check(engine)
    with upgraded.connect() as one, fresh.connect() as other:
        migrated, made = definitions(one), definitions(other)
        assert migrated.keys() == made.keys()
        assert [
            {*migrated[name]} ^ {*made[name]} for name in made if migrated[name] != made[name]
        ] == []
        seen = MigrationContext.configure(one, opts={"compare_type": True})
        assert compare_metadata(seen, t.metadata) == []
        for table in (t.marks, schema.VERSION):
            assert one.execute(select(table)).all() == other.execute(select(table)).all()
    upgraded.dispose()
    fresh.dispose()


def definitions(connection: Connection) -> dict[str, list[str]]:
    """Return what the database says of each table and index: its definition's parts, sorted."""
    if connection.dialect.name != "sqlite":
        made = {
            name: connection.execute(text(f"SHOW CREATE TABLE `{name}`")).one()[1]
            for name in inspect(connection).get_table_names()
        }
        return {
            name: sorted(line.strip().rstrip(",") for line in sql.splitlines())
            for name, sql in made.items()
        }
    rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql <> ''"))
    plain = {
        name: re.sub(r"DEFAULT \('(.*?)'\)", r"DEFAULT '\1'", sql).replace('"', "")
        for name, sql in rows
    }
    return {name: sorted(re.split(r",?\s*\n\s*|, ", sql)) for name, sql in plain.items()}


@pytest.mark.parametrize("killed", ["a table", "the version"])
def test_a_creation_that_was_killed_goes_on(url: str, killed: str) -> None:
    """MariaDB keeps each table at once."""
    engine = connect(url)
    with engine.begin() as tx:
        t.users.create(tx) if killed == "a table" else t.metadata.create_all(tx)
        if killed == "the version":
            schema.VERSION.create(tx)
    assert schema.upgrade(engine) == schema.head()
    schema.check(engine)
    with engine.connect() as connection:
        assert t.metadata.tables.keys() < set(inspect(connection).get_table_names())
    engine.dispose()


def test_the_tables_of_another_version_are_not_taken_for_today_s(url: str) -> None:
    engine = connect(url)
    with engine.begin() as tx:
        tx.execute(text("CREATE TABLE users (id INTEGER PRIMARY KEY)"))
    with pytest.raises(schema.SchemaMismatch, match="a table users of another version"):
        schema.upgrade(engine)
    assert schema.current(engine) is None
    engine.dispose()


def change_again(_connection: object, cursor: Any, statement: str, *_: object) -> None:
    if statement.split()[0] in ("CREATE", "ALTER", "DROP"):
        cursor.execute(statement)


@pytest.mark.mariadb
@pytest.mark.in_turn(3)  # each upgrade loads all migrations: ten seconds
def test_an_upgrade_that_is_killed_after_each_migration_goes_on(mariadb: MariaDB) -> None:
    """MariaDB keeps each change of a table at once: what is to be done again is there already."""
    engine, killed = connect(mariadb.url("killed")), set[object]()
    schema.migrate(engine, schema.first())

    def kill(_c: object, _k: object, statement: str, values: Any, _x: object, _m: object) -> None:
        if "alembic_version SET" in statement and statement not in killed:
            killed.add(statement)
            raise OSError("killed")

    event.listen(engine, "before_cursor_execute", kill)
    for _ in schema.revisions():
        with suppress(OSError):
            schema.upgrade(engine)
            break
    assert len(killed) == sum(each > schema.first() for each in schema.revisions())
    with engine.connect() as connection:
        seen = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(seen, t.metadata) == []
    engine.dispose()


def test_an_unknown_schema_is_refused(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/newer.db")
    upgrade(engine)
    with engine.begin() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = 'ffff'"))
        tx.execute(text("UPDATE marks SET at = 9999 WHERE name = 'oldest schema'"))
    with pytest.raises(schema.SchemaMismatch, match="newer version of COD"):
        schema.check(engine)


def test_a_newer_schema_that_only_expands_is_worked_with_and_not_backed_up(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/newer.db")
    upgrade(engine)
    with engine.begin() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9998'"))
    assert "the newer schema 9998, with which this program" in schema.check(engine)
    with pytest.raises(schema.SchemaMismatch, match="install the newer version"):
        backup.backup(engine, tmp_path / "b.gz")
    assert not (tmp_path / "b.gz").exists()
    with engine.begin() as tx:
        tx.execute(text("DELETE FROM marks"))
    with pytest.raises(schema.SchemaMismatch, match="does not know"):
        schema.check(engine)


@pytest.mark.parametrize(("have", "servers"), [("0039", "may go on"), ("0038", "stop all")])
def test_an_older_schema_is_refused_and_says_whether_servers_may_go_on(
    tmp_path: Path, have: str, servers: str
) -> None:
    engine = connect(f"sqlite:///{tmp_path}/older.db")
    schema.migrate(engine, have)
    with pytest.raises(schema.SchemaMismatch, match=f"the older schema {have}.*{servers}"):
        schema.check(engine)
    schema.upgrade(engine)
    assert schema.check(engine) == ""


def test_the_names_of_the_migrations_files_are_their_order() -> None:
    assert schema.revisions()[::-1] == [script.revision for script in schema._scripts()]


def test_a_server_looks_at_its_schema_without_the_tools_of_an_upgrade(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/cod.db")
    upgrade(engine)
    program = (
        "import sys; from cod.store import schema; from cod.store.database import connect;"
        f"schema.check(connect({str(engine.url)!r})); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_a_contraction_makes_its_releases_schema_the_oldest(tmp_path: Path) -> None:
    assert schema.oldest() == "0039"
    with later(tmp_path / "schema", CONTRACTS, unused_since="0.2"):
        assert schema.oldest() == schema.revisions()[-2]


@pytest.fixture
def upgraded(url: str) -> Engine:
    engine = connect(url)
    upgrade(engine)
    with engine.begin() as tx:
        for name, state, disk in (
            ("a", NodeState.INACTIVE, Disk.CLEAN),
            ("b", NodeState.ACTIVE, Disk.DIRTY),
            ("c", NodeState.OFF, Disk.CLEAN),
        ):
            nodes.add(
                tx,
                name=name,
                boot_mac=f"52:54:00:00:00:0{name}",
                now=1.0,
                cause="test",
                actor="test",
                state=state,
                disk=disk,
            )
        tx.execute(
            insert(t.boot_secrets).values(
                id="x",
                mac="52:54:00:00:00:0a",
                kind="boot",
                address="10.77.1.1",
                salt=b"\0" * 16,
                stored_key=b"\1" * 32,
                server_key=b"\2" * 32,
                expires_at=9e9,
            )
        )
    return engine


def test_after_a_restore_no_node_is_believed(upgraded: Engine, tmp_path: Path) -> None:
    rows = backup.backup(upgraded, tmp_path / "b.gz")
    with pytest.raises(backup.BadBackup, match="--replace"):
        backup.restore(upgraded, tmp_path / "b.gz", 5.0)
    assert backup.restore(upgraded, tmp_path / "b.gz", 5.0, replace=True) == rows
    with upgraded.begin() as tx:
        found = {node.name: node for node in nodes.every(tx)}
        # what runs may be of another group than the backup says
        assert [found[name].disk for name in "abc"] == [Disk.DIRTY, Disk.FOREIGN, Disk.DIRTY]
        assert [found[name].state for name in "abc"] == [
            NodeState.TRAMPOLINE,
            NodeState.ACTIVE,
            NodeState.TRAMPOLINE,
        ]
        assert found["a"].generation == 1
        assert found["a"].deadline is not None
        assert tx.scalar(select(t.boot_secrets.c.id)) is None
        assert nodes.history(tx, found["a"].id)[-1]["actor"] == "restore"


@pytest.mark.parametrize(
    ("holds", "table", "row"),
    [
        ("users", t.users, {"name": "ann", "created_at": 1.0}),
        (
            "images",
            t.images,
            {"name": "red", "state": "ready", "format": "raw", "created_at": 1.0},
        ),
        (
            "templates",
            t.config_templates,
            {
                "name": "red",
                "revision": 1,
                "document": "<template/>",
                "digest": "",
                "created_at": 1.0,
            },
        ),
    ],
    ids=["users", "images", "templates"],
)
def test_one_row_of_any_kind_is_a_reason_not_to_overwrite(
    upgraded: Engine, tmp_path: Path, holds: str, table: Table, row: dict[str, Any]
) -> None:
    with upgraded.begin() as tx:
        for each in reversed(t.metadata.sorted_tables):
            tx.execute(delete(each))
        tx.execute(insert(table).values(**row))
    backup.backup(upgraded, tmp_path / "b.gz")
    with pytest.raises(backup.BadBackup, match=f"the database holds {holds} already"):
        backup.check(upgraded, tmp_path / "b.gz")
    backup.check(upgraded, tmp_path / "b.gz", replace=True)


def test_after_a_restore_people_sign_in_anew_and_links_are_worth_nothing(
    upgraded: Engine, tmp_path: Path
) -> None:
    """A link that was used since the backup, or a browser that was signed out, would be good
    again."""
    rules = SignInRules()
    with upgraded.begin() as tx:
        ann = people.create(tx, "ann", now=1.0)
        invitations.renew(tx, digest="link", user="ann", rules=rules, who="user:root", now=1.0)
        signin.begin(
            tx, user_id=ann.id, address="", browser="", cookie="cookie", rules=rules, now=1.0
        )
    backup.backup(upgraded, tmp_path / "b.gz")
    backup.restore(upgraded, tmp_path / "b.gz", 5.0, replace=True)
    with upgraded.begin() as tx:
        assert people.one(tx, "ann")[0].name == "ann"
        assert invitations.every(tx, None, 1.0) == []
        assert access.session(tx, cookie="cookie", address="", rules=rules, now=1.0) is None


def test_wishes_about_power_do_not_outlive_a_restore(upgraded: Engine, tmp_path: Path) -> None:
    with upgraded.begin() as tx:
        node = nodes.by_name(tx, "b")
        assert node is not None
        nodes.wish_power(tx, nodes.change(tx, node, power_driver="lab"), "cycle", 2.0)
    backup.backup(upgraded, tmp_path / "b.gz")
    backup.restore(upgraded, tmp_path / "b.gz", 5.0, replace=True)
    with upgraded.begin() as tx:
        assert tx.execute(select(t.power_actions.c.done_at, t.power_actions.c.error)).one() == (
            5.0,
            "dropped: restored from a backup",
        )


def test_keytabs_do_not_outlive_a_restore_and_their_hosts_do(
    upgraded: Engine, tmp_path: Path
) -> None:
    k = t.keytabs
    row = {"node_id": 1, "vcluster_id": 1, "order_id": "1.1", "attempts": 0, "next_at": 0.0}
    with upgraded.begin() as tx:
        tx.execute(insert(k).values(host="n1.vc.cod.test", sealed=b"keys", reason="", **row))
    backup.backup(upgraded, tmp_path / "b.gz")
    backup.restore(upgraded, tmp_path / "b.gz", 5.0, replace=True)
    with upgraded.begin() as tx:
        assert tx.execute(select(k.c.host, k.c.sealed)).all() == [("n1.vc.cod.test", None)]


def test_after_a_restore_file_servers_are_asked_for_everything_anew(
    upgraded: Engine, tmp_path: Path
) -> None:
    """File servers' scripts refuse a change that is older than what they have carried out."""
    with upgraded.begin() as tx:
        made = tx.execute(insert(t.groups).values(name="g", created_at=0.0))
        [group] = made.inserted_primary_key or ()
        for number, sequence in ((1, 4), (2, 900)):
            tx.execute(
                insert(t.volumes).values(
                    name=f"g/{number}",
                    group_id=group,
                    kind="data",
                    fileserver="nas",
                    path="/srv/x",
                    export_id=number,
                    size=1,
                    sequence=sequence,
                    applied=sequence,
                    next_at=0.0,
                    created_at=0.0,
                    claimed_by="s1",
                    claim_expires=9e9,
                )
            )
    backup.backup(upgraded, tmp_path / "b.gz")
    backup.restore(upgraded, tmp_path / "b.gz", 500.0, replace=True)
    with upgraded.begin() as tx:
        v = t.volumes.c
        assert tx.execute(select(v.sequence, v.applied, v.claimed_by).order_by(v.id)).all() == [
            (500, 0, None),
            (901, 0, None),
        ]


def test_a_backup_shows_one_moment(
    upgraded: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that turns up while the first rows are being written is in none of the tables."""
    dumps, late = json.dumps, ["d"]

    def meanwhile(value: Any) -> str:
        while late and isinstance(value, list):  # a row; the header comes before the transaction
            with upgraded.begin() as tx:
                nodes.add(
                    tx,
                    name=late.pop(),
                    boot_mac="52:54:00:00:00:0d",
                    now=3.0,
                    cause="test",
                    actor="test",
                )
        return dumps(value)

    monkeypatch.setattr(backup, "json", SimpleNamespace(dumps=meanwhile, loads=json.loads))
    assert t.metadata.sorted_tables.index(t.boot_secrets) < t.metadata.sorted_tables.index(t.nodes)
    backup.backup(upgraded, tmp_path / "b.gz")
    backup.restore(upgraded, tmp_path / "b.gz", 5.0, replace=True)
    with upgraded.begin() as tx:
        assert [node.name for node in nodes.every(tx)] == ["a", "b", "c"]


def test_database_and_backup_are_their_owners_alone(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/cod.db")
    upgrade(engine)
    backup.backup(engine, tmp_path / "b.gz")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert {"cod.db", "cod.db-wal", "b.gz"} <= modes.keys()


def test_errors_do_not_show_what_was_written(upgraded: Engine) -> None:
    """Keep values out of errors, which end in the log: with a verifier's key a false server could
    be set up."""
    row = {
        "id": "x",
        "mac": "52:54:00:00:00:0a",
        "kind": "boot",
        "address": "10.77.1.1",
        "expires_at": 9e9,
        "salt": b"",
        "stored_key": b"stored",
        "server_key": b"a server's key",
    }
    with pytest.raises(IntegrityError) as caught, upgraded.begin() as tx:
        tx.execute(insert(t.boot_secrets).values(row))
    assert "server's key" not in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "garbage", "other"])
def test_a_damaged_backup_changes_nothing(upgraded: Engine, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "b.gz"
    backup.backup(upgraded, path)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    broken = {
        "cut": gzip.compress(b"\n".join(lines[:-2])),
        "garbage": path.read_bytes()[:100],
        "other": gzip.compress(b'{"cod": "backup", "schema": "0000"}\n'),
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(backup.BadBackup):
        backup.restore(upgraded, path, 5.0, replace=True)
    with upgraded.begin() as tx:
        assert len(nodes.every(tx)) == 3
        assert nodes.every(tx)[0].state == NodeState.INACTIVE
