"""Requests get nodes of a maintenance window only if their leases end before it begins, or begin
after its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.policy.reservations import admission, free_nodes
from cod.policy.reservations.forecast import Forecast
from cod.policy.scheduler import reasons
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.explain import explain
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import (
    PREEMPTIBLE,
    Allocation,
    IncomingNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
    WindowTimes,
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
    site,
)

BEGINS, ENDS = NOW + 1000, NOW + 2000
WINDOW = {1: WindowTimes(BEGINS, ENDS, "maintenance of @r12 begins, before its lease would end")}
DRAIN = {1: WindowTimes(float("-inf"), float("inf"), "@r12 is being drained")}
RACK, OTHER = NodeKind(SMALL, 1, "", windows=1), NodeKind(SMALL, 2, "")


def leased(number: int, count: int, lease: float, **columns: Any) -> PendingRequest:
    """A request with that length of lease."""
    return request(number, count, lease=lease, **columns)


def rack(*requests: PendingRequest, windows: Any = WINDOW, **columns: Any) -> SiteSnapshot:
    """A site whose only free nodes are in a window."""
    return site(free_nodes=[free(4, RACK)], requests=requests, windows=windows, **columns)


@pytest.mark.parametrize(
    ("lease", "code"), [(999.0, "granted"), (1000.0, "granted"), (1001.0, "maintenance")]
)
def test_a_lease_that_ends_before_the_window_is_granted(lease: float, code: str) -> None:
    decision = decide(rack(leased(1, 2, lease)), POLICY, NOW)
    assert codes(decision).get(1, "granted") == code


def test_a_request_that_waits_says_which_maintenance_it_waits_for() -> None:
    (refusal,) = decide(rack(leased(1, 2, 5000.0)), POLICY, NOW).refusals
    assert "maintenance of @r12 begins, before its lease would end" in refusal.sentence
    found = explain(rack(leased(1, 2, 5000.0)), POLICY, NOW, 1)
    assert found.code == "maintenance"
    assert "maintenance of @r12 begins" in found.sentence


def test_a_request_that_waits_for_something_else_is_told_of_the_maintenance_too() -> None:
    """Nodes are on their way to it, which is why it waits; others that match are in the window."""
    seen = rack(leased(1, 2, 5000.0), coming=[IncomingNodes(OTHER, 2)])
    found = explain(seen, POLICY, NOW, 1)
    assert found.code == "coming"
    assert "Maintenance of @r12 begins, before its lease would end." in found.sentence


def test_nodes_are_not_shown_as_free_while_their_window_is_on() -> None:
    both = replace(rack(), free_nodes=[free(4, RACK), free(2, OTHER)])
    found = free_nodes.of_types(both, POLICY, NOW, NOW + 5000)
    assert found[SMALL] == [(NOW, 6), (BEGINS, 2), (ENDS, 6)]
    drained = replace(both, windows=DRAIN)
    assert free_nodes.of_types(drained, POLICY, NOW, NOW + 5000)[SMALL] == [(NOW, 2)]


def test_other_nodes_are_granted_and_a_longer_request_does_not_get_those_of_the_window() -> None:
    seen = site(
        free_nodes=[free(4, RACK), free(2, OTHER)],
        requests=[leased(1, 2, 5000.0), leased(2, 2, 500.0)],
        windows=WINDOW,
    )
    found = {
        grant.request_id: {share.free_nodes.kind for share in grant.shares}
        for grant in decide(seen, POLICY, NOW).grants
    }
    assert found == {1: {OTHER}, 2: {RACK}}


def test_a_request_of_an_active_vcluster_counts_the_end_of_its_lease() -> None:
    owner = holder(1001, 1, expires_at=NOW + 100)
    seen = rack(leased(1, 2, 5000.0), holders=[owner])
    assert granted(decide(seen, POLICY, NOW)) == [1]
    longer = replace(seen, holders={1001: replace(owner, expires_at=NOW + 1500)})
    assert codes(decide(longer, POLICY, NOW)) == {1: "maintenance"}


def test_a_preemptible_vcluster_may_have_them_but_not_those_of_a_rack_that_is_drained() -> None:
    asked = leased(1, 2, 5000.0, priority=PREEMPTIBLE)
    assert granted(decide(rack(asked), POLICY, NOW)) == [1]
    assert codes(decide(rack(asked, windows=DRAIN), POLICY, NOW)) == {1: "maintenance"}


def test_nothing_is_granted_of_a_rack_that_is_drained() -> None:
    decision = decide(rack(leased(1, 1, 1.0), windows=DRAIN), POLICY, NOW)
    assert codes(decision) == {1: "maintenance"}


def test_a_request_for_more_than_is_outside_of_windows_is_not_impossible() -> None:
    seen = site(
        free_nodes=[free(4, RACK), free(2, RACK._replace(windows=0))],
        requests=[leased(1, 6, 5000.0)],
        windows=WINDOW,
    )
    assert codes(decide(seen, POLICY, NOW)) == {1: "maintenance"}
    impatient = replace(seen, requests=[leased(1, 6, 5000.0, may_wait=False)])
    assert codes(decide(impatient, POLICY, NOW)) == {1: "now"}


def test_nodes_of_a_window_are_not_taken_from_others_for_a_longer_lease() -> None:
    seen = site(
        allocations=[Allocation(5, RACK, 3, 3)],
        holders=[holder(5, 3)],
        requests=[leased(1, 2, 5000.0, priority=3)],
        windows=WINDOW,
    )
    assert decide(seen, POLICY, NOW).preemptions == ()
    shorter = replace(seen, requests=[leased(1, 2, 500.0, priority=3)])
    (taken,) = decide(shorter, POLICY, NOW).preemptions
    assert taken.kind == RACK


def test_a_reservation_that_is_refused_for_it_names_it_and_the_start_after_it() -> None:
    asked = leased(1, 2, 900.0, starts_at=NOW + 500)
    why = admission.verdict(rack(), asked, POLICY, NOW).sentence
    assert "maintenance of @r12 begins" in why
    assert f"The next start at which they would be is {reasons.at(ENDS)}" in why


@pytest.mark.parametrize(
    ("starts", "lease", "fails"),
    [
        (NOW + 100, 800.0, False),
        (NOW + 100, 1000.0, True),
        (ENDS - 10, 50.0, True),
        (ENDS, 5000.0, False),
    ],
)
def test_a_reservation_finds_no_place_in_a_window(starts: float, lease: float, fails: bool) -> None:
    seen = rack(leased(1, 2, lease, starts_at=starts))
    found = Forecast(seen, Feasibility(seen, NOW), POLICY, NOW)
    assert (1 in found.failed) is fails
