"""The manager's plan: examples of each rule, and what must hold for any site and any requests."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.model import NodeType, RequestTuple
from cod.policy.allocate import COLD, WARM, FreeNode, Grant, Plan, Snapshot, Wish, plan
from cod.policy.match import satisfies
from cod.policy.spread import Demand, Kind, spread

TEMPLATES = {
    1: '<template><image target="disk" name="any"/></template>',
    2: '<template><requires><memory><mib min="2048"/></memory></requires><image target="disk" name="big"/></template>',
    3: '<template><image target="disk" name="bios"><when><firmware><kind equal="bios"/></firmware></when></image>'
       '</template>',
}
SMALL, BIG, UEFI = 1, 2, 3
TYPES = {
    SMALL: NodeType(SMALL, "small", "", '<node><firmware kind="bios" /><memory mib="1024" /></node>', 1.0, 0.0),
    BIG: NodeType(BIG, "big", "", '<node><firmware kind="bios" /><memory mib="4096" /></node>', 5.0, 0.0),
    UEFI: NodeType(UEFI, "uefi", "", '<node><firmware kind="uefi" /><memory mib="1024" /></node>', 1.0, 0.0),
}
BIG_ONLY = '<requires><memory><mib min="4096"/></memory></requires>'
LARGER_THAN_ANY = '<requires><memory><mib min="8GiB"/></memory></requires>'
NOW = 100.0


def node(number: int, type_id: int = SMALL, **columns: object) -> FreeNode:
    """A free, warm node of a type."""
    return replace(FreeNode(number, 7, (type_id, ""), WARM), **columns)  # type: ignore[arg-type]


def wish(number: int, *counts: int | RequestTuple, **columns: object) -> Wish:
    """A request for so many nodes of any kind (a tuple for each count)."""
    tuples = tuple(one if isinstance(one, RequestTuple) else RequestTuple(one, "", 1) for one in counts)
    return replace(Wish(number, 0, float(number), 9, "lab", tuples), **columns)  # type: ignore[arg-type]


def site(free: list[FreeNode], wishes: list[Wish], **columns: object) -> Snapshot:
    """A site whose nodes are all free."""
    seen = Snapshot(types=TYPES, free=free, site=Counter(one.kind[0] for one in free), wishes=wishes,
                    templates=TEMPLATES)
    return replace(seen, **columns)  # type: ignore[arg-type]


def nodes_of(done: Plan, request_id: int) -> list[int]:
    """The nodes granted to a request."""
    return [seat.node_id for grant in done.grants if grant.request_id == request_id for seat in grant.seats]


# ---------------------------------------------------------------- one rule at a time


def test_a_request_gets_its_nodes_with_their_generations_and_templates() -> None:
    done = plan(site([node(1), node(2), node(3)], [wish(1, 2)]), NOW)
    assert [(one.node_id, one.generation, one.template_id) for one in done.grants[0].seats] == [(1, 7, 1), (2, 7, 1)]
    assert not done.noes


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert not plan(site([node(1)], []), NOW)


def test_higher_priority_first_then_older() -> None:
    wishes = [wish(1, 1), wish(2, 1, priority=5), wish(3, 1, submitted_at=0.5)]
    done = plan(site([node(1), node(2)], wishes), NOW)
    assert [grant.request_id for grant in done.grants] == [2, 3]
    assert [no.request_id for no in done.noes] == [1]


def test_all_or_nothing() -> None:
    done = plan(site([node(1), node(2)], [wish(1, 3)], site={SMALL: 3}), NOW)
    assert done.grants == ()
    assert [(no.code, no.sentence) for no in done.noes] == [
        ("busy", "waits: 3 nodes wanted, 2 free of 3 that would do; others hold the rest")]


def test_a_request_that_waits_for_what_others_hold_lets_smaller_ones_pass() -> None:
    done = plan(site([node(1)], [wish(1, 2), wish(2, 1)], site={SMALL: 2}), NOW)
    assert [grant.request_id for grant in done.grants] == [2]


def test_a_request_that_waits_for_nodes_on_their_way_back_keeps_the_free_ones() -> None:
    done = plan(site([node(1)], [wish(1, 3), wish(2, 1)], coming={(SMALL, ""): 2}, site={SMALL: 3}), NOW)
    assert done.grants == ()
    assert [(no.request_id, no.code, no.sentence) for no in done.noes] == [
        (1, "coming", "waits for 2 nodes on their way back"),
        (2, "busy", "waits: 1 node wanted, 0 free of 3 that would do; others hold the rest")]


def test_only_what_it_needs_is_kept() -> None:
    done = plan(site([node(1), node(2)], [wish(1, RequestTuple(2, BIG_ONLY, 1)), wish(2, 2)],
                     coming={(BIG, ""): 3}, site={SMALL: 2, BIG: 3}), NOW)
    assert nodes_of(done, 2) == [1, 2]


def test_the_requests_attributes_hold() -> None:
    done = plan(site([node(1), node(2, BIG)], [wish(1, RequestTuple(1, BIG_ONLY, 1))]), NOW)
    assert nodes_of(done, 1) == [2]


def test_the_templates_attributes_hold() -> None:
    done = plan(site([node(1), node(2, BIG)], [wish(1, RequestTuple(1, "", 2))]), NOW)
    assert nodes_of(done, 1) == [2]


def test_a_template_without_an_image_for_a_type_does_not_go_there() -> None:
    done = plan(site([node(1, UEFI), node(2, BIG)], [wish(1, RequestTuple(1, "", 3))]), NOW)
    assert nodes_of(done, 1) == [2]
    done = plan(site([node(1, UEFI)], [wish(1, RequestTuple(1, "", 3))]), NOW)
    assert done.noes[0].sentence == ("1 node wanted, the site has 0 that would do. uefi lacks image: one for target "
                                     "disk that fits the hardware wanted, none found")


def test_the_cheaper_type_is_taken() -> None:
    done = plan(site([node(1, BIG), node(2)], [wish(1, 1)]), NOW)
    assert nodes_of(done, 1) == [2]


def test_at_equal_cost_the_type_with_enough_nodes_awake() -> None:
    free = [node(1, readiness=COLD), node(2, readiness=COLD), node(3, readiness=COLD), node(4, UEFI), node(5, UEFI)]
    assert nodes_of(plan(site(free, [wish(1, 2)]), NOW), 1) == [4, 5]


def test_then_the_type_with_most_free() -> None:
    free = [node(1), node(2, UEFI), node(3, UEFI)]
    assert nodes_of(plan(site(free, [wish(1, 1)]), NOW), 1) == [2]


def test_one_type_serves_a_request_alone_if_it_can() -> None:
    free = [node(1), node(2, BIG), node(3, BIG)]
    assert nodes_of(plan(site(free, [wish(1, 2)]), NOW), 1) == [2, 3]


def test_if_none_can_it_is_spread_cheapest_first() -> None:
    free = [node(1), node(2, BIG), node(3, BIG), node(4)]
    assert sorted(nodes_of(plan(site(free, [wish(1, 3)]), NOW), 1)) == [1, 2, 4]


def test_cached_first_then_warm_then_cold_and_others_caches_last() -> None:
    free = [node(1, readiness=COLD), node(2, cache=(8, 8)), node(3), node(4, cache=(1, 9)), node(5, cache=(1, 8)),
            node(6, readiness=COLD, cache=(1, 9))]
    order = [nodes_of(plan(site(free, [wish(1, count)]), NOW), 1)[-1] for count in range(1, 7)]
    assert order == [4, 6, 3, 5, 2, 1]


def test_nodes_on_another_subnet_are_not_taken() -> None:
    free = [node(1, kind=(SMALL, "far")), node(2, kind=(SMALL, "lab"))]
    assert nodes_of(plan(site(free, [wish(1, 1)]), NOW), 1) == [2]
    assert plan(site(free, [wish(1, 2)]), NOW).grants == ()


def test_tuples_do_not_take_each_others_nodes() -> None:
    free = [node(1), node(2, BIG)]
    done = plan(site(free, [wish(1, 1, RequestTuple(1, BIG_ONLY, 1))]), NOW)
    assert nodes_of(done, 1) == [1, 2]


def test_what_the_site_can_never_give_is_rejected_with_the_reason() -> None:
    done = plan(site([node(1)], [wish(1, RequestTuple(1, LARGER_THAN_ANY, 1))]), NOW)
    assert [(no.final, no.sentence) for no in done.noes] == [
        (True, "1 node wanted, the site has 0 that would do. small lacks memory/mib: at least 8GiB wanted, 1024 found")]


def test_too_many_for_the_site_is_rejected() -> None:
    done = plan(site([node(1)], [wish(1, 2)]), NOW)
    assert done.noes[0].sentence == "2 nodes wanted, the site has 1 that would do"


def test_a_vclusters_own_nodes_cannot_be_had_again() -> None:
    done = plan(site([node(1)], [wish(1, 2, own={SMALL: 1})], site={SMALL: 2}), NOW)
    assert (done.noes[0].final, done.noes[0].sentence) == (
        True, "2 nodes wanted, the site has 1 besides its own that would do")


def test_tuples_that_are_too_many_together() -> None:
    done = plan(site([node(1), node(2)], [wish(1, 1, 2)]), NOW)
    assert (done.noes[0].final, done.noes[0].sentence) == (
        True, "its 2 tuples together want more nodes than the site has that would do")


def test_a_wait_is_told_once() -> None:
    seen = site([], [wish(1, 1)], site={SMALL: 1})
    told = plan(seen, NOW).noes[0].sentence
    assert not plan(replace(seen, wishes=[wish(1, 1, reason=told)]), NOW)


def test_leases_expire_and_deserted_vclusters_end() -> None:
    done = plan(site([], [], leases=[(3, NOW), (1, NOW - 1), (2, NOW + 1)], deserted=[9, 8]), NOW)
    assert (done.expired, done.deserted) == ((1, 3), (8, 9))


# ---------------------------------------------------------------- for any site

KINDS: list[Kind] = [(SMALL, "lab"), (BIG, "lab"), (UEFI, "lab"), (SMALL, ""), (BIG, "far")]
TUPLES = st.builds(RequestTuple, st.integers(1, 3), st.sampled_from(["", "", "", BIG_ONLY, LARGER_THAN_ANY]),
                   st.sampled_from([1, 1, 1, 2, 3]))
CACHES = st.sampled_from([None, None, None, (1, 9), (2, 10)])  # few, so that nodes often are alike


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Small sites with every kind of trouble."""
    count = draw(st.integers(0, 12))
    free = [FreeNode(number, draw(st.integers(0, 3)), draw(st.sampled_from(KINDS)), draw(st.sampled_from([WARM, COLD])),
                     draw(CACHES)) for number in range(1, count + 1)]
    coming = Counter(draw(st.lists(st.sampled_from(KINDS), max_size=4)))
    held = Counter(draw(st.lists(st.sampled_from(sorted(TYPES)), max_size=4)))
    total = held + Counter(one.kind[0] for one in free) + Counter(kind[0] for kind in coming.elements())
    wishes = [wish(number, *draw(st.lists(TUPLES, min_size=1, max_size=2)), priority=draw(st.integers(0, 2)),
                   submitted_at=float(draw(st.integers(0, 2))), group_id=draw(st.integers(9, 10)))
              for number in range(1, draw(st.integers(0, 5)) + 1)]
    return Snapshot(types=TYPES, free=free, coming=coming, site=total, wishes=wishes, templates=TEMPLATES,
                    leases=[(number, draw(st.floats(90, 110))) for number in range(draw(st.integers(0, 3)))])


