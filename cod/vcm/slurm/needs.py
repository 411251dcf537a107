"""Nodes that the waiting jobs of a partition need, and the jobs that no node of the pool could run.
Pure.

**Which jobs count.** Jobs that wait for room: `COUNTING` has Slurm's reasons for that. Jobs that
would not start with more room do not count: held, dependent, of the future, limited by QOS or
association, waiting for licences or a reservation. Tasks of an array count one by one, as many as
may run at a time.

**How many nodes they need.** Each job is placed as Slurm would place it: on free CPUs of present
nodes, then of nodes on their way, then of new nodes of the first nodeset that could run it. Jobs of
higher priority come first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from math import ceil, inf

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.pool import Nodeset
from cod.vcm.slurm.constraints import matches
from cod.vcm.slurm.view import JobSize, SlurmJob, SlurmNode, gres, task_ids

_gres = cache(gres)
COUNTING = frozenset(
    {
        "None",
        "Priority",
        "Resources",
        "PartitionConfig",
        "PartitionNodeLimit",
        "ReqNodeNotAvail",
        "NodeDown",
    }
)
# reasons that Slurm gives before the scheduler has examined a job
AT_SUBMISSION = COUNTING - {"Priority", "Resources"}
# for an association that may be at a limit, which Slurm names only once a node is there
FIRST_NODES = 3


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Capacity of a node of a nodeset. `memory` in MiB, None if not known; `threads` of a core;
    `guessed`: nothing is known of the node."""

    nodeset: Nodeset
    cpus: int = 1
    memory: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    threads: int = 1
    guessed: bool = False


