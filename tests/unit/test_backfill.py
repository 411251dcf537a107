"""Nodes are held back for who has waited long: examples, what must hold of any site, and a stream
of requests."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import Phase

from cod.model import Energy, Policy, RequestTuple
from cod.policy.scheduler import allocate, backfill, leases, priority
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.available_nodes import AvailableNodes
from cod.policy.scheduler.explain import explain
from cod.policy.scheduler.plan import plan
from cod.policy.scheduler.snapshot import (
    PREEMPTIBLE,
    Allocation,
    Decision,
    FreeNodes,
    Hold,
    IncomingNodes,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    SiteSnapshot,
)
from cod.policy.scheduler.whatif import masked
from tests.unit import test_allocate_properties as properties
from tests.unit.policy_sites import (
    BIG,
    BIG_ONLY,
    NOW,
    POLICY,
    SMALL,
    carried_out,
    codes,
    free,
    granted,
    holder,
    kind,
    nodes_of,
    request,
    site,
)
from tests.unit.stream import Job, Stream, crowd

pytestmark = pytest.mark.slow

ONE, TWO, BIGS = kind(SMALL, 1), kind(SMALL, 2), kind(BIG, 1)
# the requests of the examples have waited long
PATIENT = replace(POLICY, hold_after=900.0, drain_grace=100.0)
LATE = 990.0  # submitted ten seconds ago


def decided(policy: Policy = PATIENT, **columns: Any) -> Decision:
    return decide(site(**columns), policy, NOW)


def contended(**columns: Any) -> dict[str, Any]:
    """A block of 6: one vcluster holds 4 of it for 500 s more. Request 1 wants all 6, request 2
    came late."""
    return {
        "free_nodes": [free(2, ONE)],
        "holders": [holder(1, 4, 4, expires_at=NOW + 500)],
        "allocations": [Allocation(1, ONE, 4, 0)],
        "requests": [request(1, 6), request(2, 1, submitted_at=LATE)],
        **columns,
    }


# ---------------------------------------------------------------- what is held


def test_what_is_free_is_held_for_who_has_waited_long() -> None:
    done = decided(**contended())
    assert done.holds == (Hold(1, ONE, 2, 0, 901.0, NOW + 600),)
    assert (granted(done), codes(done)) == ([], {1: "busy", 2: "busy"})
    assert (
        done.refusals[0].sentence
        == "waits: 6 nodes wanted, too few of the 6 matching are free; it has waited "
        "long, so what comes free is held for it"
    )


@pytest.mark.parametrize(
    "policy", [replace(PATIENT, hold_after=0.0), replace(PATIENT, hold_after=999.5)]
)
def test_before_that_and_without_the_rule_it_is_passed(policy: Policy) -> None:
    done = decided(policy, **contended())
    assert (granted(done), done.holds) == ([2], ())


def test_who_does_not_wait_holds_nothing() -> None:
    done = decided(
        **contended(requests=[request(1, 6, may_wait=False), request(2, 1, submitted_at=LATE)])
    )
    assert (granted(done), codes(done), done.holds) == ([2], {1: "now"}, ())


def test_nothing_is_held_for_what_one_vcluster_would_have_to_lose_twice() -> None:
    """Let a vcluster without a lease's end hold five in each of two blocks, of which it may lose
    five altogether."""
    seen: dict[str, Any] = {
        "free_nodes": [free(1, ONE), free(1, BIGS)],
        "holders": [holder(1, 10, 5)],
        "allocations": [Allocation(1, ONE, 5, 5), Allocation(1, BIGS, 5, 5)],
        "requests": [
            request(1, RequestTuple(6, "", 1), RequestTuple(6, BIG_ONLY, 1), priority=1),
            request(2, 1, submitted_at=LATE),
        ],
    }
    done = decided(**seen)
    assert (granted(done), codes(done), done.holds) == ([2], {1: "busy"}, ())
    # Where its lease ends, that is when all is there.
    held = decided(**{**seen, "holders": [holder(1, 10, 5, expires_at=NOW + 500)]}).holds
    assert [(one.kind, one.free, one.until) for one in held] == [
        (ONE, 1, NOW + 600),
        (BIGS, 1, NOW + 600),
    ]
    # Where it may lose all, it is taken at once.
    assert codes(decided(**{**seen, "holders": [holder(1, 10, 0)]}))[1] == "taking"


def test_no_more_than_it_is_short_of() -> None:
    """Reserve what a request is short of: of five free ones it lacks three, one is reserved, one is
    on its way."""
    seen = contended(
        free_nodes=[free(1, ONE, reserved=1), free(1, ONE)],
        coming=[IncomingNodes(ONE, 1)],
        holders=[holder(1, 3, 3, expires_at=NOW + 500)],
        allocations=[Allocation(1, ONE, 3, 0)],
    )
    assert [(one.free, one.coming) for one in decided(**seen).holds] == [(1, 1)]
    roomy = contended(
        free_nodes=[free(5, ONE)],
        requests=[request(1, 3, 3), request(2, 1, submitted_at=LATE)],
        holders=[holder(1, 1, 1, expires_at=NOW + 500)],
        allocations=[Allocation(1, ONE, 1, 0)],
    )
    assert [(one.free, one.coming) for one in decided(**roomy).holds] == [(5, 0)]


def test_the_rest_is_for_others() -> None:
    """Four nodes of the block come back by the time that the six are there."""
    seen = contended(
        free_nodes=[free(3, ONE), free(4, TWO)],
        site={SMALL: 11},
        requests=[request(1, 6), request(2, 4, submitted_at=LATE)],
    )
    done = decided(**seen)
    assert (granted(done), nodes_of(done, 2)) == ([2], {TWO: 4})
    assert [(one.kind, one.free) for one in done.holds] == [(ONE, 2)]


def test_higher_priority_sees_nothing_of_it() -> None:
    """Count what it gets as coming back, too, when its lease is over."""
    done = decided(
        **contended(
            requests=[request(1, 6), request(2, 1, priority=1, submitted_at=LATE, lease=700.0)]
        )
    )
    assert granted(done) == [2]
    assert [(one.free, one.until) for one in done.holds] == [(1, NOW + 800)]


def test_what_others_wait_for_comes_back_too() -> None:
    """One of higher priority takes two from a low one; with these, when its lease is over, the
    first can be served."""
    seen = site(
        free_nodes=[free(1, ONE)],
        requests=[
            request(1, 4, priority=1),
            request(2, 2, priority=2, lease=700.0),
            request(3, 1, submitted_at=LATE),
        ],
        holders=[
            holder(1, 1, 1, priority=2, expires_at=NOW + 50),
            holder(2, 2, 1, expires_at=NOW + 90),
        ],
        allocations=[Allocation(1, ONE, 1, 0), Allocation(2, ONE, 2, 1)],
    )
    done = decide(seen, PATIENT, NOW)
    assert [(one.request_id, one.count) for one in done.preemptions] == [(2, 1)]
    assert (granted(done), [(one.request_id, one.free, one.until) for one in done.holds]) == (
        [],
        [(1, 0, NOW + 800)],
    )
    unknown = replace(seen, requests=[replace(one, lease=float("inf")) for one in seen.requests])
    assert decide(unknown, PATIENT, NOW).holds == ()


@pytest.mark.parametrize(("lease", "until"), [(400.0, 600), (700.0, 800), (float("inf"), None)])
def test_what_is_being_taken_for_a_later_one_comes_back_too(
    lease: float, until: float | None
) -> None:
    """Hold for the first, which lacks six, beside two that are on their way to the second: one of
    them is free, and one is still to come."""
    done = decided(
        free_nodes=[free(1, ONE, reserved=2), free(1, ONE)],
        requests=[request(1, 7), request(2, 2, submitted_at=LATE, lease=lease)],
        holders=[holder(1, 4, 4, expires_at=NOW + 500), holder(2, 1, 0, -1, leaving=1)],
        allocations=[Allocation(1, ONE, 4, 0), Allocation(2, ONE, 1, 0)],
        reclaims=[OpenReclaim(7, 2, 2, ONE, 1, NOW + 50)],
    )
    assert [(one.request_id, one.free, one.until) for one in done.holds] == (
        [(1, 1, NOW + until)] if until is not None else []
    )


def test_what_preemptible_vclusters_lend_goes_to_peers_before_one_of_them_holds_it() -> None:
    """Have the second of two of one age take what it needs, where the first cannot be served, and
    go on doing so."""
    seen = site(
        free_nodes=[free(1, ONE)],
        requests=[request(1, 6), request(2, 3, lease=400.0)],
        holders=[holder(1, 3, 3, expires_at=NOW + 500), holder(2, 3, 0, PREEMPTIBLE)],
        allocations=[Allocation(1, ONE, 3, 0), Allocation(2, ONE, 3, 3, started=((0.0, 3),))],
    )
    patient = replace(PATIENT, age_step=600.0)
    done = decide(seen, patient, NOW)
    assert [(one.request_id, one.count) for one in done.preemptions] == [(2, 2)]
    assert [one.request_id for one in done.holds] == [1]
    again = decide(carried_out(seen, done, patient), patient, NOW)
    assert (again.preemptions, again.reductions) == ((), ())
    assert again.holds == done.holds


def test_lower_priority_does_not_get_it() -> None:
    assert granted(decided(**contended(requests=[request(1, 6, priority=1), request(2, 1)]))) == []


def test_where_it_can_be_served_first() -> None:
    """The other block's vcluster goes later, though more is free there."""
    seen = site(
        free_nodes=[free(1, ONE), free(3, TWO)],
        requests=[request(1, 5)],
        holders=[holder(1, 4, 4, expires_at=NOW + 50), holder(2, 3, 3, expires_at=NOW + 5000)],
        allocations=[Allocation(1, ONE, 4, 0), Allocation(2, TWO, 3, 0)],
    )
    assert [(one.kind, one.free, one.until) for one in decide(seen, PATIENT, NOW).holds] == [
        (ONE, 1, NOW + 150)
    ]
    even = replace(
        seen,
        holders={1: holder(1, 4, 4, expires_at=NOW + 50), 2: holder(2, 3, 3, expires_at=NOW + 50)},
    )
    assert [one.kind for one in decide(even, PATIENT, NOW).holds] == [TWO]


