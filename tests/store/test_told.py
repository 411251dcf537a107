"""Every event that groups and administrators are to hear of is told, to those whom it concerns,
once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from cod.core.nodes import transitions
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import apply_plan
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Site
from cod.policy.nodes import lifecycle
from cod.policy.scheduler.snapshot import PassPlan
from cod.states import NodeEvent
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.notices import notices
from cod.store.people import groups
from cod.store.scheduler import reclaims
from tests.contexts import flow_context
from tests.store.busy_site import answer, contended
from tests.store.manager_world import OWNER, arrive, furnish, run_pass

pytestmark = pytest.mark.slow


def told(tx: Tx, since: int = 0) -> list[tuple[str, str | None, str | None]]:
    """(kind, group, vcluster) of the notices after that one, oldest first."""
    return [
        (view.notice.kind, view.group, view.vcluster) for view in notices.every(tx, after=since)
    ]


def kinds(tx: Tx, since: int = 0) -> list[str]:
    return [kind for kind, _, _ in told(tx, since)]


def create(tx: Tx, site: Site, size: int = 2, now: float = 1.0, **rest: Any) -> None:
    owner_flows.create(
        tx,
        flow_context(site, now),
        AskedVcluster(name="web", size=size, template="debian", group="site", **rest),
    )


@pytest.fixture
def warning(site: Site) -> Site:
    """Leases of 100 s, warned of 40 and 10 s before, 20 s of grace."""
    return replace(
        site,
        policy=replace(
            site.policy, default_lease=100.0, lease_warnings=(40.0, 10.0), drain_grace=20.0
        ),
    )


def test_a_leases_whole_story(tx: Tx, warning: Site) -> None:
    furnish(tx, 2)
    create(tx, warning)
    assert told(tx) == [], "nothing has happened yet that a group wants to hear"
    run_pass(tx, warning, 2.0)
    story = ["lease-began"]
    assert told(tx) == [("lease-began", "site", "web")]
    arrive(tx, 3.0)
    owner_flows.extend(tx, flow_context(warning, 10.0), name="web", lease=100.0)
    story.append("lease-extended")
    assert kinds(tx) == story
    for now, kind in (
        (71.0, "lease-warning"),
        (85.0, None),
        (101.0, "lease-warning"),
        (111.0, "lease-ended"),
        (120.0, None),
        (132.0, "drained"),
        (140.0, None),
    ):
        for again in (0.0, 0.5):
            run_pass(tx, warning, now + again)
        story += [kind] if kind else []
        assert kinds(tx) == story, now
    assert {(group, vcluster) for _, group, vcluster in told(tx)} == {("site", "web")}


def test_a_lease_that_is_extended_while_it_drains_is_warned_of_anew(tx: Tx, warning: Site) -> None:
    furnish(tx, 2)
    create(tx, warning)
    run_pass(tx, warning, 2.0)
    run_pass(tx, warning, 103.0)
    since = notices.newest(tx)
    owner_flows.extend(tx, flow_context(warning, 110.0), name="web", lease=60.0)
    for now in (111.0, 131.0, 165.0, 171.0):
        run_pass(tx, warning, now)
    assert kinds(tx, since) == ["lease-extended", "lease-warning", "lease-warning", "lease-ended"]


def test_an_extension_that_changes_nothing_is_not_told(tx: Tx, warning: Site) -> None:
    furnish(tx, 2)
    create(tx, warning)
    run_pass(tx, warning, 2.0)
    since = notices.newest(tx)
    owner_flows.extend(tx, flow_context(warning, 3.0), name="web", lease=10.0)
    assert kinds(tx, since) == []


def test_a_vcluster_that_is_deleted(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    create(tx, site)
    run_pass(tx, site, 2.0)
    since = notices.newest(tx)
    for _ in range(2):
        owner_flows.delete(tx, flow_context(site, 3.0, OWNER), name="web")
    assert told(tx, since) == [("deleted", "site", "web")]
    assert OWNER in notices.every(tx)[-1].notice.about


def test_a_request_that_can_never_be_met(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    create(tx, site, size=3)
    for now in (2.0, 3.0):
        run_pass(tx, site, now)
    assert told(tx) == [("rejected", "site", "web")]


def held(tx: Tx, site: Site) -> Any:
    furnish(tx, 3)
    create(tx, site)
    run_pass(tx, site, 2.0)
    return next(node for node in nodes.every(tx) if node.vcluster_id is not None)


def test_a_node_that_uses_up_its_retries(tx: Tx, site: Site) -> None:
    """Tell the holder that the node is lost, and administrators that it needs them; tell nobody of
    a retry."""
    node, since = held(tx, site), notices.newest(tx)
    for attempts, expected in (
        (0, []),
        (99, [("quarantined", None, None), ("node-lost", "site", "web")]),
    ):
        node = nodes.change(tx, node, attempts=attempts)
        step = lifecycle.on_trouble(node, NodeEvent.TIMED_OUT, "no sign of progress", site.policy)
        node = transitions.apply(tx, node, step, now=3.0, actor="deadline", policy=site.policy)
        assert told(tx, since) == expected
    quarantined, lost = [view.notice for view in notices.every(tx, after=since)]
    assert quarantined.subject == "node node0 is quarantined"
    assert lost.subject == "web: node n1 (node0) is lost"
    assert "no sign of progress (trouble 100 on its way" in lost.about


def test_a_node_that_an_administrator_sets_aside(tx: Tx, site: Site) -> None:
    """Tell the node's holder, not the administrators, who know it themselves."""
    node, since = held(tx, site), notices.newest(tx)
    node_flows.quarantine(tx, flow_context(site, 3.0, "user:ann"), name=node.name, reason="loud")
    assert told(tx, since) == [("node-lost", "site", "web")]