anything = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@anything
@given(snapshots())
def test_no_node_is_granted_twice_and_only_free_ones(seen: Snapshot) -> None:
    granted = [(seat.node_id, seat.generation) for grant in plan(seen, NOW).grants for seat in grant.seats]
    assert len(granted) == len(set(granted))
    assert set(granted) <= {(one.id, one.generation) for one in seen.free}


@anything
@given(snapshots())
def test_constraints_are_met_and_it_is_all_or_nothing(seen: Snapshot) -> None:
    kinds = {one.id: one.kind for one in seen.free}
    wishes = {one.id: one for one in seen.wishes}
    for grant in plan(seen, NOW).grants:
        wanted = wishes[grant.request_id]
        seats = iter(grant.seats)
        for one in wanted.tuples:
            for seat in itertools.islice(seats, one.count):
                type_id, subnet = kinds[seat.node_id]
                assert seat.template_id == one.template_id
                assert satisfies(one.attributes, TYPES[type_id].attributes) == []
                assert (one.template_id, type_id) not in {(2, SMALL), (2, UEFI), (3, UEFI)}
                assert subnet in ("", wanted.subnet)
        assert next(seats, None) is None
        assert len(grant.seats) == sum(one.count for one in wanted.tuples)


@anything
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_rows(seen: Snapshot, random: st.Random) -> None:
    def shuffled(rows: object) -> list[object]:
        rows = list(rows)  # type: ignore[call-overload]
        random.shuffle(rows)
        return rows

    turned = replace(
        seen, free=shuffled(seen.free), wishes=shuffled(seen.wishes), leases=shuffled(seen.leases),
        types=dict(shuffled(seen.types.items())), coming=dict(shuffled(seen.coming.items())),
        site=dict(shuffled(seen.site.items())))
    assert plan(turned, NOW) == plan(seen, NOW)


