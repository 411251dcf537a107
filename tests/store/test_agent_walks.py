"""Nodes under any sequence of events: what must never be, never is, and what is in motion comes to
rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from cod.core.nodes import assignment, transitions
from cod.flows.agents import sessions as flow
from cod.flows.nodes import captures
from cod.model import Ingested, Peer, Policy, Refused, Site
from cod.policy.nodes import lifecycle
from cod.states import NODE_RULES, NODE_TRANSITIONS, Disk, NodeEvent, NodeState, Step
from cod.store.database import connect
from cod.store.nodes import bindings, nodes
from cod.store.nodes import captures as rows
from cod.store.tables import metadata
from tests.conftest import SUBNET
from tests.contexts import flow_context
from tests.store.agentlab import Lab

SAVED = Ingested("capture", "disk", 1, 1, 1, "", "cd" * 32)
SITE = Site(name="test", domain="cod.test", subnets=(SUBNET,), policy=Policy(auto_approve=True))


class Walk:
    """One node, what may happen to it, and what must hold after each step."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.peers: list[Peer] = []
        self.used: list[str] = ["1.0"]
        self.captures = 0
        lab.machine(1)
        self.vcluster = lab.vcluster(lab.template("yes"))

    def boots(self) -> None:
        self.peers.append(self.lab.boots(1))

    def reconnects(self) -> None:
        if self.peers:
            self.peers.append(self.lab.again(1, server="b"))

    def reports(self) -> None:
        self.lab.report(self.peers[-1])

    def works(self) -> None:
        self.lab.now += 10
        self.lab.progress(self.peers[-1], self.lab.order(1).id, int(self.lab.now), 10**6)

    def done(self) -> None:
        self.used.append(self.lab.order(1).id)
        self.lab.done(self.peers[-1], self.used[-1], bytes_written=5)

    def fails(self) -> None:
        self.used.append(self.lab.order(1).id)
        self.lab.failed(self.peers[-1], self.used[-1])

    def repeats(self) -> None:
        before = self.lab.node(1)
        for order_id in self.used:
            if order_id != self.lab.order(1).id:
                self.lab.done(self.peers[-1], order_id)
                self.lab.failed(self.peers[-1], order_id)
        assert self.lab.node(1) == before

    def old_connection_speaks(self) -> None:
        before = self.lab.node(1)
        if len(self.peers) > 1:
            self.lab.done(self.peers[-2], self.lab.order(1).id)
        assert self.lab.node(1) == before

    def is_lost(self) -> None:
        flow.lost(self.lab.tx, self.peers[-1], SITE, self.lab.now)

    def waits(self) -> None:
        self.lab.tick(20)

    def waits_long(self) -> None:
        self.lab.tick(400)

    def is_assigned(self) -> None:
        node = self.lab.node(1)
        if node.state == NodeState.INACTIVE and node.vcluster_id is None:
            self.lab.assign(1, self.vcluster)

    def is_released(self) -> None:
        node = self.lab.node(1)
        if node.vcluster_id is not None:
            assignment.release(
                self.lab.tx, [node], cause="x", now=self.lab.now, actor="x", policy=SITE.policy
            )

    def is_to_be_captured(self) -> None:
        if self.lab.node(1).state in (NodeState.ACTIVE, NodeState.INACTIVE):
            with suppress(Refused):  # its disks were wiped, or it waits to be captured already
                self.captures += 1
                captures.want(
                    self.lab.tx,
                    flow_context(SITE, self.lab.now, "x"),
                    name="node1",
                    image=f"image{self.captures}",
                    secret="ab" * 32,
                )

    def its_image_comes(self) -> None:
        with suppress(Refused):  # nothing is under way
            captures.keep(
                self.lab.tx,
                order=self.lab.order(1).id,
                address="10.77.1.1",
                secret="ab" * 32,
                ingested=SAVED,
                partitions=(),
                rules=SITE.images,
                now=self.lab.now,
            )

    def its_capture_is_cancelled(self) -> None:
        with suppress(Refused):
            captures.cancel(self.lab.tx, flow_context(SITE, self.lab.now, "x"), name="node1")

    def happens(self, event: NodeEvent) -> None:
        node = self.lab.node(1)
        if (NodeState(node.state), event) in NODE_TRANSITIONS:
            in_motion = NODE_RULES[NodeState(node.state)].kind == "motion"
            trouble = in_motion and event is not NodeEvent.BOOTED
            step = (
                lifecycle.on_trouble(node, event, "x", SITE.policy) if trouble else Step(event, "x")
            )
            transitions.apply(
                self.lab.tx, node, step, now=self.lab.now, actor="dhcp", policy=SITE.policy
            )

    def asks_dhcp(self) -> None:
        self.happens(NodeEvent.ASKED)

    def system_comes_up(self) -> None:
        self.happens(NodeEvent.BOOTED)

    def comes_back_from_boot(self) -> None:
        self.happens(NodeEvent.BOOT_FAILED)

    def check(self) -> None:
        node = self.lab.node(1)
        rule = NODE_RULES[NodeState(node.state)]
        assert (node.deadline is not None) == (rule.kind == "motion")
        held = node.vcluster_id is not None
        if node.state in (NodeState.INACTIVE, NodeState.OFF):
            assert node.disk != Disk.DIRTY
            assert not held
            assert node.released == 0
        if node.state == NodeState.QUARANTINED:
            assert node.reason
            assert not held
        kinds = {binding.kind for binding in bindings.of_node(self.lab.tx, node.id)}
        assert ("vcluster" in kinds) == held
        assert (self.lab.install(1) is not None) == held
        assert self.lab.order(1).id == f"{node.id}.{node.generation}"
        history = nodes.history(self.lab.tx, node.id)
        assert [row["generation"] for row in history] == list(range(node.generation + 1))
        if was_written(history) and node.state != NodeState.PRIME:
            assert node.disk in (Disk.DIRTY, Disk.CACHED, Disk.SYSTEM)
        self.check_capture(history)

    def check_capture(self, history: list[dict[str, Any]]) -> None:
        """A capture runs while its node is captured, and then alone; from leaving its system to
        coming back, nothing writes to the node's disk, unless it has lost its holder."""
        node, capture = self.lab.node(1), rows.get(self.lab.tx, self.lab.node(1).id)
        running = capture is not None and capture.state == "running"
        finished = (
            capture is not None
            and capture.state == "done"
            and node.generation == capture.generation
        )
        assert (node.state == NodeState.CAPTURE) == (running or finished)
        assert not running or capture.secret
        away = False
        for row in history:
            if row["event"] == NodeEvent.CAPTURE_WANTED:
                away = row["vcluster_id"] is not None
            elif (
                row["to_state"] in (NodeState.ACTIVE, NodeState.QUARANTINED)
                or row["vcluster_id"] is None
            ):
                away = False
            assert not (
                away and row["to_state"] in (NodeState.WIPE, NodeState.PRIME, NodeState.INACTIVE)
            )

    def comes_to_rest(self) -> None:
        """Everybody falls silent: within the sum of all budgets nothing is in motion."""
        for _ in range(12):
            self.lab.tick(700)
        assert NODE_RULES[NodeState(self.lab.node(1).state)].kind != "motion"


