"""Requests for isolated vclusters get nodes with usable switch ports only; other requests do not
care."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.explain import explain
from cod.policy.scheduler.snapshot import (
    COLD,
    UNUSABLE,
    USABLE,
    WARM,
    Allocation,
    Decision,
    NodeKind,
    OpenReclaim,
    PendingRequest,
    Preempt,
    SiteSnapshot,
)
from tests.unit.policy_sites import (
    NOW,
    POLICY,
    SMALL,
    codes,
    free,
    granted,
    holder,
    request,
    shuffled,
    site,
    snapshots,
)

WITH, WITHOUT = NodeKind(SMALL, 1, "", USABLE), NodeKind(SMALL, 1, "", UNUSABLE)


def isolated(number: int, count: int, **columns: Any) -> PendingRequest:
    """A request of an isolated vcluster."""
    return request(number, count, isolated=True, **columns)


def ports(done: Decision) -> dict[int, Counter[str]]:
    """How many nodes with which ports a request was granted."""
    found: dict[int, Counter[str]] = {}
    for grant in done.grants:
        found[grant.request_id] = Counter()
        for share in grant.shares:
            found[grant.request_id][share.free_nodes.kind.port] += share.count
    return found


def test_an_isolated_vcluster_gets_nodes_with_usable_ports_only() -> None:
    seen = site(free_nodes=[free(2, WITHOUT), free(2, WITH, COLD)], requests=[isolated(1, 2)])
    assert ports(decide(seen, POLICY, NOW)) == {1: {USABLE: 2}}


def test_others_have_all_nodes_of_a_block_and_leave_those_with_usable_ports_for_last() -> None:
    seen = site(
        free_nodes=[free(2, WITH), free(2, WITHOUT, COLD)], requests=[request(1, 3), isolated(2, 1)]
    )
    assert ports(decide(seen, POLICY, NOW)) == {1: {UNUSABLE: 2, USABLE: 1}, 2: {USABLE: 1}}


@pytest.mark.parametrize("submitted", [(1.0, 100.0), (100.0, 1.0), (1.0, 1.0)])
def test_nodes_with_usable_ports_are_not_given_twice(submitted: tuple[float, float]) -> None:
    seen = site(
        free_nodes=[free(3, WITH), free(1, WITHOUT)],
        requests=[
            request(1, 2, submitted_at=submitted[0]),
            isolated(2, 2, submitted_at=submitted[1]),
        ],
    )
    assert ports(decide(seen, POLICY, NOW)) == {1: {UNUSABLE: 1, USABLE: 1}, 2: {USABLE: 2}}


def test_a_request_waits_for_ports_and_says_how_many_nodes_are_left_out() -> None:
    seen = site(
        free_nodes=[free(9, WITHOUT), free(3, WITH)],
        requests=[isolated(1, 4), isolated(2, 13), isolated(3, 4, may_wait=False)],
    )
    done = decide(seen, POLICY, NOW)
    assert codes(done) == {1: "ports", 2: "impossible", 3: "now"}
    said = {refusal.request_id: refusal.sentence for refusal in done.refusals}
    assert (
        said[1]
        == "waits: 4 nodes wanted, 12 nodes match; 9 of them have no usable switch port, and the"
        " vcluster is isolated"
    )
    why = explain(seen, POLICY, NOW, 1)
    assert (why.code, why.fitting, why.portless, why.free) == ("ports", 3, 9, 3)
    assert why.sentence.count("9 of them have no usable switch port") == 1


def test_the_explanation_of_one_that_waits_for_others_says_so_too() -> None:
    seen = site(
        free_nodes=[free(1, WITHOUT)],
        holders=[holder(1, 3)],
        allocations=[Allocation(1, WITH, 3, 0)],
        requests=[isolated(1, 2)],
    )
    why = explain(seen, POLICY, NOW, 1)
    assert (why.code, why.fitting, why.portless, why.free) == ("busy", 3, 1, 0)
    assert (
        "4 nodes match; 1 of them has no usable switch port, and the vcluster is isolated."
        in why.sentence
    )


def test_only_nodes_with_usable_ports_are_taken_for_it() -> None:
    held = [Allocation(1, WITHOUT, 4, 4), Allocation(2, WITH, 1, 1), Allocation(1, WITH, 1, 1)]
    seen = site(
        holders=[holder(1, 5), holder(2, 1, priority=1)],
        allocations=held,
        requests=[isolated(1, 2, priority=2)],
    )
    assert set(decide(seen, POLICY, NOW).preemptions) == {
        Preempt(1, 1, WITH, 1),
        Preempt(1, 2, WITH, 1),
    }
    assert codes(decide(replace(seen, requests=[isolated(1, 3, priority=2)]), POLICY, NOW)) == {
        1: "ports"
    }


def test_what_is_taken_for_it_is_not_taken_twice() -> None:
    seen = site(
        holders=[holder(1, 4, leaving=2)],
        allocations=[Allocation(1, WITH, 4, 2)],
        requests=[isolated(1, 2, priority=2)],
        reclaims=[OpenReclaim(1, 1, 1, WITH, 2, NOW + 9)],
    )
    done = decide(seen, POLICY, NOW)
    assert (done.preemptions, done.reductions, codes(done)) == ((), (), {1: "taking"})


def test_it_holds_back_nodes_with_usable_ports_only() -> None:
    rules = replace(POLICY, hold_after=100.0)
    seen = site(
        free_nodes=[free(2, WITH), free(2, WITHOUT)],
        holders=[holder(1, 2, expires_at=NOW + 50)],
        allocations=[Allocation(1, WITH, 2, 0)],
        requests=[isolated(1, 3), request(2, 3), request(3, 2)],
    )
    done = decide(seen, rules, NOW)
    assert [(one.kind, one.free) for one in done.holds] == [(WITH, 1)], "two come back in time"
    assert ports(done) == {3: {UNUSABLE: 2}}


# ---------------------------------------------------------------- any site


def split(rows: Iterable[Any], usable: Iterable[int]) -> list[Any]:
    """Part rows: so many nodes of each have usable ports, and the rest have none."""
    found = []
    for row, part in zip(rows, usable, strict=True):
        counts = {USABLE: min(part, row.count), UNUSABLE: max(row.count - part, 0)}
        mobile = getattr(row, "mobile", 0)
        for port, count in counts.items():
            own = {"mobile": min(mobile, count)} if isinstance(row, Allocation) else {}
            mobile -= own.get("mobile", 0)
            if count:
                found.append(replace(row, kind=row.kind._replace(port=port), count=count, **own))
    return found


@st.composite
def parted(draw: st.DrawFn, most: int = 4) -> tuple[SiteSnapshot, SiteSnapshot]:
    """A site, and the same with its nodes told apart by their ports."""
    seen = draw(snapshots())
    rows = {
        name: split(getattr(seen, name), [draw(st.integers(0, most)) for _ in getattr(seen, name)])
        for name in ("free_nodes", "coming", "allocations")
    }
    return seen, replace(seen, **rows)


def outcome(done: Decision) -> tuple[object, ...]:
    """What a decision says, whatever ports nodes have."""
    takes: Counter[tuple[int, int, NodeKind]] = Counter()
    for one in done.preemptions:
        takes[one.request_id, one.vcluster_id, one.kind.any_port] += one.count
    return granted(done), codes(done), takes, set(done.reductions)


@pytest.mark.slow
@settings(deadline=None)
@given(parted())
def test_ports_are_nothing_to_who_is_not_isolated(sites: tuple[SiteSnapshot, SiteSnapshot]) -> None:
    plain, by_ports = sites
    assert outcome(decide(by_ports, POLICY, NOW)) == outcome(decide(plain, POLICY, NOW))


@pytest.mark.slow
@settings(deadline=None)
@given(snapshots())
def test_where_all_ports_are_usable_isolation_changes_nothing(seen: SiteSnapshot) -> None:
    rows = {
        name: split(getattr(seen, name), [9 for _ in getattr(seen, name)])
        for name in ("free_nodes", "coming", "allocations")
    }
    reclaims = [replace(one, kind=one.kind.usable) for one in seen.reclaims]
    all_isolated = replace(
        seen,
        **rows,
        reclaims=reclaims,
        requests=[replace(one, isolated=True) for one in seen.requests],
    )
    assert outcome(decide(all_isolated, POLICY, NOW)) == outcome(decide(seen, POLICY, NOW))


@pytest.mark.slow
@settings(deadline=None)
@given(parted(), st.sets(st.integers(1, 7)), st.randoms())
def test_who_is_isolated_gets_usable_ports_and_no_node_goes_to_two(
    sites: tuple[SiteSnapshot, SiteSnapshot], chosen: set[int], random: Any
) -> None:
    seen = sites[1]
    requests = [replace(one, isolated=one.id in chosen) for one in seen.requests]
    ids = {one.id for one in requests if one.isolated}
    reclaims = [
        replace(one, kind=one.kind.usable) if one.request_id in ids else one
        for one in seen.reclaims
    ]
    seen = replace(seen, requests=requests, reclaims=reclaims)
    done = decide(seen, POLICY, NOW)
    used: Counter[Any] = Counter()
    for grant in done.grants:
        wanted = next(one for one in requests if one.id == grant.request_id)
        assert sum(share.count for share in grant.shares) == sum(one.count for one in wanted.tuples)
        for share in grant.shares:
            assert not wanted.isolated or share.free_nodes.kind.port == USABLE
            used[share.free_nodes] += share.count
    assert all(count <= one.count for one, count in used.items())
    losers = {(one.vcluster_id, one.kind): one.mobile for one in seen.allocations}
    for preempt in done.preemptions:
        if preempt.request_id in ids:
            assert preempt.kind.port == USABLE
            assert preempt.count <= losers[preempt.vcluster_id, preempt.kind]
    assert {grant.request_id for grant in done.grants} | {
        refusal.request_id for refusal in done.refusals
    } == {one.id for one in requests}
    turned = shuffled(seen, random.shuffle)
    assert outcome(decide(turned, POLICY, NOW)) == outcome(done)


def test_a_lot_that_is_warm_is_no_reason_to_take_usable_ports() -> None:
    seen = site(free_nodes=[free(1, WITH, WARM), free(1, WITHOUT, COLD)], requests=[request(1, 1)])
    assert ports(decide(seen, POLICY, NOW)) == {1: {UNUSABLE: 1}}