def carried_out(seen: Snapshot, done: Plan) -> Snapshot:
    """The site after the plan: granted nodes are held, decided requests are gone, waits have been told."""
    taken = {seat.node_id for grant in done.grants for seat in grant.seats}
    decided = {grant.request_id for grant in done.grants} | {no.request_id for no in done.noes if no.final}
    told = {no.request_id: no.sentence for no in done.noes}
    return replace(
        seen, free=[one for one in seen.free if one.id not in taken],
        wishes=[replace(one, reason=told.get(one.id, one.reason)) for one in seen.wishes if one.id not in decided],
        leases=[one for one in seen.leases if one[0] not in done.expired], deserted=())


@anything
@given(snapshots())
def test_planning_again_changes_nothing(seen: Snapshot) -> None:
    after = carried_out(seen, plan(seen, NOW))
    again = plan(after, NOW)
    assert not again.grants
    assert not again.expired
    assert all(not no.final for no in again.noes)
    assert not plan(carried_out(after, again), NOW)


@anything
@given(snapshots())
def test_every_request_is_answered(seen: Snapshot) -> None:
    done = plan(seen, NOW)
    answered = [grant.request_id for grant in done.grants] + [no.request_id for no in done.noes]
    assert sorted(answered) == sorted(one.id for one in seen.wishes)
    assert all(no.sentence for no in done.noes)


