"""A farm of servers whose wanted size follows the time of day."""

from __future__ import annotations

from random import Random

from cod.model import Group
from cod.sim.cluster import Cluster, ClusterReclaim, ClusterRequest, SimMachine
from cod.sim.demand.owners import FOREVER, PermanentOwner, parts, still_due
from cod.sim.randomness import wave
from cod.sim.scenario.records import Farm
from cod.sim.world import World
from cod.states import NodeState


class FarmOwner(PermanentOwner):
    """An owner that determines its wanted size in each interval, requests missing nodes and
    releases surplus ones, never below `low`."""

    rule: Farm

    def __init__(self, world: World, rule: Farm, group: Group, random: Random) -> None:
        super().__init__(world, rule, group)
        self._random = random
        self._requests: dict[int, ClusterRequest] = {}
        self._wanted = rule.low
        self._up: dict[SimMachine, None] = {}
        self._summed = 0.0
        self._found()
        world.clock.after(rule.interval, self._look)

    def _found(self) -> None:
        self._cluster = self.create(self.rule.low, self.rule.name, FOREVER)

    def _look(self) -> None:
        self.sum_up()
        self._wanted = self.size()
        self.world.clock.after(self.rule.interval, self._look)
        cluster = self._cluster
        if cluster is None or not cluster.held:
            return
        over = (
            cluster.size + sum(request.count for request in self._requests.values()) - self._wanted
        )
        if over < 0:
            self._grow(cluster, -over)
        elif over > 0:
            self._shrink(cluster)

    def size(self) -> int:
        """Return the wanted size now."""
        rule = self.rule
        # The wave swings around 1 by 1; the wanted size between low and high.
        level = wave(self.world.clock.now, 1.0, rule.week_wave, rule.peak_hour) / 2
        level += self._random.gauss(0.0, rule.noise)
        return round(rule.low + (rule.high - rule.low) * min(max(level, 0.0), 1.0))

    def _grow(self, cluster: Cluster, count: int) -> None:
        for part in parts(count):
            request = self.world.grow(cluster, part)
            self._requests[request.id] = request

    def _shrink(self, cluster: Cluster) -> None:
        """Withdraw requests that are no longer needed, then release the newest nodes."""
        for request in list(self._requests.values()):
            self.world.withdraw(request)
        self._requests.clear()
        short = self._wanted - cluster.size
        if short >= 0:
            self._grow(cluster, short)
            return
        free = [one for one in cluster.held if not one.reclaim]
        staying = len(cluster.held) - self.world.moving(cluster)
        spare = min(-short, staying - cluster.creation_size)
        free.sort(
            key=lambda one: (one.state is NodeState.ACTIVE, -(one.assigned_at or 0.0), one.id)
        )
        self._let_go(cluster, free[: max(0, spare)])

    def _let_go(self, cluster: Cluster, machines: list[SimMachine]) -> None:
        self.sum_up()
        for machine in machines:
            self._up.pop(machine, None)
        if machines:
            self.world.restore(cluster, machines)

    def sum_up(self) -> None:
        """Add up the wanted and the present nodes since the last call, before either changes."""
        now = self.world.clock.now
        seconds, self._summed = now - self._summed, now
        priority = self.group.priority
        self.world.stats.wanted[priority] += seconds * self._wanted
        self.world.stats.delivered[priority] += seconds * min(self._wanted, len(self._up))
        self.world.stats.served[self.group.name] += seconds * len(self._up)

    # ------------------------------------------------------------ what it is told

    def granted(self, request: ClusterRequest) -> None:
        """Stop waiting for the request, as its nodes are on their way."""
        self._requests.pop(request.id, None)
        if request.kind == "create":
            self.keep(request.cluster)

    def refused(self, request: ClusterRequest) -> None:
        """Forget the request: the owner requests nodes again at its next look."""
        self._requests.pop(request.id, None)

    def up(self, machine: SimMachine) -> None:
        """Count one more serving node."""
        self.sum_up()
        self._up[machine] = None

    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None:
        """Count one serving node fewer."""
        self.sum_up()
        self._up.pop(machine, None)

    def asked_back(self, reclaim: ClusterReclaim, machines: list[SimMachine]) -> None:
        """Give the machines back if the farm answers reclaims."""
        if self.rule.answer is not None:
            self.world.clock.after(self.rule.answer, self._answer, reclaim, machines)

    def _answer(self, reclaim: ClusterReclaim, machines: list[SimMachine]) -> None:
        due = still_due(machines, reclaim)
        if due and self._cluster is not None:
            self._let_go(self._cluster, due)

    def over(self, cluster: Cluster) -> None:
        """Create another vcluster after the rule's interval."""
        self.sum_up()
        self._requests.clear()
        self._up.clear()
        self.world.clock.after(self.rule.interval, self._found)
