"""Whatever owners, administrators, machines and managers do, in any order: what must always hold, holds.

Managers of two servers plan and apply act by act, so that any plan may be old when it is carried out, any pass may end
after any act, and the claim may change hands in between.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cod.flows import acts as act_flows
from cod.flows import nodes as node_flows
from cod.flows import plan as flow
from cod.flows import requests as request_flows
from cod.flows import vclusters as owner_flows
from cod.model import Node, Policy, Refused, Site
from cod.states import Disk, NodeEvent, WrongEvent
from cod.store import nodes, requests, tables, vclusters
from cod.store.engine import Tx, connect
from tests.conftest import SUBNET
from tests.store.manager_world import OWNER, add_node, arrive, check_world, furnish, planned, run_pass

SITE = Site(name="test", domain="cod.test", subnets=(SUBNET,), policy=Policy())
BIG = '<requires><memory><mib min="8192"/></memory></requires>'
NAMES = st.sampled_from(["one", "two"])
NODES = st.sampled_from([f"node{number}" for number in range(6)])
SERVERS = st.sampled_from(["a", "b"])


class World(RuleBasedStateMachine):
    """A site of six nodes, two of them larger, and everybody who acts on it."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = connect("sqlite://")
        tables.metadata.create_all(self.engine)
        self.now = 10.0
        self.plans: dict[str, tuple[Any, list[act_flows.Act]]] = {}
        with self.engine.begin() as tx:
            furnish(tx, 4)
            add_node(tx, 4, mib=8192)
            add_node(tx, 5, "off", mib=8192)

    def do(self, step: Any, **arguments: Any) -> Any:
        """Run a flow as the pool does; rules may say no, and rows may have changed."""
        self.now += 1.0
        with contextlib.suppress(Refused, act_flows.Stale, act_flows.Lost, WrongEvent), self.engine.begin() as tx:
            return step(tx, now=self.now, **arguments)

    @initialize(size=st.integers(1, 3), template=st.sampled_from(["debian", "kept"]))
    def begins(self, size: int, template: str) -> None:
        """A vcluster that runs: most of what can happen happens to those."""
        self.create(name="one", size=size, template=template, attributes="", lease=300.0)
        self.makes_a_pass("a")

    # owners

    @rule(name=NAMES, size=st.integers(1, 4), template=st.sampled_from(["debian", "kept"]),
          attributes=st.sampled_from(["", BIG]), lease=st.floats(20, 300))
    def create(self, **arguments: Any) -> None:
        self.do(owner_flows.create, group="site", site=SITE, **arguments)

    @rule(name=NAMES, size=st.integers(1, 4))
    def resize(self, name: str, size: int) -> None:
        self.do(owner_flows.resize, name=name, size=size, site=SITE, actor=OWNER)

    @rule(name=NAMES, member=st.sampled_from(["n1", "n2"]))
    def release(self, name: str, member: str) -> None:
        self.do(owner_flows.release, name=name, nodes_=[member], site=SITE, actor=OWNER)

    @rule(name=st.sampled_from(["one", "two"]))
    def delete(self, name: str) -> None:
        self.do(owner_flows.delete, name=name, site=SITE, actor=OWNER)

    @rule(name=NAMES, count=st.integers(1, 2), attributes=st.sampled_from(["", BIG]))
    def submit(self, name: str, count: int, attributes: str) -> None:
        wanted = [request_flows.Asked(count), request_flows.Asked(1, attributes)]
        self.do(request_flows.submit, vcluster=name, wanted=wanted)

    @rule(request=st.integers(1, 12))
    def withdraw(self, request: int) -> None:
        self.do(request_flows.withdraw, request_id=request, reason="")

    # administrators

    @rule(name=NODES, what=st.sampled_from(["quarantine", "restore", "retire", "on", "off", "cycle"]))
    def administer(self, name: str, what: str) -> None:
        flows: dict[str, Any] = {"quarantine": node_flows.quarantine, "restore": node_flows.restore,
                                 "retire": node_flows.retire}
        reason = {"reason": "smoke"} if what in ("quarantine", "retire") else {}
        arguments = reason if what in flows else {"desired": what}
        self.do(flows.get(what, node_flows.power), name=name, site=SITE, actor=OWNER, **arguments)

    # machines

    @rule(name=NODES)
    def asks(self, name: str) -> None:
        def reset(tx: Tx, now: float) -> None:
            node = nodes.by_name(tx, name)
            assert node is not None
            nodes.move(tx, node, NodeEvent.ASKED, now=now, cause="reset", actor="dhcp")

        self.do(reset)

    @rule(name=NODES)
    def arrives(self, name: str) -> None:
        self.do(arrive, name=name)

    # managers

    @rule(server=SERVERS)
    def plans_anew(self, server: str) -> None:
        def look(tx: Tx, now: float) -> tuple[Any, list[act_flows.Act]]:
            claim = flow.hold(tx, server, now, 8.0)
            return claim, planned(tx, SITE, now) if claim else []

        self.plans[server] = self.do(look) or (None, [])

    @precondition(lambda self: any(acts for _, acts in self.plans.values()))
    @rule(server=SERVERS)
    def acts(self, server: str) -> None:
        claim, acts = self.plans.get(server, (None, []))
        if not acts:
            return
        before = self.everybody()
        self.do(acts.pop(0).flow, claim=claim)
        for name, node in self.everybody().items():
            if node.vcluster_id not in (None, before[name].vcluster_id):
                assert (before[name].vcluster_id, before[name].released) == (None, 0), "taken from its holder"
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

    def teardown(self) -> None:
        """From wherever it stands, managers bring the site to rest: every request answered, nothing left to do."""
        with self.engine.begin() as tx:
            self.now += 1000.0  # every claim and lease has run out
            for _ in range(12):
                arrive(tx, self.now)
                if not run_pass(tx, SITE, self.now):
                    break
            else:
                pytest.fail("the site does not come to rest")
            check_world(tx)
            waiting = {request.vcluster_id for request in requests.every(tx, states=["pending"])}
            assert {one.id for one in vclusters.every(tx, ["pending"])} <= waiting
            assert not vclusters.every(tx, ["releasing"])
        self.engine.dispose()


def _check_grants(tx: Tx) -> None:
    """Nodes are what their request wanted; a cached disk knows whose it is; a free node is nobody's."""
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


World.TestCase.settings = settings(
    max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


class TestWorld(World.TestCase):  # type: ignore[misc, name-defined]
    """The machine, as pytest finds it."""
