"""A Grid Engine pool on a stand: see poollab.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from lxml import etree

from tests.system.cell import BINARIES, Cell
from tests.system.installation import HEAD, USER
from tests.system.poollab import PoolLab, pool_lab
from tests.system.stand import Stand
from tests.waiting import until

SPREADING = [
    "pe_name mpi",
    "slots 999",
    "user_lists NONE",
    "xuser_lists NONE",
    "start_proc_args NONE",
    "stop_proc_args NONE",
    "allocation_rule $round_robin",
    "control_slaves FALSE",
    "job_is_first_task TRUE",
    "urgency_slots min",
    "accounting_summary FALSE",
    "qsort_args NONE",
]


class GridLab(PoolLab[Cell]):
    """See the module."""

    knobs: ClassVar[dict[str, Any]] = {
        "slots": 2,
        "jobs_per_node": 4,
        "idle_limit": 1.5,
        "calm": 1.0,
        "join_time": 150.0,
        "unheard_limit": 20.0,
        "maximum": 3,
    }

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand, Cell(stand, "pool"))

    def up(self) -> None:
        """A pool whose master knows no host group yet when the VCM comes."""
        super().up()
        self.cell.know_hosts(8)
        self._bare()
        self.turned_away = self.cell.run(
            "qsub",
            "-b",
            "y",
            "-o",
            "/dev/null",
            "-e",
            "/dev/null",
            "-wd",
            "/tmp",
            "/bin/true",
            user=USER,
            check=False,
        )
        self.cancel()  # it was queued all the same
        self.start_vcm()
        until(
            lambda: "d" in self.instances().get(HEAD, ""),
            "the head stands in the queue, disabled",
            180,
            0.1,
        )

    def _bare(self) -> None:
        """A cell that has never heard of COD: a queue without hosts. And a parallel environment
        that spreads."""
        run = self.cell.run
        run("qconf", "-dattr", "queue", "hostlist", "@cod", "all.q")
        run("qconf", "-dhgrp", "@cod")
        run("qconf", "-de", HEAD)
        (self.cell.folder / "mpi").write_text("\n".join(SPREADING) + "\n")
        run("qconf", "-Ap", str(self.cell.folder / "mpi"))
        run("qconf", "-mattr", "queue", "pe_list", "smp mpi", "all.q")

    def cancel(self) -> None:
        """`qdel` for everybody's jobs."""
        self.cell.run("qdel", "-f", "-u", "*", check=False)

    def waits(self) -> bool:
        """Return whether `qstat` lists a job."""
        return bool(self.cell.run("qstat", "-u", "*").stdout.strip())

    def hosts(self) -> set[str]:
        """Hosts of the queue besides the placeholder."""
        return set(self.instances()) - {HEAD}

    def kill_master(self) -> None:
        """kill -9."""
        pid = (self.cell.root / "spool/qmaster/qmaster.pid").read_text().strip()
        self.cell.run("kill", "-9", pid)

    def hears_quickly(self) -> None:
        """The master takes a host for lost after three seconds (and up to ten more) without a
        report."""
        said = self.cell.run("qconf", "-sconf").stdout.splitlines()
        lines = [
            "max_unheard 00:00:03" if line.startswith("max_unheard") else line for line in said
        ]
        (self.cell.folder / "global").write_text(
            "\n".join(line for line in lines if not line.startswith("#")) + "\n"
        )
        self.cell.run("qconf", "-Mconf", str(self.cell.folder / "global"))

    def start_master(self) -> None:
        """Start the master as the head's boot does."""
        self.cell.run("sh", "-c", f"{BINARIES}/sge_qmaster > /dev/null 2>&1 < /dev/null")

    def release(self, jobs: list[int]) -> None:
        """Jobs that were submitted with -h may start, all at the same moment, however long
        submitting them took."""
        self.cell.run("qrls", ",".join(map(str, jobs)))

    def instances(self) -> dict[str, str]:
        """States of the queue's instances ('' is fine), by host."""
        said = etree.fromstring(self.cell.run("qstat", "-f", "-u", "*", "-xml").stdout.encode())
        return {
            str(one.findtext("name")).partition("@")[2].split(".")[0]: one.findtext("state") or ""
            for one in said.iterfind("queue_info/Queue-List")
        }


@contextmanager
def gridlab(folder: Path, machines: int) -> Iterator[GridLab]:
    """A Grid Engine pool on a stand of so many machines."""
    with pool_lab(folder, machines, GridLab) as lab:
        yield lab