@dataclass(slots=True)
class Room:
    """The free resources of a node. `name` is '' for a future node; `kind`: its nodeset, None for a
    present node.

    all_memory  of the node, free or not
    unit        CPUs that no two jobs share: those of a core, if Slurm allocates whole cores
    used        jobs run there
    left        seconds until maintenance takes the node
    """

    name: str
    kind: Nodeset | None
    cpus: int
    memory: float
    all_memory: float
    gres: dict[str, int]
    features: frozenset[str]
    unit: int = 1
    used: bool = False
    left: float = inf

    @classmethod
    def on(cls, node: SlurmNode, rules: Rules) -> Room:
        """Return the free resources of a present node."""
        free = {name: count - node.gres_used.get(name, 0) for name, count in node.gres.items()}
        unit = {"core": node.threads, "socket": node.threads * node.cores}.get(rules.unit, 1)
        return cls(
            name=node.name,
            kind=None,
            cpus=node.cpus - node.cpus_used,
            memory=node.memory - node.memory_used,
            all_memory=node.memory,
            gres=free,
            features=node.features,
            unit=unit,
            used=node.cpus_used > 0,
            left=node.left,
        )

    @classmethod
    def whole(cls, node: SlurmNode, rules: Rules) -> Room:
        """Return the resources of a present node when no job runs on it."""
        return cls.on(replace(node, cpus_used=0, memory_used=0, gres_used={}), rules)

    @classmethod
    def of(cls, kind: NodeKind, rules: Rules) -> Room:
        """Return the resources of a future node."""
        memory = inf if kind.memory is None else kind.memory
        return cls(
            name="",
            kind=kind.nodeset,
            cpus=kind.cpus,
            memory=memory,
            all_memory=memory,
            gres=dict(kind.gres),
            features=kind.features,
            unit=1 if rules.unit == "cpu" else kind.threads,
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the site's Slurm that affect how many nodes jobs need.

    memory   Slurm allocates memory, too (SelectTypeParameters=CR_…_Memory)
    unit     the smallest unit that no two jobs share: cpu, core or socket
    alone    no two jobs share a node
    limit    nodes of the pool: beyond it nothing is counted
    limits   accounting enforces limits (AccountingStorageEnforce)
    """

    partition: str
    memory: bool = False
    unit: str = "cpu"
    alone: bool = False
    limit: int = 1024
    limits: bool = False


@dataclass(slots=True)
class Plan:
    """The places of the waiting jobs.

    nodes   by nodeset, how many future nodes they fill: those on their way, then new ones
    jobs    how many could start on a node of this pool
    sizes   the resources that these jobs request
    placed  the jobs that fit on present nodes, by name (a task of an array: ARRAY_TASK), with these
            nodes
    never   a sentence for each job that no node could run
    """

    nodes: Counter[Nodeset] = field(default_factory=Counter)
    jobs: int = 0
    sizes: set[JobSize] = field(default_factory=set)
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    never: list[str] = field(default_factory=list)


def plan(
    jobs: Sequence[SlurmJob],
    nodes: Sequence[SlurmNode],
    coming: Mapping[str, int],
    kinds: Sequence[NodeKind],
    rules: Rules,
    fixed: Collection[str] = (),
    untried: Callable[[SlurmJob], Collection[Hashable]] = lambda job: (),
) -> Plan:
    """Place every waiting job that counts.

    nodes    nodes that take jobs
    coming   nodes requested, or granted and not yet joined, by the nodeset's name
    fixed    those of `nodes` that COD did not give
    untried  associations of a job that get `FIRST_NODES` at first, or what one job needs, because a
             limit may keep their jobs from every node
    """
    found = Plan()
    known = [Room.on(node, rules) for node in nodes]
    expected = [
        Room.of(kind, rules) for kind in kinds for _ in range(coming.get(kind.nodeset.name, 0))
    ]
    rooms = [*known, *expected]
    assessed: dict[JobSize, tuple[JobSize, str]] = {}
    first: dict[JobSize, int] = {}
    # sizes that fit nowhere any more, now that the pool has reached its limit
    full: set[JobSize] = set()
    tried = defaultdict[Hashable, set[int]](set)  # rooms by association
    bounded = any(node.left < inf for node in nodes)
    for job, names in _counting(jobs, rules):
        asked = replace(job.size, lasts=job.lasts) if bounded else job.size
        if asked not in assessed:
            assessed[asked] = _assess(asked, nodes, kinds, rules, fixed)
        size, why = assessed[asked]
        if job.size.required and why == "":
            continue
        if why:
            found.never.append(f"job {job.name}: {why}")
            continue
        keys = untried(job) if rules.limits else ()
        found.jobs += len(names)
        found.sizes.add(size)
        for name in names:
            if size in full:
                break
            if any(tried[key] and len(tried[key]) + size.least > FIRST_NODES for key in keys):
                break
            larger = len(rooms) < len(known) + len(expected) + rules.limit
            on = _place(size, rooms, first, kinds if larger else (), rules)
            if not on and not larger:
                full.add(size)
            for key in keys:
                # compared by identity: two rooms of future nodes may be equal
                tried[key] |= {id(room) for room in on}
            if on and all(room.kind is None for room in on):
                found.placed[name] = tuple(room.name for room in on)
    found.nodes = Counter(room.kind for room in rooms if room.kind is not None and room.used)
    # the first node will tell what nodes have
    if found.never and any(kind.guessed for kind in kinds):
        found.never = []
        found.nodes = found.nodes or Counter({kind.nodeset: 1 for kind in kinds})
    return found


def _assess(
    size: JobSize,
    nodes: Sequence[SlurmNode],
    kinds: Sequence[NodeKind],
    rules: Rules,
    fixed: Collection[str],
) -> tuple[JobSize, str]:
    """Return the size by which the job's nodes are counted, and why no node could run the job; ''
    if one could."""
    if size.required:
        known = {node.name for node in nodes}
        if known.issuperset(size.required):
            return size, ""
        return size, f"wants {', '.join(size.required)} by name, and a new node may be another"
    offered = [Room.of(kind, rules) for kind in kinds]
    empty = [Room.whole(node, rules) for node in nodes]
    try:
        size = _with_job_gres(replace(size, whole=size.whole or rules.alone), [*offered, *empty])
        why = _lacking(size, offered, kinds, rules)
        if any(could_run([size], node, rules) for node in nodes):
            why = ""
        return size, why or _too_large(size, kinds, nodes, rules, fixed)
    except NotUnderstood as error:
        return size, f"asks for what this VCM does not read: {error}"


def _too_large(
    size: JobSize,
    kinds: Sequence[NodeKind],
    nodes: Sequence[SlurmNode],
    rules: Rules,
    fixed: Collection[str],
) -> str:
    """Return why a job would not start even in the largest possible pool; '' if it would."""
    others = [Room.whole(node, rules) for node in nodes if node.name in fixed]
    ours = [Room.whole(node, rules) for node in nodes if node.name not in fixed]
    most = max(rules.limit, len(ours))
    each = max(
        _fitting(size, room, rules) for room in [*(Room.of(kind, rules) for kind in kinds), *ours]
    )
    fitting = sorted(
        [*(_fitting(size, room, rules) for room in others), *[each] * most], reverse=True
    )
    each_takes = [count for count in fitting if count][: size.most or None]
    if size.most and len(each_takes) < size.least:
        return f"wants {size.least} nodes at once, there are {len(each_takes)} such at most"
    if sum(each_takes) < size.tasks and not any(kind.guessed for kind in kinds):
        return (
            f"wants {size.tasks} tasks at once, the {len(each_takes)} nodes that there are at most"
            f" take {sum(each_takes)}"
        )
    return ""


def could_run(sizes: Iterable[JobSize], node: SlurmNode, rules: Rules) -> bool:
    """Return whether a job of one of these sizes could start on the node, were it empty."""
    return any(_fitting(size, Room.whole(node, rules), rules) for size in sizes)


# ---------------------------------------------------------------- which count


def _counting(jobs: Sequence[SlurmJob], rules: Rules) -> Iterator[tuple[SlurmJob, list[str]]]:
    """Yield the jobs that would start if there were room, by priority, each with the names of its
    pieces (tasks of an array)."""
    may_run = {job.array: job.limit for job in jobs if job.array and job.limit}
    for job in jobs:
        if not job.waits and job.array in may_run:
            may_run[job.array] -= 1
    for job in sorted(jobs, key=lambda job: (-job.priority, job.id)):
        if not counts(job, rules):
            continue
        pieces = (
            (f"{job.array}_{task}" for task in task_ids(job.array_tasks))
            if job.array_tasks
            else iter((job.name,))
        )
        names = list(islice(pieces, max(0, may_run[job.array]) if job.array in may_run else None))
        if job.array in may_run:
            may_run[job.array] -= len(names)
        yield job, names


def counts(job: SlurmJob, rules: Rules) -> bool:
    """Return whether the job waits for room in this partition. A job that was requeued has an
    earliest time, a few seconds away, and counts. Until the scheduler has examined a job, Slurm
    gives no reason or one about the partition (`ReqNodeNotAvail` while the pool is empty), so such
    a job counts only if it is eligible."""
    return (
        job.state == "PENDING"
        and rules.partition in job.partitions
        and not job.reservation
        and (job.reason in COUNTING or (job.reason == "BeginTime" and job.restarts > 0))
        and (job.eligible or job.reason not in AT_SUBMISSION)
    )


# ---------------------------------------------------------------- where they fit


def _place(
    size: JobSize,
    rooms: list[Room],
    first: dict[JobSize, int],
    kinds: Sequence[NodeKind],
    rules: Rules,
) -> list[Room]:
    """Place one piece of a job on present nodes; if they are too few, also on nodes on their way or
    counted for earlier jobs; else also on new nodes. Return the rooms it is placed in. `first`
    caches, by size, the first room that was not yet found too small: rooms never grow."""
    if not size.most or size.least == 1:
        at = first.get(size, 0)
        while at < len(rooms) and _fitting(size, rooms[at], rules) < size.tasks:
            at += 1
        first[size] = at
        if at < len(rooms):
            _take(size, rooms[at], size.tasks, rules)
            return [rooms[at]]
    fitting = [(count, room) for room in rooms if (count := _fitting(size, room, rules))]
    chosen = _chosen(size, [one for one in fitting if one[1].kind is None]) or _chosen(
        size, fitting
    )
    if not chosen:
        for kind in kinds:
            each = _fitting(size, Room.of(kind, rules), rules)
            new = [
                (each, Room.of(kind, rules))
                for _ in range(_lacking_nodes(size, fitting, each) if each else 0)
            ]
            if chosen := _chosen(size, [*fitting, *new]):
                rooms += [room for _, room in new]
                break
    left = size.tasks
    for number, (count, room) in enumerate(chosen):
        share = max(1, min(count, left - (len(chosen) - number - 1)))
        left -= share
        _take(size, room, share, rules)
    return [room for _, room in chosen]


def _lacking_nodes(size: JobSize, fitting: Sequence[tuple[int, Room]], each: int) -> int:
    """Return how many further nodes, each with room for `each` tasks, a job needs in addition to
    the rooms that fit it."""
    if size.most:
        best = sorted((count for count, _ in fitting), reverse=True)
        for more in range(1, size.most + 1):
            each_takes = sorted([*best[: size.most], *[each] * more], reverse=True)[: size.most]
            if sum(each_takes) >= size.tasks and len(each_takes) >= size.least:
                return more
        return size.most
    if size.tasks <= each:
        return 1
    return ceil(max(1, size.tasks - sum(count for count, _ in fitting)) / each)


def _chosen(size: JobSize, fitting: Sequence[tuple[int, Room]]) -> list[tuple[int, Room]]:
    """Return the first rooms that suffice for the job; [] if all of them together do not."""
    least = size.least if size.most else 1
    chosen: list[tuple[int, Room]] = []
    held = 0
    for one in sorted(fitting, key=lambda one: -one[0]) if size.most else fitting:
        if (len(chosen) >= least and held >= size.tasks) or len(chosen) == (size.most or inf):
            break
        chosen.append(one)
        held += one[0]
    return chosen if len(chosen) >= least and held >= size.tasks else []


def _fitting(size: JobSize, room: Room, rules: Rules) -> int:
    """Return how many of the job's tasks fit into the room."""
    if room.cpus < size.node_cpus or (size.whole and room.used) or room.name in size.excluded:
        return 0
    if room.left < size.lasts:
        return 0
    if size.features and not matches(size.features, room.features):
        return 0
    each = ceil(size.cpus / size.tasks)
    count = room.cpus // each
    if size.tasks_per_node:
        count = min(count, size.tasks_per_node)
    if size.memory and room.memory < size.memory:
        return 0
    if size.cpu_memory:
        # a room whose memory is not known has infinitely much, which int() does not take
        count = min(count, int(min(room.memory, 2**40) // (size.cpu_memory * each)))
    elif rules.memory and not size.memory and room.memory < room.all_memory:
        return 0  # Slurm gives all of a node's memory to a job that does not say how much
    if any(room.gres.get(name, 0) < many for name, many in _gres(size.node_gres).items()):
        return 0
    for name, many in _gres(size.task_gres).items():
        count = min(count, room.gres.get(name, 0) // many if many else count)
    return count


def _take(size: JobSize, room: Room, share: int, rules: Rules) -> None:
    room.used = True
    each = ceil(size.cpus / size.tasks)
    cpus = max(size.node_cpus, share * each)
    room.cpus = 0 if size.whole else room.cpus - ceil(cpus / room.unit) * room.unit
    if rules.memory:
        used = size.memory or (size.cpu_memory or 0) * share * each
        room.memory = room.memory - used if used else 0
    for name, many in _gres(size.node_gres).items():
        room.gres[name] -= many
    for name, many in _gres(size.task_gres).items():
        room.gres[name] -= many * share


def _with_job_gres(size: JobSize, offered: Sequence[Room]) -> JobSize:
    """Return the size with its generic resources for the whole job divided among as few nodes as
    can have them."""
    for name, wanted in _gres(size.job_gres).items():
        most = max((room.gres.get(name, 0) for room in offered), default=0)
        if not wanted or not most:
            return replace(size, node_gres=size.job_gres)
        nodes = max(size.least if size.most else 1, ceil(wanted / most))
        share = f"{name}:{ceil(wanted / nodes)}"
        size = replace(
            size,
            least=nodes,
            most=max(size.most, nodes),
            tasks=max(size.tasks, nodes),
            cpus=max(size.cpus, nodes),
            node_gres=",".join(filter(None, (size.node_gres, share))),
        )
    return replace(size, job_gres="")


def _lacking(
    size: JobSize, offered: Sequence[Room], kinds: Sequence[NodeKind], rules: Rules
) -> str:
    """Return why no node of any nodeset could run the job; '' if one could."""
    reasons = []
    for kind, room in zip(kinds, offered, strict=True):
        why = _missing(size, room, rules)
        if not why:
            return ""
        reasons.append(f"nodeset {kind.nodeset.name}: {why}" if kind.nodeset.name else why)
    return "; ".join(reasons)


def _missing(size: JobSize, room: Room, rules: Rules) -> str:
    """Return what a node of a nodeset lacks for the job; '' if it lacks nothing."""
    if size.features and not matches(size.features, room.features):
        return (
            f"wants the features {size.features}, a node has"
            f" {','.join(sorted(room.features)) or 'none'}"
        )
    if size.memory and room.memory < size.memory:
        return f"wants {size.memory} MiB on a node, a node has {room.memory:.0f}"
    for name, wanted in (_gres(size.node_gres) | _gres(size.task_gres)).items():
        if room.gres.get(name, 0) < wanted:
            return f"wants {name}:{wanted} on a node, a node has {room.gres.get(name, 0)}"
    each = max(size.node_cpus, ceil(size.cpus / size.tasks))
    if room.cpus < each:
        return f"wants {each} CPUs on a node, a node has {room.cpus}"
    count = _fitting(size, room, rules)
    if not count:
        return (
            f"wants {size.cpu_memory} MiB for each CPU, a node has {room.memory:.0f} for"
            f" {room.cpus}"
        )
    if size.most and count * size.most < size.tasks:
        return f"wants {size.tasks} tasks on {size.most} nodes at most, a node takes {count}"
    return ""
