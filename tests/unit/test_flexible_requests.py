"""Flexible requests: the cheapest start at which the nodes can be had, and no deadline missed that
could be met."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from cod.policy.energy import flexible
from cod.policy.energy.curve import DAY, HOUR, Curve
from cod.policy.energy.flexible import SOON, Chosen, choose
from cod.policy.reservations import admission
from cod.policy.reservations.forecast import Forecast
from cod.policy.scheduler import reasons
from cod.policy.scheduler.snapshot import Allocation, PendingRequest, SiteSnapshot
from tests.unit.policy_sites import NOW, SMALL, free, holder, kind, request, site
from tests.unit.test_advance_reservations import ONE, RULES, Holders, reservation


def daily(*values: float) -> Curve:
    """A curve of a day; hours that are not given cost 10."""
    more = (*values, *(10.0 for _ in range(24 - len(values))))
    return Curve(tuple(hour * HOUR for hour in range(24)), more)


def asked(count: int = 2, hours: float = 1.0, **columns: Any) -> PendingRequest:
    return request(admission.LAST, count, lease=hours * HOUR, **columns)


def placed(
    seen: SiteSnapshot, one: PendingRequest, before: float, curve: Curve | None
) -> Chosen | None:
    return choose(seen, one, before - one.lease, curve, RULES, NOW)


NIGHT = daily(9, 9, 9, 2, 1, 3)  # the cheapest two hours are 03:00 to 05:00


def test_the_cheapest_hours_before_the_deadline_are_chosen() -> None:
    seen = site(free_nodes=[free(4, ONE)])
    found = placed(seen, asked(hours=2), NOW + DAY, NIGHT)
    assert found == Chosen(3 * HOUR, 1.5, 9.0)
    found = placed(seen, asked(hours=2), 4.5 * HOUR, NIGHT)
    assert found is not None
    assert (found.start, found.cost) == (2.5 * HOUR, pytest.approx((4.5 + 2 + 0.5) / 2))


def test_without_a_curve_or_with_a_flat_one_it_is_the_earliest() -> None:
    busy = site(
        holders=[holder(1, 4, expires_at=NOW + 5000)], allocations=[Allocation(1, ONE, 4, 0)]
    )
    for curve in (None, daily()):
        found = placed(site(free_nodes=[free(4, ONE)]), asked(), NOW + DAY, curve)
        assert found is not None
        assert found.start == NOW + SOON
        found = placed(busy, asked(), NOW + DAY, curve)
        assert found is not None
        assert found.start == NOW + 5000 + RULES.drain_grace + RULES.turnaround


def test_a_deadline_is_met_at_whatever_price() -> None:
    """The nodes are back when the cheap hours are over."""
    seen = site(holders=[holder(1, 4, expires_at=6 * HOUR)], allocations=[Allocation(1, ONE, 4, 0)])
    dear = daily(1, 1, 1, 1, 1, 1, 90, 90, 50)
    found = placed(seen, asked(), 8 * HOUR, dear)
    assert found == Chosen(6 * HOUR + 300, 90.0, 1.0)
    assert placed(seen, asked(), 7 * HOUR, dear) is None, "it cannot be met"
    assert placed(seen, asked(count=9), DAY, dear) is None


def test_other_reservations_keep_their_places() -> None:
    others = [reservation(1, 3, start=3 * HOUR, lease=2 * HOUR)]
    seen = site(free_nodes=[free(4, ONE)], requests=others)
    found = placed(seen, asked(), NOW + DAY, NIGHT)
    assert found is not None
    assert (found.start, found.cost) == (5 * HOUR + 300, pytest.approx((55 * 3 + 5 * 10) / 60))
    assert placed(seen, asked(count=1), NOW + DAY, NIGHT) == Chosen(4 * HOUR, 1.0, 9.0)


def test_nodes_of_a_reservation_that_is_over_are_counted_on() -> None:
    """Three nodes are set aside for the reservation, which waits for one more."""
    first = reservation(1, 4, start=NOW + HOUR, lease=HOUR)
    seen = site(free_nodes=[free(3, ONE, reserved=1), free(1, ONE)], requests=[first])
    found = placed(seen, asked(count=4), NOW + DAY, None)
    assert found is not None
    assert found.start == NOW + 2 * HOUR + RULES.drain_grace + RULES.turnaround


def test_what_else_is_refused_is_not_chosen() -> None:
    found = choose(
        site(free_nodes=[free(4, ONE)]),
        asked(),
        DAY,
        NIGHT,
        RULES,
        NOW,
        refused=lambda one: "no" if one.starts_at == 4 * HOUR else "",
    )
    assert found is not None
    assert found.cost == pytest.approx(1.0, abs=1.1)
    assert found.start != 4 * HOUR


def random_world(draw: random.Random) -> tuple[SiteSnapshot, PendingRequest, float, Curve]:
    """Some nodes, leases that end, reservations, and a request with a deadline."""
    blocks = [kind(SMALL, block) for block in (1, 2)]
    ends = [NOW + 600.0 * draw.randint(1, 60) for _ in range(3)]
    seen = site(
        free_nodes=[free(count, block) for block in blocks if (count := draw.randint(0, 4))],
        holders=[holder(number, 2, 2, expires_at=end) for number, end in enumerate(ends, 1)],
        allocations=[Allocation(number, draw.choice(blocks), 2, 0) for number in (1, 2, 3)],
    )
    for number in range(draw.randint(0, 4)):
        start = NOW + 600.0 * draw.randint(1, 60)
        one = reservation(number + 1, draw.randint(1, 4), start, 600.0 * draw.randint(1, 12))
        if not admission.verdict(seen, replace(one, id=admission.LAST), RULES, NOW).sentence:
            seen = replace(seen, requests=[*seen.requests, one])
    one = asked(draw.randint(1, 6), draw.choice([0.5, 1.0, 3.5]), may_spread=draw.random() < 0.5)
    curve = daily(*(float(draw.randint(0, 9)) for _ in range(24)))
    return seen, one, one.lease + NOW + 600.0 * draw.randint(0, 70), curve


@pytest.mark.slow
def test_it_is_as_cheap_as_any_start_that_is_admitted_and_found_whenever_there_is_one() -> None:
    """Frozen worlds, against all starts ten minutes apart, each asked about by itself."""
    met = 0
    for seed in range(40):
        seen, one, before, curve = random_world(random.Random(seed))
        found = placed(seen, one, before, curve)
        starts = [NOW + SOON, before - one.lease]
        starts += [at * 600.0 + NOW for at in range(1, int((before - one.lease - NOW) // 600) + 1)]
        open_ = [
            start
            for start in starts
            if NOW < start <= before - one.lease
            and not admission.verdict(seen, replace(one, starts_at=start), RULES, NOW).sentence
        ]
        if found is None:
            assert open_ == [], seed
            continue
        met += 1
        assert found.start + one.lease <= before
        assert (
            admission.verdict(seen, replace(one, starts_at=found.start), RULES, NOW).sentence == ""
        )
        costs = [curve.mean(start, start + one.lease, 0.0) for start in open_]
        assert found.cost is not None
        assert found.cost <= min(costs, default=found.cost) + 1e-6, (seed, "as cheap as any")
    assert met > 20


@pytest.mark.slow
def test_what_was_accepted_begins_at_its_start_while_the_world_goes_on() -> None:
    """Streams of requests: each flexible one begins when it was told, and is over in time."""
    accepted = 0
    for seed in range(5):
        world, now = Holders(seed), NOW
        curve = daily(*(float(world.draw.randint(0, 9)) for _ in range(24)))
        deadlines = {}
        for number in range(1, 25):
            count = world.draw.randint(1, 5)
            if world.draw.random() < 0.5:
                one = replace(asked(count, world.draw.choice([0.1, 0.25])), submitted_at=now)
                before = now + one.lease + 100.0 * world.draw.randint(1, 60)
                found = choose(world.seen(now), one, before - one.lease, curve, RULES, now)
                if found is not None:
                    own = replace(one, id=number, vcluster_id=1000 + number, starts_at=found.start)
                    world.requests.append(own)
                    deadlines[number] = (found.start, before - one.lease)
            else:
                lease = 100.0 * world.draw.randint(3, 40)
                world.requests.append(request(number, count, lease=lease, submitted_at=now))
            for _ in range(world.draw.randint(1, 12)):
                world.step(now)
                now += Holders.STEP
        while any(one.starts_at is not None for one in world.requests) and now < NOW + 20_000:
            world.step(now)
            now += Holders.STEP
        for number, (start, last) in deadlines.items():
            assert start <= last
            assert world.began.get(number, now) <= start + reasons.PUNCTUAL, (seed, number)
        accepted += len(deadlines)
    assert accepted > 15


def test_starts_without_enough_nodes_cost_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A week has many hours: only those are placed beside all reservations at which there are
    nodes; beside many reservations few are tried."""
    made: list[float] = []

    def counted(seen: SiteSnapshot, *rest: Any) -> Forecast:
        made.append(seen.requests[-1].starts_at if seen.requests else 0.0)
        return Forecast(seen, *rest)

    monkeypatch.setattr(flexible, "Forecast", counted)
    assert placed(site(free_nodes=[free(4, ONE)]), asked(count=5), NOW + 7 * DAY, NIGHT) is None
    assert len(made) == 1, "what there is without the request"
    assert (flexible.tries(0), flexible.tries(5), flexible.tries(1000)) == (600, 100, 12)


def test_a_deadline_far_ahead_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A century has a million hours, a lease may be as long."""
    hours = 0
    at = Curve.at

    def counted(curve: Curve, time: float) -> float | None:
        nonlocal hours
        hours += 1
        return at(curve, time)

    monkeypatch.setattr(Curve, "at", counted)
    seen = site(free_nodes=[free(4, ONE)])
    found = placed(seen, asked(hours=2), NOW + 36_500 * DAY, NIGHT)
    assert found == Chosen(3 * HOUR, 1.5, 9.0)
    found = placed(seen, asked(hours=24 * 36_500), NOW + 36_501 * DAY, NIGHT)
    assert found is not None
    assert found.cost == pytest.approx(NIGHT.usual)
    assert hours < 100_000
