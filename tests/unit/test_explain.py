"""Why a request waits, as people are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from cod.model import RequestTuple
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.explain import Ahead, Chance, explain
from cod.policy.scheduler.snapshot import Allocation, IncomingNodes, OpenReclaim, SiteSnapshot
from tests.unit.policy_sites import (
    BIG,
    BIG_ONLY,
    NOW,
    POLICY,
    SMALL,
    codes,
    free,
    granted,
    holder,
    kind,
    request,
    site,
    snapshots,
)


def test_what_each_type_lacks() -> None:
    seen = site(
        free_nodes=[free(2)],
        holders=[holder(1, 1)],
        allocations=[Allocation(1, kind(BIG), 1, 0)],
        requests=[request(1, RequestTuple(1, BIG_ONLY, 1))],
    )
    why = explain(seen, POLICY, NOW, 1)
    small, uefi, big = why.types
    assert (small.name, small.site, small.free, small.held) == ("small", 2, 2, 0)
    assert [position for position, _ in small.lacks] == [0]
    assert small.lacks[0][1][0].startswith("memory/mib: at least 4096")
    assert (big.held, big.lacks, uefi.site) == (1, (), 0)
    assert (why.fitting, why.free, why.wanted, why.code) == (1, 0, 1, "busy")


def test_who_is_ahead() -> None:
    seen = site(
        free_nodes=[free(1)],
        site={SMALL: 9, BIG: 9},
        requests=[
            request(1, 2),
            request(2, 3, priority=1),
            request(3, RequestTuple(1, BIG_ONLY, 1), priority=5),
        ],
    )
    why = explain(seen, POLICY, NOW, 1)
    assert (why.position, why.ahead) == (3, (Ahead(3, 1003, 5, 1), Ahead(2, 1002, 1, 3)))
    assert "Ahead of it 2 of the requests that wait want 4 nodes of the same types." in why.sentence
    assert explain(seen, POLICY, NOW, 3).ahead == ()


@pytest.mark.parametrize(
    ("own", "held", "takeable", "protected", "until", "words"),
    [
        (holder(1, 4), Allocation(1, kind(), 4, 4), 4, "", None, "all may be taken"),
        (
            holder(1, 4, priority=2, expires_at=NOW + 7200),
            Allocation(1, kind(), 4, 4),
            0,
            "priority",
            NOW + 7200,
            "its priority 2 is not lower, its lease ends in 2 h",
        ),
        (
            holder(1, 4, 3),
            Allocation(1, kind(), 4, 4),
            1,
            "floor",
            None,
            "it keeps the 3 that it was created with",
        ),
        (
            holder(1, 4),
            Allocation(1, kind(), 4, 1, NOW + 50),
            1,
            "inertia",
            NOW + 50,
            ("the rest was assigned lately, the first is immune no longer in 50 s"),
        ),
        (
            holder(1, 4, drain_until=NOW + 150),
            Allocation(1, kind(), 4, 4),
            0,
            "draining",
            NOW + 150,
            "its lease has run out, they come back in 2 min 30 s",
        ),
    ],
)
def test_who_holds_what_and_what_protects_it(
    own: object, held: Allocation, takeable: int, protected: str, until: float | None, words: str
) -> None:
    seen = site(holders=[own], allocations=[held], requests=[request(1, 2, priority=2)])
    (one,) = explain(seen, POLICY, NOW, 1).holders
    assert (one.count, one.takeable, one.protected, one.until, one.sentence) == (
        4,
        takeable,
        protected,
        until,
        words,
    )


def test_nodes_that_leave_already() -> None:
    seen = site(
        holders=[holder(1, 3, leaving=1)],
        allocations=[Allocation(1, kind(), 3, 2)],
        reclaims=[OpenReclaim(1, 1, 9, kind(), 1, NOW + 30)],
        requests=[request(1, 1, priority=2)],
    )
    (one,) = explain(seen, POLICY, NOW, 1).holders
    assert (one.takeable, one.protected, one.until) == (2, "leaving", NOW + 30)


def test_its_own_nodes_are_not_counted_among_those_of_others() -> None:
    seen = site(
        holders=[holder(1, 3)],
        allocations=[Allocation(1, kind(), 3, 3)],
        site={SMALL: 9},
        requests=[request(1, 1, priority=2, vcluster_id=1, own={SMALL: 3})],
    )
    assert explain(seen, POLICY, NOW, 1).holders == ()


def test_nodes_of_its_group_are_not_held_by_others() -> None:
    seen = site(
        holders=[holder(1, 3, group_id=7), holder(2, 2, group_id=8)],
        allocations=[Allocation(1, kind(), 3, 3), Allocation(2, kind(), 2, 2)],
        requests=[request(1, 5, priority=0, group_id=7, vcluster_id=3, own={SMALL: 1})],
        site={SMALL: 6},
    )
    why = explain(seen, POLICY, NOW, 1)
    assert why.reason.startswith("Waits: 5 nodes wanted, too few of the 5 matching besides its own")
    assert "1 its own, 3 of its group's other vclusters, 2 held by others; 0 may" in why.sentence


def test_a_reservation_of_weeks_later_is_not_ahead() -> None:
    later, soon = NOW + 21 * 86_400, NOW + 60
    seen = site(
        free_nodes=[free(1)],
        site={SMALL: 9},
        requests=[
            request(1, 2),
            request(2, 3, priority=1, starts_at=later, lease=60.0),
            request(3, 1, priority=2, starts_at=soon, lease=60.0),
            request(4, 1, priority=3, starts_at=NOW - 9, lease=60.0),
        ],
    )
    assert [one.request_id for one in explain(seen, POLICY, NOW, 1).ahead] == [4]
    assert 3 in [one.request_id for one in explain(seen, POLICY, NOW, 2).ahead]
    assert 2 not in [one.request_id for one in explain(seen, POLICY, NOW, 3).ahead]


def test_nodes_that_nobody_has_are_told_of_too() -> None:
    """All that would do is accounted for: an administrator sees that some only have to be brought
    back."""
    seen = site(
        free_nodes=[free(1), free(1, reserved=9)],
        holders=[holder(1, 3), holder(2, 2, priority=9)],
        allocations=[Allocation(1, kind(), 3, 3), Allocation(2, kind(), 2, 2)],
        site={SMALL: 9},
        requests=[request(1, 4, priority=2, vcluster_id=1, own={SMALL: 3})],
    )
    why = explain(seen, POLICY, NOW, 1)
    assert (why.fitting, why.free, why.coming, why.own, why.aside) == (9, 1, 0, 3, 2)
    assert (
        "Of the 9 nodes that match 1 are free, 0 coming, 3 its own, 2 held by others; 0"
        " may be taken; 2 out of service, or off with nothing to switch them on." in why.sentence
    )
    plain = explain(replace(seen, site={SMALL: 7}), POLICY, NOW, 1)
    assert plain.aside == 0
    assert "out of service, or off" not in plain.sentence


def test_what_would_free_it_and_when() -> None:
    seen = site(
        coming=[IncomingNodes(kind(), 2), IncomingNodes(kind(), 5, reserved=77)],
        holders=[
            holder(1, 3, leaving=1),
            holder(2, 2, expires_at=NOW + 100),
            holder(3, 2, drain_until=NOW + 20),
            holder(4, 2, 1, priority=0),
        ],
        allocations=[
            Allocation(1, kind(), 3, 0),
            Allocation(2, kind(), 2, 0),
            Allocation(3, kind(), 2, 0),
            Allocation(4, kind(), 2, 0, NOW + 40),
        ],
        reclaims=[OpenReclaim(1, 1, 1, kind(), 1, NOW + 30)],
        requests=[request(1, 9, priority=2)],
    )
    why = explain(seen, POLICY, NOW, 1)
    assert why.chances == (
        Chance(NOW + 20, 2, "v3 is draining and ends"),
        Chance(NOW + 30, 1, "v1 gives nodes back at the latest"),
        Chance(NOW + 40, 1, "nodes of v4 lose their immunity"),
        Chance(NOW + 400, 2, "the lease of v2 and its grace end"),
        Chance(None, 2, "on the way to the reserve"),
    )
    assert why.sentence.endswith("Next that is known: v3 is draining and ends in 20 s (2 nodes).")


def test_what_frees_a_move_is_in_order_of_time() -> None:
    seen = site(
        holders=[holder(1, 9, leaving=3)],
        allocations=[Allocation(1, kind(), 9, 0)],
        reclaims=[
            OpenReclaim(each, 1, 1, kind(), 1, NOW + later)
            for each, later in ((7, 300), (8, 100), (9, 200))
        ],
        requests=[replace(request(1, 3), source_id=1)],
    )
    assert [one.at for one in explain(seen, POLICY, NOW, 1).chances] == [
        NOW + 100,
        NOW + 200,
        NOW + 300,
    ]


def test_what_a_vcm_has_promised() -> None:
    """Count a promised node as far as it is still wanted, and not after the deadline: then COD
    takes it."""
    seen = site(
        holders=[holder(1, 9, leaving=3)],
        allocations=[Allocation(1, kind(), 9, 0)],
        reclaims=[OpenReclaim(7, 1, 1, kind(), 3, NOW + 300)],
        requests=[request(1, 9, priority=2)],
    )

    def told(count: int, by: float) -> tuple[Chance, ...]:
        return explain(seen, POLICY, NOW, 1, {7: (count, by), 8: (5, NOW)}).chances

    assert told(3, NOW + 240) == (Chance(NOW + 240, 3, "the VCM of v1 gives nodes back"),)
    assert told(9, NOW + 999) == (Chance(NOW + 300, 3, "the VCM of v1 gives nodes back"),)
    assert told(3, NOW) == (Chance(NOW, 3, "the VCM of v1 gives nodes back"),)
    assert told(1, NOW - 1) == (
        Chance(NOW - 1, 1, "the VCM of v1 gives nodes back"),
        Chance(NOW + 300, 2, "v1 gives nodes back at the latest"),
    )
    assert explain(seen, POLICY, NOW, 1).chances == (
        Chance(NOW + 300, 3, "v1 gives nodes back at the latest"),
    )


def test_what_the_next_pass_grants() -> None:
    why = explain(site(free_nodes=[free(2)], requests=[request(1, 2)]), POLICY, NOW, 1)
    assert (why.code, why.sentence) == ("granted", "It is granted in the next pass.")


def test_what_can_never_be() -> None:
    why = explain(site(free_nodes=[free(2)], requests=[request(1, 3)]), POLICY, NOW, 1)
    assert (why.code, why.sentence) == ("impossible", "3 nodes wanted, the site has 2 matching.")


def test_no_such_request() -> None:
    with pytest.raises(KeyError):
        explain(site(), POLICY, NOW, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots() | snapshots(contended=True))
def test_every_request_is_explained_as_the_plan_has_it(seen: SiteSnapshot) -> None:
    done = decide(seen, POLICY, NOW)
    for one in seen.requests:
        why = explain(seen, POLICY, NOW, one.id)
        assert why.code == codes(done).get(one.id, "granted")
        assert (why.code == "granted") == (one.id in granted(done))
        assert why.sentence.endswith(".")
        said = why.sentence.split(". ")
        assert len(set(said)) == len(said), "nothing is said twice"
        assert all(0 <= held.takeable <= held.count for held in why.holders)
        assert all(chance.count > 0 for chance in why.chances)
        assert list(why.chances) == sorted(
            why.chances, key=lambda one: one.at if one.at is not None else float("inf")
        )
