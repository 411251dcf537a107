"""Reservations in advance by way of the database: submitted, kept, begun, late, withdrawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.flows.scheduler import apply_plan, moves, plan
from cod.flows.scheduler import requests as flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, EnergyUse, Refused, RequestView, Site
from cod.policy.scheduler import reasons
from cod.states import RequestState
from cod.store import claims
from cod.store.nodes import energy
from cod.store.notices import notices
from cod.store.people import groups
from cod.store.scheduler import reclaims, requests, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import arrive, furnish, in_tx, members, planned, run_pass

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

DAY = 86400.0


def reserve(
    engine: Engine,
    site: Site,
    count: int,
    at: float,
    length: float,
    now: float = 10.0,
    name: str = "web",
    groups: frozenset[int] | None = None,
    wait: bool = True,
) -> RequestView:
    made: RequestView = in_tx(
        engine,
        flows.submit,
        flow_context(site, now, seen=groups),
        vcluster=name,
        asked=AskedNodes([AskedTuple(count)], starts_at=at, duration=length, wait=wait),
    ).value
    return made


@pytest.fixture
def running(engine: Engine, site: Site) -> Site:
    """Six nodes: web holds one for three days, other holds one for a day."""
    in_tx(engine, furnish, 6)
    for name, lease in (("web", 3 * DAY), ("other", DAY)):
        in_tx(
            engine,
            owner_flows.create,
            flow_context(site, 1.0),
            AskedVcluster(name=name, size=1, template="debian", group="site", lease=lease),
        )
    in_tx(engine, run_pass, site, 1.0)
    in_tx(engine, arrive, 2.0)
    return site


def state(engine: Engine, request_id: int) -> tuple[str, str]:
    request = in_tx(engine, requests.get, request_id)
    return request.state, request.reason


def kinds(engine: Engine) -> list[str]:
    return [one.notice.kind for one in in_tx(engine, lambda tx: notices.every(tx, limit=100))]


def test_it_begins_at_its_start_and_the_lease_lasts_as_long(engine: Engine, running: Site) -> None:
    made = reserve(engine, running, 4, DAY, 2.5 * DAY)
    in_tx(engine, run_pass, running, DAY - 10)
    assert state(engine, made.request.id) == ("pending", "is reserved from 1970-01-02 00:00 UTC on")
    in_tx(engine, run_pass, running, DAY + 1)
    assert state(engine, made.request.id)[0] == RequestState.GRANTED
    web = in_tx(engine, vclusters.by_name, "web")
    assert (web.size, web.expires_at, len(in_tx(engine, members, web.id))) == (
        5,
        DAY + 1 + 2.5 * DAY,
        5,
    )
    assert "reservation-late" not in kinds(engine)


def test_the_plan_shows_what_is_kept_for_it(engine: Engine, running: Site) -> None:
    """The first needs three of four free nodes; a lease that ends in time brings enough for the
    second."""
    first = reserve(engine, running, 3, DAY / 2, DAY)
    second = reserve(engine, running, 1, DAY + 7200, DAY)
    lines = in_tx(engine, plan.preview, site=running, now=20.0)
    assert [
        (one.vcluster, one.request_id, one.nodes, one.about)
        for one in lines
        if one.kind == "reserve"
    ] == [
        (
            "web",
            first.request.id,
            3,
            "reserved from 1970-01-01 12:00 UTC on; lent to leases that end before",
        )
    ]
    assert second.request.id in {one.request_id for one in lines if one.kind == "wait"}
    assert in_tx(engine, planned, running, 20.0)[-1].name == "tell requests why not"


def test_a_manager_that_was_down_begins_it_late_and_says_so(engine: Engine, running: Site) -> None:
    made = reserve(engine, running, 4, DAY, DAY)
    in_tx(engine, run_pass, running, DAY + 3600)
    assert state(engine, made.request.id)[0] == RequestState.GRANTED
    assert "reservation-late" in kinds(engine)


def test_one_whose_nodes_are_gone_waits_and_is_told_once(engine: Engine, running: Site) -> None:
    made = reserve(engine, running, 4, 3600.0, DAY)
    broken = "UPDATE nodes SET state='quarantined' WHERE vcluster_id IS NULL"
    in_tx(engine, lambda tx: tx.exec_driver_sql(broken))
    for now in (3601.0, 3700.0, 3800.0):
        in_tx(engine, run_pass, running, now)
    assert state(engine, made.request.id)[1].startswith(
        "begins late: too few of its nodes are free yet"
    )
    assert kinds(engine).count("reservation-late") == 1


def test_one_is_told_again_when_its_beginning_becomes_known(engine: Engine, running: Site) -> None:
    made = reserve(engine, running, 4, 3600.0, DAY)
    broken = "UPDATE nodes SET state='quarantined' WHERE vcluster_id IS NULL"
    mended = "UPDATE nodes SET state='wipe', since=3750 WHERE state='quarantined'"
    for now, what in ((3700.0, broken), (3800.0, mended), (3900.0, "")):
        if what:
            in_tx(engine, lambda tx, what=what: tx.exec_driver_sql(what))
        in_tx(engine, run_pass, running, now)
    assert kinds(engine).count("reservation-late") == 2
    expected = reasons.at(math.ceil((3750 + running.policy.turnaround) / 60) * 60)
    assert f"expected by {expected}" in state(engine, made.request.id)[1]


def test_one_that_is_late_keeps_its_vcluster_and_tells_when_it_begins(
    engine: Engine, running: Site
) -> None:
    """The lease would have ended meanwhile; then the reservation lasts as long as was asked."""
    made = reserve(engine, running, 4, 3 * DAY - 3600, DAY)
    broken = "UPDATE nodes SET state='quarantined' WHERE vcluster_id IS NULL"
    in_tx(engine, lambda tx: tx.exec_driver_sql(broken))
    ends = in_tx(engine, vclusters.by_name, "web").expires_at
    for now in (3 * DAY - 3600, 3 * DAY - 3000, ends + 1, ends + 400, ends + 4000, ends + 9000):
        in_tx(engine, run_pass, running, now)
        web = in_tx(engine, vclusters.by_name, "web")
        assert (web.state, web.drain_until) == ("active", None)
        assert len(in_tx(engine, members, web.id)) == 1
    assert state(engine, made.request.id)[0] == "pending"
    assert "nobody knows yet when" in state(engine, made.request.id)[1]
    assert kinds(engine).count("reservation-late") == 1
    mended = "UPDATE nodes SET state='inactive' WHERE state='quarantined'"
    in_tx(engine, lambda tx: tx.exec_driver_sql(mended))
    in_tx(engine, run_pass, running, now + 10)
    web = in_tx(engine, vclusters.by_name, "web")
    assert state(engine, made.request.id)[0] == RequestState.GRANTED
    assert (web.size, web.expires_at) == (5, now + 10 + DAY)


def test_a_new_lease_that_would_last_too_long_waits(engine: Engine, running: Site) -> None:
    reserve(engine, running, 4, DAY, DAY)
    for name, lease in (("long", DAY), ("short", 3600.0)):
        in_tx(
            engine,
            owner_flows.create,
            flow_context(running, 20.0),
            AskedVcluster(name=name, size=1, template="debian", group="site", lease=lease),
        )
    in_tx(engine, run_pass, running, 20.0)
    assert {name: in_tx(engine, vclusters.by_name, name).state for name in ("long", "short")} == {
        "long": "pending",
        "short": "active",
    }


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"at": 5.0}, "the start 1970-01-01 00:00 UTC is over"),
        ({"length": None}, "has a start and a duration"),
        ({"at": 4 * DAY}, "ends 1970-01-04 00:00 UTC, before the start: extend it first"),
        ({"count": 7}, "7 nodes wanted, the site has 5 matching besides its own"),
        ({"wait": False}, "waits for its start"),
        ({"length": 6 * DAY}, "lasts 5 d at most"),
    ],
)
def test_what_cannot_be_is_refused(
    engine: Engine, running: Site, columns: dict[str, Any], said: str
) -> None:
    in_tx(
        engine,
        lambda tx: groups.change(tx, groups.named(tx, "site", "group").id, max_lease=5 * DAY),
    )
    asked: dict[str, Any] = {"count": 2, "at": DAY, "length": DAY, **columns}
    with pytest.raises(Refused) as refused:
        reserve(engine, running, **asked)
    assert said in refused.value.sentence


def test_node_hours_used_and_reserved_count(engine: Engine, running: Site) -> None:
    """What two reservations, and what the group has used, leave of 100 node-hours in the month."""
    in_tx(
        engine,
        lambda tx: groups.change(tx, groups.named(tx, "site", "group").id, hours_limit=100.0),
    )
    reserve(engine, running, 1, DAY, 2 * DAY)
    reserve(engine, running, 1, DAY, DAY * 2)
    with pytest.raises(Refused, match="of 1970-01, 0 are used, 96 reserved, and 6 were asked for"):
        reserve(engine, running, 1, DAY, DAY / 4)
    in_tx(
        engine,
        flows.withdraw,
        request_id=in_tx(engine, requests.every)[-1].id,
        reason="test",
        now=20.0,
    )
    group = in_tx(engine, lambda tx: groups.named(tx, "site", "group").id)
    in_tx(engine, lambda tx: energy.add(tx, [EnergyUse(0, group, 1, 50 * 3600.0, 0.0, 0.0)]))
    with pytest.raises(Refused, match="of 1970-01, 50 are used, 48 reserved, and 6 were asked for"):
        reserve(engine, running, 1, DAY, DAY / 4)


def test_a_preemptible_vcluster_reserves_nothing(engine: Engine, running: Site) -> None:
    in_tx(
        engine,
        owner_flows.create,
        flow_context(running, 3.0),
        AskedVcluster(
            name="filler", size=1, template="debian", group="site", lease=3 * DAY, preemptible=True
        ),
    )
    in_tx(engine, run_pass, running, 3.0)
    with pytest.raises(Refused, match="preemptible vcluster cannot be reserved"):
        reserve(engine, running, 1, DAY, DAY, name="filler")


def test_two_that_do_not_fit_are_refused_and_withdrawing_makes_room(
    engine: Engine, running: Site
) -> None:
    first = reserve(engine, running, 4, DAY, DAY)
    with pytest.raises(
        Refused, match=r"4 nodes reserved for vcluster web \(request \d+\)"
    ) as refused:
        reserve(engine, running, 2, DAY - 60, DAY, name="other")
    assert "The next start at which they would be is 1970-01-04 00:21 UTC" in refused.value.sentence
    # it would lengthen the lease of the first's nodes
    with pytest.raises(Refused, match="No later start is known"):
        reserve(engine, running, 2, DAY + 60, DAY, name="web")
    with pytest.raises(Refused) as hidden:
        reserve(engine, running, 2, DAY + 60, DAY, groups=frozenset())
    assert "vcluster web" not in hidden.value.sentence
    in_tx(engine, flows.withdraw, request_id=first.request.id, reason="test", now=30.0)
    reserve(engine, running, 2, DAY + 60, DAY, now=40.0)


def acts(engine: Engine, site: Site, now: float) -> tuple[Any, list[Any]]:
    """Return the manager's claim and the grants of a pass that has planned and not acted yet."""
    claim = in_tx(engine, claims.hold, "manager", "a", now, 1000.0)
    return claim, [act for act in in_tx(engine, planned, site, now) if act.name.startswith("grant")]


