"""Nodes that the waiting jobs of a Grid Engine queue need, and the jobs that no node of the pool
can run. Pure.

The jobs need one node for each `jobs_per_node` jobs that have not started (tasks of arrays count
one by one); a parallel job counts as many nodes as its slots fill. Jobs do not count if they would
not start anyway (held, erroneous), or if they request something that no node of this pool's
template has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import ceil, inf

from cod.vcm.gridengine.view import Waiting, amount


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The resources of one node of the pool's template: complex values by name (as -l requests
    them), and its slots.

    whole             parallel environments whose jobs must fit on one host (allocation rule
                      $pe_slots)
    relops            the operator by which each complex value is compared with a request
                      (complex(5)); '<=' if it is not named
    queue, hostgroup  the names that -q may have
    most              slots of all hosts when the pool is at its maximum
    """

    slots: int
    values: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    relops: Mapping[str, str] = field(default_factory=dict)
    queue: str = "all.q"
    hostgroup: str = "@cod"
    most: float = inf


def wanted_nodes(waiting: Iterable[Waiting], offer: NodeOffer, jobs_per_node: int) -> int:
    """Return how many nodes the waiting jobs need."""
    single, parallel = 0, 0
    for job in waiting:
        if job.parallel:
            parallel += job.tasks * ceil(job.slots / offer.slots)
        else:
            single += job.tasks
    return ceil(single / jobs_per_node) + parallel


def sorted_out(
    waiting: Iterable[Waiting], offer: NodeOffer
) -> tuple[list[Waiting], tuple[str, ...]]:
    """Return the jobs that a further node could start, and a sentence for each of the others that
    says why not."""
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
    if job.parallel and job.slots > offer.most:
        return f"wants {job.slots} slots at once, there are {offer.most:.0f} at most"
    if job.queues and not any(_names(one, offer) for one in job.queues):
        return f"wants the queue {' or '.join(job.queues)}"
    for name, wanted in job.resources.items():
        if why := _missing(name, wanted, offer):
            return why
    return ""


def _names(queue: str, offer: NodeOffer) -> bool:
    """Return whether a new node can be in a queue that -q names: QUEUE, QUEUE@HOST or QUEUE@@GROUP,
    with patterns allowed in each part."""
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
    """Return whether a value meets a request. Grid Engine compares amounts (wanted RELOP have) and
    treats everything else as patterns (complex(5))."""
    one, other = amount(wanted), amount(have)
    if one is None or other is None:
        return any(fnmatchcase(have.lower(), part.lower()) for part in wanted.split("|"))
    return {
        "==": one == other,
        "!=": one != other,
        ">=": one >= other,
        ">": one > other,
        "<": one < other,
    }.get(relop, one <= other)
