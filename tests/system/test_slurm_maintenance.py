"""Reservations for maintenance windows in a real slurmctld: which jobs start on such nodes, and
that nodes leave nevertheless."""

from __future__ import annotations

import time
from collections import Counter
from math import inf
from pathlib import Path

import pytest

from cod.vcm.batch.system import Downtime
from cod.vcm.slurm.commands import Slurm
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.system import SlurmSystem
from tests.system.installation import USER
from tests.system.slurmhead import SlurmHead
from tests.system.test_slurm_planned import configure
from tests.system.test_slurm_planned import head as head
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.in_turn(3, first=2), pytest.mark.xdist_group("slurm")]


def submit(head: SlurmHead, *options: str) -> str:
    command = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *options]
    return head.run(*command, "--wrap=sleep 300", user=USER).stdout.strip()


def test_only_jobs_that_end_before_start_on_a_node_that_maintenance_takes(
    head: SlurmHead, tmp_path: Path
) -> None:
    configure(head, "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0")
    head.start()
    for name in ("s1", "s2"):
        head.start_slurmd(name)
    head.commands(tmp_path)
    slurm = Slurm("vc", {}, str(tmp_path))
    pool = SlurmSystem(SlurmTable.model_validate({}), slurm)
    until(lambda: all(host.idle for host in pool.hosts().values()), "both nodes are idle")
    begins = time.time() + 3600.0
    windows = [
        Downtime(3, "s1", begins, begins + 600),
        Downtime(4, "s2", begins, inf),
        Downtime(4, "gone", begins, inf),  # it has left since the VCM looked
    ]
    pool.foresee(windows, time.time())
    reserved = slurm.all_reservations()
    assert {name.rpartition("-")[2] for name in reserved} == {f"{begins + 600:.0f}.vc", "inf.vc"}
    long, unlimited, short = submit(head, "--time=70"), submit(head), submit(head, "--time=50")
    until(lambda: pool.hosts()["s1"].jobs or pool.hosts()["s2"].jobs, "the short job runs")
    ours = ["s1", "s2"]
    until(
        lambda: sum(pool.look(ours, Counter())[1].nodes.values()) == 2,
        "two jobs are too long for the nodes that are there, whatever Slurm calls that",
        30,
    )
    print(head.run("squeue", "-h", "-o%i %r").stdout)
    assert {job.id for host in pool.hosts().values() for job in host.jobs} == {short}
    pool.foresee(windows[1:2], time.time())  # window 3 is withdrawn
    busy = next(name for name, host in pool.hosts().items() if host.jobs)
    head.run("scancel", short)
    until(lambda: pool.hosts()["s1"].jobs and busy, "a long job starts where no window is any more")
    assert {job.id for job in pool.hosts()["s1"].jobs} <= {long, unlimited}
    until(lambda: not pool.hosts()["s2"].jobs, "the short job has ended")
    pool.close(pool.hosts()["s2"], False)
    pool.expel("s2", False)
    assert "s2" not in pool.hosts()
    assert not slurm.all_reservations()
