"""What groups may have among those that hold or want nodes: by hand, and on random families."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Group, Policy
from cod.policy.scheduler import explain, whatif
from cod.policy.scheduler.snapshot import Allocation, SiteSnapshot
from cod.policy.sharing import entitlements
from cod.policy.sharing.portions import GroupDemand, portions
from tests.unit.policy_sites import NOW, POLICY, holder, kind, request, site

NODES = 20
DEMANDS = st.lists(
    st.builds(
        GroupDemand,
        st.integers(1, 9),
        st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e9]),
        st.integers(0, 30),
        st.integers(0, 6),
        st.sampled_from([0, 0, 0, 1, 2]),
    ),
    unique_by=lambda one: one.id,
)


@pytest.mark.parametrize(
    ("demands", "expected"),
    [
        ([GroupDemand(1, 1, 25), GroupDemand(2, 1, 6)], {1: 14, 2: 6}),
        ([GroupDemand(1, 1, 25), GroupDemand(2, 1, 25)], {1: 10, 2: 10}),
        ([GroupDemand(1, 3, 25), GroupDemand(2, 1, 25)], {1: 15, 2: 5}),
        ([GroupDemand(1, 1, 25), GroupDemand(2, 1, 25, 14)], {1: 6, 2: 14}),
        ([GroupDemand(1, 1, 25), GroupDemand(2, 1, 3, 14)], {1: 17, 2: 3}),
        ([GroupDemand(1, 1, 4), GroupDemand(2, 1, 3)], {1: 4, 2: 3}),
        ([GroupDemand(1, 0, 25), GroupDemand(2, 1, 25)], {1: 0, 2: 20}),
        ([GroupDemand(1, 1, 25, 15), GroupDemand(2, 1, 25, 15)], {1: 15, 2: 15}),
        # groups 3 and 4 are subgroups of 1, which asks for nothing itself
        (
            [
                GroupDemand(1, 1, 0),
                GroupDemand(2, 1, 25),
                GroupDemand(3, 1, 2, parent=1),
                GroupDemand(4, 1, 25, parent=1),
            ],
            {1: 0, 2: 10, 3: 2, 4: 8},
        ),
        # and here it counts as one of three
        (
            [
                GroupDemand(1, 1, 9),
                GroupDemand(2, 1, 5),
                GroupDemand(3, 1, 9, parent=1),
                GroupDemand(4, 1, 9, parent=1),
            ],
            {1: 5, 2: 5, 3: 5, 4: 5},
        ),
    ],
)
def test_nodes_are_dealt_out_among_those_that_want_them(
    demands: list[GroupDemand], expected: dict[int, int]
) -> None:
    assert portions(demands, NODES) == pytest.approx(expected)


def _bottom(demands: list[GroupDemand]) -> list[GroupDemand]:
    """Return the demands without families of families."""
    nested = {one.id for one in demands if one.parent}
    return [replace(one, parent=0) if one.parent in nested | {one.id} else one for one in demands]


@given(DEMANDS)
def test_portions_lie_between_what_is_sure_and_what_is_wanted(drawn: list[GroupDemand]) -> None:
    demands = _bottom(drawn)
    found = portions(demands, NODES)
    for one in demands:
        assert one.least - 1e-6 <= found[one.id] <= one.wanted
    least, wanted = sum(one.least for one in demands), sum(one.wanted for one in demands)
    assert sum(found.values()) <= max(least, NODES) + 1e-6
    if all(one.shares > 0 for one in demands):  # nothing is left while somebody wants it
        assert sum(found.values()) >= min(max(least, NODES), wanted) - 1e-6


@given(DEMANDS, st.integers(1, 40))
def test_idle_groups_change_nothing(drawn: list[GroupDemand], idle: int) -> None:
    demands = _bottom(drawn)
    found = portions(demands, NODES)
    others = [GroupDemand(100 + one, 1.0 + one % 3, 0, one % 5) for one in range(idle)]
    assert portions([*others, *demands], NODES) == pytest.approx(
        found | dict.fromkeys(range(100, 100 + idle), 0.0)
    )


@given(DEMANDS)
def test_equals_that_want_more_than_they_get_have_as_much(drawn: list[GroupDemand]) -> None:
    demands = _bottom(drawn)
    families = {one.parent for one in demands}
    found = portions(demands, NODES)
    hungry = [
        one
        for one in demands
        if one.id not in families and one.least < found[one.id] < one.wanted - 1e-6
    ]
    for one in hungry:
        for other in hungry:
            if one.parent == other.parent:
                assert found[one.id] * other.shares == pytest.approx(found[other.id] * one.shares)


def idle_beside_busy(idle: int) -> SiteSnapshot:
    """Group 9 waits for 6 nodes, group 10 holds all 20, and so many others want nothing."""
    groups = [
        Group(9 + one, f"g{one}", 0, None, None, 0.0, faded_usage=float(one == 1))
        for one in range(2 + idle)
    ]
    seen = site(
        holders=[holder(1, 20, 1, group_id=10)],
        allocations=[Allocation(1, kind(), 20, 20)],
        requests=[request(1, 6, group_id=9)],
    )
    entitled = entitlements.of(groups, Policy(fair_half_life=1.0), 20)
    return entitlements.shared(replace(seen, entitlements=entitled))


@pytest.mark.parametrize("idle", [0, 2, 38])
def test_a_request_within_its_share_takes_whoever_is_idle(idle: int) -> None:
    found = explain.explain(idle_beside_busy(idle), POLICY, NOW, 1)
    assert found.code == "taking"
    assert [one.takeable for one in found.holders] == [6]


def test_a_limit_bounds_what_a_group_wants() -> None:
    seen = idle_beside_busy(2)
    limited = {**seen.entitlements, 9: replace(seen.entitlements[9], limit=2)}
    assert entitlements.shared(replace(seen, entitlements=limited)).entitlements[9].share == 2
    spent = {**seen.entitlements, 9: replace(seen.entitlements[9], used_up=True)}
    assert entitlements.shared(replace(seen, entitlements=spent)).entitlements[9].share == 0


def test_a_request_that_nobody_has_made_has_its_share_too() -> None:
    seen = replace(idle_beside_busy(2), requests=[])
    asked = whatif.supposed(seen, request(whatif.NEW_VCLUSTER, 7, group_id=11), 7, {})
    assert explain.explain(asked, POLICY, NOW, whatif.NEW_VCLUSTER).code == "taking"
