"""A database that a later release has upgraded: today's program works with what expands, refuses
what contracts, and is told before that begins. `cod db upgrade` shows all of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, text

from cod import init
from cod.cli.root import cod
from cod.flows import servers
from cod.model import HostPart
from cod.pool import in_transaction
from cod.store import claims, schema
from cod.store import servers as server_rows
from cod.store.database import connect
from cod.store.nodes import nodes
from tests.conftest import upgrade
from tests.later import CONTRACTS, EXPANDS, FAILS, later
from tests.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.mariadb_always]

NOW = time.time()


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """A database with today's schema, by today's `upgrade`."""
    if request.param == "sqlite":
        made = connect(f"sqlite:///{tmp_path}/later.db")
    else:
        server: MariaDB = request.getfixturevalue("mariadb")
        made = connect(server.url("later"))
    upgrade(made)
    return made


def test_today_s_program_works_with_what_a_later_one_adds(engine: Engine, tmp_path: Path) -> None:
    today = schema.head()
    with later(tmp_path / "schema", EXPANDS):
        assert schema.pending(engine) == [schema.Migration("9998", "A later one.", expands=True)]
        assert schema.upgrade(engine) == "9998"
        assert schema.pending(engine) == []
    assert "the newer schema 9998, with which this program" in schema.check(engine)
    assert in_transaction(engine, servers.is_too_old, schema=today) is False
    with engine.begin() as tx:
        node = nodes.add(
            tx, name="a", boot_mac="52:54:00:00:00:0a", now=1.0, cause="test", actor="test"
        )
        assert nodes.by_name(tx, "a") == node
    with pytest.raises(schema.SchemaMismatch, match="does not know"):
        schema.upgrade(engine)  # today's: nothing for it to do
    engine.dispose()


def test_today_s_program_refuses_a_schema_that_lacks_what_it_uses(
    engine: Engine, tmp_path: Path
) -> None:
    with later(tmp_path / "schema", CONTRACTS, unused_since="0.2"):
        [migration] = schema.pending(engine)
        assert not migration.expands
        schema.upgrade(engine)
    schema.check(engine)  # of 0.2, which does not use it any more
    with engine.begin() as tx:
        tx.execute(text("UPDATE marks SET at = 9998 WHERE name = 'oldest schema'"))
    with pytest.raises(schema.SchemaMismatch, match="does not know"):
        schema.check(engine)
    engine.dispose()


def test_an_older_program_refuses_before_a_migration_contracts(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = schema.head()
    with later(tmp_path / "schema", FAILS, unused_since="0.2"):
        monkeypatch.setattr(schema, "oldest", lambda: "9998")
        with pytest.raises(RuntimeError, match="no room"):
            schema.upgrade(engine)
    assert schema.current(engine) == today
    with pytest.raises(schema.SchemaMismatch, match="has begun: install the newer version"):
        schema.check(engine)
    with pytest.raises(schema.SchemaMismatch, match="has begun: install the newer version"):
        schema.upgrade(engine)  # which would put down that it works
    assert in_transaction(engine, servers.is_too_old, schema=today) is True
    engine.dispose()


def test_an_upgrade_shows_what_it_does_and_waits_for_older_servers(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    init.found(tmp_path, site, {}, 1.0)
    engine, today = connect(f"sqlite:///{tmp_path}/cod.db"), schema.head()

    def upgrade(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(cod, ["--site", str(site), "db", "upgrade", *words])
        assert done.exit_code == code, done.output
        return done.output

    assert upgrade("--dry-run") == f"schema {today}: nothing to upgrade\n"
    part = HostPart("b", "edge", ("10.77.0.2",), "0.1.9", "0042", 1.0, NOW + 3000)
    for each in (part, replace(part, server="c", database_schema=today)):
        in_transaction(engine, servers.renew, part=each)
    in_transaction(engine, claims.hold, "manager", "a", NOW, 3000.0)
    with later(tmp_path / "schema", CONTRACTS, unused_since="0.2"):
        plan = upgrade("--dry-run")
        assert f"schema {today} becomes 9998, for programs of schema {today} and later" in plan
        assert plan.splitlines()[2].split(maxsplit=2) == ["9998", "no", "A later one."]
        found = json.loads(upgrade("--dry-run", "--json"))
        assert [(each["name"], each["too_old"]) for each in found["servers"]] == [
            ("b", True),
            ("c", False),
            ("a", True),
        ]
        assert found["migrations"] == [
            {"revision": "9998", "about": "A later one.", "expands": False}
        ]
        assert "seen in the last minute on a, b: stop them" in upgrade(code=1)
        assert schema.current(engine) == today
        with engine.begin() as tx:  # they are silent
            tx.execute(text("UPDATE server_parts SET seen_at = 1 WHERE server = 'b'"))
            tx.execute(text("UPDATE claims SET expires_at = 1"))
        assert upgrade() == "schema 9998\n"
    assert "does not know" in upgrade("--dry-run", code=1)
    engine.dispose()


def test_a_database_without_the_table_of_servers_is_looked_at_too(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/old.db")
    with engine.begin() as tx:
        assert server_rows.running(tx, 1.0) == []
    engine.dispose()
