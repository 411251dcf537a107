"""What a package does after its installation to a server that runs while it is upgraded, by stand-ins of the programs
that it calls."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Upgrade = Callable[..., tuple[list[str], str]]
SCRIPT = Path(__file__).parents[2] / ".ci/after-install"
SYSTEMCTL = """#!/bin/sh
echo "$@" >>HERE/called
case "$1" in
is-active) case " ACTIVE " in *" $3 "*) exit 0 ;; *) exit 3 ;; esac ;;
start) exit STARTS ;;
esac
"""
COD = """#!/bin/sh
case "$1" in db) exit DB ;; esac
echo "changed; then /etc/cod/key is closed to the part web"
exit CLOSED
"""


@pytest.fixture
def upgraded(tmp_path: Path) -> Upgrade:
    def upgrade(
        active: str, db: int = 0, closed: int = 0, starts: int = 0
    ) -> tuple[list[str], str]:
        """The commands that change units, and what is said."""
        texts = {
            "systemctl": SYSTEMCTL.replace("ACTIVE", active).replace("STARTS", str(starts)),
            "cod": COD.replace("DB", str(db)).replace("CLOSED", str(closed)),
            "systemd-sysusers": "#!/bin/sh\n",
            "systemd-tmpfiles": "#!/bin/sh\n",
        }
        for name, text in texts.items():
            program = tmp_path / name
            program.write_text(text.replace("HERE", str(tmp_path)))
            program.chmod(0o755)
        script = SCRIPT.read_text()
        for folder in ("/etc/cod", "/var/lib/cod", "/run/systemd/system"):
            (tmp_path / folder[1:]).mkdir(parents=True, exist_ok=True)
            script = script.replace(f" {folder}", f" {tmp_path}{folder}")
        done = subprocess.run(
            ["/bin/sh", "-c", script, "after-install", "1.0"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        called = (tmp_path / "called").read_text().splitlines()
        return [line for line in called if line.split()[0] in ("stop", "start", "restart")], (
            done.stderr
        )

    return upgrade


def test_all_parts_are_stopped_before_one_starts(upgraded: Upgrade) -> None:
    """The file of the database is moved by the first that starts, and none may have it open."""
    units = "cod-edge cod-images cod-manager cod-web"
    assert upgraded(units) == ([f"stop {units}", f"start {units}"], "")


def test_an_upgrade_goes_on_where_a_part_does_not_start(upgraded: Upgrade) -> None:
    commands, said = upgraded("cod", starts=1)
    assert commands == ["stop cod", "start cod"]
    assert said == "cod: see systemctl status cod\n"


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [({"db": 1}, "its database needs an upgrade"), ({"closed": 1}, "is closed to the part web")],
)
def test_a_server_that_would_not_run_is_left_alone(
    upgraded: Upgrade, bad: dict[str, int], sentence: str
) -> None:
    commands, said = upgraded("cod-edge cod-web", **bad)
    assert commands == []
    assert sentence in said
    assert "cod: cod-edge cod-web: the old version goes on" in said


def test_no_server_is_started_that_did_not_run(upgraded: Upgrade) -> None:
    assert upgraded("") == ([], "")
