"""A server whose data folder is a small disk, which a test fills."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from cod.client import ApiError, Client
from tests.net.server_process import Serving

DISK = "mount -t tmpfs -o size=60m none $1 && cp -a $0/. $1 && shift && exec $@"


class ServingOnSmallDisk(Serving):
    """A server in a mount namespace of its own, where the data folder is a disk of 60 MB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.original = Path(tempfile.mkdtemp(prefix="cod-org-"))
        shutil.copytree(folder, self.original, dirs_exist_ok=True)

    def start(self) -> None:
        argv = (sys.executable, "-m", "cod", "--site", self.site, "serve", "--only", self.only)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", DISK, self.original, self.folder, *argv],
                stderr=log,
                stdout=log,
            )
        self.disk = Path(f"/proc/{self.process.pid}/root{self.folder}")
        self.socket = self.disk / "run/api.sock"
        self.client = Client(str(self.socket), timeout=60)

    def fill(self) -> None:
        """Take all the room that there is."""
        file = os.open(self.disk / "fill", os.O_CREAT | os.O_WRONLY)
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while os.write(file, bytes(size)):
                    pass
        os.close(file)

    def clean_up(self) -> None:
        super().clean_up()
        shutil.rmtree(self.original, ignore_errors=True)


def fill_and_free(serving: ServingOnSmallDisk) -> int:
    """Let a server meet a full disk, and room again; return how many of its parts have ended."""
    serving.start()
    serving.until(serving.answers, "an answer")
    serving.fill()
    first = serving.parts()
    for number in range(3):
        with pytest.raises(ApiError, match="the server's disk is full") as refused:
            serving.client.post("/groups", {"name": f"chemistry-{number}"})
        assert (refused.value.status, refused.value.code) == (507, "no_space")
    serving.says("the manager's pass failed")  # it has tried, too
    assert serving.client.get("/nodes")["items"] == []
    (serving.disk / "fill").unlink()
    assert serving.client.post("/groups", {"name": "chemistry"})["name"] == "chemistry"
    serving.until(serving.counts, "the counts of both parts")
    return len(first.items() - serving.parts().items())
