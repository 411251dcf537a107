"""The Slurm cluster of the tests by itself, before a VCM works on it: what a story about a pool
stands on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.poollab import RULES
from tests.system.site_images import offer
from tests.system.slurmcell import SlurmCell
from tests.system.stand import Stand
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCell]:
    with Stand(tmp_path_factory.mktemp("slurm"), machines=2, policy=RULES) as stand:
        stand.serve()
        for name, host in stand.hosts.items():
            host.on()
            stand.reaches(name, "inactive")
        offer(stand, "exec")
        made = SlurmCell(stand, "pool")
        made.up("exec")
        yield made


def test_a_node_joins_runs_a_job_is_drained_deleted_and_joins_again(cell: SlurmCell) -> None:
    gate = cell.jobs / "gate"
    job = cell.submit(gate, "--no-requeue")
    assert cell.queue()[job]["job_state"] == "PENDING"
    assert not cell.nodes()
    cell.stand.cod("vcluster", "resize", "pool", "2")
    until(lambda: cell.ran(job), "it runs", 180)
    node = cell.nodes()["n2"]
    assert (node["state"], node["features"], node["cpus"]) == ("allocated", "cod", 1)
    cell.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    refused = cell.run("scontrol", "requeue", str(job), check=False)
    assert "Requested operation is presently disabled" in refused.stderr
    cell.run("scontrol", "update", f"jobid={job}", "requeue=1")
    cell.run("scontrol", "requeue", str(job))
    until(lambda: cell.nodes()["n2"]["state"] == "idle", "nothing runs there any more", 60)
    until(lambda: cell.queue()[job]["job_state"] == "PENDING", "it is put back", 60)
    cell.run("scontrol", "delete", "nodename=n2")
    assert not cell.nodes()

    machine = next(host for host in cell.stand.hosts.values() if " n2 " in host.running())
    machine.reset()
    until(lambda: len(cell.ran(job)) == 2, "it runs again", 180)
    gate.touch()
    until(lambda: cell.ended(job), "it has ended", 60)
    assert [line.split()[:2] for line in cell.ran(job)] == [
        ["start", "n2"],
        ["start", "n2"],
        ["end", "n2"],
    ]
