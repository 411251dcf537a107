"""Node-hours of a month by way of the database: they bound leases and growth, and groups are
told."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from cod.flows.nodes import energy
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import shares, vclusters
from cod.model import AskedNodes, AskedTuple, AskedVcluster, Energy, EnergyUse, Policy, Refused
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.people import groups
from cod.store.scheduler import reclaims
from cod.store.scheduler import vclusters as rows
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, arrive, furnish, rest, run_pass
from tests.store.test_manager_properties import SITE

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOUR, DAY = 3600.0, 86400.0
NOW = 1_000_000.0  # in January 1970, 19 days before its end


def used(tx: Tx, hours: float) -> None:
    tx.execute(
        insert(t.energy_use).values(
            day=int(NOW // DAY),
            group_id=groups.named(tx, "physics").id,
            type_id=1,
            seconds=hours * HOUR,
        )
    )


@pytest.fixture
def physics(tx: Tx) -> int:
    """Six nodes, and a group with 100 node-hours a month, of which it has used 60; its id."""
    furnish(tx, 6)
    found = groups.add(tx, "physics", 0.0, hours_limit=100.0)
    used(tx, 60.0)
    return found.id


def create(tx: Tx, name: str, size: int, hours: float, now: float = NOW, **columns: Any) -> None:
    vclusters.create(
        tx,
        flow_context(SITE, now),
        AskedVcluster(
            name=name,
            size=size,
            template="debian",
            group="physics",
            lease=hours * HOUR,
            spread=True,
            **columns,
        ),
    )


def ends(tx: Tx, name: str) -> float:
    found = rows.by_name(tx, name)
    assert found is not None
    assert found.expires_at is not None
    return found.expires_at


def test_a_lease_beyond_what_is_left_is_refused_with_what_fits(tx: Tx, physics: int) -> None:
    with pytest.raises(Refused, match=r"60\.0 are used .* a lease of 10 h from now fits") as no:
        create(tx, "web", 4, 11.0)
    assert no.value.field == "lease"
    create(tx, "web", 4, 10.0)
    run_pass(tx, SITE, NOW)
    assert ends(tx, "web") == NOW + 10 * HOUR
    with pytest.raises(Refused, match="no lease fits now"):
        create(tx, "more", 1, 1.0)


def test_growth_beyond_what_is_left_is_refused(tx: Tx, physics: int) -> None:
    create(tx, "web", 2, 10.0)
    run_pass(tx, SITE, NOW)
    arrive(tx, NOW)
    context = flow_context(SITE, NOW, OWNER)
    with pytest.raises(Refused, match="and 3 nodes until"):
        vclusters.resize(tx, context, name="web", size=5)
    with pytest.raises(Refused, match="and 3 nodes until"):
        request_flows.submit(
            tx, flow_context(SITE, NOW), vcluster="web", asked=AskedNodes([AskedTuple(3)])
        )
    vclusters.resize(tx, context, name="web", size=4)
    run_pass(tx, SITE, NOW)
    with pytest.raises(Refused, match="would exceed what is left"):
        vclusters.extend(tx, flow_context(SITE, NOW), name="web", lease=11 * HOUR)


def test_an_extension_is_refused_or_goes_as_far_as_it_can(tx: Tx, physics: int) -> None:
    create(tx, "web", 4, 5.0)
    run_pass(tx, SITE, NOW)
    with pytest.raises(Refused, match="a lease of 10 h from now fits"):
        vclusters.extend(tx, flow_context(SITE, NOW), name="web", lease=12 * HOUR)
    assert ends(tx, "web") == NOW + 5 * HOUR
    vclusters.extend(tx, flow_context(SITE, NOW), name="web", lease=12 * HOUR, clip=True)
    assert ends(tx, "web") == NOW + 10 * HOUR
    vclusters.extend(tx, flow_context(SITE, NOW + HOUR), name="web", lease=12 * HOUR, clip=True)
    assert ends(tx, "web") == NOW + 10 * HOUR + HOUR  # no hour has been put down


def test_a_lease_that_began_after_others_is_cut_and_says_so(tx: Tx, physics: int) -> None:
    create(tx, "one", 2, 15.0)
    create(tx, "two", 2, 15.0)
    run_pass(tx, SITE, NOW)
    assert sorted([ends(tx, "one"), ends(tx, "two")]) == [NOW + 5 * HOUR, NOW + 15 * HOUR]
    said = [one.notice.about for one in notices.every(tx, limit=10)]
    assert sum("shorter than was asked" in one for one in said) == 1


def test_a_grant_that_no_lease_is_left_for_waits(tx: Tx, physics: int) -> None:
    create(tx, "one", 2, 20.0)
    create(tx, "two", 2, 20.0)
    with pytest.raises(Refused, match="no lease fits now"):
        run_pass(tx, SITE, NOW)


def test_nothing_is_taken_for_who_has_no_node_hours_left(tx: Tx, physics: int) -> None:
    groups.change(tx, physics, priority=5)
    groups.add(tx, "low", 0.0)
    vclusters.create(
        tx,
        flow_context(SITE, NOW),
        AskedVcluster(
            name="filler",
            size=6,
            template="debian",
            group="low",
            lease=DAY,
            spread=True,
            preemptible=True,
        ),
    )
    now = rest(tx, SITE, NOW)
    create(tx, "web", 4, 2.0, now)
    tx.execute(t.energy_use.update().values(seconds=99.99 * HOUR))
    with pytest.raises(Refused, match="no lease fits now"):
        run_pass(tx, SITE, now)
    assert reclaims.open_(tx) == []


def test_who_has_used_all_waits_for_the_next_month(tx: Tx, physics: int) -> None:
    tx.execute(t.energy_use.update().values(seconds=100 * HOUR))
    create(tx, "web", 4, 20.0)
    run_pass(tx, SITE, NOW)
    found = rows.by_name(tx, "web")
    assert found is not None
    assert found.state == "pending"


def told(tx: Tx) -> list[str]:
    return [
        one.notice.subject for one in notices.every(tx, limit=50) if one.notice.kind == "node-hours"
    ]


def test_a_group_is_told_once_at_80_and_at_100_per_cent(tx: Tx, physics: int) -> None:
    at = NOW
    for _ in range(50):
        use = EnergyUse(int(at // DAY), physics, 1, HOUR, 0.0, 0.0)
        energy.note(tx, energy.Reading(None if at == NOW else at - 60.0, at, (use,)), Policy())
        at += 60.0
    assert told(tx) == [
        "physics: 80 % of the month's node-hours used",
        "physics: 100 % of the month's node-hours used",
    ]


def test_a_group_is_told_once_of_its_budget_at_80_and_at_100_per_cent(tx: Tx, physics: int) -> None:
    tx.execute(t.energy_use.delete())
    groups.change(tx, physics, budget=10.0)
    prices = Energy(price_node_hour=0.1, price_kwh=0.3, currency="CHF")
    at = NOW
    for _ in range(30):  # an hour of a node and a kWh, 0.40 each
        use = EnergyUse(int(at // DAY), physics, 1, HOUR, 3.6e6, 0.0)
        reading = energy.Reading(None if at == NOW else at - 60.0, at, (use,))
        energy.note(tx, reading, Policy(), prices)
        at += 60.0
    said = [one.notice for one in notices.every(tx, limit=50) if one.notice.kind == "budget"]
    assert [one.subject for one in said] == [
        "physics: 80 % of the month's budget is used",
        "physics: 100 % of the month's budget is used",
    ]
    assert "8.00 of 10.00 CHF" in said[0].about
    month = energy.of_month(tx, "physics", physics, prices, at)
    assert (month.seconds, round(month.cost or 0.0, 2)) == (30 * HOUR, 12.0)
    by_month = energy.report(tx, since=NOW - 1, until=at, by="month", rules=prices, now=at)
    assert [(one.seconds, round(one.cost or 0.0, 2)) for one in by_month.lines] == [
        (30 * HOUR, 12.0)
    ]


def test_what_is_reached_in_the_last_minute_of_a_month_is_told(tx: Tx, physics: int) -> None:
    """The count that crosses the month's end has 25 node-hours of January, and some of February."""
    groups.change(tx, physics, budget=8.5)
    ends = 31 * DAY
    reading = energy.Reading(
        None,
        ends + 30.0,
        (
            EnergyUse(30, physics, 1, 25 * HOUR, 0.0, 0.0),
            EnergyUse(31, physics, 1, 25 * HOUR, 0.0, 0.0),
        ),
    )
    energy.note(tx, reading, Policy(), Energy(price_node_hour=0.1))
    said = [one.notice for one in notices.every(tx, limit=50)]
    assert [one.subject for one in said] == [
        "physics: 80 % of the month's node-hours used",
        "physics: 100 % of the month's budget is used",
    ]
    assert "which ends 1970-02-01 00:00" in said[1].about


def test_a_group_is_told_of_a_limit_that_it_has_nearly_used(tx: Tx, physics: int) -> None:
    shares.change(tx, "physics", {"hours_limit": 70.0}, site=SITE, now=NOW)
    shares.change(tx, "physics", {"hours_limit": 72.0}, site=SITE, now=NOW)
    assert told(tx) == ["physics: 80 % of the month's node-hours used"]
    shares.change(tx, "physics", {"hours_limit": 50.0}, site=SITE, now=NOW)
    assert told(tx)[1:] == ["physics: 100 % of the month's node-hours used"]


def test_a_cluster_that_is_reserved_in_advance_has_its_node_hours(tx: Tx, physics: int) -> None:
    """The reservation takes 30 of the 40 node-hours that are left."""
    create(tx, "course", 3, 10, starts_at=NOW + DAY)
    create(tx, "now", 1, 10)
    with pytest.raises(Refused, match="node-hours"):
        create(tx, "more", 1, 11)
