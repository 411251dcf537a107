"""When a node's time in its vcluster ends, as its metadata tell it: by a lease, a reclaim, a move;
withdrawn again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from cod.core import preemption
from cod.flows.boot import metadata as flow
from cod.flows.scheduler import moves
from cod.flows.scheduler import reclaims as reclaim_flows
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, Site, dotted
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import reclaims, vclusters
from cod.wire import metadata as wire
from tests.contexts import flow_context
from tests.store.busy_site import answer, contended, grow, people, vcluster_id, want
from tests.store.manager_world import OWNER, add_node, arrive, furnish, in_tx, run_pass

pytestmark = pytest.mark.slow

HOUR = 3600.0
DUE = 120.0  # the deadline of `contended`'s reclaim, of nodes 1 and 2


def told(tx: Tx, site: Site, name: str) -> tuple[float | None, bool]:
    """Return when the node's time ends, as it may know, and whether it is on its way back."""
    node = nodes.by_name(tx, name)
    assert node is not None
    address = tx.scalar(
        select(t.bindings.c.address).where(
            t.bindings.c.node_id == node.id, t.bindings.c.kind == "vcluster"
        )
    )
    assert address is not None
    found = flow.of(tx, address=dotted(address), site=site)
    assert found is not None
    shown = wire.document(found, ["machinefeatures", "shutdowntime"])
    assert shown == (None if found.ends is None else (str(int(found.ends)), "text/plain"))
    return found.ends, found.leaving


def lease(tx: Tx, name: str) -> float:
    found = vclusters.by_name(tx, name)
    assert found is not None
    assert found.expires_at is not None
    return found.expires_at


def test_a_reclaims_deadline_is_told_to_the_nodes_that_it_chose_and_to_no_other(
    tx: Tx, quiet: Site
) -> None:
    contended(tx, quiet)
    stays = (lease(tx, "loser"), False)
    assert [told(tx, quiet, f"node{number}") for number in range(4)] == [
        stays,
        (DUE, True),
        (DUE, True),
        stays,
    ]


def test_nodes_that_its_vcm_names_are_told_when_and_those_in_whose_place_they_go_are_not(
    tx: Tx, quiet: Site
) -> None:
    one = contended(tx, quiet)
    stays = (lease(tx, "loser"), False)
    named: dict[str, Any] = {"reclaim_id": one.id, "nodes_": ()}
    context = flow_context(quiet, 101.0, OWNER)
    reclaim_flows.answer(tx, context, later={"node3": 110.0}, **named)
    assert [told(tx, quiet, f"node{number}") for number in range(4)] == [
        stays,
        (DUE, True),
        stays,
        (110.0, True),
    ]
    context = flow_context(quiet, 102.0, OWNER)
    reclaim_flows.answer(tx, context, later={"node3": 110.0, "node0": 900.0}, **named)
    assert [told(tx, quiet, f"node{number}") for number in range(4)] == [
        (DUE, True),
        stays,
        stays,
        (110.0, True),
    ]
    answer(tx, quiet, one.id, "node3")
    assert told(tx, quiet, "node0") == (DUE, True), "one of two is given; the other is still wanted"


@pytest.mark.parametrize("how", ["closed", "withdrawn", "answered with others", "eased"])
def test_an_end_that_is_withdrawn_is_not_told_any_more(tx: Tx, quiet: Site, how: str) -> None:
    one = contended(tx, quiet)
    tx.execute(update(t.vclusters).where(t.vclusters.c.name == "loser").values(expires_at=None))
    assert told(tx, quiet, "node1") == (DUE, True)
    if how == "closed":
        preemption.close(tx, one, 105.0)
    elif how == "withdrawn":
        owner_flows.delete(tx, flow_context(quiet, 105.0, OWNER), name="winner")
    elif how == "answered with others":
        answer(tx, quiet, one.id, "node0", "node3")
    else:
        preemption.ease(tx, one.id, 2, 0, 105.0)
    assert told(tx, quiet, "node1") == (None, False), "nothing is found there again"


def test_a_lease_and_its_grace_end_a_node_where_no_reclaim_does_so_earlier(
    tx: Tx, quiet: Site
) -> None:
    contended(tx, quiet)
    for columns, ends in (
        ({"expires_at": 110.0}, 110.0),
        ({"drain_until": 115.0}, 115.0),
        ({"drain_until": 500.0}, DUE),
    ):
        tx.execute(update(t.vclusters).where(t.vclusters.c.name == "loser").values(**columns))
        assert told(tx, quiet, "node1")[0] == ends
    assert told(tx, quiet, "node0") == (500.0, True)


