"""Who may lose nodes, for random sites: the planner, the flow that carries its plan out and the
simulator agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cod.core import preemption
from cod.flows.scheduler import apply_plan
from cod.flows.scheduler import plan as flow
from cod.model import Group, Policy, RequestTuple, Vcluster
from cod.policy.scheduler import leases
from cod.policy.scheduler.preemption import Candidates, GroupHoldings, Level, inertia
from cod.policy.scheduler.snapshot import NodeKind, PassPlan, Preempt, SiteSnapshot, effective
from cod.sim import apply_plan as sim_plan
from cod.sim.cluster import Cluster, ClusterRequest, SimMachine
from cod.sim.cluster import ClusterReclaim as SimReclaim
from cod.sim.world import World
from cod.states import NodeState, VclusterState
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import node_kinds, reclaims, requests, vclusters
from tests.conftest import SUBNET, in_memory
from tests.store.manager_world import add_node, add_template
from tests.store.test_manager_properties import SITE as WORLD

NOW = 1000.0
POLICY = Policy(inertia=5.0, inertia_by_priority={2: 15.0}, reclaim_grace=20.0)
SITE = replace(WORLD, policy=POLICY)
MIBS = (4096, 8192)


@dataclass(frozen=True)
class Member:
    """A node of a vcluster; with `leaving`, an open reclaim has chosen it, if its inertia is
    over."""

    mib: int
    age: float
    leaving: bool


@dataclass(frozen=True)
class Loser:
    """A vcluster; `ends` and `drains`: seconds from now."""

    priority: int
    floor: int
    members: tuple[Member, ...]
    ends: float | None
    drains: float | None
    preemptible: bool = False


MEMBERS = st.builds(Member, st.sampled_from(MIBS), st.integers(0, 20).map(float), st.booleans())
LOSERS = st.builds(
    Loser,
    st.integers(0, 3),
    st.integers(1, 3),
    st.lists(MEMBERS, max_size=6).map(tuple),
    st.sampled_from([None, 500.0, 500.0, 0.0, -1.0]),
    st.sampled_from([None, None, None, 9.0]),
    st.sampled_from([False, False, True]),
)


class Site:
    """Vclusters in a database, each of the same index also in the simulator's terms."""

    def __init__(self, tx: Tx, losers: list[Loser], own: int, priority: int) -> None:
        self.tx = tx
        template = add_template(tx)
        self.groups = [groups.add(tx, f"group{rank}", 0.0, priority=rank) for rank in range(4)]
        self.vclusters = [
            self._vcluster(number, one, template) for number, one in enumerate(losers)
        ]
        self.sim = [
            _simulated(vcluster, self.groups[one.priority])
            for vcluster, one in zip(self.vclusters, losers, strict=True)
        ]
        self.own = min(own, len(losers) - 1)
        wanted = [RequestTuple(1, "", template)]
        self.request = requests.add(
            tx,
            vcluster_id=self.vclusters[self.own].id,
            kind="grow",
            priority=priority,
            tuples=wanted,
            now=NOW,
        )
        other = requests.add(
            tx, vcluster_id=self.vclusters[0].id, kind="grow", priority=9, tuples=wanted, now=NOW
        )
        self.kinds: set[NodeKind] = set()
        for number, one in enumerate(losers):
            for member in one.members:
                self._member(
                    number, member, effective(one.priority, one.preemptible), other.id, template
                )

    def _vcluster(self, number: int, one: Loser, template: int) -> Vcluster:
        made = vclusters.add(
            self.tx,
            name=f"v{number}",
            group_id=self.groups[one.priority].id,
            template_id=template,
            size=one.floor,
            attributes="",
            lease_time=1.0,
            subnet=SUBNET,
            now=0.0,
            preemptible=one.preemptible,
        )
        assert made is not None
        return vclusters.change(
            self.tx,
            made,
            0.0,
            state=VclusterState.ACTIVE,
            expires_at=None if one.ends is None else NOW + one.ends,
            drain_until=None if one.drains is None else NOW + one.drains,
        )

    def _member(
        self, number: int, one: Member, priority: int, request_id: int, template: int
    ) -> None:
        vcluster, cluster = self.vclusters[number], self.sim[number]
        node = add_node(
            self.tx,
            1 + sum(len(each.held) for each in self.sim),
            "active",
            one.mib,
            vcluster_id=vcluster.id,
            assigned_at=NOW - one.age,
            template_id=template,
        )
        kind = NodeKind(node.type_id or 0, 0, "")
        self.kinds.add(kind)
        machine = SimMachine(node.id, SimpleNamespace(name="thin"), kind, None)
        machine.assigned_at, machine.state, machine.name = (
            node.assigned_at,
            NodeState.ACTIVE,
            node.name,
        )
        cluster.held[machine] = None
        if one.leaving and one.age >= inertia(priority, POLICY):
            made = reclaims.add(
                self.tx,
                vcluster_id=vcluster.id,
                request_id=request_id,
                type_id=kind.type,
                block_id=None,
                subnet="",
                attributes="",
                nodes=[node],
                deadline=NOW + 5.0,
                now=NOW - 1.0,
            )
            machine.reclaim, cluster.leaving = made.id, cluster.leaving + 1


