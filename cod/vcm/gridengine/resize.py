"""When a Grid Engine pool grows, shrinks, and what it gives up: the paper's policy (section 6) with its knobs. Pure.

**Growing.** One new node for each `jobs_per_node` queued jobs that have not started (tasks of arrays count one by one);
a parallel job counts as many nodes as its slots fill. Not counted: jobs that would not start anyway (held, erroneous),
and jobs that no node of this pool's template could run. Idle nodes and nodes on their way are subtracted: a queue asks
once. What was asked for and is not needed any more is withdrawn.

**Shrinking.** Nodes idle for `idle_limit` go back, down to `reserve` idle ones and `minimum` in all. Not while jobs
wait that could use them, nor within `calm` seconds of growth or of the last such job: a burst must not thrash, nor jobs
that are over before the next look.

**Giving up.** For a reclaim: idle nodes first, the longest idle first of all; then the busy node whose last job started
last, which loses the least work.

Hosts that COD did not give (`View.hosts` that are no members) are never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import ceil

from cod.vcm.gridengine.view import Host, View, Waiting, amount


@dataclass(frozen=True, slots=True)
class ResizeRules:
    """The site's choice. Times in seconds.

    interval       between looks at the queue
    jobs_per_node  one new node for so many queued jobs
    idle_limit     a node idle for longer goes back
    reserve        idle nodes kept all the same
    minimum, maximum   nodes of the pool in all
    calm           no node goes back sooner than this after the pool has grown
    slots          of one node, where no host has told yet
    """

    interval: float = 15.0
    jobs_per_node: int = 1
    idle_limit: float = 300.0
    reserve: int = 0
    minimum: int = 0
    maximum: int = 64
    calm: float = 60.0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What one node of the pool's template offers: complex values by name (as -l asks for them) and its slots.

    whole   parallel environments whose jobs have to fit on one host (allocation rule $pe_slots)
    relops  how each complex value is compared with what is wanted (complex(5)); '<=' where it is not named
    queue, hostgroup   what -q may name
    """

    slots: int
    values: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    relops: Mapping[str, str] = field(default_factory=dict)
    queue: str = "all.q"
    hostgroup: str = "@cod"


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What to do: `grow` by so many nodes, or let `leave` go, and why. `excess`: so many of those that are coming are
    not needed any more. `waits`: are there jobs that nodes of ours could run? `never`: jobs that do not count, and why.
    """

    grow: int = 0
    leave: tuple[str, ...] = ()
    why: str = ""
    never: tuple[str, ...] = ()
    excess: int = 0
    waits: bool = False


def resize(
    view: View, members: Collection[str], coming: int, idle_since: Mapping[str, float], grown_at: float,
    offer: NodeOffer, rules: ResizeRules, now: float,
) -> PoolChange:
    """Return what the pool should do now.

    members     hosts that COD gave and that have joined
    coming      nodes asked for, or granted and not yet joined
    idle_since  when each idle member was first seen idle
    grown_at    when the pool last asked for nodes or got one, or jobs waited
    """
    can, never = _sorted_out(view.waiting, offer)
    idle = [name for name in members if is_idle(view.hosts.get(name))]
    size = len(members) + coming
    needed = max(0, wanted_nodes(can, offer, rules) - len(idle), rules.minimum - len(members),
                 rules.reserve - len(idle))
    grow = max(0, min(needed - coming, rules.maximum - size))
    if grow:
        return PoolChange(grow, why=f"{sum(job.tasks for job in can)} jobs wait, {len(idle)} nodes are idle, "
                                f"{coming} are coming", never=never, waits=bool(can))
    excess = max(0, coming - needed)
    if can or now < grown_at + rules.calm:
        return PoolChange(never=never, excess=excess, waits=bool(can))
    old = sorted((name for name in idle if idle_since.get(name, now) <= now - rules.idle_limit),
                 key=lambda name: (idle_since[name], name))
    spare = min(len(idle) - rules.reserve, len(members) - rules.minimum)
    leave = tuple(old[:max(0, spare)])
    return PoolChange(leave=leave, why=f"idle for {rules.idle_limit:.0f} s" if leave else "", never=never,
                      excess=excess)


def wanted_nodes(waiting: Iterable[Waiting], offer: NodeOffer, rules: ResizeRules) -> int:
    """Return how many nodes the waiting jobs are worth."""
    single, parallel = 0, 0
    for job in waiting:
        if job.parallel:
            parallel += job.tasks * ceil(job.slots / offer.slots)
        else:
            single += job.tasks
    return ceil(single / rules.jobs_per_node) + parallel


def victims(view: View, members: Iterable[str], idle_since: Mapping[str, float], count: int) -> list[str]:
    """Return the `count` members that cost least to give up, cheapest first; fewer if there are fewer."""

    def cost(name: str) -> tuple[bool, float, str]:
        host = view.hosts.get(name)
        if host is None or not host.running:
            return False, idle_since.get(name, float("inf")), name
        return True, -max(job.started for job in host.running), name

    return sorted(members, key=cost)[:max(0, count)]


def is_idle(host: Host | None) -> bool:
    """Return whether the host takes jobs, and has none."""
    return host is not None and host.usable and not host.used and not host.running


# ---------------------------------------------------------------- could a node of ours run it?


def _sorted_out(waiting: Iterable[Waiting], offer: NodeOffer) -> tuple[list[Waiting], tuple[str, ...]]:
    """Return the jobs that a node more could start, and for the others why not."""
    can, never = [], []
    for job in waiting:
        if not job.ready:
            continue
        why = lacking(job, offer)
        if why:
            never.append(f"job {job.job}: {why}")
        else:
            can.append(job)
    return can, tuple(never)


def lacking(job: Waiting, offer: NodeOffer) -> str:
    """Return why no node of this pool could run the job; '' if one could."""
    if job.parallel in offer.whole and job.slots > offer.slots:
        return f"wants {job.slots} slots on one host, a node has {offer.slots}"
    if job.queues and not any(_names(one, offer) for one in job.queues):
        return f"wants the queue {' or '.join(job.queues)}"
    for name, wanted in job.resources.items():
        if why := _missing(name, wanted, offer):
            return why
    return ""


def _names(queue: str, offer: NodeOffer) -> bool:
    """Return whether a new node may be in what -q names: QUEUE, QUEUE@HOST, QUEUE@@GROUP, each perhaps a pattern."""
    name, _, host = queue.partition("@")
    return fnmatchcase(offer.queue, name or "*") and (host in ("", "*") or host == offer.hostgroup)


def _missing(name: str, wanted: str, offer: NodeOffer) -> str:
    if name == "hostname":
        return "" if "*" in wanted else f"wants the host {wanted}, and a new node is another"
    have = offer.values.get(name)
    if have is None:
        return f"wants {name}={wanted}, which a node of this pool is not known to offer"
    if not _enough(wanted, have, offer.relops.get(name, "<=")):
        return f"wants {name}={wanted}, a node has {have}"
    return ""


def _enough(wanted: str, have: str, relop: str) -> bool:
    """Grid Engine compares amounts (wanted RELOP have) and takes everything else for patterns (complex(5))."""
    one, other = amount(wanted), amount(have)
    if one is None or other is None:
        return any(fnmatchcase(have.lower(), part.lower()) for part in wanted.split("|"))
    return {"==": one == other, "!=": one != other, ">=": one >= other, ">": one > other, "<": one < other}.get(
        relop, one <= other)