def test_a_node_that_has_come_to_the_one_who_wanted_it_ends_with_the_new_lease(
    tx: Tx, quiet: Site
) -> None:
    one = contended(tx, quiet)
    answer(tx, quiet, one.id, "node1", "node2")
    arrive(tx, 106.0)
    assert run_pass(tx, quiet, 107.0) == ["grant request"]
    arrive(tx, 108.0)
    assert told(tx, quiet, "node1") == (lease(tx, "winner"), False)
    assert told(tx, quiet, "node0") == (lease(tx, "loser"), False)


def test_a_moves_deadline_is_told_to_the_nodes_that_move(tx: Tx, quiet: Site) -> None:
    people(tx)
    for number in range(5):
        add_node(tx, number)
    want(tx, quiet, "old", 4, 4096, 1.0)
    want(tx, quiet, "new", 1, 4096, 1.0)
    run_pass(tx, quiet, 2.0)
    arrive(tx, 3.0)
    moved = moves.start(
        tx, flow_context(quiet, 100.0, OWNER), source="old", target="new", count=2, within=HOUR
    ).value
    ends = {
        node.name: told(tx, quiet, node.name)
        for node in nodes.every(tx, vcluster_id=vcluster_id(tx, "old"))
    }
    assert sorted(ends.values()) == [(100.0 + HOUR, True)] * 2 + [(lease(tx, "old"), False)] * 2
    request_flows.withdraw(tx, request_id=moved.request.id, reason="", now=101.0)
    assert {told(tx, quiet, name) for name in ends} == {(lease(tx, "old"), False)}


def test_preemptible_nodes_are_told_as_soon_as_another_request_takes_them(
    engine: Engine, site: Site
) -> None:
    rules = replace(site, policy=replace(site.policy, inertia=600.0, reclaim_grace=300.0))
    in_tx(engine, furnish, 3)
    in_tx(
        engine,
        owner_flows.create,
        flow_context(rules, 1.0),
        AskedVcluster(name="filler", size=3, template="debian", group="site", preemptible=True),
    )
    in_tx(engine, run_pass, rules, 1.0)
    in_tx(engine, arrive, 1.5)
    in_tx(
        engine,
        owner_flows.create,
        flow_context(rules, 2.0),
        AskedVcluster(name="web", size=1, template="debian", group="site"),
    )
    in_tx(engine, run_pass, rules, 2.0)
    with engine.begin() as tx:
        ends = sorted(told(tx, rules, f"node{number}") for number in range(3))
        assert ends == [(302.0, True), (lease(tx, "filler"), False), (lease(tx, "filler"), False)]


def test_a_reservation_in_advance_ends_nodes_by_the_reclaim_that_it_needs(
    tx: Tx, quiet: Site
) -> None:
    """Tell nobody of a reservation that is far ahead; tell the nodes that it takes in time for its
    start."""
    people(tx)
    groups.ensure(tx, "site", 0.0)
    for number in range(4):
        add_node(tx, number)
    want(tx, quiet, "loser", 1, 4096, 1.0)
    want(tx, quiet, "holder", 1, 4096, 1.0, "high")
    run_pass(tx, quiet, 2.0)
    arrive(tx, 3.0)
    grow(tx, quiet, "loser", 3, 4.0)
    request_flows.submit(
        tx,
        flow_context(quiet, 50.0),
        vcluster="holder",
        asked=AskedNodes([AskedTuple(1)], starts_at=10_000.0, duration=HOUR),
    )
    held = [node.name for node in nodes.every(tx, vcluster_id=vcluster_id(tx, "loser"))]
    run_pass(tx, quiet, 60.0)
    assert {told(tx, quiet, name) for name in held} == {(lease(tx, "loser"), False)}, (
        "nothing is taken yet"
    )
    for now in range(9_000, 10_100, 10):
        run_pass(tx, quiet, float(now))
        if reclaims.open_(tx):
            break
    (one,) = reclaims.open_(tx)
    assert {told(tx, quiet, name) for name in held} == {
        (one.deadline, True),
        (lease(tx, "loser"), False),
    }
