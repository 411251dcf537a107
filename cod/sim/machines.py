"""The machines of a simulated site: their states, the counts that the manager sees, and their
consumption.

Transitions are those of `states.NODE_TRANSITIONS`: a simulation that left the product's lifecycle
would raise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from cod.model import Energy, NodeType
from cod.policy.scheduler import reserve_pool
from cod.policy.scheduler.snapshot import COLD, WARM, FreeNodes, IncomingNodes, NodeKind
from cod.sim.clock import Clock
from cod.sim.cluster import IncomingKey, PoolKey, SimMachine
from cod.sim.randomness import stream
from cod.sim.scenario import records as sc
from cod.states import NODE_TRANSITIONS, NodeEvent, NodeState


class MachinePool:
    """All machines, grouped as the manager counts them, and their consumption.

    spent     seconds by state, of all machines
    kept      the machines that are reserved for a request
    held      seconds with a holder
    healthy   seconds of machines that were not failing; `lost`: seconds out of service though
              healthy
    joules    consumed; `spared`: the further consumption if sleeping machines had idled
    by_group  joules of machines while a group held them; `held_by_group`: seconds of that
    """

    def __init__(self, clock: Clock, types: Iterable[sc.Type], energy: Energy, seed: int) -> None:
        self._clock = clock
        self.machines: list[SimMachine] = []
        self.types: dict[int, NodeType] = {}
        self.free: dict[PoolKey, dict[SimMachine, None]] = {}
        self.coming: Counter[IncomingKey] = Counter()
        self.kept: dict[SimMachine, None] = {}
        self.spent: dict[NodeState, float] = dict.fromkeys(NodeState, 0.0)
        self.by_group: dict[str, float] = defaultdict(float)
        self.held_by_group: dict[str, float] = defaultdict(float)
        self.held = self.joules = self.spared = self.healthy = self.lost = 0.0
        self._watts: dict[tuple[int, NodeState], float] = {}
        block = 0
        for number, spec in enumerate(types, 1):
            self.types[number] = row = node_type(number, spec)
            self._watts.update(
                {(number, state): reserve_pool.watts(state, row, energy) for state in NodeState}
            )
            for size in spec.blocks:
                block += 1
                for _ in range(size):
                    self._add(spec, NodeKind(number, block, ""), seed)
        self.site = dict(Counter(machine.kind.type for machine in self.machines))

    def _add(self, spec: sc.Type, kind: NodeKind, seed: int) -> None:
        number = len(self.machines) + 1
        machine = SimMachine(number, spec, kind, stream(seed, "machine", number))
        self.machines.append(machine)
        self.place(machine)

    # ------------------------------------------------------------ changes

    def move(self, machine: SimMachine, event: NodeEvent, *, waking: bool = False) -> None:
        """Move the machine to the state after `event`. Raises `WrongEvent` if the lifecycle does
        not allow the event in the machine's state."""
        self.count(machine)
        machine.state = NODE_TRANSITIONS[machine.state, event]
        machine.since = self._clock.now
        machine.generation += 1
        machine.waking = waking
        self.place(machine)

    def count(self, machine: SimMachine) -> None:
        """Add a machine's seconds and joules since the last call to the sums. Must be called before
        the machine's state or holder changes."""
        seconds = self._clock.now - machine.counted
        if not seconds:
            return
        machine.counted = self._clock.now
        joules = seconds * self._watts[machine.kind.type, machine.state]
        self.spent[machine.state] += seconds
        self.joules += joules
        if not machine.failing:
            self.healthy += seconds
        if machine.blameless:
            self.lost += seconds
        if machine.cluster is not None:
            self.held += seconds
            self.by_group[machine.cluster.group.name] += joules
            self.held_by_group[machine.cluster.group.name] += seconds
        elif machine.state is NodeState.OFF:
            self.spared += seconds * self._watts[machine.kind.type, NodeState.INACTIVE] - joules

    def watts(self, type_id: int, state: NodeState) -> float:
        """Return the watts that one machine of the type draws in that state."""
        return self._watts[type_id, state]

    def power(self) -> float:
        """Return the watts that all machines draw now."""
        return sum(self._watts[machine.kind.type, machine.state] for machine in self.machines)

    def place(self, machine: SimMachine) -> None:
        """Move a machine to the group of its present state. Must be called after each change."""
        new = _counted_as(machine)
        if new == machine.counted_as:
            return
        old, machine.counted_as = machine.counted_as, new
        if isinstance(old, PoolKey):
            bucket = self.free[old]
            del bucket[machine]
            if not bucket:
                del self.free[old]
        elif old is not None:
            self.coming[old] -= 1
            if not self.coming[old]:
                del self.coming[old]
        if isinstance(new, PoolKey):
            self.free.setdefault(new, {})[machine] = None
        elif new is not None:
            self.coming[new] += 1

    def reserve(self, machine: SimMachine, request_id: int) -> None:
        """Reserve a machine for a request; 0 ends the reservation. A change of the machine's holder
        does not end it."""
        if machine.reserved != request_id:
            machine.reserved = request_id
            self.kept.pop(machine, None)
            if request_id:
                self.kept[machine] = None
            self.place(machine)

    # ------------------------------------------------------------ what the manager sees

    def free_nodes(self, idle_time: float) -> Iterator[FreeNodes]:
        """Yield the free nodes."""
        long_ago = self._clock.now - idle_time
        for key, bucket in self.free.items():
            idle = (
                sum(machine.since <= long_ago for machine in bucket) if key.readiness == WARM else 0
            )
            yield FreeNodes(key.kind, key.readiness, len(bucket), key.cache, key.reserved, idle)

    def ways(self, *, times: bool = False) -> Iterator[IncomingNodes]:
        """Yield the nodes on their way back; with `times`, the time at which the last of each kind
        entered its state."""
        since: dict[IncomingKey, float] = {}
        for machine in self.machines if times and self.coming else ():
            if isinstance(key := machine.counted_as, IncomingKey):
                since[key] = max(machine.since, since.get(key, 0.0))
        for key, count in self.coming.items():
            yield IncomingNodes(key.kind, count, key.reserved, key.waking, since.get(key))

    def pick(self, free: FreeNodes, count: int, idle_time: float | None = None) -> list[SimMachine]:
        """Return the `count` nodes of a pool with the lowest ids; with `idle_time`, only nodes that
        have been idle for that time. Raises LookupError."""
        bucket = self.free.get(PoolKey(free.kind, free.readiness, free.cache, free.reserved), {})
        fit = [
            one for one in bucket if idle_time is None or one.since <= self._clock.now - idle_time
        ]
        if len(fit) < count:
            raise LookupError(f"{count} nodes wanted of {free}, there are {len(fit)}")
        return sorted(fit, key=lambda machine: machine.id)[:count]


def _counted_as(machine: SimMachine) -> PoolKey | IncomingKey | None:
    if machine.cluster is not None:
        return None
    if machine.state is NodeState.OFF or machine.state is NodeState.INACTIVE:
        readiness = COLD if machine.state is NodeState.OFF else WARM
        return PoolKey(machine.kind, readiness, machine.cache, machine.reserved)
    if machine.state is NodeState.TRAMPOLINE or machine.state is NodeState.WIPE:
        return IncomingKey(machine.kind, machine.reserved, machine.waking)
    return None


def node_type(number: int, spec: sc.Type) -> NodeType:
    """Return the row of `node_types` for a type of the scenario."""
    return NodeType(
        id=number,
        name=spec.name,
        digest=str(number),
        attributes=spec.canonical,
        cost=spec.cost,
        created_at=0.0,
        warm_low=spec.warm_low,
        warm_high=spec.warm_high,
        watts_off=spec.watts_off,
        watts_idle=spec.watts_idle,
        watts_busy=spec.watts_busy,
    )
