"""The resource manager's plan for a whole site: the actions of one pass. Pure: a snapshot and rules
in, a plan out.

`policy.scheduler.leases` decides about leases and reclaims that are due,
`policy.scheduler.allocate` which request gets which nodes, and `policy.scheduler.reserve_pool`
which free nodes are awake.
"""

from __future__ import annotations

from collections import Counter

from cod.model import Energy, Policy
from cod.policy.scheduler import leases
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.reserve_pool import power_changes
from cod.policy.scheduler.snapshot import OTHERS, FreeNodes, PassPlan, Sharing, SiteSnapshot


def sharing(snapshot: SiteSnapshot) -> Sharing:
    """Return the groups' shares of the site in `snapshot`. Each action of the plan is checked
    against them when it is applied."""
    apart = snapshot.apart
    shares = {
        (group_id, pool): share
        for group_id, one in snapshot.entitlements.items()
        for pool in (OTHERS, *one.apart)
        if (share := one.of(pool).share) is not None
    }
    parts = {request.id: request.parts for request in snapshot.requests if request.parts}
    return Sharing(shares, snapshot.site, apart, parts)


def plan(snapshot: SiteSnapshot, policy: Policy, energy: Energy, now: float) -> PassPlan:
    """Return the manager's actions for the site in `snapshot`, at `now` (seconds since the epoch).

    The plan has a waiting request only if its reason has changed. So planning again without a
    change gives an empty plan."""
    decision = decide(snapshot, policy, now)
    known_reasons = {request.id: request.reason for request in snapshot.requests}
    granted: Counter[FreeNodes] = Counter()
    for grant in decision.grants:
        for share in grant.shares:
            granted[share.free_nodes] += share.count
    return PassPlan(
        warnings=leases.warnings(snapshot, policy, now),
        drains=leases.drains(snapshot, now),
        expired=leases.expired(snapshot, now),
        deserted=tuple(sorted(snapshot.deserted)),
        overdue=leases.overdue(snapshot, now),
        grants=decision.grants,
        reductions=decision.reductions,
        preemptions=decision.preemptions,
        refusals=tuple(
            refusal
            for refusal in decision.refusals
            if refusal.final or refusal.sentence != known_reasons[refusal.request_id]
        ),
        power_changes=power_changes(snapshot, decision.kept, energy, granted),
        holds=decision.holds,
        reserved=decision.reserved,
        version=snapshot.version,
        sharing=sharing(snapshot),
        odd=tuple(
            (group_id, snapshot.turn if one.odd else None)
            for group_id, one in sorted(snapshot.entitlements.items())
            if one.odd != one.had_odd
        ),
    )
