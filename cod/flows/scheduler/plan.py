"""The resource manager's pass, up to the plan: `core.snapshot` reads, `decide` plans with no
transaction open.

`flows.scheduler.apply_plan` cuts the plan into short transactions. `preview` shows people what a
pass would do, and `flows.scheduler.explain` why a request waits. Both use the same snapshot and the
same policy, so no decision is made in two places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from cod.core import snapshot as core_snapshot
from cod.core.nodes import stories
from cod.model import Energy, Policy, Site
from cod.policy.nodes import energy_accounting
from cod.policy.reservations import forecast, supply
from cod.policy.scheduler import plan as policy
from cod.policy.scheduler import reasons
from cod.policy.scheduler.snapshot import (
    WARM,
    FreeNodes,
    NodeKind,
    PassPlan,
    RequestRefusal,
    SiteSnapshot,
)
from cod.policy.sharing import turns
from cod.quantity import span
from cod.store.engine import Tx
from cod.store.nodes import blocks
from cod.store.scheduler import pass_rows, vclusters

look = core_snapshot.look
snapshot = core_snapshot.snapshot
Observed = core_snapshot.Observed
pulse = pass_rows.pulse


def decide(seen: SiteSnapshot, site: Site, now: float, aside: Collection[int] = ()) -> PassPlan:
    """Return the plan for the snapshot `seen` without the requests `aside`. No transaction is open.
    Reclaims for the requests `aside` go on as planned before."""
    planned = policy.plan(without(seen, aside), site.policy, site.energy, now)
    return replace(planned, sharing=policy.sharing(seen)) if aside else planned


def without(seen: SiteSnapshot, request_ids: Collection[int]) -> SiteSnapshot:
    """Return the snapshot without those requests."""
    if not request_ids:
        return seen
    return replace(
        seen, requests=[request for request in seen.requests if request.id not in request_ids]
    )


def due(seen: SiteSnapshot, site: Site, now: float) -> float:
    """Return when time alone may next give a pass something to do; infinity when it never will.

    Idle nodes do not count: it does no harm if some are put to sleep a few seconds later.
    """
    ends = [reclaim.deadline for reclaim in seen.reclaims]
    for holder in seen.holders.values():
        if holder.drain_until is not None:
            ends.append(holder.drain_until)
        elif holder.expires_at is not None:
            ends += [
                holder.expires_at,
                *(holder.expires_at - ahead for ahead in site.policy.lease_warnings),
            ]
    ends += [request.submitted_at + site.policy.hold_after for request in seen.requests]
    leads = {supply.lead(seen, one, site.policy) for one in seen.types}
    for request in forecast.reserved(seen):
        start = request.starts_at or now
        ends += [start, start + reasons.PUNCTUAL]
        ends += [start - ahead for ahead in leads]
    if any(forecast.late(request, now) for request in seen.requests):
        ends += [supply.expected(seen, coming, site.policy, now) for coming in seen.coming]
    if seen.requests:
        ends += [one.immune_until for one in seen.allocations if one.immune_until is not None]
        if any(one.share is not None for one in seen.entitlements.values()):
            ends.append(turns.ends(site.policy, now))
        if any(one.used_up for one in seen.entitlements.values()):
            ends.append(energy_accounting.month_end(now))
    return min((end for end in ends if end > now), default=float("inf"))


@dataclass(frozen=True, slots=True)
class NoChange:
    """A pass that found nothing to do. Until `until`, another pass need not plan if its snapshot
    and its rules are the same."""

    seen: SiteSnapshot
    policy: Policy
    energy: Energy
    until: float

    def lasts(self, seen: SiteSnapshot, site: Site, now: float) -> bool:
        """Return whether there is still nothing to do."""
        return now < self.until and (site.policy, site.energy, seen) == (
            self.policy,
            self.energy,
            self.seen,
        )


def still(seen: SiteSnapshot, site: Site, now: float) -> NoChange:
    """Return a record that the plan for `seen` at `now` was empty. Without other changes, the plan
    stays empty until the time that `due` returns."""
    return NoChange(seen, site.policy, site.energy, due(seen, site, now))


# ---------------------------------------------------------------- for people


@dataclass(frozen=True, slots=True)
class Planned:
    """One thing that the next pass would do, with names in place of ids.

    kind        'warn', 'drain', 'expire', 'end', 'seize', 'grant', 'ease', 'take', 'hold',
                'reserve', 'reject', 'wait', 'wake' or 'sleep'
    vcluster    the vcluster that it concerns: for 'take', 'ease' and 'seize' the one that loses
                nodes; '' for 'wake' and 'sleep'
    request_id  the request for which it is done; None: no request
    nodes       number of nodes
    type, block, subnet  of these nodes; '' if they do not matter
    about       a sentence that explains it
    """

    kind: str
    vcluster: str = ""
    request_id: int | None = None
    nodes: int = 0
    type: str = ""
    block: str = ""
    subnet: str = ""
    about: str = ""


def preview(tx: Tx, *, site: Site, now: float) -> list[Planned]:
    """Return what a pass at `now` would do, in order, without doing it. A grant of several kinds of
    nodes is several lines.

    The list has all requests that would go on waiting, also those that say why already. While the
    site is held, all wait.
    """
    seen = snapshot(tx, site, now)
    seen = replace(seen, requests=[replace(request, reason="") for request in seen.requests])
    if held := stories.site_held(tx):
        planned = PassPlan(
            refusals=tuple(RequestRefusal(one.id, "busy", held) for one in seen.requests)
        )
    else:
        planned = decide(seen, site, now)
    return list(_Names(tx, seen, now).lines(planned))


class _Names:
    """Puts names in place of a plan's ids."""

    def __init__(self, tx: Tx, seen: SiteSnapshot, now: float) -> None:
        self._now = now
        self._types = {each.id: each.name for each in seen.types.values()}
        self._blocks = blocks.names(tx)
        self._vclusters = {each.id: each.name for each in vclusters.every(tx)}
        self._of: dict[int | None, str] = {
            request.id: self._vclusters[request.vcluster_id] for request in seen.requests
        }
        self._reclaims = {reclaim.id: reclaim for reclaim in seen.reclaims}
        self._held = {each.id: each.held for each in seen.holders.values()}

    def lines(self, plan: PassPlan) -> Iterator[Planned]:
        """Yield the plan, line by line, in the order of `flows.scheduler.apply_plan.acts`."""
        yield from self._leases(plan)
        for grant in plan.grants:
            for share in grant.shares:
                free = share.free_nodes
                yield self._line(
                    "grant", free.kind, share.count, grant.request_id, _readiness(free)
                )
        left = {ease.reclaim_id: ease.left for ease in plan.reductions}
        for ease in plan.reductions:
            yield self._of_reclaim("ease", ease.reclaim_id, ease.count, "no longer needed")
        for one in plan.overdue:
            if count := left.get(one, self._reclaims[one].open):
                about = "not given back by the deadline of the reclaim"
                yield self._of_reclaim("seize", one, count, about)
        for preempt in plan.preemptions:
            about = f"for vcluster {self._of[preempt.request_id]}, which goes first"
            yield self._line(
                "take",
                preempt.kind,
                preempt.count,
                preempt.request_id,
                about,
                loser=preempt.vcluster_id,
            )
        for hold in (one for one in plan.holds if one.free + one.coming):
            named = {hold.request_id: f"request {hold.request_id}"}
            about = next(reasons.of_holds([hold], named, self._now))
            yield self._line("hold", hold.kind, hold.free + hold.coming, hold.request_id, about)
        for part in plan.reserved:
            about = f"reserved from {reasons.at(part.start)} on; lent to leases that end before"
            yield self._line("reserve", part.kind, part.count, part.request_id, about)
        for refusal in plan.refusals:
            yield Planned(
                "reject" if refusal.final else "wait",
                self._of[refusal.request_id],
                refusal.request_id,
                about=refusal.sentence,
            )
        for change in plan.power_changes:
            name = "sleep" if change.sleep else "wake"
            yield self._line(name, change.free_nodes.kind, change.count, None, change.why)

    def _leases(self, plan: PassPlan) -> Iterator[Planned]:
        for one, seconds in plan.warnings:
            yield self._of_lease("warn", one, f"its lease ends within {span(seconds)}")
        for one in plan.drains:
            yield self._of_lease("drain", one, "its lease has run out")
        for one in plan.expired:
            yield self._of_lease(
                "expire", one, "the grace after its lease is over: its nodes are taken back"
            )
        for one in plan.deserted:
            yield self._of_lease("end", one, "its last node is back")

    def _of_lease(self, kind: str, one: int, about: str) -> Planned:
        return Planned(kind, self._vclusters[one], nodes=self._held.get(one, 0), about=about)

    def _of_reclaim(self, name: str, reclaim_id: int, count: int, about: str) -> Planned:
        one = self._reclaims[reclaim_id]
        return self._line(name, one.kind, count, one.request_id, about, loser=one.vcluster_id)

    def _line(
        self,
        name: str,
        kind: NodeKind,
        count: int,
        request_id: int | None,
        about: str,
        *,
        loser: int | None = None,
    ) -> Planned:
        """Return a line about nodes. It names the vcluster `loser` that loses them, if any, else
        the one that requests them."""
        return Planned(
            kind=name,
            vcluster=self._vclusters[loser] if loser else self._of.get(request_id, ""),
            request_id=request_id,
            nodes=count,
            type=self._types[kind.type],
            block=self._blocks.get(kind.block, ""),
            subnet=kind.subnet,
            about=about,
        )


def _readiness(free: FreeNodes) -> str:
    ready = "awake" if free.readiness == WARM else "asleep: to be woken"
    return f"{ready}, with cached software" if free.cache else ready
