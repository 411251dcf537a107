"""Errors of SQLite name the file, and say what is wrong with its disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import exc

from cod.store.database import connect


def refused(path: Path) -> str:
    """What SQLite says when the file is to be used."""
    engine = connect(f"sqlite:///{path}")
    try:
        with pytest.raises(exc.DBAPIError) as caught, engine.begin() as tx:
            tx.exec_driver_sql("CREATE TABLE a (b)")
    finally:
        engine.dispose()
    return str(caught.value.orig)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    said = f"unable to open database file ({folder}/cod.db; {folder}: No such file or directory)"
    assert refused(folder / "cod.db") == said


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "cod.db"
    file.write_text("rubbish" * 1000)
    assert refused(file) == f"file is not a database ({file})"


@pytest.mark.parametrize(
    ("flag", "free", "why"),
    [
        (os.ST_RDONLY, 9, "its file system is mounted read-only"),
        (0, 0, "its disk is full"),
    ],
)
def test_a_disk_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int, free: int, why: str
) -> None:
    found = os.statvfs_result((4096, 4096, 9, free, free, 9, 9, 9, flag, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: found)
    (tmp_path / "cod.db").mkdir()
    said = f"unable to open database file ({tmp_path}/cod.db; {why})"
    assert refused(tmp_path / "cod.db") == said
