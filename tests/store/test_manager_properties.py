"""Whatever owners, administrators, machines and managers do, in any order: what must always hold,
holds.

Managers of two servers plan and apply act by act, so that any plan may be old when it is carried
out, any pass may end after any act, and the claim may change hands in between.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cod.core.nodes import transitions
from cod.flows.nodes import history
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import apply_plan as act_flows
from cod.flows.scheduler import reclaims as reclaim_flows
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, Energy, Node, Policy, Refused, Site
from cod.policy.histories import ViolationKind
from cod.states import Disk, NodeEvent, WrongEvent
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import reclaims, requests, reservations, vclusters
from tests.conftest import SUBNET, in_memory
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, add_node, arrive, check_world, furnish, planned, rest

pytestmark = pytest.mark.slow

POLICY = Policy(
    inertia=5.0,
    inertia_by_priority={9: 15.0},
    reclaim_grace=20.0,
    drain_grace=20.0,
    lease_warnings=(50.0,),
)
ENERGY = Energy(manage=True, warm_low=1, warm_high=2, idle_time=10.0)
SITE = Site(name="test", domain="cod.test", subnets=(SUBNET,), policy=POLICY, energy=ENERGY)
BIG = '<requires><memory><mib min="8192"/></memory></requires>'
NAMES = st.sampled_from(["one", "two"])
NODES = st.sampled_from([f"node{number}" for number in range(6)])
SERVERS = st.sampled_from(["a", "b"])


class World(RuleBasedStateMachine):
    """A site of six nodes, two of them larger, and everybody who acts on it."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = in_memory()
        self.now = 10.0
        self.plans: dict[str, tuple[Any, list[act_flows.Act]]] = {}
        with self.engine.begin() as tx:
            furnish(tx, 4)
            groups.add(tx, "first", 0.0, priority=9)
            add_node(tx, 4, mib=8192)
            add_node(tx, 5, "off", mib=8192)

    def do(self, step: Any, **arguments: Any) -> Any:
        """Run a flow as the pool does; rules may say no, and rows may have changed."""
        self.now += 1.0
        with (
            contextlib.suppress(Refused, act_flows.Stale, act_flows.Lost, WrongEvent),
            self.engine.begin() as tx,
        ):
            return step(tx, now=self.now, **arguments)

    def ask(self, step: Any, *asked: Any, **arguments: Any) -> None:
        """Run a flow that takes a context."""
        self.do(lambda tx, now: step(tx, flow_context(SITE, now, OWNER), *asked, **arguments))

    @initialize(
        size=st.integers(1, 3),
        template=st.sampled_from(["debian", "kept"]),
        contended=st.booleans(),
    )
    def begins(self, size: int, template: str, contended: bool) -> None:
        """A vcluster that runs: most of what can happen happens to those."""
        self.create(name="one", size=size, template=template, attributes="", lease=300.0)
        self.makes_a_pass("a")
        if contended:
            self.contend(size=4)

    # owners

    @rule(
        name=NAMES,
        size=st.integers(1, 4),
        template=st.sampled_from(["debian", "kept"]),
        attributes=st.sampled_from(["", BIG]),
        lease=st.floats(20, 300),
        group=st.sampled_from(["site", "first"]),
        spread=st.booleans(),
        wait=st.booleans(),
    )
    def create(self, group: str = "site", **arguments: Any) -> None:
        self.ask(owner_flows.create, AskedVcluster(group=group, **arguments))

    @rule(size=st.integers(2, 4))
    def contend(self, size: int) -> None:
        """Grow the vcluster that goes last; later the one that goes first wants most of the site."""
        self.ask(owner_flows.resize, name="one", size=size, spread=True)
        self.makes_a_pass("a")
        self.now += 20.0
        self.create(
            group="first",
            name="two",
            size=3,
            template="debian",
            attributes="",
            lease=300.0,
            spread=True,
        )
        self.makes_a_pass("a")

    @rule(number=st.integers(1, 4), members=st.lists(NODES, min_size=1, max_size=2, unique=True))
    def answers(self, number: int, members: list[str]) -> None:
        self.ask(reclaim_flows.answer, reclaim_id=number, nodes_=members)

    @rule(name=NAMES)
    def extend(self, name: str) -> None:
        self.ask(owner_flows.extend, name=name, lease=100.0)

    @rule(name=NAMES, size=st.integers(1, 4))
    def resize(self, name: str, size: int) -> None:
        self.ask(owner_flows.resize, name=name, size=size)

    @rule(name=NAMES, member=st.sampled_from(["n1", "n2"]))
    def release(self, name: str, member: str) -> None:
        self.ask(owner_flows.release, name=name, nodes_=[member])

    @rule(name=st.sampled_from(["one", "two"]))
    def delete(self, name: str) -> None:
        self.ask(owner_flows.delete, name=name)

    @rule(name=NAMES, count=st.integers(1, 2), attributes=st.sampled_from(["", BIG]))
    def submit(self, name: str, count: int, attributes: str) -> None:
        wanted = [AskedTuple(count), AskedTuple(1, attributes)]
        self.ask(request_flows.submit, vcluster=name, asked=AskedNodes(wanted))

    @rule(request=st.integers(1, 12))
    def withdraw(self, request: int) -> None:
        self.do(request_flows.withdraw, request_id=request, reason="")

    # administrators

    @rule(
        name=NODES, what=st.sampled_from(["quarantine", "restore", "retire", "on", "off", "cycle"])
    )
    def administer(self, name: str, what: str) -> None:
        flows: dict[str, Any] = {
            "quarantine": node_flows.quarantine,
            "restore": node_flows.restore,
            "retire": node_flows.retire,
        }
        reason = {"reason": "smoke"} if what == "quarantine" else {}
        arguments = reason if what in flows else {"desired": what}
        self.ask(flows.get(what, node_flows.power), name=name, **arguments)

    # machines

    @rule(name=NODES)
    def asks(self, name: str) -> None:
        def reset(tx: Tx, now: float) -> None:
            node = nodes.by_name(tx, name)
            assert node is not None
            transitions.move(tx, node, NodeEvent.ASKED, now=now, cause="reset", actor="dhcp")

        self.do(reset)

    @rule(name=NODES)
    def arrives(self, name: str) -> None:
        self.do(arrive, name=name)

    # managers

    @rule(server=SERVERS)
    def plans_anew(self, server: str) -> None:
        def look(tx: Tx, now: float) -> tuple[Any, list[act_flows.Act]]:
            claim = claims.hold(tx, "manager", server, now, 8.0)
            return claim, planned(tx, SITE, now) if claim else []

        self.plans[server] = self.do(look) or (None, [])

    @precondition(lambda self: any(acts for _, acts in self.plans.values()))
    @rule(server=SERVERS)
    def acts(self, server: str) -> None:
        claim, acts = self.plans.get(server, (None, []))
        if not acts:
            return
        before = self.everybody()
        act = acts.pop(0)
        done = self.do(act.flow, claim=claim)
        if done is not None and done.value:
            with self.engine.begin() as tx:
                _check_act(tx, act, before, self.now)
        for name, node in self.everybody().items():
            if node.vcluster_id not in (None, before[name].vcluster_id):
                assert (before[name].vcluster_id, before[name].released) == (
                    None,
                    0,
                ), "taken from its holder"
                assert before[name].state in ("inactive", "off"), "granted while it was not free"

    def everybody(self) -> dict[str, Node]:
        """All nodes as they are now, by name."""
        with self.engine.begin() as tx:
            return {node.name: node for node in nodes.every(tx)}

    @rule(server=SERVERS, reset=st.none() | NODES)
    def makes_a_pass(self, server: str, reset: str | None = None) -> None:
        """A whole pass; the node `reset` is reset after the snapshot."""
        self.plans_anew(server)
        if reset is not None:
            self.asks(reset)
        while self.plans[server][1]:
            self.acts(server)

    @rule(seconds=st.floats(1, 100))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    # what must hold

    @invariant()
    def the_world_is_whole(self) -> None:
        with self.engine.begin() as tx:
            check_world(tx)
            _check_grants(tx)
            _check_kept(tx)

    def teardown(self) -> None:
        """From wherever it stands, managers bring the site to rest: every request answered, nothing
        left to do."""
        with self.engine.begin() as tx:
            self.now += 1000.0  # every claim and lease has run out
            rest(tx, SITE, self.now, step=30.0)
            _check_kept(tx)
            waiting = {request.vcluster_id for request in requests.every(tx, states=["pending"])}
            assert {one.id for one in vclusters.every(tx, ["pending"])} <= waiting
            assert not vclusters.every(tx, ["releasing"])
            # nobody erases disks here before they are written to, as agents do
            found = history.check(tx).violations
            assert [one for one in found if one.kind is not ViolationKind.HANDED_ON] == []
        self.engine.dispose()


