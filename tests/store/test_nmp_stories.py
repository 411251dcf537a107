"""The stories of docs/nmp are what happens: what COD owes a VCM in each of them, in that
order."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from sqlalchemy import select

from cod.flows.people import groups
from cod.flows.scheduler import reclaims as reclaim_flows
from cod.flows.scheduler import requests, vclusters
from cod.flows.vcms import vcms
from cod.model import AskedNodes, AskedTuple, AskedVcluster, OutboxMessage, Site
from cod.store import tables as t
from cod.store import vcms as store
from cod.store.engine import Tx
from cod.store.scheduler import reclaims
from tests.contexts import flow_context
from tests.manual import page
from tests.store import manager_world as world

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

PAGE = page("nmp").read_text()
NOW = 1_000_000.0
VCM = "vcm:pool"


def story(title: str) -> list[str]:
    """The kept messages of a story on the page, in order, as `said` has them."""
    found = re.search(rf"^{title}:\n\n```\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    numbered = re.findall(r"#(\d+) ([a-z-]+)(.*?)-+\|", found[1])
    numbers = [int(number) for number, _, _ in numbered]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), (
        "its numbers follow each other"
    )
    return [_told(verb, words) for _, verb, words in numbered]


def _told(verb: str, words: str) -> str:
    state = {"node-state": r"(\w+) *$", "lease": r"(\w+)", "reclaim-over": r"(\w+) *$"}.get(verb)
    found = re.search(state, words) if state else None
    return f"{verb} {found[1]}" if found else verb


def said(row: OutboxMessage) -> str:
    """A message of the outbox, by its verb and what it says has happened."""
    what = {"node-state": "state", "lease": "event", "reclaim-over": "state"}.get(row.verb)
    return f"{row.verb} {row.body[what]}" if what else row.verb


class Lab:
    """The vcluster 'pool' of one node, its VCM, free nodes, and a group that goes before it."""

    def __init__(self, tx: Tx, site: Site) -> None:
        self.tx = tx
        self.site = replace(site, policy=replace(site.policy, inertia=10.0, reclaim_grace=20.0))
        world.furnish(tx, 3)
        groups.create(tx, name="top", priority=10, default_lease=None, max_lease=None, now=NOW)
        vclusters.create(
            tx,
            flow_context(self.site, NOW),
            AskedVcluster(name="pool", size=1, template="debian", group="site"),
        )
        vcms.enrol(tx, vcluster="pool", serial="a1", address="", now=NOW)
        self.settle(NOW)
        self.pool: int = tx.scalars(select(t.vclusters.c.id)).one()
        self.owed()

    def settle(self, now: float) -> None:
        world.run_pass(self.tx, self.site, now)
        world.arrive(self.tx, now)

    def owed(self) -> list[str]:
        rows = store.unacknowledged(self.tx, {self.pool: 0}, limit=1000)
        if rows:
            store.acknowledge(self.tx, self.pool, rows[-1].sequence)
        return [said(row) for row in rows]

    def grow(self, count: int, now: float) -> None:
        requests.submit(
            self.tx,
            flow_context(self.site, now, key=vcms.request_key(self.pool, "k")),
            vcluster="pool",
            asked=AskedNodes([AskedTuple(count)]),
        )
        self.settle(now)

    def reclaimed(self, now: float) -> int:
        """A reclaim of one node that it has beyond its floor; its number."""
        self.grow(2, NOW + 1)
        self.owed()
        vclusters.create(
            self.tx,
            flow_context(self.site, now),
            AskedVcluster(name="web", size=1, template="debian", group="top"),
        )
        world.run_pass(self.tx, self.site, now)
        (one,) = reclaims.open_(self.tx, self.pool)
        return one.id

    def release(self, node: str, now: float) -> None:
        vclusters.release(
            self.tx,
            flow_context(self.site, now, VCM),
            name="pool",
            nodes_=[node],
            passing_over=True,
        )


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, site)


def test_growing(lab: Lab) -> None:
    lab.grow(1, NOW + 1)
    assert lab.owed() == story("Growing")


def test_shrinking_by_itself(lab: Lab) -> None:
    lab.grow(1, NOW + 1)
    lab.owed()
    lab.release("n2", NOW + 2)
    assert lab.owed() == story("Shrinking by itself")


def test_a_reclaim_answered_in_time(lab: Lab) -> None:
    number = lab.reclaimed(NOW + 100)
    reclaim_flows.answer(
        lab.tx,
        flow_context(lab.site, NOW + 100, VCM),
        reclaim_id=number,
        nodes_=[],
        later={"n3": NOW + 110},
    )
    lab.release("n3", NOW + 105)
    assert lab.owed() == story("A reclaim, answered in time")


def test_a_vcm_that_is_away(lab: Lab) -> None:
    lab.reclaimed(NOW + 100)
    world.run_pass(lab.tx, lab.site, NOW + 121)
    assert lab.owed() == story("A VCM that is away")


def test_a_lease_that_ends(lab: Lab) -> None:
    end = NOW + lab.site.policy.default_lease
    world.run_pass(lab.tx, lab.site, end - 3599)
    vclusters.extend(lab.tx, flow_context(lab.site, end - 3000), name="pool", lease=86400.0)
    assert lab.owed() == story("A lease that ends")


def test_a_reclaim_is_over_before_its_last_node_is_lost_however_it_goes(lab: Lab) -> None:
    """In one transaction, so no VCM can act between the two; the page says so of `reclaim-over`."""
    number = lab.reclaimed(NOW + 100)
    lab.owed()
    reclaim_flows.answer(
        lab.tx, flow_context(lab.site, NOW + 101, VCM), reclaim_id=number, nodes_=["n3"]
    )
    assert lab.owed() == ["reclaim-over done", "node-state lost"]
    reclaim_flows.answer(
        lab.tx, flow_context(lab.site, NOW + 102, VCM), reclaim_id=number, nodes_=["n3"]
    )
    lab.settle(NOW + 103)
    lab.settle(NOW + 104)
    assert reclaims.get(lab.tx, number).state == "done"
    again = reclaim_flows.answer(
        lab.tx, flow_context(lab.site, NOW + 105, VCM), reclaim_id=number, nodes_=["n3"]
    )
    assert (again.value.reclaim.state, again.effects) == (
        "done",
        (),
    ), "also when its nodes have a new holder"
    assert lab.owed() == []
