"""The same site and the same requests for Slurm's scheduler: a private slurmctld with nodes that it
never has to reach.

Nodes are CLOUD nodes: powered down, schedulable, resumed by a program that does nothing; so placing
a job is all that the controller does for it. Types are memory, CPUs and a weight (what a type
costs), NICs are features; whole nodes are given (select/linear). Nodes that others hold are
drained: nothing is to be had there. Blocks and preemption are left out. The queue is filled while
the partition is down; when it comes up, the main loop places what it can in order of priority until
it meets a job that it cannot place, and the backfill loop goes through the rest of the queue.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.pass_world import Hardware, Want
from tests.ports import free_port

CONFIGURATION = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldDebug=error
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SelectTypeParameters=CR_Memory
PriorityType=priority/basic
MpiDefault=none
MaxJobCount=100000
SlurmdTimeout=0
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=86400
ResumeTimeout=36000
ResumeRate=0
SuspendRate=0
SlurmctldParameters=cloud_dns
# Every job of the queue is looked at in one cycle, however long that takes.
SchedulerParameters=default_queue_depth=100000,max_sched_time=600,sched_interval=3600,bf_interval=1,bf_max_time=600,\
bf_max_job_test=100000,bf_yield_interval=600000000,bf_continue,bf_window=20,bf_resolution=600,bf_min_prio_reserve=1000000
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=DOWN OverSubscribe=EXCLUSIVE
"""


@dataclass(frozen=True)
class Cycles:
    """What one look at the whole queue cost: seconds in the main loop and in the backfill loop;
    jobs placed."""

    main: float
    backfill: float
    placed: int

    @property
    def seconds(self) -> float:
        return self.main + self.backfill


class Slurm:
    """A slurmctld of its own in `folder`, from `with` to `with`'s end. `nodes`: (number, type's
    place) of each."""

    def __init__(
        self, folder: Path, hardware: Sequence[Hardware], nodes: Iterable[tuple[int, int]]
    ) -> None:
        self._folder, self._hardware = folder, hardware
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._by_type: dict[int, list[int]] = {}
        for number, place in nodes:
            self._by_type.setdefault(place, []).append(number)

    def __enter__(self) -> Slurm:
        port = free_port()
        (self._folder / "state").mkdir(parents=True)
        lines = [CONFIGURATION.format(host=socket.gethostname(), port=port, folder=self._folder)]
        lines += [
            f"NodeName={names(numbers)} {_node(self._hardware[place])}"
            for place, numbers in self._by_type.items()
        ]
        (self._folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        self._process = subprocess.Popen(
            ["slurmctld", "-D"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while "is UP" not in self._run("scontrol", "ping", check=False):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self._folder / "slurmctld.log").read_text()[-1000:])
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)  # its state is of no use to anybody
        self._process.wait()

    def drain(self, numbers: Sequence[int]) -> None:
        """Nothing is to be had of these nodes."""
        self._run("scontrol", "update", f"nodename={names(numbers)}", "state=drain", "reason=held")

    def submit(self, jobs: Iterable[tuple[int, int, Want]]) -> None:
        """Put (priority, number of nodes, what is wanted of each) into the queue."""
        script = self._folder / "job.sh"
        script.write_text("#!/bin/sh\n")
        for priority, count, want in jobs:
            self._run(
                "sbatch",
                "--quiet",
                f"--nodes={count}",
                f"--priority={1 + priority}",
                f"--mem={want.gib}G",
                f"--mincpus={want.cpus}",
                f"--constraint={_feature(want.speed, want.nics)}",
                script,
            )

    def schedule(self) -> Cycles:
        """Let it look at the whole queue, once."""
        self._run("sdiag", "--reset")
        self._run("scontrol", "update", "partitionname=all", "state=up")
        return self.cycles()

    def again(self) -> Cycles:
        """Another look at what waits, after a change that frees nothing."""
        self._run("sdiag", "--reset")
        self._run("scontrol", "update", "partitionname=all", "maxtime=11")
        return self.cycles()

    def cycles(self) -> Cycles:
        """What the first cycles of both loops since the last reset cost."""
        until = time.monotonic() + 900
        while time.monotonic() < until:
            said = self._run("sdiag")
            main, backfill = (
                _numbers(part)
                for part in said.split("Main schedule statistics")[1].split("Backfilling")
            )
            waiting = int(
                self._run("squeue", "--noheader", "--states=PENDING", "--format=%i").count("\n")
            )
            if main["Total cycles"] and (backfill["Total cycles"] or not waiting):
                placed = _numbers(said)["Jobs started"]
                return Cycles(main["Max cycle"] / 1e6, backfill["Max cycle"] / 1e6, placed)
            time.sleep(0.2)
        raise TimeoutError("slurmctld has not looked at its queue")

    def _run(self, *words: object, check: bool = True) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{words[:2]}: {done.stderr}")
        return done.stdout


def _numbers(text: str) -> Mapping[str, int]:
    """The figures of a part of sdiag's output, by name."""
    found: dict[str, int] = {}
    for name, value in re.findall(r"^\s*([A-Z][\w ]+?):\s+(\d+)$", text, re.MULTILINE):
        found.setdefault(name, int(value))
    return found


def names(numbers: Iterable[int]) -> str:
    """Nodes as Slurm writes a list of them."""
    return f"n[{','.join(map(str, numbers))}]"


def _feature(speed: int, nics: int) -> str:
    return f"nic{speed}x{nics}"


def _node(hardware: Hardware) -> str:
    """A type's node line: its features are all NIC requirements that it meets."""
    features = [
        _feature(speed, nics)
        for speed in (1000, 10000, 25000, 100000)
        for nics in (1, 2)
        if sum(own >= speed for own in hardware.speeds) >= nics
    ]
    return (
        f"CPUs={hardware.cpus} RealMemory={hardware.gib * 1024} Weight={hardware.cost:.0f}"
        f" State=CLOUD Feature={','.join(features)}"
    )
