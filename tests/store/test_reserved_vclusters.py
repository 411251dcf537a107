"""Vclusters that are reserved in advance, before they exist: their names, addresses and networks
are kept from their acceptance on, and their nodes come at the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, Refused, Site
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.scheduler import address_blocks, networks, requests, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import arrive, furnish, members, run_pass
from tests.store.test_isolation_flow import INTERFACE, plug

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOUR, DAY = 3600.0, 86400.0


def create(tx: Tx, site: Site, name: str, size: int = 1, now: float = 1.0, **columns: Any) -> int:
    columns.setdefault("lease", DAY)
    made = flows.create(
        tx,
        flow_context(site, now),
        AskedVcluster(name=name, size=size, template="debian", group="site", **columns),
    ).value
    return made[0].vcluster.id


def state(tx: Tx, vcluster_id: int) -> str:
    found = vclusters.get(tx, vcluster_id)
    assert found is not None
    return found.state


def test_its_name_and_addresses_are_kept_and_its_nodes_come_at_the_start(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 4)
    course = create(tx, site, "course", 3, starts_at=DAY, lease=10 * HOUR)
    run_pass(tx, site, 2.0)
    assert (state(tx, course), members(tx, course)) == ("pending", [])
    assert address_blocks.room(tx, course) >= 3
    with pytest.raises(Refused, match="course"):
        create(tx, site, "course")
    long = create(tx, site, "long", 2, lease=2 * DAY)
    short = create(tx, site, "short", 3, lease=HOUR)
    run_pass(tx, site, 3.0)
    assert (state(tx, long), state(tx, short)) == ("pending", "active")
    flows.delete(tx, flow_context(site, 4.0, "t"), name="short")
    arrive(tx, 5.0)
    run_pass(tx, site, DAY)
    held = vclusters.get(tx, course)
    assert held is not None
    assert (held.state, held.expires_at, held.leased_at) == ("active", DAY + 10 * HOUR, DAY)
    assert len(members(tx, course)) == 3
    assert "reservation-late" not in [one.notice.kind for one in notices.every(tx, limit=100)]


def test_one_that_will_not_fit_is_refused_with_the_next_start_and_leaves_nothing(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 2)
    create(tx, site, "now", 2, lease=DAY)
    run_pass(tx, site, 1.0)
    with tx.begin_nested() as part:
        with pytest.raises(Refused, match=r"The next start at which they would be is 1970-01-02"):
            create(tx, site, "course", 2, starts_at=DAY / 2)
        part.rollback()
    assert vclusters.by_name(tx, "course") is None
    for columns, why in (
        ({"preemptible": True}, "preemptible"),
        ({"wait": False}, "waits for its start"),
        ({"starts_at": 0.5}, "is over"),
    ):
        with tx.begin_nested() as part:
            with pytest.raises(Refused, match=why):
                create(tx, site, "course", **{"starts_at": 3 * DAY, **columns})
            part.rollback()


def test_its_lease_is_as_long_as_the_group_may_have_from_the_start_on(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    month = replace(site, policy=replace(site.policy, max_lease=DAY))
    create(tx, month, "far", starts_at=30 * DAY, lease=DAY)
    with pytest.raises(Refused, match="at most"):
        create(tx, month, "longer", starts_at=30 * DAY, lease=2 * DAY)


def test_deleting_it_before_its_start_gives_back_what_was_kept(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    course = create(tx, site, "course", 2, starts_at=DAY)
    request = requests.every(tx, vcluster_id=course)[0]
    with pytest.raises(Refused, match="reserve anew"):
        request_flows.change(tx, request_id=request.id, count=1, now=2.0)
    flows.delete(tx, flow_context(site, 3.0, "t"), name="course")
    assert (state(tx, course), address_blocks.room(tx, course)) == ("ended", 0)
    long = create(tx, site, "long", 2, now=4.0, lease=3 * DAY)
    run_pass(tx, site, 4.0)
    assert state(tx, long) == "active"


def test_one_that_is_late_is_told_when_it_begins_and_lasts_as_long(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    course = create(tx, site, "course", 2, starts_at=HOUR, lease=DAY)
    tx.exec_driver_sql("UPDATE nodes SET state='quarantined'")
    run_pass(tx, site, HOUR + 100)
    tx.exec_driver_sql("UPDATE nodes SET state='inactive'")
    run_pass(tx, site, HOUR + 200)
    held = vclusters.get(tx, course)
    assert held is not None
    assert (held.state, held.expires_at) == ("active", HOUR + 200 + DAY)
    told = [one.notice for one in notices.every(tx, limit=100)]
    late = [one.about for one in told if one.kind == "reservation-late"]
    assert len(late) == 2
    assert not any("keeps its nodes" in text for text in late)


def test_an_isolated_one_keeps_its_network_and_nodes_with_usable_ports(tx: Tx, site: Site) -> None:
    """Lend the two nodes of four that have usable ports only until the start."""
    apart = replace(site, isolation=INTERFACE)
    furnish(tx, 4)
    plug(tx, 0, 1)
    course = create(tx, apart, "course", 2, starts_at=DAY, isolated=True)
    network = networks.of(tx, course)
    assert network is not None
    with tx.begin_nested() as part:
        with pytest.raises(Refused, match="not free from"):
            create(tx, apart, "second", 1, starts_at=DAY + HOUR, isolated=True)
        part.rollback()
    first = create(tx, apart, "first", 1, isolated=True, lease=HOUR)
    two = create(tx, apart, "two", 2, lease=3 * DAY)
    run_pass(tx, apart, 2.0)
    three = create(tx, apart, "three", 1, lease=3 * DAY)
    run_pass(tx, apart, 2.5)
    other = networks.of(tx, first)
    assert other is not None
    assert (other.vlan, other.first_address) != (network.vlan, network.first_address)
    assert (state(tx, two), state(tx, three)) == ("active", "pending")
    assert sorted(members(tx, two)) == ["node2", "node3"]
    flows.delete(tx, flow_context(apart, 3.0, "t"), name="first")
    arrive(tx, 4.0)
    run_pass(tx, apart, DAY)
    assert state(tx, course) == "active"
    assert sorted(members(tx, course)) == ["node0", "node1"]
    assert networks.of(tx, course) == network


def test_an_isolated_one_is_placed_before_a_deadline_when_usable_ports_are_free(
    tx: Tx, site: Site
) -> None:
    apart = replace(site, isolation=INTERFACE)
    furnish(tx, 4)
    plug(tx, 0, 1)
    create(tx, apart, "one", 1, isolated=True, lease=5 * DAY)
    create(tx, apart, "two", 1, isolated=True, lease=DAY)
    run_pass(tx, apart, 2.0)
    asked = request_flows.submit(
        tx,
        flow_context(apart, 3),
        vcluster="one",
        asked=AskedNodes([AskedTuple(1)], duration=HOUR, before=3 * DAY),
    ).value
    start = asked.request.starts_at
    assert start is not None
    assert DAY < start < DAY + HOUR, "when the other's lease is over: two nodes have no such port"