def test_each_tuple_where_it_can_be_served() -> None:
    seen = site(
        free_nodes=[free(1, ONE), free(1, BIGS)],
        requests=[request(1, 2, RequestTuple(2, BIG_ONLY, 1))],
        holders=[holder(1, 2, 2, expires_at=NOW + 50), holder(2, 1, 1, expires_at=NOW + 500)],
        allocations=[Allocation(1, ONE, 2, 0), Allocation(2, BIGS, 1, 0)],
    )
    assert [(one.kind, one.free, one.until) for one in decide(seen, PATIENT, NOW).holds] == [
        (ONE, 0, NOW + 600),  # both are back by then
        (BIGS, 1, NOW + 600),
    ]


def test_who_may_be_spread_holds_what_is_free_anywhere() -> None:
    seen = site(
        free_nodes=[free(1, ONE), free(2, TWO)],
        requests=[request(1, 7, may_spread=True)],
        holders=[holder(1, 3, 3, expires_at=NOW + 50), holder(2, 3, 3, expires_at=NOW + 5000)],
        allocations=[Allocation(1, ONE, 3, 0), Allocation(2, TWO, 3, 0)],
    )
    assert [(one.kind, one.free, one.until) for one in decide(seen, PATIENT, NOW).holds] == [
        (ONE, 1, NOW + 5100),
        (TWO, 0, NOW + 5100),  # three are back by then
    ]


