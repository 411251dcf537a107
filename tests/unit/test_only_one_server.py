"""Two servers on one data folder, and programs in a lab's network."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cod import init
from cod.security import partusers
from cod.service import preparation
from cod.service.preparation import BadService, only_one
from cod.site import load
from cod.site.load import Settings
from tests.waiting import until

HOLD = """
import sys, time
from pathlib import Path
from cod.service.preparation import only_one
from cod.site import load
with only_one(load.load(Path(sys.argv[1]))[1], ["edge", "web"]):
    print("held", flush=True)
    time.sleep(600)
"""
EXEC = """
import sys
from cod.lab import commands
commands.record.load = commands.record.namespace = lambda name: name
commands.network.inside = lambda namespace, argv: argv
commands.exec_.main(["demo", *sys.argv[1:]], standalone_mode=False)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    init.write_site_file(tmp_path / "site.toml", tmp_path, {})
    found = load.load(tmp_path / "site.toml")[1]
    found.run.mkdir(parents=True, exist_ok=True)
    return found


@pytest.mark.slow
def test_a_second_server_on_a_data_folder_is_refused_until_the_first_has_ended(
    settings: Settings,
) -> None:
    argv = [sys.executable, "-c", HOLD, str(settings.path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        refusal = rf"another `cod serve` \(process {first.pid}\) runs web on .*: stop it first"
        with pytest.raises(BadService, match=refusal), only_one(settings, ["images", "web"]):
            pass
        with only_one(settings, ["images", "manager"]):  # other parts may run beside it
            pass
        first.kill()  # nothing is left to be removed by hand
    with only_one(settings, ["edge", "web"]):
        pass


def test_a_lock_does_not_follow_the_link_of_a_part(settings: Settings) -> None:
    victim = settings.run / "victim"
    victim.write_text("kept")
    settings.lock("web").symlink_to(victim)
    with only_one(settings, ["web"]):
        assert victim.read_text() == "kept"


def test_a_file_system_without_locks_is_served_from(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with only_one(settings, ["web"]):
        assert settings.lock("web").read_text() == ""


def test_parts_of_their_own_users_start_in_folders_that_were_given_to_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes on would have all parts start in vain; one that ends is started again,
    with `cod permissions` before it."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(settings.data))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    (settings.data / "metrics").mkdir()
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    monkeypatch.setattr(partusers, "group_ids", set)
    with pytest.raises(BadService, match="run `cod permissions`"):
        preparation.join(settings)
    monkeypatch.setattr(partusers, "group_ids", lambda: {settings.run.stat().st_gid})
    preparation.join(settings)


@pytest.mark.slow
def test_signals_reach_a_program_in_a_labs_network(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 7' TERM; : > {ready}; while :; do sleep 0.05; done"
    with subprocess.Popen([sys.executable, "-c", EXEC, "sh", "-c", script]) as process:
        until(ready.exists)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 7
