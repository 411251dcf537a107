"""What a node's join costs a VCM beside a long queue: `python -m tests.bench.slurm_join [JOBS]`,
as root. A real slurmctld of this system has so many jobs that wait."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from cod.vcm.batch.pool import BatchPool
from cod.vcm.pool import Member
from cod.vcm.slurm.commands import Slurm
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.system import SlurmSystem
from tests.system.installation import USER
from tests.system.slurmhead import SlurmHead, slurm_head
from tests.system.stand import ip
from tests.waiting import until

ADDRESS, NAME = "10.99.0.1", "s1"
LINES = {
    "NodeName": f"{NAME} NodeHostname=head NodeAddr={ADDRESS} Port=17001 CPUs=1"
    " RealMemory=500 Feature=cod",
    "MaxJobCount": "100000",
    "SchedulerParameters": "",
}
TABLE = SlurmTable.model_validate({})


def main(jobs: int) -> None:
    """Print what a join costs, and what a look at the whole queue does."""
    namespace = f"join{os.getpid()}"
    ip("netns", "add", namespace)
    try:
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", namespace, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        with slurm_head(namespace, ADDRESS) as head, TemporaryDirectory() as folder:
            _fill(head, jobs)
            head.commands(Path(folder))
            for what, act in (("a join", _join), ("a look at the queue", _look)):
                with get_context("spawn").Pool(1) as one:
                    print(f"{what}, {jobs} jobs: {one.apply(_cost, (act, folder))}", flush=True)
            head.run("scancel", f"--user={USER}", "--full")
            until(lambda: not head.run("squeue", "--noheader").stdout, "no job is left")
    finally:
        ip("netns", "del", namespace)


def _fill(head: SlurmHead, jobs: int) -> None:
    configuration = head.folder / "slurm.conf"
    said = dict(line.split("=", 1) for line in configuration.read_text().splitlines())
    said |= LINES | {
        f"Slurmd{name}": f"{head.folder}/%n{end}"
        for name, end in (("SpoolDir", ""), ("PidFile", ".pid"), ("LogFile", ".log"))
    }
    configuration.write_text("".join(f"{key}={value}\n" for key, value in said.items() if value))
    head.start()
    head.start_slurmd(NAME)
    until(lambda: head.node(NAME).get("State", "").startswith("IDLE"), "the node is idle")
    head.run("scontrol", "update", f"nodename={NAME}", "state=drain", "reason=bench")
    (head.folder / "job.sh").write_text("#!/bin/sh\nsleep 1000\n")
    submit = f"sbatch --quiet --chdir=/tmp --output=/dev/null {head.folder}/job.sh"
    for left in range(jobs, 0, -1000):
        head.run(
            "sh", "-c", f"for i in $(seq {min(left, 1000)}); do {submit} || exit; done", user=USER
        )


def _system(folder: str) -> SlurmSystem:
    return SlurmSystem(TABLE, Slurm("vc", {}, folder))


def _join(folder: str) -> None:
    BatchPool(TABLE, _system(folder)).add(Member("m1", NAME, ADDRESS, "active", "bench"))


def _look(folder: str) -> None:
    _system(folder).look([NAME], Counter())


def _cost(act: Callable[[str], None], folder: str) -> str:
    """Do it, in a process of its own; return seconds of wall and CPU, and the most memory that this
    process or one of Slurm's commands has had."""
    began = time.monotonic()
    act(folder)
    wall = time.monotonic() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    memory = max(one.ru_maxrss for one in used) / 1024
    return f"{wall:.1f} s, {cpu:.1f} s of CPU with the start of Python, {memory:.0f} MB"


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10_200)
