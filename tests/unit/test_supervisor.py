"""The supervisor: how a part ended, and what it does about one that hangs."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cod import supervisor
from cod.supervisor import HUNG, Supervisor


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def watching(tmp_path: Path, process: subprocess.Popen[bytes]) -> Iterator[Supervisor]:
    watching = Supervisor(["web"], tmp_path / "site.toml", tmp_path)
    [part] = watching._parts
    part.pid, part.started, part.heard = process.pid, 1000.0, 1000.0
    yield watching
    part.signs.close()


def watch(watching: Supervisor, since: float, until: float) -> None:
    """Look every second."""
    for second in range(int(until - since) + 1):
        watching._watch(since + second)


def test_a_part_that_hangs_is_killed(
    watching: Supervisor, process: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    process.send_signal(signal.SIGSTOP)  # it does not answer signals, either
    watch(watching, 1000.0, 1000.0 + HUNG)
    assert process.poll() is None
    watching._watch(1001.0 + HUNG)
    assert process.wait() == -signal.SIGKILL
    assert "web has hung for 121 s: it is killed" in caplog.text


def test_a_part_that_is_heard_stays(
    watching: Supervisor, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = watching._parts[0].signs.getsockname().decode()
    monkeypatch.setenv(supervisor.NOTIFY, address.replace("\0", "@"))
    for now in (1000.0, 1100.0, 1200.0):
        supervisor.tell("WATCHDOG=1")
        watch(watching, now, now + 99.0)
    assert process.poll() is None


def test_a_host_that_was_stopped_ends_no_part(
    watching: Supervisor, process: subprocess.Popen[bytes]
) -> None:
    watch(watching, 1000.0, 1005.0)
    watch(watching, 5000.0, 5000.0 + HUNG)
    assert process.poll() is None


@pytest.mark.parametrize(
    ("code", "words"), [(1, "status 1"), (-7, "signal 7 (SIGBUS)"), (-40, "signal 40")]
)
def test_how_a_part_ended_is_told(code: int, words: str) -> None:
    assert supervisor.ending(code) == words


def test_who_waits_for_signs_of_life_says_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(supervisor.WATCHDOG, raising=False)
    assert supervisor.sign_of_life_every() is None
    monkeypatch.setenv(supervisor.WATCHDOG, "120000000")
    assert supervisor.sign_of_life_every() == 30.0
    monkeypatch.delenv(supervisor.NOTIFY, raising=False)
    supervisor.tell("READY=1")  # to nobody


def test_only_a_leading_at_sign_names_an_abstract_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "cod@1"))
        line.setblocking(False)
        monkeypatch.setenv(supervisor.NOTIFY, str(tmp_path / "cod@1"))
        supervisor.tell("READY=1")
        assert line.recv(100) == b"READY=1"
