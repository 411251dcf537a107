"""Requests are moved so that all of them together cost less: examples, and what must hold of
any."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from cod.model import RequestTuple
from cod.policy.scheduler import packing, rebalance
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.packed import PackedRequests
from cod.policy.scheduler.packing import pack
from cod.policy.scheduler.placement import FoundPlaces, Want
from cod.policy.scheduler.snapshot import FreeNodes, NodeKind, PendingRequest
from tests.unit.policy_sites import BIG, BIG_ONLY, NOW, SMALL, UEFI, free, kind, request, site

ONE, TWO, THREE = (kind(SMALL, block) for block in (1, 2, 3))
DEAR = kind(BIG, 9)
PLENTY = 100_000


def wants(free_nodes: Iterable[FreeNodes], *requests: PendingRequest) -> list[Want]:
    """The requests, with what of a site would do for them."""
    feasibility = Feasibility(site(free_nodes=list(free_nodes), requests=list(requests)), NOW)
    return [Want(one, tuple(feasibility.fit(each, one) for each in one.tuples)) for one in requests]


def cost_of(one: NodeKind) -> float:
    return {SMALL: 1.0, BIG: 5.0, UEFI: 1.0}[one.type]


def seated(
    room: Mapping[NodeKind, int], *seats: tuple[int, NodeKind], effort: int = PLENTY, **columns: Any
) -> PackedRequests:
    """Requests 1, 2, … of so many nodes each in that kind; `room`: nodes of each kind in all."""
    asked = wants(
        [free(count, one) for one, count in room.items()],
        *(request(number, count, **columns) for number, (count, _) in enumerate(seats, 1)),
    )
    placed = PackedRequests(room, cost_of, effort)
    for want, (count, where) in zip(asked, seats, strict=True):
        placed.move(want, FoundPlaces([{where: count}]))
    return placed


def where(placed: PackedRequests) -> dict[int, list[dict[NodeKind, int]]]:
    return {
        one: [dict(place) for place in found.places]
        for one, (_, found) in sorted(placed.found.items())
    }


# ---------------------------------------------------------------- who is where


def test_what_a_request_has_is_gone_until_it_has_it_no_longer() -> None:
    placed = seated({ONE: 3, DEAR: 2}, (2, ONE), (1, DEAR))
    assert (placed.free, placed.cost) == ({ONE: 1, DEAR: 1}, 7.0)
    assert placed.at == {ONE: {1}, DEAR: {2}}
    want, found = placed.found[1]
    placed.move(want, None)
    assert (placed.free[ONE], placed.cost, placed.at[ONE], list(placed.found)) == (
        3,
        5.0,
        set(),
        [2],
    )
    assert placed.put(want)
    assert placed.found[1] == (want, found)


def test_one_that_there_is_no_room_for_is_not_put() -> None:
    placed = seated({ONE: 3}, (2, ONE))
    assert not placed.put(wants([free(3, ONE)], request(9, 2))[0])
    assert where(placed) == {1: [{ONE: 2}]}


def test_back_means_as_it_was() -> None:
    placed = seated({ONE: 3, TWO: 3, DEAR: 4}, (2, ONE), (3, TWO), (1, DEAR))
    before = (
        dict(placed.free),
        placed.cost,
        where(placed),
        {key: set(ids) for key, ids in placed.at.items() if ids},
    )
    mark = placed.mark
    want = placed.found[3][0]
    placed.move(want, None)
    placed.move(placed.found[2][0], FoundPlaces([{DEAR: 3}]))
    placed.move(want, FoundPlaces([{TWO: 1}]))
    inner = placed.mark
    placed.move(want, None)
    placed.back(inner)
    assert where(placed)[3] == [{TWO: 1}]
    placed.back(mark)
    after = (
        dict(placed.free),
        placed.cost,
        where(placed),
        {key: set(ids) for key, ids in placed.at.items() if ids},
    )
    assert after == before


# ---------------------------------------------------------------- filling up


def test_the_cheaper_kind_is_filled_as_far_as_can_be() -> None:
    """Move 2 and 3 of the 2, 3 and 4 that lie in a dear kind into the cheap one, which has room for
    5."""
    placed = seated({ONE: 5, DEAR: 9}, (2, DEAR), (3, DEAR), (4, DEAR))
    assert rebalance.fill_up(placed)
    assert where(placed) == {1: [{ONE: 2}], 2: [{ONE: 3}], 3: [{DEAR: 4}]}
    assert not rebalance.fill_up(placed)


def test_two_go_for_one() -> None:
    """A block of 5 holds a 4: 2 and 3 in its place leave nothing free there."""
    placed = seated({ONE: 5, DEAR: 9}, (4, ONE), (2, DEAR), (3, DEAR))
    assert rebalance.fill_up(placed)
    assert where(placed) == {1: [{DEAR: 4}], 2: [{ONE: 2}], 3: [{ONE: 3}]}


def test_who_cannot_use_the_cheaper_kind_stays() -> None:
    placed = PackedRequests({ONE: 5, DEAR: 9}, cost_of, PLENTY)
    for want in wants(
        [free(5, ONE), free(9, DEAR)], request(1, RequestTuple(2, BIG_ONLY, 1)), request(2, 2)
    ):
        placed.move(want, FoundPlaces([{DEAR: 2}]))
    assert rebalance.fill_up(placed)
    assert where(placed) == {1: [{DEAR: 2}], 2: [{ONE: 2}]}


def test_of_one_cost_the_smaller_block_is_filled_so_that_the_other_is_whole() -> None:
    placed = seated({ONE: 2, TWO: 4}, (2, TWO))
    assert rebalance.fill_up(placed)
    assert placed.free == {ONE: 0, TWO: 4}


def test_of_a_spread_tuple_any_part_is_moved() -> None:
    """Both its parts change places, and none is lost."""
    placed = seated({ONE: 3, DEAR: 9}, (5, DEAR), may_spread=True)
    placed.move(placed.found[1][0], FoundPlaces([{ONE: 2, DEAR: 3}]))
    assert rebalance.fill_up(placed)
    assert where(placed) == {1: [{ONE: 3, DEAR: 2}]}
    assert placed.free == {ONE: 0, DEAR: 7}


def test_tuples_of_one_request_are_moved_one_by_one() -> None:
    placed = PackedRequests({ONE: 3, DEAR: 9}, cost_of, PLENTY)
    placed.move(
        wants([free(3, ONE), free(9, DEAR)], request(1, 2, 3))[0],
        FoundPlaces([{DEAR: 2}, {DEAR: 3}]),
    )
    assert rebalance.fill_up(placed)
    assert where(placed) == {1: [{DEAR: 2}, {ONE: 3}]}


def test_the_fullest_choice_is_found() -> None:
    """Find the choice that trying all of them finds."""
    dice = random.Random(4)
    for _ in range(200):
        parts = [
            rebalance.TuplePart(number, 0, ONE, dice.randint(1, 9))
            for number in range(dice.randint(0, 7))
        ]
        room = dice.randint(0, 30)
        most = max(
            total
            for size in range(len(parts) + 1)
            for some in itertools.combinations(parts, size)
            if (total := sum(part.nodes for part in some)) <= room
        )
        chosen = rebalance._fullest(parts, room)
        assert sum(part.nodes for part in chosen) == most
        assert len(set(chosen)) == len(chosen)


# ---------------------------------------------------------------- driving out


def test_one_is_driven_out_to_where_it_costs_no_more() -> None:
    """5 would rather be in the block of 6, where 4 and 2 are; they find room in two others. Between
    two at a time nothing can be gained: from the dear kind alone nothing would fit."""
    room = {ONE: 6, TWO: 4, THREE: 2, DEAR: 9}
    placed = seated(room, (4, ONE), (2, ONE), (5, DEAR))
    placed.put(wants([free(count, one) for one, count in room.items()], request(4, 1))[0])
    before = placed.cost
    rebalance.save(placed)
    assert placed.cost < before
    assert all(DEAR not in place for places in where(placed).values() for place in places)


def test_nothing_moves_where_that_saves_nothing() -> None:
    placed = seated({ONE: 4, DEAR: 4}, (4, ONE), (3, DEAR))
    before = where(placed)
    rebalance.save(placed)
    assert where(placed) == before


def test_there_is_an_end_to_it() -> None:
    """Without any effort left all stays as it is."""
    placed = seated({ONE: 5, DEAR: 9}, (2, DEAR), (3, DEAR), effort=0)
    rebalance.save(placed)
    assert where(placed) == {1: [{DEAR: 2}], 2: [{DEAR: 3}]}


# ---------------------------------------------------------------- any site

KINDS = [ONE, TWO, THREE, DEAR, kind(BIG, 8), kind(UEFI, 1)]
Property = Callable[[Mapping[NodeKind, int], Sequence[Want]], None]


def any_site(dice: random.Random) -> tuple[dict[NodeKind, int], list[Want]]:
    """Some blocks, and requests for about as many nodes as they have."""
    room = {one: dice.randint(1, 9) for one in dice.sample(KINDS, dice.randint(2, len(KINDS)))}
    requests: list[PendingRequest] = []
    wanted = 0
    while wanted < sum(room.values()):
        tuples = [
            RequestTuple(dice.randint(1, 6), dice.choice(["", "", "", BIG_ONLY]), 1)
            for _ in range(dice.choice([1, 1, 2]))
        ]
        wanted += sum(one.count for one in tuples)
        requests.append(request(len(requests) + 1, *tuples, may_spread=dice.random() < 0.2))
    return room, wants([free(count, one) for one, count in room.items()], *requests)


def packed_in_order(room: Mapping[NodeKind, int], asked: Sequence[Want]) -> PackedRequests:
    placed = PackedRequests(room, cost_of, 5000)
    for want in asked:
        placed.put(want)
    return placed


def nobody_gets_less(room: Mapping[NodeKind, int], asked: Sequence[Want]) -> None:
    """Each that had a place has one that would do, whole, in one kind for each tuple; nothing is
    given out twice."""
    placed = packed_in_order(room, asked)
    served = set(placed.found)
    rebalance.save(placed)
    assert set(placed.found) == served
    used: Counter[NodeKind] = Counter()
    for want, found in placed.found.values():
        for one, fit, place in zip(want.request.tuples, want.fits, found.places, strict=True):
            assert sum(place.values()) == one.count
            assert set(place) <= set(fit.kinds)
            assert len(place) == 1 or want.request.may_spread
            used.update(place)
    assert all(count <= room[one] for one, count in used.items())
    assert placed.free == {one: count - used[one] for one, count in room.items()}


def it_never_costs_more(room: Mapping[NodeKind, int], asked: Sequence[Want]) -> None:
    placed = packed_in_order(room, asked)
    before = placed.cost
    rebalance.save(placed)
    assert placed.cost <= before + 1e-9
    assert placed.cost == pytest.approx(
        sum(
            cost_of(one) * count
            for _, found in placed.found.values()
            for place in found.places
            for one, count in place.items()
        )
    )


def nothing_is_left_to_move(room: Mapping[NodeKind, int], asked: Sequence[Want]) -> None:
    """No request alone could move to a cheaper kind, and no two could change places for less."""
    placed = packed_in_order(room, asked)
    rebalance.save(placed)
    alone: list[tuple[Want, NodeKind, int]] = [
        (want, *next(iter(found.places[0].items())))
        for want, found in placed.found.values()
        if want.alone
    ]
    for want, have, count in alone:
        assert not any(
            cost_of(one) < cost_of(have) and placed.free[one] >= count for one in want.fits[0].kinds
        )
    for (first, dear, many), (second, cheap, few) in itertools.permutations(alone, 2):
        if (
            cost_of(cheap) < cost_of(dear)
            and many > few
            and cheap in first.fits[0].kinds
            and (dear in second.fits[0].kinds)
        ):
            assert placed.free[cheap] + few < many


def packing_serves_as_many_as_one_after_the_other(
    room: Mapping[NodeKind, int], asked: Sequence[Want]
) -> None:
    assert len(pack(asked, room, cost_of)) >= len(packed_in_order(room, asked).found)


PROPERTIES = [
    nobody_gets_less,
    it_never_costs_more,
    nothing_is_left_to_move,
    packing_serves_as_many_as_one_after_the_other,
]


def hold(check: Property, sites: int) -> None:
    dice = random.Random(7)
    for _ in range(sites):
        check(*any_site(dice))


@pytest.mark.parametrize("check", PROPERTIES)
def test_it_holds(check: Property) -> None:
    hold(check, 60)


# ---------------------------------------------------------------- planted faults


def _overfull(parts: Sequence[rebalance.TuplePart], room: int) -> list[rebalance.TuplePart]:
    return list(parts)


def _loses_a_part(shift: Any) -> Any:
    def shifted(placed: PackedRequests, part: rebalance.TuplePart, new: NodeKind) -> None:
        shift(placed, part, new)
        want, found = placed.found[part.request_id]
        placed.move(want, FoundPlaces([{new: part.nodes} for _ in found.places]))

    return shifted


def _forgets(placed: PackedRequests, part: rebalance.TuplePart, better: NodeKind) -> bool:
    for one in placed.at[better] - {part.request_id}:
        placed.move(placed.found[one][0], None)
    rebalance._shift(placed, part, better)
    return True


FAULTS: list[tuple[Property, object, str, Any]] = [
    (nobody_gets_less, rebalance, "_fullest", _overfull),
    (nobody_gets_less, rebalance, "_shift", _loses_a_part(rebalance._shift)),
    (nobody_gets_less, rebalance, "_driven_out", _forgets),
    (nobody_gets_less, PackedRequests, "back", lambda self, mark: None),
    (it_never_costs_more, rebalance, "LEAST", -1e9),
    (nothing_is_left_to_move, rebalance, "save", lambda placed: None),
    (
        packing_serves_as_many_as_one_after_the_other,
        packing._Packing,
        "worth",
        lambda self: -len(self.placed.found),
    ),
]


@pytest.mark.parametrize(
    ("check", "owner", "name", "fault"),
    FAULTS,
    ids=[f"{number}-{name}" for number, (_, _, name, _) in enumerate(FAULTS)],
)
@pytest.mark.slow
def test_a_planted_fault_is_caught(
    check: Property, owner: object, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault, raising=False)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        hold(check, 400)
