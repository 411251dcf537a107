"""A 2 GiB file uploaded (over a veth, by our own client, in pieces of 64 MiB) against a plain copy
of it to the same disk with its sha256, both flushed at the end; and what memory the server takes
meanwhile.

``serve ROOT`` and ``send FILE NAME`` and ``copy FILE TARGET`` are what runs in processes of their
own.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.bench.arena import SERVER, Arena, Measure, Run, Smoke, alternate, compare, python, write

SIZE = 2 << 30
BLOCK = 1 << 20
PORT, TOKEN = 8068, "cod_bench"
PEER = "write and sha256"
MODULE = "tests.bench.bench_upload"
SMOKE = Smoke(
    rows=("upload of ", "server CPU of ", "memory that "), sizes={"SIZE": 8 << 20}, system=True
)


def serve(root: str) -> None:
    """The API alone, on a fresh database below `root`."""
    from twisted.internet import reactor

    from cod.flows.people import groups, tokens
    from cod.model import Site, SiteRef
    from cod.pool import Pool, in_transaction
    from cod.store import tables
    from cod.store.database import connect
    from cod.web.server import ApiServer

    folder, clock = Path(root), time.time
    engine = connect(f"sqlite:///{folder}/cod.db")
    tables.metadata.create_all(engine)
    in_transaction(engine, tokens.create, "bench", TOKEN, "admin", None, clock())
    in_transaction(engine, groups.create, "site", now=clock())
    ApiServer(
        reactor,
        Pool(engine, reactor),
        SiteRef(Site("bench", "bench.test", ())),
        folder / "api.sock",
        [(SERVER, PORT)],
        folder / "images",
        folder / "incoming",
        1 << 40,
        lambda effects: None,
    ).startService()
    (folder / "pid").write_text(str(os.getpid()))
    reactor.run()


def send(file: str, name: str) -> None:
    """Upload `file` as the image `name`; its sha256 counts on the server alone, as for the copy."""
    from cod.client import Client
    from cod.client.uploads import Sender

    with open(file, "rb") as content:
        Sender(Client(f"http://{SERVER}:{PORT}", TOKEN)).add(
            name, content, sha256=Path(f"{file}.sha256").read_text()
        )


def copy(file: str, target: str) -> None:
    """What cannot be done without: read, sum, write, flush."""
    state = hashlib.sha256()
    with open(file, "rb") as source, open(target, "wb", buffering=0) as sink:
        while block := source.read(BLOCK):
            state.update(block)
            sink.write(block)
        os.fdatasync(sink.fileno())


def make(path: Path) -> None:
    """The file: nothing in it can be compressed."""
    state = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(SIZE // BLOCK):
            block = os.urandom(BLOCK)
            state.update(block)
            file.write(block)
    Path(f"{path}.sha256").write_text(state.hexdigest())


def memory(pid: int, what: str) -> float:
    """MiB: VmRSS is now, VmHWM the most so far."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


class Bench:
    """Rounds of both contenders; what they write goes at once."""

    def __init__(self, arena: Arena, root: Path) -> None:
        self.arena, self.root, self.number = arena, root, count()

    def upload(self) -> Run:
        command = python(MODULE, "send", self.root / "file", f"image-{next(self.number)}")
        run = self.arena.measured([command], SIZE / 1e6)
        for file in (self.root / "incoming").iterdir():
            file.unlink()
        return run

    def plain(self) -> Run:
        run = self.arena.measured(
            [python(MODULE, "copy", self.root / "file", self.root / "copy")], SIZE / 1e6
        )
        (self.root / "copy").unlink()
        return run

    def ready(self) -> bool:
        ask = [
            "ip",
            "netns",
            "exec",
            self.arena.client_side,
            "curl",
            "-s",
            "-m",
            "1",
            "-o",
            "/dev/null",
            f"http://{SERVER}:{PORT}/api/v1/health",
        ]
        return subprocess.run(ask, check=False).returncode == 0 and (self.root / "pid").exists()


def main() -> None:
    with ExitStack() as stack:
        root = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(dir="/var/tmp", prefix="cod-bench-upload-")
            )
        )
        make(root / "file")
        bench = Bench(stack.enter_context(Arena("upload")), root)
        stack.enter_context(bench.arena.serving(python(MODULE, "serve", root), bench.ready))
        pid = int((root / "pid").read_text())
        idle = memory(pid, "VmRSS")
        results = alternate({"cod": bench.upload, PEER: bench.plain})
        measures = compare("upload of 2 GiB", "MB", results, "cod", PEER, "")[:1]
        measures.append(
            Measure(
                "server CPU of an upload",
                round(1000 * min(run.server_cpu / run.amount for run in results["cod"]), 3),
                "ms/MB",
            )
        )
        measures.append(
            Measure(
                "memory that an upload of 2 GiB adds", round(memory(pid, "VmHWM") - idle, 1), "MiB"
            )
        )
    write("upload", measures)


if __name__ == "__main__":
    parts: dict[str, Callable[..., object]] = {"serve": serve, "send": send, "copy": copy}
    parts.get("".join(sys.argv[1:2]), main)(*sys.argv[2:])