def test_a_grant_planned_before_a_reservation_is_not_carried_out(
    engine: Engine, running: Site
) -> None:
    asked = in_tx(
        engine,
        flows.submit,
        flow_context(running, 5.0),
        vcluster="web",
        asked=AskedNodes([AskedTuple(3)]),
    ).value
    claim, [grant] = acts(engine, running, 5.0)
    reserve(engine, running, 4, DAY, DAY)
    with pytest.raises(apply_plan.Stale, match="reservations in advance"):
        in_tx(engine, grant.flow, claim=claim, now=12.0)
    assert acts(engine, running, 12.0)[1] == []
    assert state(engine, asked.request.id)[0] == "pending"


def test_a_grant_planned_before_a_long_extension_is_not_carried_out(
    engine: Engine, running: Site
) -> None:
    """Either of the two would be served: the extension of vcluster other, or the request of web."""
    reserve(engine, running, 4, DAY + 7200, DAY)
    in_tx(
        engine,
        flows.submit,
        flow_context(running, 12.0),
        vcluster="web",
        asked=AskedNodes([AskedTuple(1)]),
    )
    claim, [grant] = acts(engine, running, 13.0)
    in_tx(engine, owner_flows.extend, flow_context(running, 14.0), name="other", lease=2 * DAY)
    with pytest.raises(apply_plan.Stale, match="reservations in advance"):
        in_tx(engine, grant.flow, claim=claim, now=15.0)


