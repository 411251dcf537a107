"""A private Slurm cluster on a stand: munged and slurmctld on the head, dynamic nodes. See
installation.py for hosts.

The cluster knows no node by itself: what nodes can be is a pattern of state FUTURE, so that jobs
are accepted while the pool is empty.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tests.system.installation import HEAD, Installation, folder
from tests.system.stand import Stand

if TYPE_CHECKING:
    from tests.system.annex import Annex

CONFIGURATION = """\
ClusterName=pool
SlurmctldHost={head}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={own}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={own}/state
SlurmdSpoolDir={own}/spool/%n
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/spool/%n.pid
SlurmctldLogFile={own}/slurmctld.log
SlurmdLogFile={own}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MaxNodeCount=64
TreeWidth=65533
ReturnToService=2
SlurmdTimeout=30
KillWait=1
MinJobAge=2
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
NodeName=pattern CPUs=8 RealMemory=16000 Feature=cod,big State=FUTURE
NodeSet=cod Feature=cod
PartitionName=vc Nodes=cod Default=YES MaxTime=INFINITE State=UP
"""
# Without a server of its kind a control group plugin of version 1 asks nothing of the host's.
CGROUPS = "CgroupPlugin=cgroup/v1\n"
SERVER = """\
munged --key-file={own}/munge/key --socket={own}/munge/socket --pid-file={own}/munge/pid --log-file={own}/munge/log \
  --seed-file={own}/munge/seed
slurmctld"""
# As images/slurmhost/slurmd: a node that found another's record under its name registers anew when
# that is gone.
DAEMON = """\
rm -rf {own}/spool/$1
while :; do
  slurmd -Z -D -N $1 --conf "$(cat {own}/node)" &
  before=
  while sleep 0.5 && kill -0 $!; do
    case $(scontrol -o show node $1 2>&1) in
      *"NodeAddr=$(ip -4 -o addr show eth0 | sed 's|.* inet ||; s|/.*||') "*) break ;;
      *NodeAddr=*) before=another ;;
      *"not found"*) [ "$before" ] && {{ kill $!; break; }} ;;
    esac
  done
  wait $!; sleep 1
done &"""


class SlurmCell(Installation):
    """See the module."""

    table = system = "slurm"
    job = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}.${SLURM_ARRAY_TASK_ID:-undefined}"
    knobs: ClassVar[dict[str, Any]] = {
        "keep": [HEAD],
        "idle_limit": 4.0,
        "calm": 1.0,
        "join_time": 60.0,
    }

    def __init__(self, stand: Stand | Annex, vcluster: str, *, domain: str = "cod.test") -> None:
        self.own = folder(stand, vcluster) / "slurm"
        super().__init__(stand, vcluster, domain, {"SLURM_CONF": str(self.own / "slurm.conf")})

    def found(self) -> None:
        """Write the configuration and the key."""
        for name in ("munge", "state", "spool"):
            (self.own / name).mkdir(parents=True)
        (self.own / "munge").chmod(0o711)
        (self.own / "munge/key").write_bytes(secrets.token_bytes(128))
        (self.own / "munge/key").chmod(0o400)
        (self.own / "slurm.conf").write_text(CONFIGURATION.format(head=HEAD, own=self.own))
        (self.own / "cgroup.conf").write_text(CGROUPS)
        self.nodes_are(1)

    def nodes_are(
        self, cpus: int, *features: str, memory: int = 1000, drained: bool = False
    ) -> None:
        """Let nodes that join from now on have so many CPUs, so much memory in MiB, and these
        features."""
        state = " State=DRAIN" if drained else ""
        (self.own / "node").write_text(
            f"CPUs={cpus} RealMemory={memory} Feature={','.join(['cod', *features])}{state}\n"
        )

    def server(self) -> str:
        """Return the key's daemon, and the controller."""
        return SERVER.format(own=self.own)

    def daemon(self) -> str:
        """Return what a node's image would start."""
        return DAEMON.format(own=self.own)

    def configure(self) -> None:
        """Wait until the controller answers."""
        self.stand.wait(self.answers, 180, "slurmctld answers")

    def answers(self) -> bool:
        """Return whether the controller answers."""
        return "is UP" in self.run("scontrol", "ping", check=False).stdout

    def submission(self) -> list[str]:
        """Return `sbatch`; its jobs may run again by the cluster's default."""
        return ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null"]

    def queue(self) -> dict[int, dict[str, Any]]:
        """What `squeue` says of each job that has not ended, by number."""
        said = json.loads(self.run("squeue", "--json").stdout)["jobs"]
        return {
            job["job_id"]: job
            for job in said
            if job["job_state"] not in ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT")
        }

    def counts(self) -> tuple[int, int]:
        """Return how many jobs `squeue` shows that wait, and how many that run."""
        states = [job["job_state"] for job in self.queue().values()]
        return states.count("PENDING"), states.count("RUNNING")

    def nodes(self) -> Mapping[str, dict[str, Any]]:
        """What `sinfo` says of each node that has registered, by name."""
        said = json.loads(self.run("sinfo", "--json").stdout)["nodes"]
        return {node["name"]: node for node in said if node["state"] != "future"}