def _simulated(vcluster: Vcluster, group: Group) -> Cluster:
    owner: Any = SimpleNamespace(
        choose=lambda reclaim, candidates: leases.victims(candidates, reclaim.open),
        asked_back=lambda *_: None,
    )
    return Cluster(
        vcluster.id,
        vcluster.name,
        group,
        owner,
        1,
        "",
        False,
        vcluster.size,
        1.0,
        False,
        state=VclusterState.ACTIVE,
        creation_size=vcluster.creation_size,
        expires_at=vcluster.expires_at,
        drain_until=vcluster.drain_until,
        preemptible=vcluster.preemptible,
    )


def planner(site: Site, seen: SiteSnapshot, number: int, kind: NodeKind) -> int:
    """How many nodes the planner would take from one vcluster."""
    candidates = Candidates(seen, NOW)
    holder = site.vclusters[number].id
    priority = effective(site.request.priority, site.vclusters[site.own].preemptible)
    if holder == site.request.vcluster_id or not candidates.can_lose(holder, Level(priority - 1)):
        return 0
    return candidates.able(kind, holder)


def taken(site: Site, number: int, kind: NodeKind, count: int) -> list[str] | None:
    """The nodes that the act takes when it is run; None when it finds that it may not. Nothing of
    it stays."""
    claim = claims.hold(site.tx, "manager", "a", NOW, 10.0)
    assert claim is not None
    preempt = Preempt(site.request.id, site.vclusters[number].id, kind, count)
    try:
        with site.tx.begin_nested() as part:
            apply_plan.take(
                site.tx, taken=preempt, plan=PassPlan(), claim=claim, site=SITE, now=NOW
            )
            (made,) = reclaims.open_for(site.tx, [site.request.id])
            chosen = sorted(node.name for node in reclaims.chosen(site.tx, made))
            part.rollback()
            return chosen
    except nodes.Changed:
        return None


def simulated(site: Site, number: int, kind: NodeKind, count: int) -> list[str] | None:
    """Return the nodes that the simulator would take."""
    request = ClusterRequest(1, site.sim[site.own], "grow", 1, NOW)
    request.pending = replace(
        request.as_pending(),
        priority=effective(site.request.priority, site.vclusters[site.own].preemptible),
    )
    made: dict[int, SimReclaim] = {}
    world: Any = SimpleNamespace(
        pending={1: request},
        clusters={site.sim[number].id: site.sim[number]},
        clock=SimpleNamespace(now=NOW),
        policy=POLICY,
        new_id=lambda: 10**6,
        pool=SimpleNamespace(reserve=lambda *_: None),
        reclaims=made,
        stats=SimpleNamespace(taken=0, reclaims=0),
        kept=lambda: GroupHoldings(SiteSnapshot({}), NOW),
    )
    world.mark = partial(World.mark, world)
    try:
        sim_plan._preempt(world, Preempt(1, site.sim[number].id, kind, count), PassPlan())
    except sim_plan.ImpossiblePlan:
        return None
    # of equals what a grant of the same plan may have used up is left for the next pass
    if not made:
        return None
    chosen = [machine for machine in site.sim[number].held if machine.reclaim == 10**6]
    for machine in chosen:
        machine.reclaim = 0
    site.sim[number].leaving -= count
    site.sim[number].changed()
    return sorted(machine.name for machine in chosen)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(LOSERS, min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 4))
