"""The reserve pool: who is woken, who falls asleep, that it comes to rest; and what nodes use."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.model import Energy, NodeType
from cod.policy.scheduler.reserve_pool import CLASSES, marks, power_changes, wake_deadline, watts
from cod.policy.scheduler.snapshot import (
    COLD,
    WARM,
    Cache,
    FreeNodes,
    IncomingNodes,
    NodeKind,
    PowerChange,
    SiteSnapshot,
)
from cod.states import NODE_RULES, NodeState

SITE = Energy(manage=True, warm_low=2, warm_high=4)
NOW = 1000.0


def node_type(number: int, **columns: object) -> NodeType:
    made = NodeType(number, f"type{number}", "", "<node/>", float(number), 0.0)
    return replace(made, **columns)


TYPES = {number: node_type(number) for number in (1, 2, 3)}


def free(
    readiness: int, count: int, type_id: int = 1, block: int = 0, **columns: object
) -> FreeNodes:
    made = FreeNodes(NodeKind(type_id, block, ""), readiness, count)
    return replace(made, **columns)


def site(
    *free_nodes: FreeNodes,
    coming: tuple[IncomingNodes, ...] = (),
    types: Mapping[int, NodeType] = TYPES,
) -> SiteSnapshot:
    return SiteSnapshot(types=types, free_nodes=free_nodes, coming=coming)


def done(
    snapshot: SiteSnapshot,
    kept: Mapping[FreeNodes, int] | None = None,
    energy: Energy = SITE,
    granted: Mapping[FreeNodes, int] | None = None,
) -> list[tuple[bool, int, int, int]]:
    """(is it put to sleep, type, block, how many) of each."""
    planned = power_changes(snapshot, kept or {}, energy, granted or {})
    return [
        (one.sleep, one.free_nodes.kind.type, one.free_nodes.kind.block, one.count)
        for one in planned
    ]


# ---------------------------------------------------------------- one rule at a time


def test_below_the_low_mark_nodes_are_woken_up_to_it() -> None:
    assert done(site(free(WARM, 1), free(COLD, 9))) == [(False, 1, 0, 1)]
    assert done(site(free(COLD, 9))) == [(False, 1, 0, 2)]
    assert done(site(free(COLD, 1))) == [(False, 1, 0, 1)], "no more than there are"
    assert done(site(free(WARM, 2), free(COLD, 9))) == []


def test_the_sentence_says_which_mark() -> None:
    assert [one.why for one in power_changes(site(free(WARM, 1), free(COLD, 9)), {}, SITE)] == [
        "1 of type1 awake and spare, the low mark is 2"
    ]
    assert [one.why for one in power_changes(site(free(WARM, 6, idle=6)), {}, SITE)] == [
        "6 of type1 awake and spare, the high mark is 4"
    ]


def test_waking_nodes_count_for_the_low_mark_and_others_on_their_way_do_not() -> None:
    kind = NodeKind(1, 0, "")
    assert done(site(free(COLD, 9), coming=(IncomingNodes(kind, 2, waking=True),))) == []
    assert done(site(free(COLD, 9), coming=(IncomingNodes(kind, 1, waking=True),))) == [
        (False, 1, 0, 1)
    ]
    assert done(site(free(COLD, 9), coming=(IncomingNodes(kind, 2),))) == [(False, 1, 0, 2)]
    assert done(site(free(COLD, 9), coming=(IncomingNodes(kind, 2, reserved=7, waking=True),))) == [
        (False, 1, 0, 2)
    ]
    assert done(
        site(free(COLD, 9), coming=(IncomingNodes(NodeKind(2, 0, ""), 2, waking=True),))
    ) == [(False, 1, 0, 2)]


def test_above_the_high_mark_idle_nodes_fall_asleep_down_to_it() -> None:
    assert done(site(free(WARM, 9, idle=9))) == [(True, 1, 0, 5)]
    assert done(site(free(WARM, 9, idle=3))) == [(True, 1, 0, 3)], "only idle ones"
    assert done(site(free(WARM, 9))) == []
    assert done(site(free(WARM, 4, idle=4))) == []
    assert done(site(free(WARM, 3, idle=3), free(COLD, 5))) == [], (
        "between the marks nothing happens"
    )


def test_nodes_that_hold_somebodys_software_fall_asleep_last() -> None:
    cache = Cache(7, 9)
    snapshot = site(free(WARM, 3, cache=cache, idle=3), free(WARM, 3, block=5, idle=3))
    assert done(snapshot) == [(True, 1, 5, 2)]
    assert done(replace(snapshot, free_nodes=[*snapshot.free_nodes, free(WARM, 2, block=2)])) == [
        (True, 1, 5, 3),
        (True, 1, 0, 1),
    ]


def test_what_is_granted_or_kept_is_not_spare() -> None:
    warm, cold = free(WARM, 6, idle=6), free(COLD, 9)
    assert done(site(warm), granted={warm: 1}) == [(True, 1, 0, 1)]
    assert done(site(warm), {warm: 1}, granted={warm: 1}) == []
    assert done(site(warm, cold), {warm: 3}, granted={warm: 2}) == [(False, 1, 0, 1)]
    partly = replace(warm, count=9, idle=6)
    assert done(site(partly), {partly: 2}, granted={partly: 2}) == [(True, 1, 0, 1)]
    few = replace(warm, count=9, idle=4)
    assert done(site(few), {few: 2}, granted={few: 2}) == [], (
        "it may be the idle ones that are given away"
    )


def test_reserved_nodes_are_no_reserve_and_stay_awake() -> None:
    assert done(site(free(WARM, 9, idle=9, reserved=3), free(COLD, 5))) == [(False, 1, 0, 2)]
    assert done(site(free(WARM, 9, idle=9, reserved=3))) == []


def test_need_is_woken_for_before_the_marks_and_without_them() -> None:
    cold, warm = free(COLD, 9), free(WARM, 2)
    assert done(site(warm, cold), {cold: 3}) == [(False, 1, 0, 3)]
    assert done(site(cold), {cold: 3}) == [(False, 1, 0, 5)], "and for the low mark, at once"
    assert done(site(cold), {cold: 8}) == [(False, 1, 0, 9)]
    assert done(site(cold), {cold: 3}, replace(SITE, manage=False)) == [(False, 1, 0, 3)]
    assert power_changes(site(warm, cold), {cold: 3}, SITE)[0].why == "for a request that waits"
    assert (
        power_changes(site(cold), {cold: 3}, SITE)[0].why
        == "for a request that waits; 0 of type1 awake and spare, the low mark is 2"
    )


def test_cold_nodes_that_are_reserved_are_woken() -> None:
    cold = free(COLD, 3, reserved=8)
    assert done(site(free(WARM, 2), cold)) == [(False, 1, 0, 3)]
    assert done(site(free(WARM, 2), cold), granted={cold: 2}) == [(False, 1, 0, 1)], (
        "a grant wakes by itself"
    )
    assert done(site(free(WARM, 2), cold), {cold: 3}) == [(False, 1, 0, 3)], "not twice"


def test_granted_cold_nodes_are_not_woken_for_the_reserve() -> None:
    cold = free(COLD, 3)
    assert done(site(cold), granted={cold: 2}) == [(False, 1, 0, 1)]
    assert done(site(cold), granted={cold: 3}) == []


def test_an_unmanaged_reserve_stays_as_it_is() -> None:
    off = replace(SITE, manage=False)
    assert done(site(free(COLD, 9)), energy=off) == []
    assert done(site(free(WARM, 9, idle=9)), energy=off) == []


def test_no_type_wakes_and_sleeps_at_once() -> None:
    cold = free(COLD, 3, block=1)
    warm = free(WARM, 9, idle=9)
    assert done(site(warm, cold), {cold: 2}) == [(False, 1, 1, 2)]
    waking = (IncomingNodes(NodeKind(1, 1, ""), 2, waking=True),)
    assert done(site(warm, coming=waking)) == []
    assert done(site(warm, free(WARM, 9, 2, idle=9), coming=waking)) == [(True, 2, 0, 5)], (
        "other types may sleep"
    )


def test_a_type_may_have_its_own_marks() -> None:
    types = {
        1: node_type(1, warm_low=0),
        2: node_type(2, warm_low=6),
        3: node_type(3, warm_low=1, warm_high=1),
    }
    assert marks(types[1], SITE) == (0, 4)
    assert marks(types[2], SITE) == (6, 6), "a low mark above the site's high one lifts it"
    assert marks(types[3], SITE) == (1, 1)
    snapshot = site(free(COLD, 9, 1), free(COLD, 9, 2), free(WARM, 9, 3, idle=9), types=types)
    assert done(snapshot) == [(False, 2, 0, 6), (True, 3, 0, 8)]


def test_the_cheapest_are_woken_first_and_the_hungriest_put_to_sleep() -> None:
    types = {1: node_type(1, cost=5.0), 2: node_type(2, cost=1.0), 3: node_type(3, cost=3.0)}
    cold = [free(COLD, 1, number) for number in (1, 2, 3)]
    assert [each[1] for each in done(site(*cold, types=types))] == [2, 3, 1]
    assert [each[1] for each in done(site(*cold, types=types), {cold[0]: 1})] == [
        1,
        2,
        3,
    ], "need goes first"
    hungry = {
        1: node_type(1, watts_idle=90.0),
        2: node_type(2, watts_idle=300.0, watts_off=250.0),
        3: node_type(3),
    }
    warm = [free(WARM, 5, number, idle=5) for number in (1, 2, 3)]
    assert [each[1] for each in done(site(*warm, types=hungry))] == [1, 3, 2]


def test_the_deadline_grows_with_how_many_wake_at_once() -> None:
    energy = Energy(wake_time=600.0, wake_step=5.0)
    assert [wake_deadline(energy, number) for number in (0, 1, 2, 100)] == [
        600.0,
        600.0,
        605.0,
        1095.0,
    ]
    assert wake_deadline(replace(energy, wake_step=0.0), 100) == 600.0


# ---------------------------------------------------------------- watts


def test_every_state_has_a_class() -> None:
    assert CLASSES.keys() == set(NodeState) == NODE_RULES.keys()
    assert set(CLASSES.values()) == {"off", "idle", "busy", None}


@pytest.mark.parametrize(
    ("state", "used"),
    [
        ("off", 5.0),
        ("inactive", 80.0),
        ("trampoline", 80.0),
        ("wipe", 200.0),
        ("prime", 200.0),
        ("boot", 200.0),
        ("active", 200.0),
        ("new", 0.0),
        ("quarantined", 80.0),
        ("retired", 0.0),
    ],
)
def test_watts_by_state(state: str, used: float) -> None:
    assert watts(state, None, Energy()) == used


def test_a_measurement_goes_before_the_types_watts_and_these_before_the_sites() -> None:
    own = node_type(1, watts_off=0.0, watts_busy=400.0)
    assert [watts(state, own, Energy()) for state in ("off", "inactive", "active")] == [
        0.0,
        80.0,
        400.0,
    ]
    assert watts("active", own, Energy(), 312.5) == 312.5
    assert watts("off", own, Energy(), 0.0) == 0.0
    assert watts("retired", own, Energy(), 312.5) == 0.0


# ---------------------------------------------------------------- what must hold for every site

counts = st.integers(0, 8)


@st.composite
def worlds(
    draw: st.DrawFn,
) -> tuple[SiteSnapshot, dict[FreeNodes, int], dict[FreeNodes, int], Energy]:
    """A site with what its requests keep and what is granted, and its rules."""
    keys = draw(
        st.lists(
            st.tuples(
                st.integers(1, 3),
                st.integers(0, 1),
                st.sampled_from((WARM, COLD)),
                st.sampled_from((None, Cache(1, 1), Cache(2, 1))),
                st.sampled_from((0, 0, 0, 4)),
            ),
            unique=True,
            max_size=9,
        )
    )
    free_nodes, kept, granted = [], {}, {}
    for type_id, block, readiness, cache, reserved in keys:
        count = draw(st.integers(1, 25))
        idle = draw(st.integers(0, count)) if readiness == WARM else 0
        one = FreeNodes(NodeKind(type_id, block, ""), readiness, count, cache, reserved, idle)
        free_nodes.append(one)
        granted[one] = draw(st.sampled_from((0, 0, count // 2, count)))
        kept[one] = draw(st.sampled_from((0, 0, (count - granted[one]) // 2, count - granted[one])))
    coming = draw(
        st.lists(
            st.builds(
                IncomingNodes,
                st.builds(NodeKind, st.integers(1, 3), st.integers(0, 1), st.just("")),
                st.integers(1, 5),
                st.sampled_from((0, 4)),
                st.booleans(),
            ),
            unique_by=lambda each: (each.kind, each.reserved, each.waking),
            max_size=draw(st.sampled_from((0, 4))),
        )
    )
    low = draw(counts)
    energy = Energy(draw(st.booleans()) or draw(st.booleans()), low, low + draw(counts))
    own = st.none() | counts
    types = {
        number: node_type(
            number, cost=draw(st.sampled_from((1.0, 2.0))), warm_low=draw(own), warm_high=draw(own)
        )
        for number in (1, 2, 3)
    }
    return SiteSnapshot(types=types, free_nodes=free_nodes, coming=coming), kept, granted, energy


def applied(
    snapshot: SiteSnapshot,
    kept: Mapping[FreeNodes, int],
    granted: Mapping[FreeNodes, int],
    planned: tuple[PowerChange, ...],
) -> tuple[SiteSnapshot, dict[FreeNodes, int]]:
    """The site, and what requests still keep, once the plan and its grants are carried out and
    nothing else happens."""
    left: Counter[tuple[NodeKind, int, Cache | None, int]] = Counter()
    idle: Counter[tuple[NodeKind, int, Cache | None, int]] = Counter()
    held = Counter({_key(one): count for one, count in kept.items()})
    for one in snapshot.free_nodes:
        left[_key(one)] = one.count - granted.get(one, 0)
        idle[_key(one)] = min(one.idle, left[_key(one)])
    waking: Counter[tuple[NodeKind, int]] = Counter()
    for change in planned:
        kind, _, cache, reserved = key = _key(change.free_nodes)
        left[key] -= change.count
        if change.sleep:
            idle[key] -= change.count
            left[kind, COLD, cache, reserved] += change.count
        else:
            waking[kind, reserved] += change.count
            held[key] = max(0, held[key] - change.count)
        assert left[key] >= 0, "more than there are"
    free_nodes = {
        key: FreeNodes(key[0], key[1], count, key[2], key[3], max(0, idle[key]))
        for key, count in left.items()
        if count
    }
    coming = [
        *snapshot.coming,
        *(IncomingNodes(kind, count, reserved, True) for (kind, reserved), count in waking.items()),
    ]
    return replace(snapshot, free_nodes=list(free_nodes.values()), coming=coming), {
        one: held[key] for key, one in free_nodes.items()
    }


def _key(one: FreeNodes) -> tuple[NodeKind, int, Cache | None, int]:
    return one.kind, one.readiness, one.cache, one.reserved


@pytest.mark.slow
@given(worlds())
def test_a_plan_once_applied_leaves_nothing_to_do(
    world: tuple[SiteSnapshot, dict[FreeNodes, int], dict[FreeNodes, int], Energy],
) -> None:
    snapshot, kept, granted, energy = world
    planned = power_changes(snapshot, kept, energy, granted)
    after, still_kept = applied(snapshot, kept, granted, planned)
    again = power_changes(after, still_kept, energy)
    shared = {_key(one) for one, count in granted.items() if 0 < count < one.count}
    assert all(one.sleep and _key(one.free_nodes) in shared for one in again), (
        "only of pools whose idle nodes were uncertain"
    )
    assert not power_changes(*applied(after, still_kept, {}, again), energy)


@given(worlds())
def test_the_marks_are_respected_and_only_idle_ones_sleep(
    world: tuple[SiteSnapshot, dict[FreeNodes, int], dict[FreeNodes, int], Energy],
) -> None:
    snapshot, kept, granted, energy = world
    planned = power_changes(snapshot, kept, energy, granted)

    def needed(one: FreeNodes) -> int:
        return one.count - granted[one] if one.reserved else kept[one]

    assert len({one.free_nodes for one in planned}) == len(planned), "a pool twice"
    for type_id, each in snapshot.types.items():
        low, high = marks(each, energy)
        own = [one for one in planned if one.free_nodes.kind.type == type_id]
        assert len({one.sleep for one in own}) <= 1, "it wakes and sleeps at once"
        spare = sum(
            one.count - kept[one] - granted[one]
            for one in snapshot.free_nodes
            if one.kind.type == type_id and one.readiness == WARM and not one.reserved
        )
        waking = sum(
            one.count
            for one in snapshot.coming
            if one.kind.type == type_id and one.waking and not one.reserved
        )
        asleep = sum(one.count for one in own if one.sleep)
        assert asleep <= max(0, spare - high)
        for_marks = sum(one.count - needed(one.free_nodes) for one in own if not one.sleep)
        assert for_marks <= max(0, low - spare - waking)
        assert energy.manage or not (asleep or for_marks)
    for one in planned:
        assert one.count > 0
        assert one.free_nodes in snapshot.free_nodes
        if one.sleep:
            assert one.free_nodes.readiness == WARM
            assert not one.free_nodes.reserved
            assert one.count <= one.free_nodes.idle - kept[one.free_nodes] - granted[one.free_nodes]
        else:
            assert one.free_nodes.readiness == COLD
    for free in snapshot.free_nodes:
        woken = sum(each.count for each in planned if each.free_nodes == free and not each.sleep)
        assert woken <= free.count - granted[free]
        if free.readiness == COLD:
            assert woken >= needed(free), "need waits"


@pytest.mark.slow
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(
    world: tuple[SiteSnapshot, dict[FreeNodes, int], dict[FreeNodes, int], Energy],
    shuffle: random.Random,
) -> None:
    snapshot, kept, granted, energy = world
    free_nodes, coming, types = (
        list(snapshot.free_nodes),
        list(snapshot.coming),
        list(snapshot.types.items()),
    )
    for each in (free_nodes, coming, types):
        shuffle.shuffle(each)
    shuffled = SiteSnapshot(types=dict(types), free_nodes=free_nodes, coming=coming)
    expected = power_changes(snapshot, kept, energy, granted)
    assert power_changes(shuffled, dict(reversed(kept.items())), energy, granted) == expected


@settings(max_examples=60)
@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 20),
    st.lists(st.integers(-4, 4), max_size=12),
)
def test_a_reserve_that_is_drawn_on_and_filled_up_never_flaps(
    low: int, more: int, size: int, draws: list[int]
) -> None:
    """Nodes are taken and come back; between two such moves the reserve needs one plan, and then
    rests."""
    energy = Energy(manage=True, warm_low=low, warm_high=low + more)
    warm, cold, away = 0, size, 0
    for draw in draws:
        taken = min(max(draw, -away), warm)
        warm, away = warm - taken, away + taken
        for number in itertools.count():
            free_nodes = [
                one for one in (free(WARM, warm, idle=warm), free(COLD, cold)) if one.count
            ]
            planned = power_changes(site(*free_nodes), {}, energy)
            if not planned:
                break
            assert number == 0, "it is not at rest after one plan"
            moved = sum(-one.count if one.sleep else one.count for one in planned)
            warm, cold = warm + moved, cold - moved
        assert min(low, warm + cold) <= warm <= low + more