def test_what_lower_priorities_can_lose_is_left_to_it() -> None:
    """Two equals hold the rest: the late one must not take from the third either what the first
    will need."""
    seen = site(
        free_nodes=[],
        requests=[request(1, 4, priority=2), request(2, 2, priority=2, submitted_at=LATE)],
        holders=[
            holder(1, 2, 2, priority=2, expires_at=NOW + 500),
            holder(2, 2, 0, expires_at=NOW + 9000),
        ],
        allocations=[Allocation(1, ONE, 2, 0), Allocation(2, ONE, 2, 2)],
    )
    done = decide(seen, PATIENT, NOW)
    assert (done.preemptions, [one.until for one in done.holds]) == ((), [NOW + 600])
    assert [(one.request_id, one.count) for one in decide(seen, POLICY, NOW).preemptions] == [
        (2, 2)
    ]


# ---------------------------------------------------------------- what is never held


def test_nothing_for_what_leases_do_not_bring() -> None:
    """A vcluster without an end holds what it would need."""
    done = decided(**contended(holders=[holder(1, 4, 4)]))
    assert (granted(done), done.holds) == ([2], ())


def test_nothing_where_its_own_nodes_are_in_the_way() -> None:
    grows = request(1, 6, vcluster_id=1, own={SMALL: 4})
    seen = contended(requests=[grows, request(2, 1, submitted_at=LATE)], site={SMALL: 12})
    assert (granted(decided(**seen)), decided(**seen).holds) == ([2], ())


