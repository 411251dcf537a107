"""Jobs of two groups on real Slurm clusters with fair shares and preemption by QOS: `python -m
tests.bench.slurm_qos PLAN`, as root, in namespaces of its own for the network and for processes.

A slurmdbd with a private MariaDB serves all clusters of the plan, each with a slurmctld and as many
slurmd as it has nodes, on loopback. Nobody proves who they are (auth/none): outside such a network
anybody could run jobs as root. A job sleeps, and notes in a log when it begins and ends. Debian's
slurmdbd is only unpacked, for its service would start.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.arena import ROOT
from tests.mariadb import UNSYNCED, MariaDB
from tests.waiting import until
from trampoline.recipe import packages

ADDRESS = "10.99.0.1/32"  # Slurm listens nowhere where 127.0.0.1 is the only address
PLUGINS = "usr/lib/x86_64-linux-gnu/slurm-wlm"
DATABASE = """\
AuthType=auth/none
DbdHost=localhost
DbdPort=6819
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
PluginDir={plugins}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={port}
StorageUser=root
StorageLoc=slurm
"""
CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=6819
AccountingStorageEnforce=associations,qos
PriorityType=priority/multifactor
PriorityWeightFairshare=100000
PriorityDecayHalfLife={half_life}
PriorityCalcPeriod={period}
PreemptType=preempt/qos
PreemptMode=REQUEUE
PreemptExemptTime={exempt}
KillWait=1
MaxJobCount=100000
SchedulerParameters={scheduler}
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
CGROUPS = "CgroupPlugin=cgroup/v1\n"
JOB = """\
#!/bin/bash
note() { echo "$1 $job $EPOCHREALTIME $SLURMD_NODENAME" >> $log; }
job=$1 log=$3
note start
sleep $2 && note end
"""


@dataclass(frozen=True)
class TimedJob:
    """A job of one node: its group, when it is submitted, and how long it runs, in seconds."""

    group: str
    at: float
    runtime: float


@dataclass(frozen=True)
class Plan:
    """What is run.

    demands    by cluster, all at the same time: its jobs, in the order of their times
    preempts   the group whose jobs preempt those of the `preempted`
    seconds    length of the run
    half_life, period, exempt   seconds: decay of use, between looks at it, and how long a job runs
               at least before it is preempted
    """

    folder: str
    nodes: int
    seconds: float
    half_life: float
    period: float
    exempt: float
    preempts: str
    preempted: str
    scheduler: str
    demands: list[list[TimedJob]]


@dataclass
class Fate:
    """When a job began, each time, and when it was done, in seconds since the run's begin; the node
    that it ran on last."""

    starts: list[float] = field(default_factory=list)
    end: float | None = None
    node: str = ""


def run(plan: Plan) -> list[list[Fate]]:
    """Return by cluster what became of each of its jobs, in their order."""
    folder = Path(plan.folder)
    wanted = packages.exactly(("slurmdbd", "slurm-wlm-mysql-plugin"))
    slurmdbd = packages.unpacked(wanted, ROOT / "build/slurmdbd")
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))
    done = subprocess.run(
        [
            *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-m", "tests.bench.slurm_qos", folder / "plan.json", slurmdbd),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    return [
        [Fate(**one) for one in fates] for fates in json.loads((folder / "fates.json").read_text())
    ]


def main(path: Path, slurmdbd: Path) -> None:
    """Run a plan, and write `fates.json` beside it. `slurmdbd`: where its files are unpacked."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    said: dict[str, Any] = json.loads(path.read_text())
    demands = [[TimedJob(**job) for job in jobs] for jobs in said.pop("demands")]
    plan = Plan(**said, demands=demands)
    for words in (("link", "set", "lo", "up"), ("address", "add", ADDRESS, "dev", "lo")):
        subprocess.run(["ip", *words], check=True)
    folder = path.parent
    clusters = [SlurmCluster(folder, number, plan) for number in range(len(plan.demands))]
    _accounting(folder, slurmdbd, clusters[0])
    for cluster in clusters:
        cluster.start()
    with ThreadPoolExecutor(len(clusters)) as threads:
        fates = list(threads.map(SlurmCluster.run, clusters))
    (folder / "fates.json").write_text(
        json.dumps([[asdict(fate) for fate in one] for one in fates])
    )