@anything
@given(snapshots())
def test_nobody_gets_what_a_more_important_request_could_have_had(seen: Snapshot) -> None:
    """A request that is not granted could not have been even if those behind it had not been there."""
    done = plan(seen, NOW)
    order = sorted(seen.wishes, key=lambda one: (-one.priority, one.submitted_at, one.id))
    for place, wanted in enumerate(order):
        alone = plan(replace(seen, wishes=order[:place + 1]), NOW)
        assert nodes_of(alone, wanted.id) == nodes_of(done, wanted.id)


@anything
@given(snapshots())
def test_only_the_impossible_is_rejected(seen: Snapshot) -> None:
    """A request is rejected just when it would not be granted with all nodes of the site free and it alone."""
    rejected = {no.request_id for no in plan(seen, NOW).noes if no.final}
    everything = [FreeNode(number, 0, (type_id, ""), WARM)
                  for number, type_id in enumerate(Counter(dict(seen.site)).elements())]
    for wanted in seen.wishes:
        alone = plan(replace(seen, free=everything, coming={}, wishes=[wanted]), NOW)
        assert bool(alone.grants) == (wanted.id not in rejected)


DEMANDS = st.lists(
    st.builds(Demand, st.integers(1, 3), st.lists(st.sampled_from(KINDS[:4]), unique=True).map(tuple)), max_size=3)


def test_spread_moves_others_aside() -> None:
    a, b, c = KINDS[:3]
    shares = spread([Demand(1, (a, b)), Demand(1, (b, c)), Demand(1, (a, b))], {a: 1, b: 1, c: 1})
    assert shares is not None
    assert [sorted(+share) for share in shares] == [[b], [c], [a]]


@settings(max_examples=300, deadline=None)
@given(DEMANDS, st.dictionaries(st.sampled_from(KINDS[:4]), st.integers(0, 3)))
def test_spread_finds_a_way_whenever_there_is_one(demands: list[Demand], capacity: dict[Kind, int]) -> None:
    """Against every way to seat the demands one node after the other."""
    seats = [demand.kinds for demand in demands for _ in range(demand.count)]
    possible = any(not Counter(way) - Counter(capacity) for way in itertools.product(*seats))
    shares = spread(demands, capacity)
    assert (shares is not None) == possible
    if shares is not None:
        assert not sum(shares, Counter()) - Counter(capacity)
        for demand, share in zip(demands, shares, strict=True):
            assert share.total() == demand.count
            assert set(+share) <= set(demand.kinds)


@pytest.mark.parametrize("count", [1, 50])
def test_a_plan_has_room_for_many_tuples(count: int) -> None:
    free = [node(number) for number in range(200)]
    done = plan(site(free, [wish(1, *[2] * count)]), NOW)
    assert isinstance(done.grants[0], Grant)
    assert len(done.grants[0].seats) == 2 * count