def test_only_the_first_of_those_that_could_use_a_type_holds_any_of_it() -> None:
    seen = contended(
        free_nodes=[free(2, ONE), free(3, TWO), free(1, BIGS)],
        site={SMALL: 11, BIG: 4},
        requests=[
            request(1, 6),
            request(2, 5, submitted_at=20.0),
            request(3, RequestTuple(3, BIG_ONLY, 1), submitted_at=30.0),
        ],
        holders=[holder(1, 8, 8, expires_at=NOW + 500)],
        allocations=[Allocation(1, ONE, 4, 0), Allocation(1, TWO, 2, 0), Allocation(1, BIGS, 2, 0)],
    )
    assert [(one.request_id, one.kind) for one in decided(**seen).holds] == [(1, ONE), (3, BIGS)]


# ---------------------------------------------------------------- meanwhile


@pytest.mark.parametrize(("lease", "gets"), [(500.0, [2]), (501.0, []), (float("inf"), [])])
def test_who_is_done_before_it_can_be_served_uses_what_is_held(
    lease: float, gets: list[int]
) -> None:
    done = decided(
        **contended(requests=[request(1, 6), request(2, 1, submitted_at=LATE, lease=lease)])
    )
    assert granted(done) == gets
    assert [one.free for one in done.holds] == [2 - len(gets)]


def test_who_grows_is_done_when_its_lease_is() -> None:
    def gets(ends: float) -> list[int]:
        return granted(
            decided(
                **contended(
                    requests=[
                        request(1, 6),
                        request(2, 1, submitted_at=LATE, vcluster_id=2, lease=1.0),
                    ],
                    holders=[
                        holder(1, 4, 4, expires_at=NOW + 500),
                        holder(2, 1, 1, expires_at=ends),
                    ],
                )
            )
        )

    assert (gets(NOW + 500), gets(NOW + 501)) == ([2], [])


def test_what_is_left_of_it_is_held_on() -> None:
    """Lend both of two that are held, and then no more."""
    late = [request(number, 1, submitted_at=LATE + number, lease=100.0) for number in (2, 3, 4)]
    done = decided(**contended(requests=[request(1, 6), *late]))
    assert granted(done) == [2, 3]
    assert [one.free for one in done.holds] == [0]


# ---------------------------------------------------------------- who is told


def test_people_are_told() -> None:
    seen = site(**contended())
    assert explain(seen, PATIENT, NOW, 1).sentence.endswith(
        "2 nodes are held for it, for 1 min 39 s now; all that it wants is there in 10 min, as"
        " far as leases tell."
    )
    assert explain(seen, PATIENT, NOW, 2).sentence.endswith(
        "2 nodes are held for request 1, for 1 min 39 s now; all that request 1 wants is there in"
        " 10 min, as far as leases tell."
    )
    none = site(**contended(free_nodes=[], allocations=[Allocation(1, ONE, 6, 0)]))
    assert (
        "What comes free is held for it, for 1 min 39 s now; all that"
        in explain(none, PATIENT, NOW, 1).sentence
    )
    named = replace(seen, holders={**seen.holders, 1001: holder(1001, 0)})
    assert "held for v1001, for 1 min 39 s" in explain(named, PATIENT, NOW, 2).sentence
    assert (
        "held for a vcluster of another group, for"
        in explain(masked(named, {1001}), PATIENT, NOW, 2).sentence
    )


def test_a_plan_that_only_holds_is_nothing_to_do() -> None:
    seen = site(**contended())
    told = {refusal.request_id: refusal.sentence for refusal in decide(seen, PATIENT, NOW).refusals}
    seen = replace(
        seen,
        requests=[replace(one, reason=told[one.id]) for one in seen.requests],
        warned={1: 3600.0},
    )
    done = plan(seen, PATIENT, Energy(), NOW)
    assert done.holds
    assert not done


# ---------------------------------------------------------------- any site

