"""Nodes that Slurm's backfill scheduler counts on leave a real slurmctld, which goes on. Its nodes
run on the head: they are deleted as dynamic ones are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cod.vcm.slurm.commands import Slurm, StillPlanned
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.system import SlurmSystem
from tests.system.installation import USER
from tests.system.slurmhead import SlurmHead, slurm_head
from tests.system.stand import ip
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.in_turn(3, first=2), pytest.mark.xdist_group("slurm")]
ADDRESS = "10.99.0.1"
NODES = "s[1-2] NodeHostname=head Port=[17001-17002] CPUs=1 RealMemory=500 Feature=cod"


@pytest.fixture
def head() -> Iterator[SlurmHead]:
    namespace = f"planned{os.getpid()}"
    ip("netns", "add", namespace)
    try:
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", namespace, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        with slurm_head(namespace, ADDRESS) as made:
            yield made
    finally:
        ip("netns", "del", namespace)


def configure(head: SlurmHead, scheduler: str) -> None:
    """Give the head two nodes of its own, and these parameters of the scheduler."""
    said = dict(
        line.split("=", 1) for line in (head.folder / "slurm.conf").read_text().splitlines()
    )
    said |= {
        "NodeName": NODES,
        "SlurmdSpoolDir": f"{head.folder}/%n",
        "SlurmdPidFile": f"{head.folder}/%n.pid",
        "SlurmdLogFile": f"{head.folder}/%n.log",
        "SchedulerParameters": scheduler,
    }
    text = "".join(f"{key}={value}\n" for key, value in said.items() if value)
    (head.folder / "slurm.conf").write_text(text)


def cycles(head: SlurmHead) -> int:
    """Return how many cycles of backfill slurmctld has gone through since it started."""
    found = re.search(r"Total cycles: (\d+)", head.run("sdiag").stdout.partition("Backfilling")[2])
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    "scheduler",
    [
        "bf_interval=5",
        pytest.param("", marks=pytest.mark.nightly, id="defaults"),
    ],
)
def test_a_planned_node_leaves_and_slurmctld_lives(
    head: SlurmHead, tmp_path: Path, scheduler: str
) -> None:
    """A job of two nodes waits for the one that is busy: the other is planned."""
    configure(head, scheduler)
    head.start()
    for name in ("s1", "s2"):
        head.start_slurmd(name)
    head.commands(tmp_path)
    slurm = Slurm("vc", {}, str(tmp_path))
    pool = SlurmSystem(SlurmTable.model_validate({}), slurm)
    until(lambda: all(host.idle for host in pool.hosts().values()), "both nodes are idle")
    submit = ["sbatch", "--chdir=/tmp", "--output=/dev/null"]
    head.run(*submit, "-w", "s1", "-t", "60", "--wrap", "sleep 3000", user=USER)
    until(lambda: pool.hosts()["s1"].jobs, "a job runs")
    head.run(*submit, "-N2", "-t", "10", "--wrap", "true", user=USER)
    try:
        until(lambda: pool.hosts()["s2"].planned, "the other node is planned", 180, 0.1)
        pool.close(pool.hosts()["s2"], lost=False)
        until(lambda: _leaves(pool), "it leaves", 180, 0.1)
        assert set(pool.hosts()) == {"s1"}
        head.run(*submit, "-w", "s1", "-t", "10", "--wrap", "true", user=USER)  # one that can wait
        before = cycles(head)
        until(lambda: cycles(head) > before + 1, "backfill goes on", 180, 0.2)
    finally:
        head.run("scancel", f"--user={USER}", "--full", check=False)
        until(lambda: not slurm.view().jobs, "no job is left")


def _leaves(pool: SlurmSystem) -> bool:
    """Return whether the node could be deleted."""
    try:
        pool.expel("s2", lost=False)
    except StillPlanned:
        return False
    return True
