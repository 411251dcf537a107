"""Preemptions of many requests in one transaction come to the same rows as the same preemptions one
by one, on random sites, whatever has changed since the plan was made."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from cod.core.nodes.reclaim_batch import ReclaimBatch
from cod.flows.scheduler import apply_plan
from cod.flows.scheduler import plan as plan_flow
from cod.model import Policy, RequestTuple, Site, TypeTerms, Vcluster
from cod.policy.scheduler.snapshot import NodeKind, PassPlan, Preempt
from cod.states import RequestState, VclusterState
from cod.store import claims, vcms
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import reclaims, requests, reservations, vclusters
from tests.conftest import SUBNET
from tests.store.busy_site import GIB
from tests.store.manager_world import add_node, add_template
from tests.store.test_grants_in_bulk import carry_out, written

pytestmark = pytest.mark.slow

NOW = 1000.0
MIBS = (4096, 8192)
POLICY = Policy(inertia=5.0, inertia_by_priority={2: 15.0}, reclaim_grace=20.0)


class FullSite:
    """Nodes of two types that vclusters of four groups hold, and requests for some of them."""

    def __init__(self, tx: Tx, seed: int) -> None:
        self.tx, self.dice = tx, random.Random(seed)
        dice, self._template = self.dice, add_template(tx)
        terms: list[dict[str, Any]] = [
            dict(shares=float(n), email="a@b.test" if n == 1 else "") for n in range(4)
        ]
        if dice.random() < 0.5:
            terms[dice.randrange(4)]["guarantee"] = 4
        self._groups = [
            groups.add(tx, f"group{n}", 0.0, priority=n % 3, **terms[n]) for n in range(4)
        ]
        groups.change(tx, self._groups[2].id, grace=3.0)
        numbers = iter(range(1, 1000))
        for number in range(dice.randint(3, 7)):
            held = dice.randint(2, 6)
            holder = self._vcluster(f"old{number}", dice.randint(1, held), preemptible=True)
            for _ in range(held):
                node = add_node(
                    tx,
                    next(numbers),
                    dice.choice(["active", "active", "boot"]),
                    dice.choice(MIBS),
                    vcluster_id=holder,
                    assigned_at=NOW - dice.randint(0, 20),
                    template_id=self._template,
                )
                if node.type_id is not None and number == 0 and dice.random() < 0.5:
                    groups.give_types(
                        tx, self._groups[3].id, {node.type_id: TypeTerms(guarantee=2)}
                    )
            vclusters.change(
                tx, vclusters.ROWS.known(tx, holder), 0.0, state=VclusterState.ACTIVE, size=held
            )
            if dice.random() < 0.3:
                vcms.enrol(tx, holder, serial="1", address="10.77.0.9", head=None, now=4.0)
        for number in range(dice.randint(4, 12)):
            taker = self._vcluster(f"new{number}", 1, preemptible=False)
            group = groups.get(tx, vclusters.ROWS.known(tx, taker).group_id)
            wanted = RequestTuple(dice.randint(1, 2), GIB.format(dice.choice(MIBS)), self._template)
            requests.add(
                tx,
                vcluster_id=taker,
                kind="create",
                priority=group.priority,
                tuples=[wanted],
                now=NOW - 50.0 + number,
                may_spread=True,
            )

    def _vcluster(self, name: str, size: int, *, preemptible: bool) -> int:
        group_id = self.dice.choice(self._groups).id
        given_up = preemptible and self.dice.random() < 0.3
        return _vcluster(
            self.tx, name, group_id, self._template, size=size, preemptible=given_up
        ).id

    def disturb(self) -> None:
        """Change what a plan may have counted on: nodes stay, leases end, requests go, and groups
        have fewer node-hours."""
        dice = self.dice
        for one in vclusters.every(self.tx, ["active"])[: dice.choice([0, 0, 1])]:
            vclusters.change(self.tx, one, NOW, drain_until=NOW + 60.0)
        for request in requests.every(self.tx, states=["pending"])[: dice.choice([0, 1])]:
            requests.end(self.tx, request.id, RequestState.WITHDRAWN, "", NOW)
        if dice.random() < 0.3:
            groups.change(self.tx, dice.choice(self._groups).id, hours_limit=0.01)
        if dice.random() < 0.5:
            held = t.nodes.c.id % 5 == dice.randrange(5)
            self.tx.execute(update(t.nodes).where(held).values(assigned_at=NOW))


def _vcluster(
    tx: Tx, name: str, group_id: int, template_id: int, size: int = 1, **options: Any
) -> Vcluster:
    made = vclusters.add(
        tx,
        name=name,
        group_id=group_id,
        template_id=template_id,
        size=size,
        attributes="",
        lease_time=36000.0,
        subnet=SUBNET,
        now=0.0,
        **options,
    )
    assert made is not None
    return made


def opened(tx: Tx) -> dict[str, list[Any]]:
    """All rows, reclaims numbered from 0: what is undone leaves MariaDB's next number higher."""
    rows = written(tx)
    first = tx.scalar(select(func.min(t.reclaims.c.id))) or 0
    rows["reclaims"] = [(row[0] - first, *row[1:]) for row in sorted(rows["reclaims"])]
    r, o = t.reservations.c, t.outbox.c
    rows["reservations"] = [
        (node, request, reclaim - first)
        for node, request, reclaim in tx.execute(
            select(r.node_id, r.request_id, r.reclaim_id).order_by(r.node_id)
        )
    ]
    rows["outbox"] = [
        (of, sequence, body | {"reclaim": body["reclaim"] - first})
        for of, sequence, text in tx.execute(
            select(o.vcluster_id, o.sequence, o.body).order_by(o.vcluster_id, o.sequence)
        )
        for body in [json.loads(text)]
    ]
    return rows