SOME = replace(POLICY, hold_after=NOW - 15.0)  # about half of the requests have waited so long


def leased(seen: SiteSnapshot) -> SiteSnapshot:
    """Some of the requests have short leases."""
    return replace(
        seen,
        requests=[
            replace(one, lease=(50.0, 2e5, float("inf"))[one.id % 3]) for one in seen.requests
        ],
    )


def pressed(seen: SiteSnapshot) -> SiteSnapshot:
    """Return a site whose vclusters end; the requests are of one priority, some have waited long,
    some came late."""
    requests = [
        replace(one, priority=3, may_wait=True, submitted_at=25.0 * (one.id % 2))
        for one in leased(seen).requests
    ]
    ends = {
        key: replace(one, priority=3, expires_at=NOW + 500, drain_until=None)
        for key, one in seen.holders.items()
    }
    return replace(seen, requests=requests, holders=ends)


PRESSED = properties.CONTENDED.map(pressed)


def free_of(seen: SiteSnapshot, done: Decision) -> Counter[NodeKind]:
    """Unreserved free nodes that are neither granted nor kept."""
    left: Counter[NodeKind] = Counter()
    for one in seen.free_nodes:
        left[one.kind] += one.count * (not one.reserved)
    for free_, count in done.kept.items():
        left[free_.kind] -= count * (not free_.reserved)
    for grant in done.grants:
        for share in grant.shares:
            left[share.free_nodes.kind] -= share.count * (not share.free_nodes.reserved)
    return left


def never_more_is_held_than_is_short(seen: SiteSnapshot) -> None:
    """Nor more than there is; for those that may, and have waited long."""
    done = decide(seen, SOME, NOW)
    left, requests = free_of(seen, done), {one.id: one for one in seen.requests}
    held: Counter[tuple[int, NodeKind]] = Counter()
    for one in done.holds:
        assert one.free <= left[one.kind]
        assert one.coming <= sum(
            way.count for way in seen.coming if not way.reserved and way.kind == one.kind
        ) + sum(
            each.count
            for each in seen.allocations
            if each.kind == one.kind and leases.over(seen.holders[each.vcluster_id], NOW)
        )
        held[one.request_id, one.kind] += (
            one.free
            + one.coming
            + sum(
                part.count
                for part in chain[Any](seen.free_nodes, seen.coming)
                if (part.reserved, part.kind) == (one.request_id, one.kind)
                and one.free + one.coming
            )
        )
    for number in {one.request_id for one in done.holds}:
        kinds = [one.kind for one in done.holds if one.request_id == number]
        counts = [one.count for one in requests[number].tuples]
        assert any(
            all(
                held[number, one]
                <= sum(count for count, where in zip(counts, way, strict=True) if where == one)
                for one in kinds
            )
            for way in itertools.product(kinds, repeat=len(counts))
        ) or (
            requests[number].may_spread and sum(held[number, one] for one in kinds) <= sum(counts)
        )
        assert codes(done)[number] == "busy"
        assert requests[number].may_wait
        assert NOW - requests[number].submitted_at >= SOME.hold_after


def whoever_is_granted_has_all(seen: SiteSnapshot) -> None:
    wanted = {one.id: sum(each.count for each in one.tuples) for one in seen.requests}
    for grant in decide(seen, SOME, NOW).grants:
        assert sum(share.count for share in grant.shares) == wanted[grant.request_id]


def only_one_holds_of_a_type(seen: SiteSnapshot) -> None:
    done = decide(seen, SOME, NOW)
    who: dict[int, int] = {}
    assert all(
        who.setdefault(one.kind.type, one.request_id) == one.request_id for one in done.holds
    )


