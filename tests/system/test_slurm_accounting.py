"""Limits of a real slurmdbd: a job that one keeps gets no node again and again. Slurm is Debian
12's, with accounting, which this system need not have."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cod.vcm.slurm.limits import FIRST_PAUSE
from images import debian
from tests.mariadb import UNSYNCED, MariaDB
from tests.system import quick_limits
from tests.system.slurmlab import SlurmLab, slurmlab
from tests.system.slurmroot import SlurmOfRelease, unpack
from tests.system.stand import Stand
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.xdist_group("slurm-releases")]

DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={own}/munge/socket
DbdHost=localhost
SlurmUser=root
PidFile={own}/slurmdbd.pid
LogFile={own}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageEnforce=associations,limits
"""
SERVER = """\
slurmdbd
until sacctmgr -i add cluster pool; do sleep 0.5; done
sacctmgr -i add account physics cluster=pool GrpTRES=cpu=1
sacctmgr -i add account maths cluster=pool
sacctmgr -i add user alice cluster=pool account=physics
sacctmgr -i add user alice cluster=pool account=maths
slurmctld"""


class AccountedSlurm(SlurmOfRelease):
    """A cluster with a slurmdbd, whose database is a private one."""

    def __init__(self, stand: Stand, root: Path) -> None:
        super().__init__(stand, root)
        self.database = MariaDB(self.folder / "mariadb")

    def found(self) -> None:
        """Write its configuration, too, and start its database."""
        super().found()
        with (self.own / "slurm.conf").open("a") as file:
            file.write(ACCOUNTING)
        path = self.own / "slurmdbd.conf"
        path.write_text(DATABASE.format(own=self.own))
        path.chmod(0o600)
        self.database.install()
        self.database.start(*UNSYNCED)

    def enter(self) -> str:
        """Let the sockets of the database and of munged be where clients of slurmdbd look for
        them."""
        return (
            f"{super().enter()}\n"
            "mkdir /run/mysqld /run/munge\n"
            f"ln -s {self.database.folder}/s.sock /run/mysqld/mysqld.sock\n"
            f"ln -s {self.own}/munge/socket /run/munge/munge.socket.2"
        )

    def server(self) -> str:
        """Return the commands of both daemons, and accounts: `physics` may use one CPU."""
        return super().server().replace("slurmctld", SERVER)

    def configure(self) -> None:
        """Wait longer: slurmdbd makes its tables first."""
        self.stand.wait(self.answers, 240, "slurmctld answers")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    folder = tmp_path_factory.mktemp("lab")
    root = folder / "root"
    made: list[AccountedSlurm] = []

    def make(stand: Stand) -> AccountedSlurm:
        made.append(AccountedSlurm(stand, root))
        return made[0]

    try:
        unpack(debian.SUITE, root, "slurmdbd", "slurm-wlm-mysql-plugin")
        with slurmlab(folder / "stand", 2, make) as lab:
            yield lab
            print(lab.said()[-6000:])
    finally:
        for cell in made:
            cell.database.kill()
        shutil.rmtree(root, ignore_errors=True)


def test_a_job_that_a_limit_keeps_gets_one_node_in_vain(lab: SlurmLab) -> None:
    """While no node is there Slurm says that it waits for nodes."""
    lab.fresh(idle_limit=10.0, nodesets=[{"name": "two", "cpus": 2}])
    lab.cell.nodes_are(2)
    before = lab.grants()
    (kept,) = lab.submit(1, 0.1, "--account=physics", "-n2")
    lab.says(f"job {kept} waits for a limit (AssocGrpCpuLimit), not for nodes")
    lab.shrunk()
    until(
        lambda: not lab.cell.queue()[kept]["state_reason"].startswith("Assoc"),
        lambda: f"Slurm forgets the limit: {lab.cell.queue()}",
        180,
        0.2,
    )
    (other,) = lab.submit(1, 0.1, "--account=maths")  # for this one it does look
    lab.ended([other])
    lab.shrunk()
    assert lab.grants() - before == 2
    assert not lab.cell.ran(kept)


def test_three_nodes_at_most_come_in_vain_in_half_an_hour(
    lab: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour of the VCM's clock for limits, and more: each pause is twice the last."""
    monkeypatch.setattr(lab.cell, "program", (sys.executable, quick_limits.__file__))
    lab.fresh(idle_limit=1.5, nodesets=[{"name": "two", "cpus": 2}])
    lab.cell.nodes_are(2)
    before = len(came(lab))
    (kept,) = lab.submit(1, 0.1, "--account=physics", "-n2")
    for minutes in (10, 20, 40):
        lab.says(f"none is asked for account physics for {minutes} min", 300)
        lab.shrunk()
    first, second, third = came(lab)[before : before + 3]
    assert second - first >= FIRST_PAUSE / quick_limits.SPEED
    assert third - second >= 2 * FIRST_PAUSE / quick_limits.SPEED
    assert third - first >= 1800 / quick_limits.SPEED
    assert not lab.cell.ran(kept)


def came(lab: SlurmLab) -> list[float]:
    """Return when nodes became active, in order."""
    return sorted(
        move["at"]
        for name in lab.stand.hosts
        for move in lab.stand.history(name)
        if move["to_state"] == "active"
    )
