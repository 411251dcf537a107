"""What a full disk does not end: the processes count in memory, and a start says what is wrong; who
waits for a database that is away."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from cod import supervisor
from cod.service import preparation
from cod.store import schema


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    return SimpleNamespace(data=tmp_path, run=tmp_path / "run")


def test_counters_are_in_memory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    folder = preparation.counters_folder(settings)
    assert folder.parent == Path("/dev/shm")
    other = SimpleNamespace(data=settings.data / "other", run=settings.run)
    assert preparation.counters_folder(other) != folder  # two sites on one host
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/cod")
    assert preparation.counters_folder(settings) == Path("/run/cod/metrics")


def test_a_folder_that_somebody_else_has_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "counters").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(preparation.BadService, match="belongs to another user: remove it"):
        preparation._make_private(tmp_path / "counters")


def test_counts_of_processes_that_have_ended_go(tmp_path: Path) -> None:
    unnoticed = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, unnoticed, os.WEXITED | os.WNOWAIT)
    # alive; this one, at its end; ended, but its parent has not asked how; gone
    for process in (1, os.getpid(), unnoticed, 2**22 + 1):
        (tmp_path / f"counter_{process}.db").touch()
    preparation.forget_ended(tmp_path)
    os.waitpid(unnoticed, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["counter_1.db"]


def test_a_part_waits_for_a_database_that_is_away_and_others_say_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = SimpleNamespace(data=tmp_path, database=f"sqlite:///{tmp_path}/cod.db")
    now, back = [1000.0], 1005.0

    def check(_: object) -> str:
        if now[0] < back:
            raise OperationalError("SELECT 1", {}, Exception(2003, "it is away"))
        return ""

    monkeypatch.setattr(schema, "check", check)
    passed = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda pause: now.append(now.pop() + pause)
    )
    monkeypatch.setattr(preparation, "time", passed)
    monkeypatch.delenv(supervisor.PARENT, raising=False)
    with pytest.raises(preparation.BadService, match="it is away"):
        preparation.check_database(settings)
    monkeypatch.setenv(supervisor.PARENT, str(os.getpid()))
    preparation.check_database(settings)
    assert now == [back]
    back = 1e9
    with pytest.raises(preparation.BadService, match="it is away"):
        preparation.check_database(settings)
    assert now == [1005.0 + preparation.AWAY]