def nothing_is_held_in_vain(seen: SiteSnapshot) -> None:
    """When all leases that have an end are over, and nobody else asks, it is served, or takes the
    rest from others."""
    done = decide(seen, SOME, NOW)
    for number in {one.request_id for one in done.holds}:
        wanted = next(one for one in seen.requests if one.id == number)
        brief = {one.id for one in seen.requests if one.id != number and one.lease < float("inf")}
        after = replace(
            seen,
            requests=[wanted],
            reclaims=[one for one in seen.reclaims if one.request_id not in brief],
            free_nodes=[
                replace(one, reserved=0) if one.reserved in brief else one
                for one in seen.free_nodes
            ],
            coming=[
                replace(one, reserved=0) if one.reserved in brief else one for one in seen.coming
            ],
        )
        gone: Counter[tuple[int, NodeKind]] = Counter()
        for reclaim in seen.reclaims:
            gone[reclaim.vcluster_id, reclaim.kind] += reclaim.open * (reclaim.request_id in brief)
        for preempt in done.preemptions:
            gone[preempt.vcluster_id, preempt.kind] += preempt.count * (preempt.request_id in brief)
        ending = {
            one.id
            for one in seen.holders.values()
            if one.expires_at is not None or one.drain_until is not None
        }
        if wanted.vcluster_id in ending:
            continue  # its own nodes would be free, too
        rows: Counter[FreeNodes] = Counter()
        for free_ in after.free_nodes:
            rows[replace(free_, count=0)] += free_.count
        for one in seen.allocations:
            rows[free(0, one.kind)] += (
                one.count if one.vcluster_id in ending else gone[one.vcluster_id, one.kind]
            )
        then = decide(
            replace(
                after,
                free_nodes=[replace(one, count=count) for one, count in rows.items() if count],
                allocations=[one for one in seen.allocations if one.vcluster_id not in ending],
                reclaims=[one for one in after.reclaims if one.vcluster_id not in ending],
            ),
            POLICY,
            NOW,
        )
        assert codes(then).get(number) in (None, "coming", "taking")


def nobody_behind_keeps_what_is_held(seen: SiteSnapshot) -> None:
    """Give those behind who are not done in time only what is beyond the reservation."""
    done = decide(seen, SOME, NOW)
    rank = {one.id: (-one.priority, priority.age(one, SOME)) for one in seen.requests}
    requests = {one.id: one for one in seen.requests}
    for number in {one.request_id for one in done.holds}:
        first = decide(
            replace(seen, requests=[one for one in seen.requests if rank[one.id] <= rank[number]]),
            SOME,
            NOW,
        )
        left = free_of(seen, first)
        for hold in (one for one in first.holds if one.request_id == number):
            late = sum(
                share.count
                for grant in done.grants
                if rank[grant.request_id] > rank[number]
                for share in grant.shares
                if share.free_nodes.kind == hold.kind
                and not share.free_nodes.reserved
                and backfill.back(requests[grant.request_id], seen, SOME, NOW) > hold.until
            )
            assert late + hold.free <= left[hold.kind]


OWN: list[Callable[[SiteSnapshot], None]] = [
    never_more_is_held_than_is_short,
    whoever_is_granted_has_all,
    only_one_holds_of_a_type,
    nothing_is_held_in_vain,
    nobody_behind_keeps_what_is_held,
]


@pytest.mark.parametrize("check", OWN)
def test_it_holds(check: Callable[[SiteSnapshot], None]) -> None:
    properties.hold(check, properties.ANY.map(leased) | PRESSED, 40)


