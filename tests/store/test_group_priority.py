"""A group's priority is changed while it runs and waits."""

from __future__ import annotations

from cod.flows.people import groups as group_flows
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, Effect, Site
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import reclaims, requests, vclusters
from tests.contexts import flow_context
from tests.store.busy_site import ruled
from tests.store.manager_world import OWNER, add_node, add_template, arrive, run_pass


def _contended(tx: Tx, site: Site) -> None:
    """*old* has grown to all three nodes, *new* waits for one: both groups' priority is 3."""
    add_template(tx, "debian")
    for name in ("holds", "waits"):
        groups.add(tx, name, 0.0, priority=3)
    for number in range(3):
        add_node(tx, number)
    owner_flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="old", size=1, template="debian", group="holds"),
    )
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    owner_flows.resize(tx, flow_context(site, 4.0, OWNER), name="old", size=3)
    run_pass(tx, site, 5.0)
    arrive(tx, 6.0)
    owner_flows.create(
        tx,
        flow_context(site, 7.0),
        AskedVcluster(name="new", size=1, template="debian", group="waits"),
    )
    assert run_pass(tx, site, 50.0) == ["tell requests why not"]


def test_what_waits_gets_the_new_priority_at_once(tx: Tx, site: Site) -> None:
    site = ruled(site)
    _contended(tx, site)
    changed = group_flows.change(tx, "waits", {"priority": 4}, now=51.0)
    assert Effect("wake", "manager") in changed.effects
    assert [one.priority for one in requests.every(tx)] == [
        3,
        3,
        4,
    ], "what was decided keeps what it was decided with"
    assert "take for request" in run_pass(tx, site, 52.0)
    (open_,) = reclaims.open_(tx)
    assert (open_.count, open_.request_id) == (1, requests.every(tx)[-1].id)


def test_so_does_what_holds(tx: Tx, site: Site) -> None:
    site = ruled(site)
    _contended(tx, site)
    group_flows.change(tx, "holds", {"priority": 2}, now=51.0)
    assert "take for request" in run_pass(tx, site, 52.0)
    assert vclusters.by_name(tx, "old") is not None


def test_who_falls_behind_takes_nothing_more(tx: Tx, site: Site) -> None:
    """A reclaim that is open is not carried out for a request whose group goes first no longer."""
    site = ruled(site)
    _contended(tx, site)
    group_flows.change(tx, "waits", {"priority": 4}, now=51.0)
    run_pass(tx, site, 52.0)
    group_flows.change(tx, "waits", {"priority": 3}, now=53.0)
    for now in (54.0, 100.0, 110.0):
        run_pass(tx, site, now)
    assert reclaims.open_(tx) == []
    old = vclusters.by_name(tx, "old")
    assert old is not None
    assert (old.size, vclusters.held(tx, old.id)) == (3, 3)


def test_a_change_of_something_else_wakes_no_manager(tx: Tx) -> None:
    groups.add(tx, "physics", 0.0, priority=3)
    changed = group_flows.change(
        tx, "physics", {"priority": 3, "email": "ann@example.org"}, now=1.0
    )
    assert changed.effects == (Effect("wake", "notices"),)


def test_a_request_that_comes_later_has_it_too(tx: Tx, site: Site) -> None:
    site = ruled(site)
    _contended(tx, site)
    group_flows.change(tx, "holds", {"priority": 8}, now=51.0)
    made = request_flows.submit(
        tx, flow_context(site, 52.0), vcluster="old", asked=AskedNodes([AskedTuple(1)])
    )
    assert made.value.request.priority == 8