def _accounting(folder: Path, unpacked: Path, cluster: SlurmCluster) -> None:
    """Start slurmdbd and its database; let it know the QOS. `cluster`: any, for the commands."""
    database = MariaDB(folder / "mariadb")
    database.install()
    database.start(*UNSYNCED)
    path = folder / "slurmdbd.conf"
    plugins = f"{unpacked / PLUGINS}:/{PLUGINS}"
    path.write_text(DATABASE.format(folder=folder, plugins=plugins, port=database.port))
    path.chmod(0o600)
    cluster.configure()
    cluster.daemon(unpacked / "usr/sbin/slurmdbd", "-D", conf=folder / "slurm.conf")
    until(lambda: cluster.says("sacctmgr", "-n", "show", "qos"), "slurmdbd answers", 120, 0.2)
    preempts, preempted = cluster.plan.preempts, cluster.plan.preempted
    cluster.run_command("sacctmgr", "-i", "add", "qos", preempted)
    cluster.run_command("sacctmgr", "-i", "add", "qos", preempts, f"preempt={preempted}")


class SlurmCluster:
    """One cluster of a plan: where its files are, and which ports are its own."""

    def __init__(self, folder: Path, number: int, plan: Plan) -> None:
        self.plan, self.number, self.name = plan, number, f"c{number}"
        self.folder = folder / self.name
        self._environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def configure(self) -> None:
        """Write its files."""
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        first, plan = 7000 + 100 * self.number, self.plan  # below those of MariaDB
        text = CONFIGURATION.format(
            name=self.name,
            host=socket.gethostname(),
            port=first,
            folder=self.folder,
            half_life=_clock(plan.half_life),
            period=_clock(plan.period),
            exempt=_clock(plan.exempt),
            scheduler=plan.scheduler,
            nodes=plan.nodes,
            first=first + 1,
            last=first + plan.nodes,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text(CGROUPS)
        (self.folder / "job.sh").write_text(JOB)
        (self.folder / "log").touch()

    def start(self) -> None:
        """Start its daemons and wait until all nodes idle."""
        self.configure()
        self.run_command("sacctmgr", "-i", "add", "cluster", self.name)
        for group in (self.plan.preempts, self.plan.preempted):
            own = (f"cluster={self.name}", f"qos={group}", f"defaultqos={group}")
            self.run_command("sacctmgr", "-i", "add", "account", group, *own)
            self.run_command("sacctmgr", "-i", "add", "user", "root", f"account={group}", own[0])
        self.daemon("slurmctld", "-D")
        for number in range(1, self.plan.nodes + 1):
            self.daemon("slurmd", "-D", "-N", f"n{number}")
        until(self._all_idle, lambda: self.says("sinfo"), 120, 0.2)

    def _all_idle(self) -> bool:
        return self.says("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.plan.nodes)

    def run(self) -> list[Fate]:
        """Submit each job at its time; return what became of them when the run is over."""
        began = time.time()
        jobs = self.plan.demands[self.number]
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, began + job.at - time.time()))
            self._submit(number, job)
        time.sleep(max(0.0, began + self.plan.seconds - time.time()))
        fates = [Fate() for _ in jobs]
        for line in (self.folder / "log").read_text().splitlines():
            what, which, at, node = line.split()
            fate, seconds = fates[int(which)], float(at) - began
            fate.node = node
            if what == "start":
                fate.starts.append(seconds)
            else:
                fate.end = seconds
        return fates

    def _submit(self, number: int, job: TimedJob) -> None:
        self.run_command(
            *("sbatch", "--quiet", "--requeue", "--chdir=/tmp", "--output=/dev/null"),
            *(f"--account={job.group}", f"--qos={job.group}", str(self.folder / "job.sh")),
            *(str(number), str(job.runtime), str(self.folder / "log")),
        )

    # ------------------------------------------------------------ processes

    def daemon(self, *command: str | Path, conf: Path | None = None) -> None:
        """Start a daemon, which ends with the namespace of processes."""
        environment = self._environment | ({"SLURM_CONF": str(conf)} if conf else {})
        with (self.folder / "daemons.out").open("ab") as out:
            subprocess.Popen(list(map(str, command)), env=environment, stdout=out, stderr=out)

    def run_command(self, *command: str) -> None:
        """Run a command of Slurm's. Raises RuntimeError."""
        done = self._command(*command)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")

    def says(self, *command: str) -> str:
        """Return what a command prints; nothing where it fails."""
        return self._command(*command).stdout

    def _command(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )


def _clock(seconds: float) -> str:
    """Return a length of time as Slurm reads it."""
    whole = round(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