@cache
def made_once() -> Engine:
    """A database in memory; each walk is rolled back."""
    engine = connect("sqlite://")
    metadata.create_all(engine)
    return engine


def was_written(history: list[dict[str, Any]]) -> bool:
    """By what is known of the past: has anything but a wipe touched the disk since the last
    wipe?"""
    written = False
    for row in history:
        if row["event"] == NodeEvent.WIPED:
            written = False
        elif row["to_state"] in (NodeState.PRIME, NodeState.BOOT, NodeState.ACTIVE):
            written = True
    return written


STEPS: list[Callable[[Walk], None]] = [
    Walk.boots,
    Walk.boots,
    Walk.reconnects,
    Walk.reports,
    Walk.works,
    Walk.done,
    Walk.done,
    Walk.done,
    Walk.fails,
    Walk.repeats,
    Walk.old_connection_speaks,
    Walk.is_lost,
    Walk.waits,
    Walk.waits_long,
    Walk.is_assigned,
    Walk.is_assigned,
    Walk.is_released,
    Walk.is_to_be_captured,
    Walk.is_to_be_captured,
    Walk.its_image_comes,
    Walk.its_capture_is_cancelled,
    Walk.asks_dhcp,
    Walk.system_comes_up,
    Walk.comes_back_from_boot,
]


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(walk=st.lists(st.sampled_from(STEPS), min_size=5, max_size=25))
def test_any_walk_keeps_the_promises(walk: list[Callable[[Walk], None]]) -> None:
    with made_once().connect() as tx, tx.begin():
        one = Walk(Lab(tx, SITE))
        one.boots()
        one.is_assigned()
        for step in walk:
            try:
                step(one)
            except Refused as refused:  # it spoke on a connection that is closed or replaced
                assert "newer connection" in refused.sentence  # noqa: PT017
            one.check()
        one.comes_to_rest()
        one.check()
        tx.rollback()