@pytest.mark.parametrize("seed", [*range(2), *range(3, 16)])  # 2 takes for one request only
def test_bulk_opens_what_single_preemptions_open(engine: Engine, site: Site, seed: int) -> None:
    world = replace(site, policy=replace(POLICY, fair_half_life=3600.0 * (seed % 2)))
    with engine.begin() as tx:
        made = FullSite(tx, seed)
        claim = claims.hold(tx, "manager", "a", NOW, 60.0)
        planned = plan_flow.decide(plan_flow.snapshot(tx, world, NOW), world, NOW)
        made.disturb()
        [bulk] = [act for act in apply_plan.acts(planned, world, bulk=True) if "take" in act.name]
        assert len(bulk.parts) > 1, "the seed makes something to take"
        with tx.begin_nested() as part:
            carry_out(tx, [bulk], claim)
            ours = opened(tx)
            part.rollback()
        carry_out(tx, bulk.parts, claim)
        assert opened(tx) == ours


@pytest.mark.parametrize("spoken_for", [False, True])
def test_a_node_that_leaves_after_it_was_chosen_stops_all(
    tx: Tx, site: Site, spoken_for: bool
) -> None:
    """Show that what was chosen without a lock is looked at again once it is locked, also where a
    VCM is told which other nodes would do."""
    world = replace(site, policy=POLICY)
    FullSite(tx, 0)
    for holder in vclusters.every(tx, ["active"]) if spoken_for else ():
        if vcms.get(tx, holder.id) is None:
            vcms.enrol(tx, holder.id, serial="1", address="10.77.0.9", head=None, now=4.0)
    planned = plan_flow.decide(plan_flow.snapshot(tx, world, NOW), world, NOW)
    batch = ReclaimBatch(tx, planned.preemptions, planned, world, NOW)
    assert sum(map(batch.open, planned.preemptions)) > 1
    tx.execute(update(t.nodes).values(vcluster_id=None))
    with pytest.raises(apply_plan.Stale, match="have left meanwhile"):
        batch.write()


def test_nodes_of_two_subnets_are_taken_from_one_vcluster_at_once(tx: Tx, site: Site) -> None:
    """Show that a reclaim of each subnet is opened where they differ in nothing else, and that the
    act, run again, opens no more."""
    template = add_template(tx)
    world = replace(site, subnets=(*site.subnets, replace(SUBNET, name="other")))
    holder, taker = (
        _vcluster(tx, name, groups.add(tx, name, 0.0, priority=priority).id, template)
        for priority, name in enumerate(("old", "new"))
    )
    vclusters.change(tx, holder, 0.0, state=VclusterState.ACTIVE, size=6)
    held: dict[str, Any] = {
        "vcluster_id": holder.id,
        "assigned_at": 0.0,
        "template_id": template,
    }
    for number in range(6):
        node = add_node(
            tx, number, "active", subnet=world.subnets[number % 2].name, block_id=None, **held
        )
    wanted = RequestTuple(4, "", template)
    request = requests.add(
        tx, vcluster_id=taker.id, kind="create", priority=1, tuples=[wanted], now=1.0
    )
    claim = claims.hold(tx, "manager", "a", NOW, 60.0)
    assert claim is not None
    taken = [
        Preempt(request.id, holder.id, NodeKind(node.type_id or 0, 0, one.name), 2)
        for one in world.subnets
    ]
    act = partial(apply_plan.take_all, taken=taken, plan=PassPlan(), site=world)
    for _ in range(2):
        assert act(tx, claim=claim, now=NOW).value == []
        assert [(one.subnet, one.count) for one in reclaims.open_(tx)] == [
            (one.name, 2) for one in world.subnets
        ]
        assert len(reservations.every(tx)) == 4
