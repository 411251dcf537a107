"""Preemptible vclusters by way of the database: who takes their nodes, by when, and what they may
use until then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from cod.flows.scheduler import explain, reclaims, shares
from cod.flows.scheduler import plan as flow
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Reclaim, Refused, Site, Vcluster
from cod.policy.scheduler.snapshot import PREEMPTIBLE
from cod.states import ReclaimState, VclusterState
from cod.store import tables as t
from cod.store.people import groups
from cod.store.scheduler import reclaims as reclaim_rows
from cod.store.scheduler import vclusters
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, arrive, furnish, in_tx, run_pass

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOUR = 3600.0
GRACE = 300.0


@pytest.fixture
def world(engine: Engine, site: Site) -> Site:
    """A site of four nodes, with a group of higher and one of lower priority beside its own."""
    in_tx(engine, furnish, 4)
    in_tx(engine, groups.add, "high", 0.0, priority=5)
    in_tx(engine, groups.add, "low", 0.0, priority=-5)
    return replace(
        site,
        policy=replace(
            site.policy, hold_after=HOUR, inertia=600.0, reclaim_grace=GRACE, drain_grace=GRACE
        ),
    )


def ask(engine: Engine, site: Site, name: str, size: int, now: float, **asked: Any) -> None:
    """Ask for a vcluster, and let the manager look."""
    in_tx(
        engine,
        owner_flows.create,
        flow_context(site, now),
        AskedVcluster(name=name, size=size, template="debian", **{"group": "site", **asked}),
    )
    in_tx(engine, run_pass, site, now)


def later(engine: Engine, site: Site, now: float) -> None:
    """Let everything on its way arrive, and the manager look twice."""
    for _ in range(2):
        in_tx(engine, run_pass, site, now)
        in_tx(engine, arrive, now)
    in_tx(engine, run_pass, site, now)


def named(engine: Engine, name: str) -> Vcluster:
    found = in_tx(engine, vclusters.by_name, name)
    assert found is not None
    return found


def held(engine: Engine, name: str) -> int:
    return in_tx(engine, vclusters.held, named(engine, name).id)


def open_reclaims(engine: Engine, name: str) -> list[Reclaim]:
    return in_tx(engine, reclaim_rows.open_, named(engine, name).id)


@pytest.mark.parametrize("group", ["high", "site", "low"])
def test_any_request_takes_the_nodes_with_grace(engine: Engine, world: Site, group: str) -> None:
    """Take three of four newly assigned nodes, which its owner hears of, and seize them at the
    deadline."""
    ask(engine, world, "filler", 4, 1.0, preemptible=True)
    assert held(engine, "filler") == 4
    ask(engine, world, "web", 3, 2.0, group=group)
    (reclaim,) = open_reclaims(engine, "filler")
    assert (reclaim.count, reclaim.deadline) == (3, 2.0 + GRACE)
    with engine.begin() as tx:
        texts = tx.scalars(select(t.notices.c.about).where(t.notices.c.kind == "reclaim")).all()
    assert len(texts) == 1
    assert texts[0].startswith(
        "The cluster is preemptible, and another request needs 3 nodes of cluster filler."
    )
    later(engine, world, 1.0 + GRACE)
    assert held(engine, "filler") == 4, "the grace is not over"
    later(engine, world, 2.0 + GRACE)
    assert (held(engine, "web"), held(engine, "filler"), named(engine, "filler").size) == (3, 1, 1)


def test_it_goes_down_to_none_and_asks_again(engine: Engine, world: Site) -> None:
    ask(engine, world, "filler", 4, 1.0, preemptible=True)
    ask(engine, world, "web", 4, 2.0, group="low")
    later(engine, world, 2.0 + GRACE)
    assert (held(engine, "filler"), named(engine, "filler").size) == (0, 0)
    assert named(engine, "filler").state == VclusterState.ACTIVE
    in_tx(engine, owner_flows.resize, flow_context(world, 400.0, OWNER), name="filler", size=2)
    later(engine, world, 400.0)
    assert held(engine, "filler") == 0, "it takes nothing itself"
    in_tx(engine, owner_flows.delete, flow_context(world, 500.0, OWNER), name="web")
    later(engine, world, 500.0)
    assert held(engine, "filler") == 2
    in_tx(engine, owner_flows.delete, flow_context(world, 600.0, OWNER), name="filler")
    later(engine, world, 600.0)
    assert in_tx(engine, vclusters.by_name, "filler") is None


def test_an_owner_may_give_all_nodes_for_a_reclaim(engine: Engine, world: Site) -> None:
    ask(engine, world, "filler", 4, 1.0, preemptible=True)
    ask(engine, world, "web", 4, 2.0)
    (reclaim,) = open_reclaims(engine, "filler")
    in_tx(
        engine,
        reclaims.answer,
        flow_context(world, 3.0, OWNER),
        reclaim_id=reclaim.id,
        nodes_=["n1", "n2", "n3", "n4"],
    )
    later(engine, world, 4.0)
    assert held(engine, "web") == 4
    assert not open_reclaims(engine, "filler")
    with pytest.raises(Refused, match="would have no node left"):
        in_tx(
            engine,
            owner_flows.release,
            flow_context(world, 5.0, OWNER),
            name="web",
            nodes_=["n1", "n2", "n3", "n4"],
        )


def test_the_latest_nodes_of_all_preemptible_vclusters_go_first(
    engine: Engine, world: Site
) -> None:
    ask(engine, world, "old", 2, 1.0, preemptible=True)
    ask(engine, world, "new", 1, 700.0, preemptible=True)
    ask(engine, world, "plain", 1, 700.0, group="low")
    ask(engine, world, "web", 2, 800.0, group="high")
    assert [
        [one.count for one in open_reclaims(engine, name)] for name in ("old", "new", "plain")
    ] == [[1], [1], []]


def test_what_is_held_for_a_request_is_lent_and_back_in_time(engine: Engine, world: Site) -> None:
    """Lend two nodes that wait for a third, until the vcluster that has the third is over."""
    ask(engine, world, "one", 2, 1.0, lease=2 * HOUR)
    ask(engine, world, "large", 3, 60.0)
    now = 61.0 + HOUR
    ask(engine, world, "small", 2, now)
    assert held(engine, "small") == 0, "what is free is held for the large one"
    ask(engine, world, "filler", 2, now, preemptible=True)
    assert held(engine, "filler") == 2
    ask(engine, world, "short", 1, now + 60.0, lease=600.0)
    assert [one.count for one in open_reclaims(engine, "filler")] == [1], (
        "it is done before the large one begins"
    )
    ends = 1.0 + 2 * HOUR
    for time in (now + 360.0, now + 960.0, now + 1260.0):
        later(engine, world, time)
    assert (held(engine, "large"), named(engine, "large").state) == (0, VclusterState.PENDING)
    later(engine, world, ends)
    later(engine, world, ends + GRACE)
    later(engine, world, ends + GRACE + 1)
    assert held(engine, "large") == 3
    assert held(engine, "filler") <= 1


def test_its_nodes_are_not_of_the_groups_limit_and_count_as_held(
    engine: Engine, world: Site
) -> None:
    in_tx(engine, shares.change, "low", {"node_limit": 1, "guarantee": 1}, site=world, now=0.0)
    ask(engine, world, "filler", 3, 1.0, preemptible=True, group="low")
    ask(engine, world, "plain", 1, 2.0, group="low")
    assert (held(engine, "filler"), held(engine, "plain")) == (3, 1)
    ask(engine, world, "more", 3, 3.0)
    assert [one.count for one in open_reclaims(engine, "filler")] == [3], (
        "the guarantee protects none of them"
    )


def test_people_see_no_priority_of_it(engine: Engine, world: Site) -> None:
    ask(engine, world, "filler", 4, 1.0, preemptible=True)
    ask(engine, world, "other", 1, 2.0, preemptible=True)
    seen = in_tx(engine, flow.look, world, 3.0)
    (request,) = seen.site.requests
    assert request.priority == PREEMPTIBLE
    why = in_tx(
        engine,
        explain.waits,
        request_id=request.id,
        scene=seen.scene,
        snapshot=seen.site,
        site=world,
        groups=None,
        now=3.0,
    )
    (holder,) = why.why.holders
    assert (holder.priority, holder.takeable, holder.protected) == (None, 0, "priority")
    assert holder.sentence.startswith("both are preemptible")


def test_a_reclaim_that_is_done_leaves_the_rest(engine: Engine, world: Site) -> None:
    """Ease what was taken once nodes come free elsewhere."""
    ask(engine, world, "filler", 3, 1.0, preemptible=True)
    ask(engine, world, "plain", 1, 1.0, group="low")
    ask(engine, world, "web", 2, 2.0)
    in_tx(engine, owner_flows.delete, flow_context(world, 3.0, OWNER), name="plain")
    later(engine, world, 3.0)
    (reclaim,) = open_reclaims(engine, "filler")
    assert (reclaim.count, reclaim.state) == (1, ReclaimState.OPEN)
