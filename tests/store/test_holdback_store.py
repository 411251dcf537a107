"""What is held back for who has waited long, by way of the database: the manager's pass, and its
preview."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Engine

from cod.flows.scheduler import plan as flow
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Site
from tests.contexts import flow_context
from tests.store.manager_world import furnish, in_tx, run_pass

HOUR = 3600.0


def ask(
    engine: Engine, site: Site, name: str, size: int, now: float, lease: float | None = None
) -> None:
    in_tx(
        engine,
        owner_flows.create,
        flow_context(site, now),
        AskedVcluster(name=name, size=size, template="debian", group="site", lease=lease),
    )


def waiting(engine: Engine, site: Site) -> Site:
    """Four nodes, of which one vcluster holds two for two hours; another wants three from the first
    minute on."""
    site = replace(site, policy=replace(site.policy, hold_after=HOUR))
    in_tx(engine, furnish, 4)
    ask(engine, site, "one", 2, 1.0, 2 * HOUR)
    in_tx(engine, run_pass, site, 1.0)
    ask(engine, site, "large", 3, 60.0)
    in_tx(engine, run_pass, site, 60.0)
    return site


def pending(engine: Engine, site: Site, now: float) -> set[int]:
    in_tx(engine, run_pass, site, now)
    return {request.vcluster_id for request in in_tx(engine, flow.snapshot, site, now).requests}


def test_leases_come_with_the_requests(engine: Engine, site: Site) -> None:
    site = waiting(engine, site)
    ask(engine, site, "short", 1, 61.0, 600.0)
    leases = [request.lease for request in in_tx(engine, flow.snapshot, site, 61.0).requests]
    assert leases == [site.policy.default_lease, 600.0]


def test_a_pass_holds_nodes_back_and_its_preview_says_so(engine: Engine, site: Site) -> None:
    site = waiting(engine, site)
    now = 61.0 + HOUR
    ask(engine, site, "small", 2, now)
    assert len(pending(engine, site, now)) == 2, "two of the three come back in time"
    holds = [
        line for line in in_tx(engine, flow.preview, site=site, now=now) if line.kind == "hold"
    ]
    request = in_tx(engine, flow.snapshot, site, now).requests[0].id
    assert [(line.vcluster, line.request_id, line.nodes) for line in holds] == [
        ("large", request, 1)
    ]
    assert holds[0].about.startswith(
        f"1 node is held for request {request}, for 1 s now; all that request {request} "
        "wants is there in "
    )


def test_who_is_done_in_time_gets_one_of_them(engine: Engine, site: Site) -> None:
    site = waiting(engine, site)
    now = 61.0 + HOUR
    ask(engine, site, "short", 1, now, 600.0)
    assert len(pending(engine, site, now)) == 1


def test_an_hour_earlier_it_is_passed(engine: Engine, site: Site) -> None:
    site = waiting(engine, site)
    ask(engine, site, "small", 1, 62.0)
    assert len(pending(engine, site, 62.0)) == 1
    assert not [
        line for line in in_tx(engine, flow.preview, site=site, now=62.0) if line.kind == "hold"
    ]


def test_where_nothing_is_free_there_is_no_line(engine: Engine, site: Site) -> None:
    site = replace(site, policy=replace(site.policy, hold_after=HOUR))
    in_tx(engine, furnish, 3)
    ask(engine, site, "one", 3, 1.0, 3 * HOUR)
    in_tx(engine, run_pass, site, 1.0)
    ask(engine, site, "large", 3, 60.0)
    now = 61.0 + HOUR
    assert [line.kind for line in in_tx(engine, flow.preview, site=site, now=now)] == ["wait"]
    assert flow.decide(in_tx(engine, flow.snapshot, site, now), site, now).holds
