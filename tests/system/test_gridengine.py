"""A Grid Engine pool that resizes itself: real master and daemons, real COD server, real VCM over TLS; the machines are
hosts in namespaces (tests/system/cell.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cell import Cell
from tests.system.site_images import offer
from tests.system.stand import Stand

pytestmark = pytest.mark.system


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Cell]:
    """A vcluster 'pool' with its head, and three machines in the reserve."""
    with Stand(tmp_path, machines=4, policy="inertia = 0\nreclaim_grace = 10\n[nmp]\nport = 8071") as stand:
        stand.serve()
        for host in stand.hosts.values():
            host.on()
        for name in stand.hosts:
            stand.reaches(name, "inactive")
        offer(stand, "exec")
        cell = Cell(stand, "pool")
        cell.up("exec")
        cell.enrol(maximum=3)
        cell.start_vcm()
        try:
            yield cell
        finally:
            cell.kill_vcm()
            print(cell.log()[-4000:])


def test_it_grows_on_qsub_runs_everything_once_and_shrinks(pool: Cell) -> None:
    jobs = [pool.submit(1.0) for _ in range(8)]
    pool.stand.wait(lambda: all(pool.ended(job) for job in jobs), 120, "all jobs have ended")
    assert all(len(pool.ran(job)) == 2 for job in jobs)
    assert {pool.ran(job)[0].split()[1] for job in jobs} <= {"n2", "n3", "n4"}
    pool.stand.wait(lambda: sorted(pool.stand.state(name) for name in pool.stand.hosts)
                    == ["active", "inactive", "inactive", "inactive"], 120, "the pool has shrunk to its head")
    assert pool.hosts() == set()
