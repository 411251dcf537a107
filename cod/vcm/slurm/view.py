"""The nodes and jobs of a Slurm pool, in one form for all releases of Slurm
(`cod.vcm.slurm.layouts`), and readers for the lists that all releases write into strings.

An unexpected form raises `NotUnderstood`: a pool that cannot be read must not be changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, product
from math import inf, prod

from cod.vcm.batch.commands import NotUnderstood, task_ranges

HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED", "REVOKED"})
OVER = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "LAUNCH_FAILED",
    }
)
ON_NODES = frozenset(
    {
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "RESIZING",
        "STAGE_OUT",
        "REQUEUED",
    }
)
NODE_STATES = frozenset({"idle", "mixed", "allocated", "down", "error", "unknown"})
NOT_TAKING = frozenset(
    {
        "INVALID_REG",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
        "POWER_DOWN",
        "MAINTENANCE",
        "RESERVED",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
    }
)


@dataclass(frozen=True, slots=True)
class JobSize:
    """Resources that a job, or one task of an array, requests.

    least, most     nodes; `most` is 0 if the owner did not set it: then `least` is Slurm's guess
    tasks, cpus     in all; `tasks_per_node` 0: not set; `node_cpus`: CPUs that each node has to
                    have
    memory          MiB on each node, `cpu_memory` for each CPU; None: not set
    node_gres, task_gres, job_gres   generic resources for each node, for each task, in all, as
                                     Slurm writes them
    features        the constraint (-C)
    whole           --exclusive
    required, excluded   nodes by name (-w, -x)
    lasts           seconds that it may run, if maintenance limits a node's time; else 0
    """

    least: int = 1
    most: int = 0
    tasks: int = 1
    cpus: int = 1
    tasks_per_node: int = 0
    node_cpus: int = 1
    memory: int | None = None
    cpu_memory: int | None = None
    node_gres: str = ""
    task_gres: str = ""
    job_gres: str = ""
    features: str = ""
    whole: bool = False
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    lasts: float = 0.0


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job. The waiting tasks of an array are one job.

    id              its number
    name            as commands name it: the number, or ARRAY_TASK
    array           number of its array; `array_tasks`: the waiting tasks ("1-9:2,20%4"); `limit`:
                    how many may run at a time; 0 and '': none
    nodes           the nodes it runs on
    started, ended  seconds since the epoch; `ended` of a running job: its latest end
    restarts        how often it was put back into the queue
    batch           it was submitted by sbatch. Other jobs cannot be put back into the queue
    lasts           seconds that it may run; infinity: no limit
    eligible        only missing room keeps it from starting: no dependency, no earliest time
    """

    id: int
    state: str
    reason: str = "None"
    name: str = ""
    array: int = 0
    array_tasks: str = ""
    limit: int = 0
    partitions: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    started: float = 0.0
    ended: float = 0.0
    restarts: int = 0
    batch: bool = True
    eligible: bool = True
    priority: int = 0
    user: str = ""
    account: str = ""
    reservation: str = ""
    size: JobSize = JobSize()
    lasts: float = inf

    @property
    def over(self) -> bool:
        """Return whether the job has ended. Slurm lists such jobs for a while."""
        return self.state in OVER

    @property
    def waits(self) -> bool:
        """Return whether the job is in the queue, for any reason."""
        return self.state == "PENDING" or self.state in HELD


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node that Slurm knows. `cpus_used`, `memory_used`, `gres_used`: the part that jobs use;
    memory in MiB; `cores` of a socket, `threads` of a core; `left`: seconds until maintenance takes
    the node."""

    name: str
    address: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    cpus: int = 1
    cpus_used: int = 0
    memory: int = 0
    memory_used: int = 0
    gres: Mapping[str, int] = field(default_factory=dict)
    gres_used: Mapping[str, int] = field(default_factory=dict)
    cores: int = 1
    threads: int = 1
    left: float = inf

    @property
    def heard(self) -> bool:
        """Return whether the node's daemon reports."""
        return self.state in ("idle", "mixed", "allocated") and "NOT_RESPONDING" not in self.flags

    @property
    def closed(self) -> bool:
        """Return whether the node was told to take no more jobs."""
        return bool(self.flags & {"DRAIN", "FAIL"})

    @property
    def usable(self) -> bool:
        """Return whether the node takes jobs."""
        return self.heard and not self.closed and not self.flags & NOT_TAKING


# ---------------------------------------------------------------- lists in strings

_GRES = re.compile(
    r"(?:gres[:/])?([A-Za-z_][\w.-]*)(?::([A-Za-z_][\w.-]*))?(?:[:=]([0-9]{1,12})([KMGT]?))?"
)
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def task_ids(text: str) -> Iterator[int]:
    """Return the tasks of an array in a list such as '1-9:2,20%4'. Raises `NotUnderstood`."""
    return chain.from_iterable(task_ranges(text.partition("%")[0]))


def gres(text: str) -> dict[str, int]:
    """Return generic resources by name ('gpu') and by name and type ('gpu:a100'), from a list such
    as 'gpu:a100:2(S:0-1),nvme:1' or 'gres:gpu:2'. Raises `NotUnderstood`."""
    counts: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        if not part:
            continue
        found = _GRES.fullmatch(part)
        if found is None:
            raise NotUnderstood(f"the generic resources {text!r}")
        count = int(found[3] or 1) * _FACTORS[found[4] or ""]
        for name in {found[1], f"{found[1]}:{found[2]}" if found[2] else found[1]}:
            counts[name] = counts.get(name, 0) + count
    return counts


MOST_NAMES = 100_000  # in a list of nodes; Slurm's own MAX_RANGE is 65,536


def hostlist(text: str) -> tuple[str, ...]:
    """Return the names in a list such as 'n[1-3,07],gpu1'. Raises `NotUnderstood`, also for more
    than `MOST_NAMES`."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text:
        raise NotUnderstood(f"the list of nodes {text!r}")
    names: list[str] = []
    for part in parts:
        pieces = [_expanded(piece, text) for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part)]
        if len(names) + prod(map(len, pieces)) > MOST_NAMES:
            raise NotUnderstood(f"a list of more than {MOST_NAMES} nodes")
        names += map("".join, product(*pieces))
    return tuple(names)


def _expanded(piece: str, text: str) -> list[str]:
    if not piece.startswith("["):
        return [piece]
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if found is None:
            raise NotUnderstood(f"the list of nodes {text!r}")
        some = range(int(found[1]), int(found[2] or found[1]) + 1)
        if len(numbers) + len(some) > MOST_NAMES:
            raise NotUnderstood(f"a list of more than {MOST_NAMES} nodes")
        numbers += [f"{number:0{len(found[1])}}" for number in some]
    return numbers
