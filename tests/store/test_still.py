"""A pass that found nothing to do need not be planned again: until what is seen, a rule or the time
changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine, update

from cod.flows.scheduler import plan as flow
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Site
from cod.store import tables as t
from tests.bench.pass_world import NOW, SITE, Size, ask, fill
from tests.contexts import flow_context
from tests.store.manager_world import furnish, in_tx, run_pass

pytestmark = pytest.mark.mariadb_always


def resting(engine: Engine, site: Site) -> flow.NoChange:
    """One vcluster of two nodes, granted at 1, outside its inertia; a request that waits for a
    third."""
    in_tx(engine, furnish, 2)
    in_tx(
        engine,
        owner_flows.create,
        flow_context(site, 1.0),
        AskedVcluster(name="one", size=2, template="debian", group="site"),
    )
    in_tx(engine, run_pass, site, 1.0)
    in_tx(
        engine,
        owner_flows.create,
        flow_context(site, 500.0),
        AskedVcluster(name="two", size=1, template="debian", group="site"),
    )
    in_tx(engine, run_pass, site, 500.0)
    seen = in_tx(engine, flow.snapshot, site, 501.0)
    assert not flow.decide(seen, site, 501.0)
    return flow.still(seen, site, 501.0)


def lasts(engine: Engine, rest: flow.NoChange, site: Site, now: float) -> bool:
    return rest.lasts(in_tx(engine, flow.snapshot, site, now), site, now)


def test_it_lasts_while_nothing_changes_until_the_first_warning(engine: Engine, site: Site) -> None:
    site = replace(site, policy=replace(site.policy, hold_after=0.0))
    rest = resting(engine, site)
    assert lasts(engine, rest, site, 600.0)
    assert rest.until == 1.0 + site.policy.default_lease - min(site.policy.lease_warnings)
    assert not lasts(engine, rest, site, rest.until)


def test_it_lasts_until_nodes_are_held_back_for_who_waits(engine: Engine, site: Site) -> None:
    site = replace(site, policy=replace(site.policy, hold_after=5000.0))
    rest = resting(engine, site)
    assert rest.until == 500.0 + 5000.0
    assert not lasts(engine, rest, site, rest.until)
    assert (
        flow.due(rest.seen, replace(site, policy=replace(site.policy, hold_after=0.0)), 501.0)
        > rest.until
    )


def test_a_change_of_any_part_ends_it(engine: Engine, site: Site) -> None:
    rest = resting(engine, site)
    assert not lasts(engine, rest, replace(site, policy=replace(site.policy, inertia=9e9)), 600.0)
    assert not lasts(engine, rest, replace(site, energy=replace(site.energy, manage=True)), 600.0)
    for statement in (
        update(t.nodes)
        .where(t.nodes.c.name == "node0")
        .values(state="quarantined", vcluster_id=None),
        update(t.node_requests)
        .where(t.node_requests.c.state == "pending")
        .values(reason="another"),
        update(t.node_types).values(cost=7.0),
        update(t.groups).values(priority=3),
    ):
        with engine.connect() as connection:
            connection.execute(statement)
            assert not rest.lasts(flow.snapshot(connection, site, 600.0), site, 600.0), str(
                statement
            )
            connection.rollback()


def test_a_look_is_the_last_one_as_long_as_nothing_changes(engine: Engine) -> None:
    fill(engine, Size(200, 30))
    first = in_tx(engine, flow.look, SITE, NOW)
    assert in_tx(engine, flow.look, SITE, NOW, first).site is first.site
    one = first.site.requests[0].id
    with engine.begin() as tx:
        tx.execute(
            update(t.node_requests).where(t.node_requests.c.id == one).values(state="withdrawn")
        )
    second = in_tx(engine, flow.look, SITE, NOW, first)
    assert second.site == in_tx(engine, flow.snapshot, SITE, NOW)
    assert {request.id for request in first.site.requests} - {
        request.id for request in second.site.requests
    } == {one}
    ask(engine, Size(200, 30), 5)
    assert in_tx(engine, flow.look, SITE, NOW, second).site == in_tx(
        engine, flow.snapshot, SITE, NOW
    )
