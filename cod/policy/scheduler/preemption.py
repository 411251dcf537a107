"""From whom nodes may be taken, and who loses them first. Pure.

For contention nodes are taken from vclusters of strictly lower priority only, the lowest first; never nodes inside
their inertia, never below a vcluster's creation size, never from the vcluster that wants them. Of vclusters of one
priority the one that can spare most of a kind loses first, so that few are disturbed. A vcluster whose lease has run
out loses nothing to contention: its nodes come back anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from cod.policy.scheduler.leases import over
from cod.policy.scheduler.snapshot import Kind, Snapshot


class Loan(NamedTuple):
    """Nodes of `kind` that a vcluster is to lose."""

    vcluster_id: int
    kind: Kind
    nodes: int


class Candidates:
    """What vclusters can still lose; shrinks while it is taken."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        holders = {holder.id: holder for holder in snapshot.holders.values()
                   if holder.surplus and not over(holder, now)}
        self._surplus = {holder.id: holder.surplus for holder in holders.values()}
        self._priority = {holder.id: holder.priority for holder in holders.values()}
        self._mobile: dict[Kind, dict[int, int]] = defaultdict(dict)
        self._kinds: dict[int, set[Kind]] = defaultdict(set)
        for holding in snapshot.holdings:
            if holding.mobile and holding.vcluster_id in holders:
                own = self._mobile[holding.kind]
                own[holding.vcluster_id] = own.get(holding.vcluster_id, 0) + holding.mobile
                self._kinds[holding.vcluster_id].add(holding.kind)
        self._levels = sorted({self._priority[holder] for holder in self._kinds})
        self._most: dict[tuple[Kind, int], int] = {}

    def levels(self, below: int) -> list[int]:
        """Priorities lower than `below` that somebody has who can lose nodes, lowest first."""
        return [level for level in self._levels if level < below]

    def lends(self, vcluster_id: int, below: int) -> bool:
        """Can that vcluster itself lose nodes to requests of priority `below`?"""
        return vcluster_id in self._kinds and self._priority[vcluster_id] < below

    def most(self, kind: Kind, level: int, but: int) -> int:
        """How many nodes of `kind` all of priority `level` or lower can lose, except the vcluster `but`."""
        key = kind, level
        if key not in self._most:
            self._most[key] = sum(count for _, count in self._able(kind, level))
        return self._most[key] - (self.able(kind, but) if self.lends(but, level + 1) else 0)

    def lend(self, kind: Kind, count: int, level: int, but: int) -> list[Loan]:
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
        """What `lend` has found is taken."""
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

    def _able(self, kind: Kind, level: int) -> Iterable[tuple[int, int]]:
        return [(holder, min(mobile, self._surplus[holder])) for holder, mobile in self._mobile.get(kind, {}).items()
                if self._priority[holder] <= level]

    def able(self, kind: Kind, holder: int) -> int:
        """How many nodes of `kind` that vcluster can lose."""
        return min(self._mobile.get(kind, {}).get(holder, 0), self._surplus[holder])
