"""Kill test runs at random moments, and look at what they leave: ``python -m tests.kills [SEED]``.

Each of ten runs, pytest's controller and its workers, is killed with SIGKILL between its fifth
second and its ninetieth. No process that the run started and no namespace with one of their process
ids in its name may stay, nor a folder in /tmp that is called by one.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from cod.lab.processes import NAMESPACES
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[1]
RUNS = 10
EARLIEST, LATEST = 5.0, 90.0  # seconds
MARK = "COD_KILLS"
TESTS = (
    "tests/system/test_fileserver_ganesha.py",
    "tests/system/test_faults.py",
    "tests/system/test_slurm.py",
    "tests/system/test_trampoline_boot.py",
    "tests/system/test_capture.py",
    "tests/store/test_volume_flows.py",  # on MariaDB, too
)


def marked(mark: str) -> dict[int, str]:
    """Return the processes that inherited the mark: process id -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:  # it has not ended
                    found[int(entry.name)] = line
    return found


def killed(mark: str, seconds: float) -> set[int]:
    """Start a run and kill it after `seconds`; return the process ids that it had."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *TESTS]
    run = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end, pids = time.monotonic() + seconds, {run.pid}
    while time.monotonic() < end:
        pids |= marked(mark).keys()
        time.sleep(0.2)
    workers = [
        int(pid)
        for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        if "sys.stdin.readline" in marked(mark).get(int(pid), "")
    ]
    print(f"{len(marked(mark))} processes, of which {len(workers)} workers", flush=True)
    for pid in (run.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    return pids


def left(mark: str, pids: set[int]) -> list[str]:
    """Return what a run has left."""
    names = re.compile(rf"(?<!\d)({'|'.join(map(str, pids))})(?!\d)")
    places = [path for folder in (NAMESPACES, Path("/tmp")) for path in folder.iterdir()]
    return [*marked(mark).values(), *(str(path) for path in places if names.search(path.name))]


def main(seed: int) -> None:
    """Kill the runs."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    for turn in range(RUNS):
        mark, seconds = f"{os.getpid()}.{turn}.", rng.uniform(EARLIEST, LATEST)
        print(f"run {turn + 1} is killed after {seconds:.1f} s: ", end="", flush=True)
        pids = killed(mark, seconds)
        until(lambda: not left(mark, pids), lambda: f"it leaves {left(mark, pids)}", 120, 0.5)  # noqa: B023


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else random.randrange(10**6))
