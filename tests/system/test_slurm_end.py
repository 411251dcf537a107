"""The end of a node's time, with real jobs of Slurm: told on the node, by a signal to jobs that
ask, and survived."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.system.poollab import EXAMPLES
from tests.system.slurmlab import SlurmLab, slurmlab
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=1),
    pytest.mark.xdist_group("slurm-end"),
]
STEPS = 45


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    with slurmlab(tmp_path_factory.mktemp("end"), machines=4) as lab:
        yield lab


@pytest.fixture
def lab(shared: SlurmLab) -> Iterator[SlurmLab]:
    yield shared
    print(shared.said()[-6000:])


def shutdown(lab: SlurmLab, host: str) -> float:
    """Return when a node's time ends, as the node is told."""
    return float(
        lab.cell.run(
            "curl", "-sf", "http://10.77.0.1:8069/machinefeatures/shutdowntime", host=host
        ).stdout
    )


def test_a_job_that_asks_is_signalled_and_goes_on_where_it_was(lab: SlurmLab) -> None:
    """The node is told the lease's end, then the time that its VCM has promised; its job gets
    fifteen seconds."""
    lab.fresh(maximum=1)
    lab.stand.cod("vcluster", "create", "other", "--size", "1", "--template", "exec")
    job, said, saved = lab.resumable(
        STEPS,
        f"--output={lab.cell.jobs}/said.%j",
        f"--export=ALL,SAVED={lab.cell.jobs}/saved",
        "--no-requeue",
        wish="#SBATCH --signal=B:USR1@15",
    )
    assert shutdown(lab, "n2") > time.time() + 3600
    before = saved.stat().st_ino
    lab.stand.cod("vcluster", "move", "pool", "other", "1", "--within", "90s")
    deadline = time.time() + 90.0
    until(lambda: saved.stat().st_ino != before, "it has saved itself", every=0.05)
    signalled, step = time.time(), int(saved.read_text())
    assert shutdown(lab, "n1") > deadline + 600, "the head stays"
    # the VCM promises to leave once the job has had its seconds, long before the reclaim's end
    until(lambda: shutdown(lab, "n2") < deadline - 15, "the node is told what its VCM has promised")
    until(
        lambda: lab.cell.queue()[job]["job_state"] == "PENDING",
        "it is back in the queue",
        every=0.05,
    )
    print(f"put back {time.time() - signalled:.1f} s after it saved itself")
    assert 0 < step < int(saved.read_text()) < STEPS, "it went on between signal and end"
    lab.stand.cod("vcluster", "delete", "other")
    lab.resumed(said, STEPS, step)


@pytest.mark.nightly
def test_a_job_is_saved_by_the_sites_program_before_it_is_put_back(lab: SlurmLab) -> None:
    """A vcluster of higher priority takes the only node; the job does not ask for a signal."""
    saved_in = f"{lab.cell.jobs}/saved"
    lab.fresh(maximum=1, save_time=15.0, save=f"{EXAMPLES}/save-jobs.sh {saved_in} {{jobs}}")
    _, said, saved = lab.resumable(
        STEPS, f"--output={lab.cell.jobs}/said.%j", f"--export=ALL,SAVED={saved_in}"
    )
    before = saved.stat().st_ino
    lab.stand.cod(
        "vcluster", "create", "other", "--size", "3", "--template", "exec", "--group", "top"
    )
    until(lambda: saved.stat().st_ino != before, "it has saved itself", 60, 0.05)
    step = int(saved.read_text())
    assert step >= 2
    until(lambda: lab.active("other") == 3, "the other is there", 180, 0.1)
    lab.stand.cod("vcluster", "delete", "other")
    lab.resumed(said, STEPS, step)