def test_a_free_node_that_is_set_aside_is_no_groups_business(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    node_flows.quarantine(tx, flow_context(site, 3.0, "user:ann"), name="node0", reason="loud")
    assert told(tx) == []


def test_nodes_that_are_taken(tx: Tx, quiet: Site) -> None:
    contended(tx, quiet)
    since = notices.newest(tx)
    assert [each for each in told(tx) if each[0] == "reclaim"] == [("reclaim", "low", "loser")]
    run_pass(tx, quiet, 121.0)
    assert ("reclaimed", "low", "loser") in told(tx, since)
    assert "reclaim-dropped" not in kinds(tx)


def test_nodes_that_are_not_wanted_any_more(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    answer(tx, quiet, one.id, "node3")
    since = notices.newest(tx)
    owner_flows.delete(tx, flow_context(quiet, 106.0, OWNER), name="winner")
    assert told(tx, since) == [("reclaim-dropped", "low", "loser"), ("deleted", "high", "winner")]
    assert "1 node of cluster loser" in notices.every(tx, after=since)[0].notice.about


def test_nothing_is_said_of_reclaims_that_were_answered_or_whose_vcluster_ends(
    tx: Tx, quiet: Site
) -> None:
    one = contended(tx, quiet)
    answer(tx, quiet, one.id, "node2", "node3")
    owner_flows.delete(tx, flow_context(quiet, 106.0, OWNER), name="winner")
    owner_flows.delete(tx, flow_context(quiet, 106.0, OWNER), name="loser")
    assert "reclaim-dropped" not in kinds(tx)


def test_what_may_not_be_taken_any_more_at_the_deadline(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    owner_flows.release(tx, flow_context(quiet, 107.0, OWNER), name="loser", nodes_=["n1"])
    tx.execute(update(t.vclusters).where(t.vclusters.c.name == "loser").values(creation_size=3))
    since = notices.newest(tx)
    claim = claims.hold(tx, "manager", "a", 120.0, 10.0)
    assert claim is not None
    apply_plan.seize(tx, reclaim_id=one.id, plan=PassPlan(), claim=claim, site=quiet, now=120.0)
    found = reclaims.get(tx, one.id)
    assert found is not None
    assert (found.state, found.given) == ("done", 1)
    assert told(tx, since) == [("reclaim-dropped", "low", "loser")]


def test_each_is_told_by_the_channels_of_its_group(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    owner = groups.by_name(tx, "site")
    assert owner is not None
    groups.change(tx, owner.id, webhook="https://hooks.example.org/", email="ann@x.org")
    create(tx, site)
    run_pass(tx, site, 2.0)
    (view,) = notices.every(tx)
    assert [send.channel for send in view.sends] == ["webhook", "email"]