def test_a_move_that_makes_a_reservation_late_is_refused(engine: Engine, running: Site) -> None:
    """Vcluster long keeps its nodes beyond the start of the reservation, vcluster other gives them
    back before."""
    for name, size, lease in (("third", 3, DAY), ("long", 1, 9 * DAY)):
        in_tx(
            engine,
            owner_flows.create,
            flow_context(running, 3.0),
            AskedVcluster(name=name, size=size, template="debian", group="site", lease=lease),
        )
    in_tx(engine, run_pass, running, 3.0)
    in_tx(engine, arrive, 4.0)
    made = reserve(engine, running, 3, DAY + 7200, DAY)
    move: dict[str, Any] = {"source": "third", "target": "long", "within": 60.0}
    context = flow_context(running, 20.0, "user:ann")
    with pytest.raises(Refused) as refused:
        in_tx(engine, moves.start, context, count=2, **move)
    assert (
        refused.value.sentence
        == f"3 nodes are reserved for vcluster web (request {made.request.id}) from 1970-01-02"
        " 02:00 UTC on, and would not be there: move fewer nodes, or nodes of another type"
    )
    assert in_tx(engine, reclaims.open_) == []
    in_tx(engine, moves.start, context, count=1, **move)


def test_a_lease_is_extended_up_to_a_reservation(engine: Engine, running: Site) -> None:
    start = DAY + 7200
    reserve(engine, running, 5, start, DAY)
    extend: dict[str, Any] = {"name": "other", "lease": 2 * DAY}
    context = flow_context(running, 50.0)
    with pytest.raises(
        Refused, match="the lease can last until 1970-01-02 01:40 UTC: 5 nodes are reserved for"
    ):
        in_tx(engine, owner_flows.extend, context, **extend)
    in_tx(engine, owner_flows.extend, context, clip=True, **extend)
    rules = running.policy
    assert (
        in_tx(engine, vclusters.by_name, "other").expires_at
        == start - rules.drain_grace - rules.turnaround
    )
    with pytest.raises(Refused, match="the lease cannot be extended: 5 nodes are reserved for"):
        in_tx(engine, owner_flows.extend, context, **extend)
