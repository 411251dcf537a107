"""The console of a lab's machine: a file that grows, begins again, and goes, read over a real lab's
protocol."""

from __future__ import annotations

import json
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.power import labconsole
from cod.power.driver import PowerError, Target
from cod.power.labconsole import FAR_BEHIND, LabConsoles, LabLine
from tests.waiting import until


class Daemon(socketserver.ThreadingUnixStreamServer):
    """A lab's socket, where the machine n1 has a console."""

    daemon_threads = True

    def __init__(self, path: Path, console: Path) -> None:
        self.console = console
        super().__init__(str(path), _Asked)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Asked(socketserver.StreamRequestHandler):
    server: Daemon

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            known = asked == {"op": "console-path", "node": "n1"}
            said: dict[str, Any] = {"ok": True, "console": str(self.server.console)}
            said = said if known else {"ok": False, "error": "no such node"}
            self.wfile.write(json.dumps(said).encode() + b"\n")


class Ear:
    """Follows the console of a machine."""

    def __init__(
        self, reactor: Any, in_reactor: Callable[..., Any], lab: Daemon, name: str = "n1"
    ) -> None:
        self.heard, self.opened, self._in_reactor = b"", False, in_reactor
        self.over: list[Any] = []
        self.line: LabLine
        in_reactor(self._begin, LabConsoles(reactor), Target(f"{lab.server_address!s}#{name}"))

    def _begin(self, consoles: LabConsoles, target: Target) -> None:
        self.line = consoles.follow(target, self._hear, self._open)
        self.line.ended.addBoth(self.over.append)

    def _hear(self, data: bytes) -> None:
        self.heard += data

    def _open(self) -> None:
        self.opened = True

    def close(self) -> None:
        self._in_reactor(self.line.close)

    def hears(self, text: bytes) -> None:
        until(lambda: self.heard == text, lambda: f"{text!r} is heard, not {self.heard!r}")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(labconsole, "LOOK", 0.02)
    with tempfile.TemporaryDirectory(prefix="cod-") as place:  # a socket's path must be short
        (Path(place) / "console").mkdir()
        lab = Daemon(Path(place) / "lab.sock", Path(place) / "console" / "n1.log")
        yield lab
        lab.shutdown()
        lab.server_close()


def test_a_console_that_grows(lab: Daemon, reactor: Any, in_reactor: Callable[..., Any]) -> None:
    lab.console.write_bytes(b"before anybody looked")
    ear = Ear(reactor, in_reactor, lab)
    until(lambda: ear.opened, "it is heard")
    with open(lab.console, "ab", buffering=0) as file:
        file.write(b"one \xff")
        ear.hears(b"one \xff")
        file.write(b" two")
        ear.hears(b"one \xff two")
    lab.console.write_bytes(b"anew")
    ear.hears(b"one \xff twoanew")
    ear.close()
    assert ear.over == [None]
    ear.close()


def test_a_console_that_is_not_there_yet(
    lab: Daemon, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    ear = Ear(reactor, in_reactor, lab)
    until(lambda: ear.opened, "it is heard")
    lab.console.write_bytes(b"from its first byte")
    ear.hears(b"from its first byte")
    lab.console.unlink()
    lab.console.parent.rmdir()
    until(lambda: ear.over, "the lab is seen to be gone")
    assert isinstance(ear.over[0].value, PowerError)
    assert str(ear.over[0].value) == "the lab is gone"
    ear.close()


def test_what_is_far_behind_is_passed_over(
    lab: Daemon, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    ear = Ear(reactor, in_reactor, lab)
    until(lambda: ear.opened, "it is heard")
    whole = lab.console.with_name("whole")
    whole.write_bytes(b"x" * FAR_BEHIND + b"y" * FAR_BEHIND)
    whole.rename(lab.console)
    until(lambda: ear.heard, "something is heard")
    ear.close()
    assert b"x" not in ear.heard


def test_a_machine_that_the_lab_does_not_know(
    lab: Daemon, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    ear = Ear(reactor, in_reactor, lab, "n9")
    until(lambda: ear.over, "it is refused")
    assert str(ear.over[0].value) == "the lab says: no such node"
    assert not ear.opened


def test_closed_before_the_lab_has_answered(
    lab: Daemon, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    ears = []

    def both() -> None:
        ear = Ear(reactor, lambda call, *args: call(*args), lab)
        ears.append(ear)
        ear.close()

    in_reactor(both)
    assert ears[0].over == [None]
    assert not ears[0].opened
