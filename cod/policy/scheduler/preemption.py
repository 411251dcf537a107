"""The rule that protects an owner's nodes, and the nodes that the planner may take by it. Pure.

The rule stands in `takeable`, and the part of it that concerns single nodes in `inertia`. The planner (`Candidates`),
the flows that carry a plan out (`core.preemption`), the simulator and the explanations for people all ask these two.
Of vclusters of one priority the one that can spare most of a kind loses first, so that few are disturbed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from cod.model import Node, Policy, Reclaim
from cod.policy.scheduler.leases import over
from cod.policy.scheduler.snapshot import Holder, NodeKind, Snapshot


def takeable(
    holder: Holder, mobile: int, priority: int, vcluster_id: int, now: float, *, open_: int = 0
) -> int:
    """Return how many of `mobile` nodes, which are outside their inertia, a request may take from `holder`.

    priority, vcluster_id   of the request
    open_   nodes of `holder.leaving` that leave for this request: a reclaim is carried out by the same rule

    A vcluster loses nodes only to requests of strictly higher priority of other vclusters, and never falls below its
    creation size. A vcluster whose lease has run out loses nothing more: its nodes come back anyway. A reclaim that
    was open before is carried out all the same.
    """
    if holder.id == vcluster_id or not outranks(priority, holder.priority):
        return 0
    return min(mobile, spare(holder, now, open_=open_))


def spare(holder: Holder, now: float, *, open_: int = 0) -> int:
    """Return how many nodes a vcluster may lose to any request; `open_` as in `takeable`."""
    if over(holder, now) and not open_:
        return 0
    return max(0, holder.held - holder.leaving + open_ - holder.floor)


def outranks(priority: int, other: int) -> bool:
    """Return whether a request of `priority` may take from a vcluster of priority `other`."""
    return other < priority


def inertia(priority: int, policy: Policy) -> float:
    """Return the seconds for which a newly assigned node stays with a holder of that priority, whoever wants it."""
    return policy.inertia_by_priority.get(priority, policy.inertia)


def assigned_by(policy: Policy, now: float) -> tuple[float, dict[int, float]]:
    """Return the latest assignment that no longer protects a node at `now`, and those that hold instead for holders of
    certain priorities."""
    return now - policy.inertia, {one: now - inertia(one, policy) for one in policy.inertia_by_priority}


def fits(reclaim: Reclaim, node: Node) -> bool:
    """Return whether the node is of the kind that is taken. Nodes of one type have equal attributes: what one
    satisfies, all do."""
    return (node.type_id == reclaim.type_id and node.block_id == reclaim.block_id
            and reclaim.subnet in ("", node.subnet or ""))


class Loan(NamedTuple):
    """Nodes of `kind` that a vcluster is to lose."""

    vcluster_id: int
    kind: NodeKind
    nodes: int


class Candidates:
    """What vclusters can still lose; shrinks while it is taken."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        able = {holder.id: spare(holder, now) for holder in snapshot.holders.values()}
        self._surplus = {holder: count for holder, count in able.items() if count}
        self._priority = {holder: snapshot.holders[holder].priority for holder in self._surplus}
        self._mobile: dict[NodeKind, dict[int, int]] = defaultdict(dict)
        self._kinds: dict[int, set[NodeKind]] = defaultdict(set)
        for holding in snapshot.holdings:
            if holding.mobile and holding.vcluster_id in self._surplus:
                own = self._mobile[holding.kind]
                own[holding.vcluster_id] = own.get(holding.vcluster_id, 0) + holding.mobile
                self._kinds[holding.vcluster_id].add(holding.kind)
        self._levels = sorted({self._priority[holder] for holder in self._kinds})
        self._most: dict[tuple[NodeKind, int], int] = {}

    def levels(self, below: int) -> list[int]:
        """Priorities lower than `below` that somebody has who can lose nodes, lowest first."""
        return [level for level in self._levels if outranks(below, level)]

    def lends(self, vcluster_id: int, below: int) -> bool:
        """Return whether that vcluster can lose nodes to requests of priority `below`."""
        return vcluster_id in self._kinds and outranks(below, self._priority[vcluster_id])

    def most(self, kind: NodeKind, level: int, but: int) -> int:
        """Return how many nodes of `kind` all of priority `level` or lower can lose, except the vcluster `but`."""
        key = kind, level
        if key not in self._most:
            self._most[key] = sum(count for _, count in self._able(kind, level))
        return self._most[key] - (self.able(kind, but) if self.lends(but, level + 1) else 0)

    def lend(self, kind: NodeKind, count: int, level: int, but: int) -> list[Loan]:
        """Take `count` nodes of `kind`; nothing where there are fewer."""
        if self.most(kind, level, but) < count:
            return []
        able = sorted((self._priority[holder], -most, holder) for holder, most in self._able(kind, level)
                      if holder != but)
        loans = []
        for _, most, holder in able:
            if count and most:
                loans.append(Loan(holder, kind, min(count, -most)))
                count -= loans[-1].nodes
        self.lose(loans)
        return loans

    def lose(self, loans: Iterable[Loan]) -> None:
        """Take what `lend` has found."""
        self._change(loans, -1)

    def give_back(self, loans: Iterable[Loan]) -> None:
        """Undo `lend`."""
        self._change(loans, 1)

    def _change(self, loans: Iterable[Loan], sign: int) -> None:
        for holder, kind, count in loans:
            self._mobile[kind][holder] += sign * count
            self._surplus[holder] += sign * count
            for other in self._kinds[holder]:
                for level in self._levels:
                    self._most.pop((other, level), None)

    def _able(self, kind: NodeKind, level: int) -> Iterable[tuple[int, int]]:
        return [(holder, min(mobile, self._surplus[holder])) for holder, mobile in self._mobile.get(kind, {}).items()
                if self._priority[holder] <= level]

    def able(self, kind: NodeKind, holder: int) -> int:
        """Return how many nodes of `kind` that vcluster can lose."""
        return min(self._mobile.get(kind, {}).get(holder, 0), self._surplus[holder])
