"""Machines that do what COD wants of them, but for what a template spoils."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from cod import states as lives
from cod.core.nodes import transitions
from cod.flows.agents import progress
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Peer, Vcluster
from cod.states import NodeState
from cod.store import tables
from cod.store.scheduler import requests
from tests.contexts import flow_context
from tests.store.agentlab import Lab
from tests.store.manager_world import run_pass

MACHINES = 8

DOCUMENT = '<template><image target="disk" name="image"/></template>'


class Hall:
    """Machines that do all that COD wants of them, but for what a template spoils: `spoils` says
    where."""

    def __init__(self, lab: Lab, machines: int = MACHINES) -> None:
        self.lab, self.peers = lab, dict[int, Peer]()
        self.spoils, self.cause = "boot", ""
        for number in range(1, machines + 1):
            lab.machine(number, "trampoline")
            self.boots(number)

    def boots(self, number: int) -> None:
        self.peers[number] = self.lab.boots(number)

    def turn(self, seconds: float) -> None:
        """The manager's pass, then all that machines do, then time."""
        run_pass(self.lab.tx, self.lab.site, self.lab.now)
        for number in self.peers:
            self._act(number)
        self.lab.tick(seconds)

    def _act(self, number: int) -> None:
        node = self.lab.node(number)
        if node.state == NodeState.TRAMPOLINE and node.power_wanted == "cycle":
            self.boots(number)
        elif node.state == NodeState.WIPE:
            self.lab.done(self.peers[number], self.lab.order(number).id)
        elif node.state == NodeState.PRIME and self.spoils == "prime":
            order = f"{node.id}.{node.generation}"
            args = (self.lab.site, self.lab.now, self.cause)
            progress.failed(self.lab.tx, self.peers[number], order, "no place", *args)
        elif node.state == NodeState.PRIME:
            self.lab.done(self.peers[number], f"{node.id}.{node.generation}")
        elif node.state == NodeState.BOOT and not self.spoils:
            site = self.lab.site
            transitions.booted(
                self.lab.tx, node, "test", now=self.lab.now, actor="test", policy=site.policy
            )

    def rest(self, most: int = 60) -> None:
        """Turns until nothing moves and nothing is pending, or `most`."""
        quiet = 0
        for _ in range(most):
            self.turn(300.0)
            moving = any(lives.NODE_RULES[NodeState(one)].kind == "motion" for one in self.states())
            pending = requests.every(self.lab.tx, states=["pending"])
            quiet = 0 if moving or pending else quiet + 1
            if quiet == 2:
                return

    def states(self) -> list[str]:
        return sorted(self.lab.tx.scalars(select(tables.nodes.c.state)))


def wanted(lab: Lab, template: str, count: int = 1, name: str = "vc", **more: Any) -> Vcluster:
    """A vcluster of group physics that asks for so many nodes."""
    made = owner_flows.create(
        lab.tx,
        flow_context(lab.site, lab.now),
        AskedVcluster(name=name, group="physics", template=template, size=count, **more),
    )
    return made.value[0].vcluster


def revise(lab: Lab, revision: int = 1) -> str:
    """A further revision of a template, by full name."""
    lab.template(revision=revision, document=DOCUMENT)
    return f"debian@{revision}"
