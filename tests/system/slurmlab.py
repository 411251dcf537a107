"""A Slurm pool on a stand: see poollab.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from tests.system.installation import USER
from tests.system.poollab import PoolLab, pool_lab
from tests.system.slurmcell import SlurmCell
from tests.system.stand import Stand
from tests.waiting import until


class SlurmLab(PoolLab[SlurmCell]):
    """See the module. Nodes have one CPU if a story does not say otherwise."""

    knobs: ClassVar[dict[str, Any]] = {
        "idle_limit": 1.5,
        "calm": 1.0,
        "join_time": 60.0,
        "unheard_limit": 20.0,
        "maximum": 3,
    }

    def up(self) -> None:
        """A pool whose VCM knows its head."""
        super().up()
        self.start_vcm()
        self.remembers(lambda memory: memory["nodes"], "the VCM knows the head")

    def fresh(self, **knobs: Any) -> None:
        """Begin a story; nodes have one CPU again."""
        super().fresh(**knobs)
        self.cell.nodes_are(1)

    def submit_many(self, count: int, seconds: float | Path) -> list[int]:
        """So many jobs at once, which may be many."""
        command = " ".join([*self.cell.submission(), str(self.cell.jobs / "job.sh"), str(seconds)])
        said = self.cell.run(
            "sh", "-c", f"for job in $(seq {count}); do {command} || exit; done", user=USER
        )
        return [int(line) for line in said.stdout.split()]

    def cancel(self) -> None:
        """`scancel` for everybody's jobs."""
        self.cell.run("scancel", "--user=alice")

    def waits(self) -> bool:
        """Return whether `squeue` lists a job that has not ended."""
        return bool(self.cell.queue())

    def hosts(self) -> set[str]:
        """Nodes that have registered."""
        return set(self.cell.nodes())

    def release(self, jobs: list[int]) -> None:
        """Jobs that were submitted with --hold may start, all at the same moment."""
        self.cell.run("scontrol", "release", ",".join(map(str, jobs)))

    def kill_master(self) -> None:
        """kill -9 of slurmctld."""
        self.cell.run("kill", "-9", (self.cell.own / "slurmctld.pid").read_text().strip())

    def die_master(self) -> None:
        """Kill slurmctld once it has written down what it knows, and start it."""
        job = self.saved()
        self.kill_master()
        self.start_master()
        self.cell.run("scancel", str(job))

    def saved(self) -> int:
        """Wait until slurmctld has written down what it knows, which takes it up to five seconds;
        return the held job that it wrote down for that."""
        now, state = time.time(), self.cell.own / "state"
        job = self.cell.submit(1, "--hold")  # something to write
        until(
            lambda: _written(state / "job_state") >= now and not list(state.glob("*.new")),
            "slurmctld writes down what it knows",
            60,
        )
        return job

    def die_vcm(self) -> None:
        """Kill the VCM and start it again."""
        self.restart_vcm(**self._knobs)

    def die_cod(self) -> None:
        """Kill the server and start it again."""
        self.stand.kill()
        self.stand.serve()

    def start_master(self) -> None:
        """Start slurmctld as the head's boot does, and wait until it answers."""
        self.cell.run("sh", "-c", "slurmctld > /dev/null 2>&1 < /dev/null")
        self.stand.wait(self.cell.answers, 180, "slurmctld answers")


def _written(file: Path) -> float:
    """Return when it was written; 0 while slurmctld puts another in its place."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return 0.0


def slurm(stand: Stand) -> SlurmCell:
    """Return a cluster of this system's Slurm."""
    return SlurmCell(stand, "pool")


@contextmanager
def slurmlab(
    folder: Path, machines: int, make: Callable[[Stand], SlurmCell] = slurm
) -> Iterator[SlurmLab]:
    """A Slurm pool on a stand of so many machines."""
    with pool_lab(folder, machines, lambda stand: SlurmLab(stand, make(stand))) as lab:
        yield lab
