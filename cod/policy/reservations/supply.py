"""Nodes that reservations in advance can count on: nodes without a holder, and nodes that will come
back or can be preempted. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from cod.model import Policy
from cod.policy.scheduler.leases import gone_at
from cod.policy.scheduler.preemption import (
    GroupHoldings,
    Victim,
    inertia,
    longest_grace,
    outranks,
    spare,
)
from cod.policy.scheduler.snapshot import (
    IncomingNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
    VclusterHolder,
)

SLACK = 20.0
"""Seconds by which the pass that preempts nodes for a reservation may be late: two periods."""


Totals = tuple[Sequence[float], Sequence[int]]
"""Times in order, and the number of nodes that have come before each of them and, at last, in all.
A calendar asks for the number at each of these times: adding up anew would be quadratic."""
_NONE: Totals = ((), (0,))


def _totals(rows: Iterable[tuple[float, int]]) -> Totals:
    times = sorted(rows)
    return [at for at, _ in times], [0, *accumulate(count for _, count in times)]


def _by(totals: Totals, time: float) -> int:
    """Return how many nodes have come by that time."""
    times, counts = totals
    return counts[bisect_right(times, time)]


class Supply:
    """The present and future nodes, by kind; `preempted` grows while reservations are placed.

    Nodes with usable switch ports are counted in two kinds: any port, and usable port. Only `own`,
    `own_free` and `taking` have each node once, in the kind that its request asks for.

    apart      whether nodes are distinguished by their ports
    free       unreserved nodes that are available now
    base       the same, plus unreserved nodes on their way
    returns    (time, vcluster, number) of nodes that return by themselves, in order; nodes that
               move count as their new vcluster's
    own        by request: nodes that are reserved, or being preempted, for it
    own_free   by request: of these, the nodes that are available now
    taking     by request: of these, the nodes that other vclusters still hold
    preempted  nodes that vclusters will lose for reservations
    """

    def __init__(self, snapshot: SiteSnapshot, policy: Policy, now: float) -> None:
        self._snapshot, self._policy, self._now = snapshot, policy, now
        self._group_nodes = GroupHoldings(snapshot, now)
        self._isolated = {request.id for request in snapshot.requests if request.isolated}
        self.apart = any(
            row.kind.port
            for rows in (snapshot.free_nodes, snapshot.coming, snapshot.allocations)
            for row in rows
        )
        self.free: Counter[NodeKind] = Counter()
        self.base: Counter[NodeKind] = Counter()
        self.own: dict[int, Counter[NodeKind]] = defaultdict(Counter)
        self.own_free: dict[int, Counter[NodeKind]] = defaultdict(Counter)
        self.taking: dict[int, Counter[NodeKind]] = defaultdict(Counter)
        self.returns: dict[NodeKind, list[tuple[float, int, int]]] = defaultdict(list)
        self.preempted: list[Victim] = []
        self._arrivals: dict[tuple[int, NodeKind], list[tuple[float, int]]] = defaultdict(list)
        self._holders: dict[NodeKind, list[VclusterHolder]] = defaultdict(list)
        self._mobile: Counter[tuple[int, NodeKind]] = Counter()
        self._preempted: dict[NodeKind, list[tuple[float, int]]] = defaultdict(list)
        self._lost: Counter[tuple[int, NodeKind] | int] = Counter()
        self._lost_of_group: Counter[tuple[int, int]] = Counter()
        self._count_free_and_coming()
        self._staying = self._count_staying(self._count_reclaimed())
        self._count_returns()
        self._back = {
            kind: _totals((at, count) for at, _, count in rows)
            for kind, rows in self.returns.items()
        }
        self._come = {key: _totals(rows) for key, rows in self._arrivals.items()}

    # ------------------------------------------------------------ counting

    def _own_kind(self, kind: NodeKind, request_id: int) -> NodeKind:
        """Return the kind under which a request counts its own nodes of `kind`."""
        return kind if request_id in self._isolated else kind.any_port

    def _possible(self, kind: NodeKind) -> tuple[NodeKind, ...]:
        """Return the kinds whose counts may include nodes that leave: which nodes is not known, so
        they may have usable ports."""
        return (kind.any_port, kind.usable) if self.apart else (kind.any_port,)

    def _count_free_and_coming(self) -> None:
        for free in self._snapshot.free_nodes:
            if one := free.reserved:
                self.own[one][self._own_kind(free.kind, one)] += free.count
                self.own_free[one][self._own_kind(free.kind, one)] += free.count
            else:
                for kind in free.kind.counted:
                    self.free[kind] += free.count
                    self.base[kind] += free.count
        for coming in self._snapshot.coming:
            one = coming.reserved
            at = expected(self._snapshot, coming, self._policy, self._now)
            for kind in (self._own_kind(coming.kind, one),) if one else coming.kind.counted:
                (self.own[one] if one else self.base)[kind] += coming.count
                self._arrivals[one, kind].append((at, coming.count))

    def _count_reclaimed(self) -> Counter[tuple[int, NodeKind]]:
        """Count nodes that are being reclaimed as those of their requests; return how many leave
        each vcluster."""
        leaving: Counter[tuple[int, NodeKind]] = Counter()
        for reclaim in self._snapshot.reclaims:
            one, kind = reclaim.request_id, self._own_kind(reclaim.kind, reclaim.request_id)
            self.own[one][kind] += reclaim.open
            self.taking[one][kind] += reclaim.open
            for each in self._possible(kind):
                leaving[reclaim.vcluster_id, each] += reclaim.open
            erasing = turnaround(self._snapshot, kind.type, self._policy)
            erased = max(reclaim.deadline, self._now) + erasing
            self._arrivals[one, kind].append((erased, reclaim.open))
        return leaving

    def _count_staying(
        self, leaving: Counter[tuple[int, NodeKind]]
    ) -> dict[tuple[int, NodeKind], int]:
        """Return how many nodes each vcluster holds, without those that leave."""
        held: Counter[tuple[int, NodeKind]] = Counter()
        for allocation in self._snapshot.allocations:
            for kind in allocation.kind.counted:
                held[allocation.vcluster_id, kind] += allocation.count
                self._mobile[allocation.vcluster_id, kind] += allocation.mobile
        return {key: max(0, count - leaving[key]) for key, count in held.items()}

    def _count_returns(self) -> None:
        holders = self._snapshot.holders
        for request in self._snapshot.requests:
            taker = holders.get(request.vcluster_id)
            if request.source_id is not None and taker is not None:
                for own_kind, count in self.own[request.id].items():
                    for kind in own_kind.counted:
                        self._comes_back(taker, kind, count)
        for (vcluster_id, kind), count in sorted(self._staying.items()):
            holder = holders.get(vcluster_id)
            if holder is not None and count:
                self._holders[kind].append(holder)
                self._comes_back(holder, kind, count)
        for times in self.returns.values():
            times.sort()

    def _comes_back(self, holder: VclusterHolder, kind: NodeKind, count: int) -> None:
        if (back := self._back_at(holder, kind)) is not None:
            self.returns[kind].append((back, holder.id, count))

    def _back_at(self, holder: VclusterHolder, kind: NodeKind) -> float | None:
        return back_at(holder, self._policy, turnaround(self._snapshot, kind.type, self._policy))

    # ------------------------------------------------------------ questions

    def available(self, kind: NodeKind, time: float, request_id: int = 0) -> int:
        """Return how many nodes are available at that time: free nodes, and nodes on their way that
        are expected by then. They are those reserved for the request; 0: unreserved nodes."""
        free = self.own_free[request_id] if request_id else self.free
        return free[kind] + _by(self._come.get((request_id, kind), _NONE), time)

    def arrivals(self, kind: NodeKind, request_id: int) -> list[float]:
        """Return when nodes on their way are expected: those reserved for the request, and
        unreserved ones."""
        return [at for one in (0, request_id) for at, _ in self._arrivals.get((one, kind), ())]

    def back(self, kind: NodeKind, time: float) -> int:
        """Return how many nodes will have come back by themselves by that time."""
        return _by(self._back.get(kind, _NONE), time)

    def later(self, kind: NodeKind, time: float) -> int:
        """Return how many nodes will have come back by themselves, or by preemptions for
        reservations, by that time."""
        return self.back(kind, time) + sum(
            count for at, count in self._preempted.get(kind, ()) if at <= time
        )

    def preemptible(
        self, kind: NodeKind, request: PendingRequest, start: float, short: float
    ) -> int:
        """Return how many nodes vclusters of lower priority can lose by `start`. `short`: the last
        time at which the kind has too few nodes; nodes that return by then are counted already."""
        return sum(
            self._able(holder, kind, request, start, short)
            for holder in self._holders.get(kind, ())
        )

    def preempt(
        self,
        wanted: Mapping[NodeKind, int],
        request: PendingRequest,
        start: float,
        short: Mapping[NodeKind, float],
    ) -> list[Victim]:
        """Preempt `wanted` nodes, or as many as possible, from the lowest priority first, and
        return them. `short`: see `preemptible`."""
        victims = []
        for kind, left in sorted(wanted.items()):
            for holder in sorted(
                self._holders.get(kind, ()), key=lambda one: (one.priority, one.id)
            ):
                if (part := min(left, self._able(holder, kind, request, start, short[kind]))) > 0:
                    victims.append(Victim(holder.id, kind, part))
                    self._lose(holder, kind, part, start)
                    left -= part
        self.preempted += victims
        return victims

    def _lose(self, holder: VclusterHolder, kind: NodeKind, count: int, start: float) -> None:
        """Count nodes that a vcluster loses to a reservation which starts at `start`."""
        for each in self._possible(kind):
            self._lost[holder.id, each] += count
        self._lost[holder.id] += count
        self._lost_of_group[holder.group_id, self._group_nodes.pool(kind.type)] += count
        for each in kind.counted:
            self._preempted[each].append((start, count))
        # preempted nodes do not come back a second time at the end of their lease
        if (back := self._back_at(holder, kind)) is not None:
            for each in self._possible(kind):
                self._preempted[each].append((back, -count))

    def _able(
        self,
        holder: VclusterHolder,
        kind: NodeKind,
        request: PendingRequest,
        start: float,
        short: float,
    ) -> int:
        back = self._back_at(holder, kind)
        due = start - lead(self._snapshot, kind.type, self._policy)
        if (
            not outranks(request.priority, holder.priority)
            or holder.id == request.vcluster_id
            or (back is not None and back <= short)  # counted among the nodes that come back
            or (holder.expires_at or math.inf) <= due + SLACK
        ):
            return 0  # a vcluster whose lease has ended loses no more nodes
        # three bounds: of the nodes of the kind, of the vcluster, and of its group
        own = holder.group_id, self._group_nodes.pool(kind.type)
        mobile = self._mobile[holder.id, kind]
        if self._now + inertia(holder.priority, self._policy) <= due:
            mobile = self._staying[holder.id, kind]  # the inertia of all present nodes is over then
        return max(
            0,
            min(
                mobile - self._lost[holder.id, kind],
                spare(holder, self._now) - self._lost[holder.id],
                self._group_nodes.beyond(*own).guarantee - self._lost_of_group[own],
            ),
        )


def turnaround(snapshot: SiteSnapshot, type_id: int, policy: Policy) -> float:
    """Return the seconds until a node of the type is free again after it is given back: the value
    learnt for the type, else the site's setting."""
    known = snapshot.types.get(type_id)
    return policy.turnaround if known is None or known.turnaround is None else known.turnaround


def expected(snapshot: SiteSnapshot, coming: IncomingNodes, policy: Policy, now: float) -> float:
    """Return when nodes on their way are free: one turnaround after they entered their state. If
    that time is unknown or over, return one turnaround from now, because such nodes are retried."""
    whole = turnaround(snapshot, coming.kind.type, policy)
    at = now if coming.since is None else coming.since
    return at + whole if at + whole > now else now + whole


def lead(snapshot: SiteSnapshot, type_id: int, policy: Policy) -> float:
    """Return how many seconds before a start nodes of a type must be preempted."""
    return longest_grace(policy) + turnaround(snapshot, type_id, policy)


def back_at(holder: VclusterHolder, policy: Policy, erasing: float) -> float | None:
    """Return when the nodes of a vcluster are free again after `erasing` seconds, if its lease is
    not extended. None: its lease has no end."""
    gone = gone_at(holder, policy)
    return None if gone == math.inf else gone + erasing
