"""A test run or a demo that is killed leaves no machine, no server and no namespace behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cod.lab import record
from cod.lab.processes import NAMESPACES
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.in_turn(3), pytest.mark.xdist_group("killed")]

ROOT = Path(__file__).resolve().parents[2]
OWNED = """
import signal, sys
from pathlib import Path
from cod.lab import cleaner
cleaner.start()
from tests.mariadb import MariaDB
from tests.system.stand import Stand
server = MariaDB(Path(sys.argv[1]) / "db")
server.install()
server.start()
stand = Stand(Path(sys.argv[1]) / "s", machines=2)
stand.folder.mkdir()
stand.__enter__()
stand.serve()
stand["m1"].on()
print("ready", stand.namespace, flush=True)
signal.pause()
"""
STAGED = """
import signal, sys
from pathlib import Path
from cod.demo.stage import Stage
from cod.lab import control
from cod.lab.spec import LabDisk, LabNode
stage = Stage(Path(sys.argv[1]), [LabNode("n1", "bios", disks=(LabDisk(64 << 20, "virtio"),))], "killed-demo")
stage.__enter__()
control.power("killed-demo", "n1", "on")
print("ready", "cod-lab-killed-demo", flush=True)
signal.pause()
"""


class Owner:
    """A program that owns servers and machines, and its folder."""

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().split()
        assert self.said[:1] == ["ready"]

    def owned(self) -> list[str]:
        """The command lines of the processes that know its folder or its lab."""
        words = [str(self.folder).encode(), b"killed-demo"]
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), self.process.pid):
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if any(word in line for word in words) and b"cod.lab.cleaner" not in line:
                    found.append(line.replace(b"\0", b" ").decode())
        return found

    @property
    def socket_folder(self) -> Path:
        """Return the folder of the stand's sockets."""
        return Path("/tmp") / self.said[1]

    def namespaces(self) -> list[str]:
        return [path.name for path in NAMESPACES.iterdir() if path.name.startswith(self.said[1])]

    def kill(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COD_LAB_ROOT", str(tmp_path / "labs"))
    return tmp_path / "owned"


@pytest.mark.parametrize(
    ("program", "how"),
    [
        (OWNED, signal.SIGKILL),
        (OWNED, signal.SIGINT),
        pytest.param(STAGED, signal.SIGKILL, marks=pytest.mark.slow),
    ],
    ids=["stand", "interrupted", "demo"],
)
def test_what_it_owned_goes_with_it_and_the_next_one_starts(
    folder: Path, program: str, how: signal.Signals
) -> None:
    folder.mkdir()
    for turn in ("first", "next"):
        owner = Owner(program, folder if program == STAGED else _made(folder / turn))
        assert len(owner.owned()) >= 3
        assert owner.namespaces()
        assert owner.socket_folder.exists() == (program == OWNED)
        owner.kill(how)
        until(lambda owner=owner: not owner.owned(), f"{turn}: processes are left: {owner.owned()}")
        until(lambda owner=owner: not owner.namespaces(), f"{turn}: namespaces are left")
        until(lambda: not record.names(), f"{turn}: a lab is left")
        until(lambda owner=owner: not owner.socket_folder.exists(), f"{turn}: its folder is left")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
