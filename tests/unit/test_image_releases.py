"""Packages of another Debian release, without fetching any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from images import debian, releases

BOOKWORM = """\
deb [signed-by=/k] http://mirror.test/debian/ bookworm main
deb [signed-by=/k] http://mirror.test/debian/ bookworm-updates main
deb [signed-by=/k] http://mirror.test/debian-security/ bookworm-security main
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What apt was asked, and with which settings."""
    asked: list[str] = []
    monkeypatch.setattr(debian, "sources", lambda: BOOKWORM)
    monkeypatch.setattr(
        "images.releases.packages.run",
        lambda *words: asked.append(f"{' '.join(words)} {os.environ.get('APT_CONFIG')}"),
    )
    monkeypatch.delenv("APT_CONFIG", raising=False)
    return asked


def test_sources_are_those_of_the_same_archive(ran: list[str]) -> None:
    assert releases.sources("trixie") == BOOKWORM.replace("bookworm", "trixie")
    assert releases.sources("sid") == "deb [signed-by=/k] http://mirror.test/debian/ sid main\n"
    assert not ran


def test_apt_knows_the_release_for_a_while_and_asks_for_its_lists_once_a_day(
    ran: list[str], tmp_path: Path
) -> None:
    settings = tmp_path / "apt.conf"
    for _ in range(2):
        with releases.apt("trixie", tmp_path):
            assert os.environ["APT_CONFIG"] == str(settings)
        assert "APT_CONFIG" not in os.environ
    assert (tmp_path / "sources.list").read_text() == releases.sources("trixie")
    assert f'Dir::State::lists "{tmp_path}/lists"' in settings.read_text()
    assert ran == [f"apt-get update --error-on=any {settings}"]
    os.utime(tmp_path / "updated", (0, 0))
    with releases.apt("trixie", tmp_path):
        pass
    assert len(ran) == 2


def test_the_systems_own_release_is_asked_of_the_systems_own_apt(
    ran: list[str], tmp_path: Path
) -> None:
    with releases.apt(debian.SUITE, tmp_path):
        assert "APT_CONFIG" not in os.environ
    assert not ran
    assert not list(tmp_path.iterdir())


def test_settings_of_the_callers_own_come_back(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APT_CONFIG", "/own")
    with pytest.raises(ValueError, match="odd"), releases.apt("trixie", tmp_path):
        raise ValueError("odd")
    assert os.environ["APT_CONFIG"] == "/own"
    assert ran
