"""A server of its own process on a new site, whose parts a test may watch and end."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cod import init
from cod.client import ApiError, Client, Unreachable, _Unix
from cod.service import preparation
from cod.site import load
from tests.waiting import until

WAIT = 60.0  # seconds; a busy machine takes its time to start Python


class Serving:
    """A site and a server on it."""

    def __init__(self, folder: Path, only: str = "manager,web") -> None:
        self.folder, self.only = folder, only
        self.site = folder / "site.toml"
        if not self.site.exists():
            init.found(folder, self.site, {}, 1000.0)
        self.counters = preparation.counters_folder(load.load(self.site)[1])
        self.socket = folder / "run" / "api.sock"
        self.client = Client(str(self.socket), timeout=60)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "cod",
                    "--site",
                    str(self.site),
                    "serve",
                    "--only",
                    self.only,
                ],
                stderr=log,
                stdout=log,
            )

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def parts(self) -> dict[str, int]:
        """The newest process of each part, by the log."""
        return {
            name: int(pid) for name, pid in re.findall(r"started (\w+), process (\d+)", self.log)
        }

    def until(self, truth: Callable[[], Any], what: str) -> Any:
        return until(truth, lambda: f"{what}\n{self.log}", WAIT)

    def answers(self) -> bool:
        try:
            return bool(self.client.get("/health")["ok"])
        except (Unreachable, ApiError):
            return False

    def metrics(self) -> str:
        connection = _Unix(str(self.socket), 60)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()

    def counts(self) -> bool:
        """Return whether both parts are up, and the manager has done something."""
        lines = self.metrics().splitlines()
        return {'cod_part_up{part="manager"} 1.0', 'cod_part_up{part="web"} 1.0'} <= set(
            lines
        ) and any(line.startswith('cod_flow_seconds_count{flow="claims.hold"}') for line in lines)

    def says(self, words: str, times: int = 1) -> None:
        self.until(lambda: self.log.count(words) >= times, words)

    def stop(self) -> int:
        self.running.terminate()
        return self.running.wait(WAIT)

    def clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.counters, ignore_errors=True)
        self.client.close()


S = TypeVar("S", bound=Serving)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def founded(kind: type[S]) -> Iterator[S]:
    """A server of that kind on a new site, both gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="cod-srv-"))
    serving = kind(folder)
    yield serving
    serving.clean_up()
    shutil.rmtree(folder, ignore_errors=True)
