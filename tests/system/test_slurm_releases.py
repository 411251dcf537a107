"""A pool of each Slurm that sites install today, by the real daemons of other Debian releases. That
of Debian 12 is in test_slurm.py."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.system.slurmlab import SlurmLab, slurmlab
from tests.system.slurmroot import SlurmOfRelease, unpack
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.xdist_group("slurm-releases")]


@pytest.fixture(params=["trixie", "sid"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SlurmLab]:
    root = tmp_path / "root"
    try:
        unpack(request.param, root)
        with slurmlab(tmp_path / "stand", 3, partial(SlurmOfRelease, root=root)) as made:
            yield made
            print(made.said()[-6000:])
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_a_pool_grows_runs_jobs_and_shrinks(lab: SlurmLab) -> None:
    gate = lab.gate()
    jobs = lab.submit(2, gate)
    until(lambda: all(lab.placed(job) for job in jobs), "both run", 180, 0.1)
    assert {lab.placed(job) for job in jobs} == {"n2", "n3"}
    gate.touch()
    lab.ended(jobs)
    lab.once(jobs)
    lab.shrunk()
    assert not lab.cell.nodes()
    version = lab.cell.run("squeue", "--version").stdout.strip()
    assert re.search(rf"{version} is read as 23.11 to 26.05, by the parser v0.0.42", lab.said())
