"""Two pools of two batch systems trade whole machines: each time a machine changes sides it gets
the other pool's own system. The servers and the VCMs run on stand-in hosts beside the rack
(annex.py)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from cod.lab.spec import LabDisk, LabNode
from tests.bench import trading_stages as stages
from tests.system.annex import POWERLESS, annex
from tests.system.cell import Cell
from tests.system.installation import USER
from tests.system.pool_story import MACHINES, PATIENCE, SEED, SPOOL, offer_batch_host
from tests.system.qemu import CHECKOUT, Rack, build_all, rack
from tests.system.slurmcell import SlurmCell
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("pool"),
    pytest.mark.timeout(3000),
]

POLICY = "inertia = 0\nreclaim_grace = 300\n[nmp]\nport = 8071\n"
KNOBS = {
    "maximum": len(MACHINES),
    "idle_limit": 5.0,
    "calm": 5.0,
    "join_time": 600.0,
    "unheard_limit": 600.0,
}
OFFICE, NIGHTLY = "office", "nightly"
# What differs on whole machines: the files are their own, and all takes more time. Jobs that are
# over stay listed.
ON_NODES = {
    "socket={own}/munge/socket,": "",
    "{own}/spool/%n.pid": "/run/slurmd.pid",
    "{own}/spool/%n": "/var/spool/slurmd",
    "{own}/slurmd-%n.log": "/var/log/slurm/slurmd.log",
}
SLOW = {
    "cred_expire=5": "cred_expire=60",
    "SlurmdTimeout=30": "SlurmdTimeout=300",
    "MinJobAge=2": "MinJobAge=36000",
}
USER_DATA = """\
#!/bin/sh
SLURM_CONTROLLER=n1
MUNGE_KEY={key}
USERS=alice:{user}
cat > /etc/slurm/slurm.conf <<'END'
{configuration}
END
"""
# It ends when its comment says so: the machines share no file with the head.
NIGHT_JOB = "until scontrol show job $SLURM_JOB_ID | grep -q Comment=end; do sleep 3; done"


class WholeSlurmCell(SlurmCell):
    """A cluster whose nodes have a configuration of their own, from their user data."""

    def found(self) -> None:
        """Write the configuration for slow machines, and the key."""
        super().found()
        (self.own / "slurm.conf").write_text(self._replaced(SLOW))

    def user_data(self) -> str:
        """Return what the nodes' template says."""
        key = base64.b64encode((self.own / "munge/key").read_bytes()).decode()
        return USER_DATA.format(key=key, user=USER, configuration=self._replaced(ON_NODES))

    def _replaced(self, words: dict[str, str]) -> str:
        text = (self.own / "slurm.conf").read_text()
        for old, new in words.items():
            assert old.format(own=self.own) in text, old
            text = text.replace(old.format(own=self.own), new)
        return text

    def job_record(self, number: int) -> dict[str, str]:
        """What `scontrol` says of a job."""
        said = self.run("scontrol", "-o", "show", "job", str(number)).stdout
        return dict(word.partition("=")[::2] for word in said.split())


@dataclass
class Trade:
    """Both pools with their heads; the machines are idle. `seen`: (when, what)."""

    rack: Rack
    office: Cell
    nightly: WholeSlurmCell
    seen: list[tuple[float, str]] = field(default_factory=list)

    def held(self) -> tuple[int, int]:
        """How many of the machines are active in each pool."""
        nodes = [self.rack.node(name) for name in MACHINES]
        held = [node["vcluster"] for node in nodes if node["state"] == "active"]
        return held.count(OFFICE), held.count(NIGHTLY)

    def running(self, office: int, nightly: int) -> None:
        """Wait until so many jobs run in the pools, each on a machine of its own."""
        until(
            lambda: (
                (self.office.counts()[1], self.nightly.counts()[1])
                == (office, nightly)
                == self.held()
            ),
            lambda: (
                f"{office} and {nightly} run: {self.office.counts()}, {self.nightly.counts()}, "
                f"{[self.rack.state(name) for name in MACHINES]}"
            ),
            PATIENCE,
            1.0,
        )
        self.seen.append(
            (time.time(), f"running: {office} in the office, {nightly} in the nightly pool")
        )


