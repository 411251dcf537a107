"""Limits of a real slurmdbd: a job that one keeps gets no node again and again. Slurm is Debian
12's, with accounting, which this system need not have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from images import debian
from tests.mariadb import UNSYNCED, MariaDB
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


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SlurmLab]:
    root = tmp_path / "root"
    made: list[AccountedSlurm] = []

    def make(stand: Stand) -> AccountedSlurm:
        made.append(AccountedSlurm(stand, root))
        return made[0]

    try:
        unpack(debian.SUITE, root, "slurmdbd", "slurm-wlm-mysql-plugin")
        with slurmlab(tmp_path / "stand", 2, make) as lab:
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
