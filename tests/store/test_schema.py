"""Upgraded schema equals fresh schema; a server refuses another schema; backups come back whole and disbelieved."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, insert, inspect, select, text

from cod.states import Disk, NodeState
from cod.store import backup, nodes, schema
from cod.store import tables as t
from cod.store.engine import connect
from tests.mariadb import MariaDB


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new.db"
    server: MariaDB = request.getfixturevalue("mariadb")
    return server.url("upgraded")


def test_upgraded_schema_equals_fresh_schema(url: str) -> None:
    engine = connect(url)
    with pytest.raises(schema.SchemaMismatch, match="empty"):
        schema.check(engine)
    assert schema.upgrade(engine) == schema.head()
    schema.upgrade(engine)  # again: harmless
    schema.check(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), t.metadata) == []
    engine.dispose()


def test_upgraded_tables_have_the_same_columns_and_keys(tmp_path: Path) -> None:
    fresh, upgraded = (connect(f"sqlite:///{tmp_path}/{name}.db") for name in ("fresh", "upgraded"))
    t.metadata.create_all(fresh)
    schema.upgrade(upgraded)

    def shape(engine: Engine) -> dict[str, object]:
        found = inspect(engine)
        return {table: ([(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(table)],
                        sorted(str(u["column_names"]) for u in found.get_unique_constraints(table)),
                        sorted(str(i["column_names"]) for i in found.get_indexes(table)))
                for table in found.get_table_names() if table != "alembic_version"}

    assert shape(fresh) == shape(upgraded)


def test_an_unknown_schema_is_refused(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/newer.db")
    schema.upgrade(engine)
    with engine.begin() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = 'ffff'"))
    with pytest.raises(schema.SchemaMismatch, match="newer version of COD"):
        schema.check(engine)


@pytest.fixture
def upgraded(url: str) -> Engine:
    engine = connect(url)
    schema.upgrade(engine)
    with engine.begin() as tx:
        for name, state, disk in (("a", NodeState.INACTIVE, Disk.CLEAN), ("b", NodeState.ACTIVE, Disk.DIRTY),
                                  ("c", NodeState.OFF, Disk.CLEAN)):
            nodes.add(tx, name=name, boot_mac=f"52:54:00:00:00:0{name}", now=1.0, cause="test", actor="test",
                      state=state, disk=disk)
        tx.execute(insert(t.boot_secrets).values(
            id="x", mac="52:54:00:00:00:0a", kind="boot", address="10.77.1.1", salt=b"\0" * 16, stored_key=b"\1" * 32,
            server_key=b"\2" * 32, expires_at=9e9))
    return engine


def test_after_a_restore_no_node_is_believed(upgraded: Engine, tmp_path: Path) -> None:
    rows = backup.backup(upgraded, tmp_path / "b.gz")
    with pytest.raises(backup.BadBackup, match="--replace"):
        backup.restore(upgraded, tmp_path / "b.gz", 5.0)
    assert backup.restore(upgraded, tmp_path / "b.gz", 5.0, replace=True) == rows
    with upgraded.begin() as tx:
        found = {node.name: node for node in nodes.every(tx)}
        assert {node.disk for node in found.values()} == {Disk.DIRTY}
        assert [found[name].state for name in "abc"] == [NodeState.TRAMPOLINE, NodeState.ACTIVE, NodeState.TRAMPOLINE]
        assert found["a"].generation == 1
        assert found["a"].deadline is not None
        assert tx.scalar(select(t.boot_secrets.c.id)) is None
        assert nodes.history(tx, found["a"].id)[-1]["actor"] == "restore"


@pytest.mark.parametrize("damage", ["cut", "garbage", "other"])
def test_a_damaged_backup_changes_nothing(upgraded: Engine, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "b.gz"
    backup.backup(upgraded, path)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    broken = {"cut": gzip.compress(b"\n".join(lines[:-2])), "garbage": path.read_bytes()[:100],
              "other": gzip.compress(b'{"cod": "backup", "schema": "0000"}\n')}[damage]
    path.write_bytes(broken)
    with pytest.raises(backup.BadBackup):
        backup.restore(upgraded, path, 5.0, replace=True)
    with upgraded.begin() as tx:
        assert len(nodes.every(tx)) == 3
        assert nodes.every(tx)[0].state == NodeState.INACTIVE
