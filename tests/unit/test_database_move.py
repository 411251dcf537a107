"""`cod permissions` moves an SQLite file into a folder that all parts may write to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import text

from cod import backup, init
from cod.cli.server import permissions
from cod.cli.server.permissions import Unready
from cod.site import load
from cod.site.load import Settings
from cod.store.database import connect


@pytest.fixture
def settings() -> Iterator[Settings]:
    """A site's, whose database has one row; by a short name, for sockets."""
    with TemporaryDirectory(prefix="cod-") as folder:
        init.write_site_file(Path(folder, "site.toml"), Path(folder, "data"), {})
        settings = load.load(Path(folder, "site.toml"))[1]
        settings.run.mkdir(parents=True)
        engine = connect(settings.database)
        with engine.begin() as tx:
            tx.execute(text("CREATE TABLE seen (at INTEGER)"))
        engine.dispose()
        add(settings, 1)
        yield settings


def add(settings: Settings, at: int) -> list[int]:
    """All rows, with one more."""
    engine = connect(settings.database)
    with engine.begin() as tx:
        tx.execute(text("INSERT INTO seen VALUES (:at)"), {"at": at})
        rows = list(tx.scalars(text("SELECT at FROM seen ORDER BY at")))
    engine.dispose()
    return rows


def move(settings: Settings) -> list[str]:
    return list(permissions._move_database(settings))


def test_the_file_is_moved_once_and_found_by_its_old_name(settings: Settings) -> None:
    old, new = settings.data / "cod.db", settings.data / "db/cod.db"
    assert move(settings) == [f"{old}: moved to {new}"]
    assert old.is_symlink()
    assert not new.is_symlink()
    assert new.stat().st_nlink == 1
    assert move(settings) == []
    engine = connect(settings.database)
    with engine.begin() as tx:
        tx.execute(text("INSERT INTO seen VALUES (2)"))
        assert (settings.data / "db/cod.db-wal").exists()  # beside the file, not the link
        kept = list(backup._files(settings, settings.path.parent))
    engine.dispose()
    assert add(settings, 3) == [1, 2, 3]
    assert [each.path for each in kept] == [str(settings.path)]


def test_a_move_that_was_broken_off_is_completed(settings: Settings) -> None:
    folder = settings.data / "db"
    folder.mkdir()
    os.link(settings.data / "cod.db", folder / "cod.db")
    (settings.data / "cod.db.new").symlink_to("db/cod.db")
    assert len(move(settings)) == 1
    assert add(settings, 2) == [1, 2]
    assert sorted(path.name for path in settings.data.iterdir()) == ["cod.db", "db", "run"]


def test_two_databases_are_told_and_left_alone(settings: Settings) -> None:
    (settings.data / "db").mkdir()
    (settings.data / "db/cod.db").write_text("another")
    with pytest.raises(Unready, match="are two databases"):
        move(settings)
    assert add(settings, 2) == [1, 2]


def test_nothing_is_moved_under_a_server_that_runs(settings: Settings) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(settings.run / "edge.wake"))
        with pytest.raises(Unready, match="the server runs"):
            move(settings)
    engine = connect(settings.database)
    with engine.connect().execution_options(reading=True) as tx:
        tx.execute(text("SELECT 1"))
        with pytest.raises(Unready, match="another program has"):
            move(settings)
    engine.dispose()
    assert not (settings.data / "cod.db").is_symlink()