@contextmanager
def trade() -> Iterator[Trade]:
    """The pools, empty."""
    machines = [LabNode(name, "bios", memory=512, disks=(LabDisk(640 << 20),)) for name in MACHINES]
    with (
        rack(machines, patience=3.0, policy=POLICY + POWERLESS, restored=True) as stand,
        annex(stand, (OFFICE, NIGHTLY)) as beside,
    ):
        for name in MACHINES:
            stand.power(name, "on")
        made = Trade(
            stand,
            Cell(beside, OFFICE, domain="cod.demo", spool=SPOOL),
            WholeSlurmCell(beside, NIGHTLY, domain="cod.demo"),
        )
        try:
            for cell, priority in ((made.office, 10), (made.nightly, 1)):
                stand.cod("group", "create", cell.vcluster, "--priority", str(priority))
                beside.hosts[cell.vcluster].on()
                stand.reaches(cell.vcluster, "inactive")
                cell.up("head", 1, "--group", cell.vcluster)
            offer_batch_host(stand, "execd", SEED)
            offer_batch_host(stand, "slurmd", made.nightly.user_data(), NIGHTLY)
            made.office.enrol(template="execd", slots=1, jobs_per_node=1, **KNOBS)
            made.nightly.enrol(template="slurmd", **KNOBS)
            for cell in (made.office, made.nightly):
                file = cell.folder / "vcm/vcm.toml"
                file.write_text('log_level = "debug"\n' + file.read_text())
            for name in MACHINES:
                stand.reaches(name, "inactive", seconds=PATIENCE)
            for cell in (made.office, made.nightly):
                cell.start_vcm()
            yield made
        finally:
            for cell in (made.office, made.nightly):
                cell.kill_vcm()
                if (cell.folder / "vcm.log").exists():
                    print(f"--- {cell.vcluster}\n{cell.log()[-4000:]}")


def test_a_machine_goes_from_slurm_to_grid_engine_and_back() -> None:
    build_all("execd", "slurmd")
    with trade() as pools:
        nightly = pools.nightly
        pools.seen.append((time.time(), "the nightly jobs are submitted"))
        night = [
            int(
                nightly.run(
                    "sbatch",
                    "--parsable",
                    "--chdir=/tmp",
                    "--output=/dev/null",
                    "--wrap",
                    NIGHT_JOB,
                    user=USER,
                ).stdout
            )
            for _ in MACHINES
        ]
        pools.running(0, 2)
        pools.seen.append((time.time(), "the office's job is submitted"))
        day = pools.office.run(
            "qsub",
            "-terse",
            "-r",
            "y",
            "-wd",
            "/tmp",
            "-o",
            "/dev/null",
            "-e",
            "/dev/null",
            "-b",
            "y",
            "/bin/sleep",
            "30",
            user=USER,
        ).stdout.strip()
        pools.running(1, 1)
        assert nightly.counts() == (1, 1)
        pools.running(0, 2)
        accounts = (pools.office.root / "default/common/accounting").read_text().splitlines()
        ended = [row.split(":") for row in accounts if row[:1] not in ("#", "")]
        assert [(row[5], row[11], row[12]) for row in ended] == [(day, "0", "0")]
        for number in night:
            nightly.run("scontrol", "update", f"jobid={number}", "comment=end")
        until(
            lambda: {nightly.job_record(number)["JobState"] for number in night} == {"COMPLETED"},
            "all are over",
            PATIENCE,
            1.0,
        )
        assert sorted(nightly.job_record(number)["Restarts"] for number in night) == ["0", "1"]

        logs = {cell.vcluster: stages.said(cell.log()) for cell in (pools.office, nightly)}
        names = {pools.rack.node(name)["name"]: name for name in MACHINES}
        traded = {
            pool: [names[node] for node, _, _ in stages.memberships(said)]
            for pool, said in logs.items()
        }
        assert sorted(traded[NIGHTLY]) == sorted([*MACHINES, *traded[OFFICE]])
        assert len(traded[OFFICE]) == 1
        assert stages.in_two_pools(logs[OFFICE], logs[NIGHTLY]) == []
        assert pools.rack.states(traded[OFFICE][0]).count("wipe") >= 2, (
            "no pool leaves anything for the other"
        )
        moves = [
            (row["at"], f"{name}: {row['to_state']}")
            for name in MACHINES
            for row in pools.rack.history(name)
        ]
        lines = [
            (round(at - pools.seen[0][0], 1), what) for at, what in sorted([*moves, *pools.seen])
        ]
        (CHECKOUT / "build/trading-whole.json").write_text(json.dumps(lines, indent=1) + "\n")
