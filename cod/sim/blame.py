"""Failures in a simulated site that a template or a machine causes, and the one that is blamed for
each: the counterpart of `core.nodes.blame`, with the same rules (`policy.nodes.blame`).

No system becomes ready with a wrong template, and none on a failing machine. The manager knows
neither: it only sees boots that time out.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from cod.policy.nodes import blame
from cod.sim.cluster import SimMachine
from cod.sim.randomness import stream
from cod.sim.scenario.records import Scenario
from cod.states import Fault, NodeState


class Failures:
    """Failing machines and wrong templates, and the failures that still count.

    wrong          the wrong templates
    healthy_aside  how often a healthy machine was set aside; `failing_aside`: a failing one
    given_back     how often a machine went back to the reserve instead
    """

    def __init__(self, scenario: Scenario, seed: int, machines: list[SimMachine]) -> None:
        self._machines, self._judged = machines, scenario.blame
        self._random, self._seed = stream(seed, "failing"), seed
        self._wrong_share, self._draws = scenario.wrong_templates, dict[str, Random]()
        self.wrong: set[int] = set()
        self.asked_wrong = self.healthy_aside = self.failing_aside = self.given_back = 0
        self._with_template: dict[int, set[int]] = defaultdict(set)
        self._of_group: dict[int, set[int]] = defaultdict(set)
        for machine in self._random.sample(
            machines, round(scenario.failing_machines * len(machines))
        ):
            machine.failing = True

    def next_is_wrong(self, demand: str) -> bool:
        """Draw whether the template of the demand's next vcluster is wrong."""
        if not self._wrong_share:
            return False
        draws = self._draws.setdefault(demand, stream(self._seed, "templates", demand))
        return draws.random() < self._wrong_share

    def at_boot(self, machine: SimMachine) -> bool:
        """Return whether the machine's system will not become ready."""
        return machine.failing or machine.template_id in self.wrong

    def stops(self, machine: SimMachine) -> bool:
        """Record that a machine has used up its retries on the way to its holder. Return whether it
        goes back to the reserve, and its request stops; otherwise it is set aside."""
        cluster = machine.cluster
        assert cluster is not None
        template, group = self._with_template[machine.template_id], self._of_group[cluster.group_id]
        former = blame.FormerFailures(len(template - {machine.id}), len(group - {machine.id}))
        unknown = blame.fault(NodeState.BOOT, held=True) is Fault.UNKNOWN
        stops = self._judged and unknown and blame.verdict(former) != ""
        template.add(machine.id)
        if stops:
            self.given_back += 1
        else:
            group.add(machine.id)
            self.failing_aside += machine.failing
            self.healthy_aside += not machine.failing
        return stops

    def succeeded(self, template_id: int) -> None:
        """Record that a machine has become ready with the template."""
        self._with_template.pop(template_id, None)

    def repaired(self, machine: SimMachine) -> None:
        """Record that an administrator has examined a machine. If it was failing, another machine
        begins to fail in its place, so that the share of failing machines stays."""
        for group in self._of_group.values():
            group.discard(machine.id)
        if machine.failing:
            sound = [one for one in self._machines if not one.failing]
            machine.failing = False
            if sound:
                self._random.choice(sound).failing = True

    def ended(self, template_id: int) -> None:
        """Forget a wrong template, whose only vcluster has ended."""
        self.wrong.discard(template_id)
        self._with_template.pop(template_id, None)