def _check_grants(tx: Tx) -> None:
    """Nodes are what their request wanted; a cached disk knows whose it is; a free node is
    nobody's."""
    for node in nodes.every(tx):
        if node.request_id is not None:
            request = requests.get(tx, node.request_id)
            assert request is not None
            assert request.vcluster_id == node.vcluster_id
            assert request.state == "granted"
            assert node.template_id in [one.template_id for one in request.tuples]
            big = node.name in ("node4", "node5")
            assert big or any(one.attributes == "" for one in request.tuples)
        if node.disk == Disk.CACHED:
            assert node.cached_template_id is not None
            assert node.cached_group_id is not None


def _check_kept(tx: Tx) -> None:
    """Nodes are kept, and taken, for requests that wait only, and never more than they want."""
    waiting = {
        one.id: sum(each.count for each in one.tuples)
        for one in requests.every(tx, states=["pending"])
    }
    holders = {node.id: node.vcluster_id for node in nodes.every(tx)}
    kept = reservations.every(tx)
    for request_id, count in Counter(one.request_id for one in kept).items():
        assert count <= waiting[request_id], "more is taken than is short"
    for reclaim in reclaims.open_(tx):
        assert reclaim.request_id in waiting
        assert 0 <= reclaim.given < reclaim.count
        chosen = [
            one
            for one in kept
            if one.reclaim_id == reclaim.id and holders[one.node_id] == reclaim.vcluster_id
        ]
        assert len(chosen) <= reclaim.count - reclaim.given


