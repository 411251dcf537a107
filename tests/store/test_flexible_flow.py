"""Flexible requests by way of the database: placed by the curve, told why, begun; preemptible work
that is held in dear hours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.flows.nodes import energy_curve
from cod.flows.scheduler import plan
from cod.flows.scheduler import requests as flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, Refused, RequestView, Site
from cod.states import RequestState
from cod.store.scheduler import requests, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import in_tx, run_pass
from tests.store.test_advance_reservations_flow import running, state

__all__ = ["running"]

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOUR, DAY = 3600.0, 86400.0
CURVE = "".join(f"{hour},{40 if hour in (5, 6) else 300}\n" for hour in range(24))


def priced(engine: Engine, site: Site, **rules: Any) -> Site:
    """The site with a curve of carbon that was read."""
    own = replace(site, energy=replace(site.energy, curve_file="/curve", **rules))
    assert in_tx(engine, energy_curve.note, own.energy, CURVE.encode(), "", 5.0) == ""
    return own


def ask(engine: Engine, site: Site, count: int, **columns: Any) -> RequestView:
    made: RequestView = in_tx(
        engine,
        flows.submit,
        flow_context(site, 10.0),
        vcluster="web",
        asked=AskedNodes([AskedTuple(count)], **columns),
    ).value
    return made


def test_it_begins_at_the_cheapest_hours_and_says_why(engine: Engine, running: Site) -> None:
    site = priced(engine, running)
    made = ask(engine, site, 4, duration=2 * HOUR, before=DAY)
    assert made.request.starts_at == 5 * HOUR
    said = (
        "is reserved from 1970-01-01 05:00 UTC on; chosen: the cheapest start before the deadline,"
        " with 40 gCO2/kWh on the average; from now on it would be 300"
    )
    assert made.request.reason == said
    for now in (20.0, 4 * HOUR):
        in_tx(engine, run_pass, site, now)
        assert state(engine, made.request.id) == ("pending", said), "passes keep it"
    in_tx(engine, run_pass, site, 5 * HOUR + 1)
    assert state(engine, made.request.id)[0] == RequestState.GRANTED
    web = in_tx(engine, vclusters.by_name, "web")
    assert web.size == 5


def test_without_a_curve_it_begins_as_soon_as_it_can(engine: Engine, running: Site) -> None:
    made = ask(engine, running, 5, duration=2 * HOUR, before=2 * DAY)
    start = made.request.starts_at
    assert start is not None
    assert DAY < start < DAY + HOUR, "when the other vcluster's lease is over, and its node erased"
    assert made.request.reason.endswith("; chosen: the earliest start at which the nodes are free")


@pytest.mark.parametrize(
    ("count", "columns", "why"),
    [
        (1, {"before": DAY}, "has a duration"),
        (1, {"before": HOUR, "duration": HOUR}, "are not over before 1970-01-01 01:00 UTC"),
        (1, {"before": DAY, "duration": HOUR, "starts_at": HOUR}, "not both"),
        (5, {"before": DAY, "duration": HOUR}, "The next start at which they would be is"),
        (1, {"before": DAY, "duration": HOUR, "wait": False}, "waits for its start"),
        (99, {"before": DAY, "duration": HOUR}, "99"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    engine: Engine, running: Site, count: int, columns: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        ask(engine, priced(engine, running), count, **columns)
    pending = in_tx(engine, lambda tx: requests.every(tx, states=[RequestState.PENDING]))
    assert pending == []


def test_preemptible_work_is_held_while_energy_is_dear(engine: Engine, running: Site) -> None:
    site = priced(engine, running, hold_above=100.0)
    made = in_tx(
        engine,
        owner_flows.create,
        flow_context(site, 10.0),
        AskedVcluster(
            name="filler", size=2, template="debian", group="site", lease=DAY, preemptible=True
        ),
    ).value
    [request] = in_tx(engine, lambda tx: requests.every(tx, vcluster_id=made[0].vcluster.id))
    dear = (
        "waits: preemptible clusters get no nodes above 100 gCO2/kWh, it is 300;"
        " next below it at 1970-01-01 05:00 UTC"
    )
    for now in (20.0, HOUR):
        in_tx(engine, run_pass, site, now)
        assert state(engine, request.id) == ("pending", dear)
    lines = in_tx(engine, plan.preview, site=site, now=HOUR)
    assert [one.kind for one in lines if one.request_id == request.id] == ["wait"]
    in_tx(engine, run_pass, site, 5 * HOUR)
    assert state(engine, request.id)[0] == RequestState.GRANTED


def test_other_work_is_not_held(engine: Engine, running: Site) -> None:
    site = priced(engine, running, hold_above=100.0)
    made = ask(engine, site, 2)
    in_tx(engine, run_pass, site, 20.0)
    assert state(engine, made.request.id)[0] == RequestState.GRANTED
