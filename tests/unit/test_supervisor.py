"""The supervisor: how a part ended, and what it does about one that hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cod import logs, supervisor
from cod.supervisor import HUNG, Supervisor

Pauses = Callable[[int, float | None], list[float]]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def watching(tmp_path: Path, process: subprocess.Popen[bytes]) -> Iterator[Supervisor]:
    watching = Supervisor(["web"], tmp_path / "site.toml", tmp_path)
    [part] = watching._parts
    part.pid, part.heard = process.pid, 1000.0
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


@pytest.fixture
def pauses(watching: Supervisor, monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """The pauses after so many runs, each of which ends when it has worked for so long; None: it
    never comes to its work."""
    [part] = watching._parts
    monkeypatch.setenv(supervisor.NOTIFY, part.signs.getsockname().decode().replace("\0", "@"))
    now = 1000.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))

    def run(worked: float | None) -> float:
        nonlocal now
        now += part.pause
        part.ready, part.heard = 0.0, now
        now += 2.0
        if worked is not None:
            supervisor.tell("READY=1")
            watching._watch(now)
            now += worked
        watching._ended(part, -signal.SIGKILL)
        return part.pause

    return lambda times, worked: [round(run(worked), 1) for _ in range(times)]


def test_a_part_that_never_works_waits_longer_each_time(pauses: Pauses) -> None:
    assert pauses(8, None) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_so_does_one_that_always_ends_after_a_short_time_of_work(pauses: Pauses) -> None:
    assert pauses(10, 11.0) == [0.5, 0.9, 1.6, 2.7, 4.8, 8.5, 14.9, 26.3, 30.0, 30.0]


def test_one_that_works_for_minutes_is_back_at_once(pauses: Pauses) -> None:
    assert pauses(20, 60.0)[-1] == 0.5
    pauses(8, None)
    assert pauses(1, 300.0) == [1.9]
    assert pauses(1, 300.0) == [0.5]


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


def test_a_fork_runs_its_part_with_a_name_signals_and_an_address_of_its_own(tmp_path: Path) -> None:
    def serve(name: str) -> int:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        told = [os.environ[supervisor.PARENT], os.environ[supervisor.NOTIFY][:1]]
        (tmp_path / name).write_text(f"{Path('/proc/self/comm').read_text()}{told}{blocked}")
        raise SystemExit(5)

    running = Supervisor(["web"], tmp_path / "site.toml", tmp_path, serve=serve)
    [part] = running._parts
    running._start(part, 1000.0)
    _, status = os.waitpid(part.pid, 0)
    part.signs.close()
    assert os.waitstatus_to_exitcode(status) == 5
    assert (tmp_path / "web").read_text() == f"cod-web\n{[str(os.getpid()), '@']}{set()}"
    assert supervisor.PARENT not in os.environ


def test_a_fork_that_fails_ends_with_a_traceback_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def serve(name: str) -> int:
        logs.set_up("info", "text", name)
        raise ValueError(f"{name} is no part")

    running = Supervisor(["web"], tmp_path / "site.toml", tmp_path, serve=serve)
    [part] = running._parts
    running._start(part, 1000.0)
    _, status = os.waitpid(part.pid, 0)
    part.signs.close()
    assert os.waitstatus_to_exitcode(status) == 1
    assert "ValueError: web is no part" in capfd.readouterr().err


def test_a_part_is_a_program_of_its_own_once_the_programs_files_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork would be the former program, beside a schema that may be a newer one."""
    asked = list[list[str]]()

    def spawn(program: str, argv: list[str], environment: dict[str, str], **more: object) -> int:
        asked.append(argv[-3:])
        return len(asked)

    running = Supervisor(["web"], tmp_path / "site.toml", tmp_path, serve=lambda name: 0)
    [part] = running._parts
    monkeypatch.setattr(os, "fork", lambda: 7)
    monkeypatch.setattr(os, "posix_spawnp", spawn)
    running._start(part, 1000.0)
    assert (asked, part.pid) == ([], 7)
    replaced = supervisor.program_files() ^ {("cod/new.py", 1, 1)}
    monkeypatch.setattr(supervisor, "program_files", lambda: replaced)
    running._start(part, 1001.0)
    part.signs.close()
    assert (asked, part.pid) == ([["serve", "--only", "web"]], 1)
