"""Growing and shrinking a batch pool, and choosing the nodes it gives up: the policy of the paper's
section 6, with settings. Pure.

**Growing.** The pool grows by the nodes that the waiting jobs need (`Wants`), up to `maximum`.
Nodes on their way are subtracted, so that a queue causes one request. Requests that are no longer
needed are withdrawn.

**Shrinking.** Nodes idle for `idle_limit` are released, except for `reserve` idle ones and
`minimum` in all. None is released while a job waits that could start there, or within `calm`
seconds of growth or of the last such job: neither a burst of jobs nor jobs that end before the next
look must cause thrashing. Nodes older than `lifetime` leave when their jobs have ended.

**Parking.** With `park`, up to `park_maximum` nodes that would be released stay booted for that
time. They take jobs as before. They leave when a waiting job needs a node of another kind and
`maximum` has no room for it, when a request of any vcluster needs them (`Demand.parked`), or when
COD reclaims nodes.

**Giving up.** A reclaim takes idle nodes first: of these, nodes that the batch system's scheduler
has not planned for a job come first, the longest idle before others. Then comes the node whose last
job started last, which loses the least work. If a job runs on several nodes, its work is lost with
the first of them, so the others follow.

Hosts that COD did not give are never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cod.vcm.batch.settings import BatchTable
from cod.vcm.batch.system import Host, Wants
from cod.vcm.pool import Nodeset


@dataclass(frozen=True, slots=True)
class PoolChange:
    """The changes of a batch pool.

    grow      nodes to request, by nodeset
    leave     host names of nodes to release
    withdraw  requested nodes that are no longer needed, by nodeset
    why       the reason, for the log
    parked    host names of nodes that stay booted until a request needs them
    """

    grow: Mapping[Nodeset, int] = field(default_factory=dict)
    leave: tuple[str, ...] = ()
    withdraw: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    parked: tuple[str, ...] = ()


def resize(
    size: int,
    going: int,
    coming: Counter[str],
    wants: Wants,
    idle_since: Mapping[str, float],
    wanted_at: Mapping[str, float],
    rules: BatchTable,
    now: float,
) -> PoolChange:
    """Return the changes that the pool should make now.

    size        joined hosts that COD gave, without those that leave
    going       hosts that leave, perhaps only when their work has ended
    coming      nodes requested, or granted and not yet joined
    idle_since  by idle host: since when it is known to be idle
    wanted_at   by host: when a job that could start there last waited, or when the pool last grew
    """
    idle, idle_limit = len(idle_since), rules.idle_limit + rules.park
    needed = Counter(wants.nodes)
    needed[wants.spare] += max(0, max(rules.minimum - size, rules.reserve - idle) - needed.total())
    named = Counter({nodeset.name: count for nodeset, count in needed.items()})
    room = rules.maximum - size - going - coming.total()
    grow = Counter[Nodeset]()
    for nodeset, count in needed.items():
        more = max(0, min(count - coming[nodeset.name], room))
        grow[nodeset] = more
        room -= more
    withdraw = {name: count - named[name] for name, count in coming.items() if count > named[name]}
    old = sorted(
        (
            name
            for name, since in idle_since.items()
            if since <= now - rules.idle_limit
            and wanted_at.get(name, 0.0) <= now - rules.calm
            and name not in wants.kept
        ),
        key=lambda name: (idle_since[name], name),
    )
    going_back = old[: max(0, min(idle - rules.reserve, size - rules.minimum))]
    # of the nodes to release, those that have been idle for the shortest time are parked, the
    # longest idle of these first
    recent = [name for name in going_back if now < idle_since[name] + idle_limit]
    parked = tuple(recent[max(0, len(recent) - rules.park_maximum) :])
    short = sum(max(0, count - coming[nodeset.name]) for nodeset, count in needed.items())
    room_for, parked = parked[: short - grow.total()], parked[short - grow.total() :]
    if +grow:
        why = f"{wants.jobs} jobs wait, {idle} nodes are idle, {coming.total()} are coming"
        return PoolChange(+grow, room_for, withdraw, why, parked)
    leave = tuple(name for name in going_back if name not in parked)
    why = "parked, and other nodes are needed" if room_for else f"idle for {idle_limit:.0f} s"
    return PoolChange({}, leave, withdraw, why if leave else "", parked)


def victims(
    hosts: Mapping[str, Host], members: Iterable[str], idle_since: Mapping[str, float], count: int
) -> list[str]:
    """Return the `count` members that cost least to give up, the cheapest first; all members if
    there are fewer."""
    left, chosen, lost = list(members), list[str](), set[str]()

    def cost(name: str) -> tuple[bool, bool, bool, float, str]:
        jobs, planned = (hosts[name].jobs, hosts[name].planned) if name in hosts else ((), False)
        still = [job.started for job in jobs if job.id not in lost]
        if not still:
            return False, not jobs, planned, idle_since.get(name, float("inf")), name
        return True, False, False, -max(still), name

    while left and len(chosen) < count:
        name = min(left, key=cost)
        left.remove(name)
        chosen.append(name)
        lost |= {job.id for job in hosts[name].jobs} if name in hosts else set()
    return chosen
