"""What would come of a request that nobody has made, and what of it is told to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cod.model import Remedy, RequestTuple
from cod.policy.scheduler.explain import Chance, Explanation, explain
from cod.policy.scheduler.snapshot import Allocation, PendingRequest, SiteSnapshot
from cod.policy.scheduler.whatif import (
    NEW_VCLUSTER,
    OTHERS,
    at_once,
    expected,
    masked,
    remedies,
    supposed,
)
from tests.unit.policy_sites import BIG, BIG_ONLY, NOW, POLICY, free, holder, kind, request, site


def asked(count: int, attributes: str = "", template: int = 1, priority: int = 0) -> PendingRequest:
    return PendingRequest(
        NEW_VCLUSTER,
        NEW_VCLUSTER,
        priority,
        NOW,
        1,
        "",
        (RequestTuple(count, attributes, template),),
    )


def ask(seen: SiteSnapshot, wanted: PendingRequest) -> Explanation:
    return explain(supposed(seen, wanted, 1, {}), POLICY, NOW, NEW_VCLUSTER)


def test_what_can_be_had_is_granted() -> None:
    found = ask(site(free_nodes=[free(2)]), asked(2))
    assert (found.code, found.free, found.wanted) == ("granted", 2, 2)
    assert expected(found, NOW) == NOW


def test_it_stands_behind_those_that_wait() -> None:
    seen = site(free_nodes=[free(2)], requests=[request(1, 2, priority=5)])
    found = ask(seen, asked(2))
    assert (found.code, found.position, [one.request_id for one in found.ahead]) == ("busy", 2, [1])


def test_what_never_can_be_is_impossible() -> None:
    found = ask(site(free_nodes=[free(2)]), asked(3))
    assert found.code == "impossible"
    assert expected(found, NOW) is None
    nothing_fits = ask(site(free_nodes=[free(2)]), asked(1, BIG_ONLY))
    assert nothing_fits.types[0].lacks


def test_what_a_waiting_request_could_have_at_once() -> None:
    seen = site(
        free_nodes=[
            free(3, kind(block=1)),
            free(2, kind(block=2)),
            free(1, kind(block=2), reserved=9),
        ],
        site={kind().type: 20},
        requests=[request(1, 4), request(2, 6)],
    )
    by_id = {one.id: one for one in seen.requests}
    assert at_once(seen, by_id[1], POLICY, NOW) == (Remedy(4, True), Remedy(3, False))
    assert at_once(seen, replace(by_id[1], starts_at=NOW + 9), POLICY, NOW) == ()
    several = replace(by_id[1], tuples=by_id[1].tuples * 2)
    assert at_once(seen, several, POLICY, NOW) == ()


@pytest.mark.parametrize(
    ("room", "helps"), [(9, (Remedy(3, False),)), (1, (Remedy(1, False),)), (0, ()), (-2, ())]
)
def test_what_would_help_has_addresses(room: int, helps: tuple[Remedy, ...]) -> None:
    """A vcluster that has ended, and has no addresses any more, has room for less than none."""
    wanted = asked(5)
    assert remedies(supposed(site(free_nodes=[free(3)]), wanted, 1, {}), wanted, room) == helps


def test_the_snapshot_is_as_it_was() -> None:
    seen = site(free_nodes=[free(2)])
    before = replace(seen)
    ask(seen, asked(1))
    assert seen == before


def test_a_vcluster_that_is_there_keeps_its_holder() -> None:
    seen = site(
        free_nodes=[free(2)], holders=[holder(1, 1)], allocations=[Allocation(1, kind(), 1, 1)]
    )
    wanted = replace(asked(1), vcluster_id=1)
    assert supposed(seen, wanted, 9, {}).holders is seen.holders
    assert supposed(seen, asked(1), 9, {7: "<template/>"}).templates[7] == "<template/>"


def test_leases_tell_when_there_will_be_enough() -> None:
    seen = site(
        free_nodes=[free(1)],
        holders=[holder(1, 2, priority=3, expires_at=NOW + 600)],
        allocations=[Allocation(1, kind(), 2, 2)],
    )
    found = ask(seen, asked(3))
    assert found.code == "busy"
    assert expected(found, NOW) == NOW + 600 + POLICY.drain_grace


@pytest.mark.parametrize(
    ("free", "chances", "at"),
    [
        (0, [Chance(NOW + 5, 1, ""), Chance(NOW + 9, 1, "")], NOW + 9),
        (1, [Chance(NOW + 5, 1, ""), Chance(NOW + 9, 1, "")], NOW + 5),
        (1, [Chance(NOW - 5, 1, "")], NOW),
        (0, [Chance(NOW + 5, 1, "")], None),
        (0, [Chance(None, 2, "")], None),
        (0, [], None),
    ],
)
def test_chances_add_up(free: int, chances: list[Chance], at: float | None) -> None:
    found = Explanation(1, "busy", "", 2, 9, free, 0, 1, chances=tuple(chances))
    assert expected(found, NOW) == at


def test_nodes_on_their_way_count() -> None:
    assert (
        expected(Explanation(1, "busy", "", 3, 9, 1, 1, 1, chances=(Chance(NOW + 5, 1, ""),)), NOW)
        == NOW + 5
    )


def test_names_that_may_not_be_seen_are_nowhere() -> None:
    seen = site(
        free_nodes=[free(1)],
        site={1: 9, 2: 9, 3: 9},
        holders=[
            holder(1, 2, priority=3, expires_at=NOW + 600),
            holder(2, 1, expires_at=NOW + 700, drain_until=NOW + 800),
        ],
        allocations=[Allocation(1, kind(), 2, 2), Allocation(2, kind(BIG), 1, 1)],
    )
    shown = repr(ask(masked(seen, {1}), asked(5)))
    assert "v1" not in shown
    assert "v2" in shown
    assert OTHERS in shown
    assert "v1" in repr(ask(seen, asked(5)))
    assert masked(seen, set()) is seen