def _check_act(tx: Tx, act: act_flows.Act, before: dict[str, Node], now: float) -> None:
    """A grant is whole; what is taken for contention is taken from whom, and only as far as, it may
    be."""
    if act.name.startswith("grant"):
        request = requests.get(tx, act.request_id or 0)
        assert request is not None
        got = [node for node in nodes.every(tx) if node.request_id == request.id]
        assert len(got) == sum(one.count for one in request.tuples), "all or nothing"
    if act.name.startswith(("take", "seize")):
        for name, node in before.items():
            after = nodes.by_name(tx, name)
            assert after is not None
            if act.name.startswith("seize") and node.vcluster_id not in (None, after.vcluster_id):
                _check_taken(tx, node, now)
    if act.name.startswith("take"):
        for reclaim in reclaims.open_(tx):
            if reclaim.created_at == now:
                _check_taken(tx, None, now, reclaim.vcluster_id, reclaim.request_id)


def _check_taken(
    tx: Tx, node: Node | None, now: float, holder: int | None = None, request: int | None = None
) -> None:
    one = vclusters.get(tx, holder or (node.vcluster_id if node else 0) or 0)
    assert one is not None
    priority = groups.get(tx, one.group_id).priority
    assert vclusters.held(tx, one.id) - reclaims.leaving(tx, one.id) >= one.creation_size, (
        "below its creation size"
    )
    kept = {each.node_id: each.request_id for each in reservations.every(tx)}
    wanted = requests.get(tx, request or kept[node.id if node else 0])
    assert wanted is not None
    assert priority < wanted.priority, "taken from equal or higher priority"
    chosen = (
        [node]
        if node
        else [
            each for each in nodes.every(tx, vcluster_id=one.id) if kept.get(each.id) == wanted.id
        ]
    )
    for each in chosen:
        immune = POLICY.inertia_by_priority.get(priority, POLICY.inertia)
        assert (each.assigned_at or 0.0) + immune <= now, "taken inside its inertia"


SHORT = settings(
    max_examples=8, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class TestWorld(World.TestCase):  # type: ignore[valid-type]
    """The machine, as pytest finds it."""

    settings = SHORT


@pytest.mark.nightly  # TestWorld looks at the first of the same walks
class TestWorldAtLength(World.TestCase):  # type: ignore[valid-type]
    """The same, tried longer."""

    settings = settings(SHORT, max_examples=60)