@pytest.mark.parametrize(
    ("check", "strategy"), properties.PROPERTIES, ids=list(properties.STRATEGIES)
)
def test_what_holds_of_all_plans_holds_of_these(
    check: Any, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(properties, "POLICY", SOME)
    properties.hold(check, strategy.map(leased), 20)


# ---------------------------------------------------------------- a stream of requests

HOUR = 3600.0


def stream(hold_after: float, seed: int, early: float = 1.0) -> tuple[Stream, list[int]]:
    """Two blocks of 8 with more small jobs than there is room for; two large ones among them, and
    which they are."""
    jobs = crowd(seed, 1.0, 16, [(4 * HOUR + 7, 7), (9 * HOUR + 7, 7)], early)
    order = sorted(jobs, key=lambda job: job.at)
    made = Stream([8, 8], jobs, Policy(hold_after=hold_after, drain_grace=0.0, age_step=60.0))
    return made, [number for number, job in enumerate(order, 1) if job.count == 7]


def ran(hold_after: float, seed: int, early: float = 1.0) -> dict[int, float]:
    """How long the large ones waited, those that were granted."""
    made, large = stream(hold_after, seed, early)
    for seen, done in made.run(20 * HOUR):
        assert Counter(one.id for one in seen.requests) == Counter(
            [*granted(done), *(refusal.request_id for refusal in done.refusals)]
        )
    return {one: made.waits[one] for one in large if one in made.waits}


@pytest.mark.parametrize(("seed", "early"), [(1, 1.0), (3, 0.3)])
def test_a_large_one_is_served_in_the_end(seed: int, early: float) -> None:
    """Within the longest lease of those that ran, after it has waited an hour; the second one after
    the first."""
    first, second = ran(HOUR, seed, early).values()
    assert first <= (1 + 2.6) * HOUR
    assert second <= (1 + 2.6 + 2 + 2.6) * HOUR


def test_without_the_rule_it_starves() -> None:
    assert ran(0.0, 1) == {}


def test_when_it_is_withdrawn_the_small_ones_get_all() -> None:
    made, large = stream(HOUR, 1)
    there = 0
    for _, done in made.run(12 * HOUR):
        if any(one.request_id == large[0] for one in done.holds) and not there:
            made.withdraw(large[0])
            there = len(made.waits)
        elif there:
            assert all(one.request_id != large[0] for one in done.holds)
            if len(made.waits) > there:
                return
    raise AssertionError("nothing was held, or nothing was given out after that")


def test_short_ones_run_meanwhile() -> None:
    """A block of 4 of which 3 are held for two hours: who wants one for an hour gets the fourth,
    who wants it for three does not; and the large one is served when the block is empty, not
    later."""
    jobs = [
        Job(30.0, 3, 2 * HOUR, 2 * HOUR),
        Job(100.0, 4, HOUR, HOUR),
        Job(900.0, 1, 3 * HOUR, 3 * HOUR),
        Job(1000.0, 1, HOUR, HOUR),
    ]
    made = Stream([4], jobs, Policy(hold_after=600.0, drain_grace=0.0, age_step=60.0))
    for _ in made.run(4 * HOUR):
        pass
    assert 4 in made.waits
    assert made.waits[4] < 120.0
    assert made.waits[2] == pytest.approx(2 * HOUR, abs=120.0)
    assert made.waits[3] > 3 * HOUR - 1000.0


# ---------------------------------------------------------------- planted faults


def _patched(
    owner: object, name: str, fault: Callable[[Any], Any]
) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, fault(getattr(owner, name)))


def _endless(returns: Any) -> Any:
    """Vclusters without an end are thought to have one."""

    def made(self: backfill.Backfill) -> Any:
        ends = {
            key: replace(one, expires_at=one.expires_at or NOW + 9)
            for key, one in self._snapshot.holders.items()
        }
        self._snapshot = replace(self._snapshot, holders=ends)
        return returns(self)

    return made


def _early(hold: Any) -> Any:
    def held(self: backfill.Backfill, want: Any) -> bool:
        wanted: PendingRequest = replace(want.request, submitted_at=0.0)
        return bool(hold(self, replace(want, request=wanted)))

    return held


def _one_more(hold: Any) -> Any:
    def held(*arguments: Any) -> tuple[int, int, int]:
        free, coming, short = hold(*arguments)
        return free, coming + 1, short

    return held


FAULTS: list[tuple[Callable[[SiteSnapshot], None], Callable[[pytest.MonkeyPatch], None]]] = [
    (never_more_is_held_than_is_short, _patched(AvailableNodes, "hold", _one_more)),
    (whoever_is_granted_has_all, _patched(AvailableNodes, "let", lambda _: lambda *_: None)),
    (never_more_is_held_than_is_short, _patched(backfill.Backfill, "hold", _early)),
    (
        only_one_holds_of_a_type,
        _patched(
            backfill.Backfill,
            "hold",
            lambda hold: lambda self, want: (hold(self, want), self._types.clear())[0],
        ),
    ),
    (nothing_is_held_in_vain, _patched(backfill.Backfill, "_returns", _endless)),
    (nobody_behind_keeps_what_is_held, _patched(allocate, "back", lambda _: lambda *_: 0.0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "plant"),
    FAULTS,
    ids=[f"{number}-{check.__name__}" for number, (check, _) in enumerate(FAULTS)],
)
def test_a_planted_fault_is_caught(
    check: Callable[[SiteSnapshot], None],
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    strategy = properties.ANY.map(leased) if check is nothing_is_held_in_vain else PRESSED
    with pytest.raises((AssertionError, KeyError)):
        properties.hold(
            check, strategy, 3000, phases=[Phase.generate], derandomize=True, database=None
        )