def test_all_agree_who_may_lose_how_many_nodes(
    losers: list[Loser], own: int, priority: int
) -> None:
    engine = in_memory()
    with engine.begin() as tx:
        site = Site(tx, losers, own, priority)
        seen = flow.snapshot(tx, SITE, NOW)
        for number, vcluster in enumerate(site.vclusters):
            assert site.sim[number].as_holder() == seen.holders[vcluster.id]
            theirs = {one.kind: one for one in seen.allocations if one.vcluster_id == vcluster.id}
            assert {one.kind: one for one in site.sim[number].allocations(POLICY, NOW)} == theirs
            for kind in site.kinds:
                most = planner(site, seen, number, kind)
                event(f"may lose {most}")
                chosen = preemption.victims(
                    tx, vcluster, node_kinds.NodeKindRow(*kind), 100, False, POLICY, NOW
                )
                assert preemption.takeable(tx, vcluster, site.request, len(chosen), NOW) == most
                if most:
                    both = taken(site, number, kind, most), simulated(site, number, kind, most)
                    assert both[0] == both[1]
                    assert len(both[0] or ()) == most
                assert taken(site, number, kind, most + 1) is None
                assert simulated(site, number, kind, most + 1) is None
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "most"),
    [
        ({}, 2),
        ({"priority": 3}, 0),
        ({"floor": 2}, 1),
        ({"drains": 9.0}, 0),
        ({"ends": -1.0}, 0),
        ({"preemptible": True, "floor": 3}, 3),
        ({"preemptible": True, "priority": 3}, 3),
        ({"preemptible": True, "members": (Member(4096, 0.0, False), Member(4096, 20.0, True))}, 1),
        ({"preemptible": True, "drains": 9.0}, 0),
        (
            {
                "members": (
                    Member(4096, 0.0, False),
                    Member(4096, 20.0, False),
                    Member(4096, 20.0, True),
                )
            },
            1,
        ),
    ],
)
def test_each_part_of_the_rule_protects(tx: Tx, change: dict[str, Any], most: int) -> None:
    """A vcluster of three nodes that was created with one, and a request of priority 3 of another
    vcluster."""
    old = Member(4096, 20.0, False)
    loser = replace(Loser(0, 1, (old, old, old), None, None), **change)
    site = Site(tx, [loser, Loser(3, 1, (), None, None)], 1, 3)
    (kind,) = site.kinds
    assert planner(site, flow.snapshot(tx, SITE, NOW), 0, kind) == most
    assert taken(site, 0, kind, most + 1) is None
    assert most == 0 or len(taken(site, 0, kind, most) or ()) == most


def test_a_reclaim_that_was_open_goes_on_when_the_lease_runs_out(tx: Tx) -> None:
    old = Member(4096, 20.0, True)
    site = Site(tx, [Loser(0, 1, (old, old, old), None, None), Loser(3, 1, (), None, None)], 1, 3)
    site.vclusters[0] = vclusters.change(tx, site.vclusters[0], NOW, drain_until=NOW + 9.0)
    assert preemption.takeable(tx, site.vclusters[0], site.request, 1, NOW) == 0
    assert preemption.takeable(tx, site.vclusters[0], site.request, 1, NOW, open_=1) == 0, (
        "three are leaving"
    )
    assert preemption.takeable(tx, site.vclusters[0], site.request, 3, NOW, open_=3) == 2
