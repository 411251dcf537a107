"""The reserve pool: which free nodes are awake, and how much power nodes use. Pure.

**Marks.** Of each type, the *spare* nodes count: awake in the reserve, reserved for nobody, neither
granted in this plan nor kept by a request that waits. Fewer than the low mark awake or waking: cold
nodes are woken until the low mark is reached. More than the high mark awake: nodes that have been
idle long enough are put to sleep until the high mark is reached. In between nothing happens, and
this is what keeps nodes from being switched to and fro: one that is woken brings the spare to the
low mark at most, one that falls asleep leaves it at the high mark at least. While any node of a
type is waking or is to be woken, none of that type is put to sleep: what it was woken for may want
it too.

Where the snapshot has a forecast of a type (`policy.energy.reserve_forecast`), the marks are by it,
and the two constants its bounds.

**Need.** Cold nodes that requests keep while they wait for others, and cold nodes that are
reserved, are woken at once, whatever the marks say and even where the site does not manage its
reserve: they would be woken anyway, later, and everybody would wait for them. For this to come to
rest, a request that waits has to count on warm nodes and waking ones before it keeps cold ones;
`policy.scheduler.allocate` does.

**Who sleeps.** Only nodes that the snapshot counts as idle, which are none that their power driver
could not wake. Of a pool that is partly granted or kept, so many fewer: whichever of its nodes are
given away, enough idle ones are left. Should more be left, the next plan sees them.

**Power.** What a node uses depends on its state alone: off, idle or busy (`CLASSES`). Watts are the
mean of what the type's BMCs measure in that class, else the type's own, else the site's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cod.model import Energy, NodeType
from cod.policy.energy.reserve_forecast import bounded
from cod.policy.scheduler.snapshot import COLD, WARM, FreeNodes, PowerChange, SiteSnapshot
from cod.states import NodeState

OFF, IDLE, BUSY = "off", "idle", "busy"

CLASSES: dict[NodeState, str | None] = {
    NodeState.EXPECTED: None,  # known by name only
    NodeState.NEW: None,  # known by a packet only
    NodeState.REGISTERING: IDLE,
    NodeState.OFF: OFF,
    NodeState.TRAMPOLINE: IDLE,
    NodeState.INACTIVE: IDLE,
    NodeState.WIPE: BUSY,
    NodeState.PRIME: BUSY,
    NodeState.BOOT: BUSY,
    NodeState.ACTIVE: BUSY,
    NodeState.CAPTURE: BUSY,
    NodeState.BURNIN: BUSY,
    NodeState.QUARANTINED: IDLE,  # whether it is on nobody knows; it saves nothing either way
    NodeState.RETIRED: None,  # the site's no longer
}

NOTHING: Mapping[FreeNodes, int] = {}


def marks(
    node_type: NodeType, energy: Energy, forecast: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return the low and high mark of a type: the type's own, else the site's. A forecast moves
    them between these bounds. A high mark below the low mark is raised to it."""
    low = energy.warm_low if node_type.warm_low is None else node_type.warm_low
    high = energy.warm_high if node_type.warm_high is None else node_type.warm_high
    return bounded(low, max(low, high), forecast)


def wake_deadline(energy: Energy, waking: int) -> float:
    """Return how many seconds each node may take to wake if `waking` nodes wake at the same
    time."""
    return energy.wake_time + energy.wake_step * max(0, waking - 1)


def power_changes(
    snapshot: SiteSnapshot,
    kept: Mapping[FreeNodes, int],
    energy: Energy,
    granted: Mapping[FreeNodes, int] = NOTHING,
) -> tuple[PowerChange, ...]:
    """Return which nodes to wake and which to put to sleep now. Wakes come first, those of the
    cheapest types before others. Each pool occurs at most once.

    kept     nodes of each pool that waiting requests keep
    granted  nodes of each pool that this plan grants (a granted cold node wakes with its grant)
    """
    by_type: dict[int, list[FreeNodes]] = defaultdict(list)
    for free in sorted(snapshot.free_nodes, key=_order):
        by_type[free.kind.type].append(free)
    types = [
        _Type(snapshot, type_id, free_nodes, kept, granted, energy)
        for type_id, free_nodes in by_type.items()
    ]
    types.sort(key=lambda each: (each.node_type.cost, each.node_type.id))
    wakes = [change for each in types for change in each.needed]
    sleeps: list[PowerChange] = []
    if energy.manage:
        wakes += [change for each in types for change in each.short()]
        types.sort(key=lambda each: (-each.saving, each.node_type.id))
        sleeps = [change for each in types for change in each.surplus()]
    # nodes of one pool for a request and for the reserve are woken at once
    by_free: dict[FreeNodes, PowerChange] = {}
    for one in wakes:
        first = by_free.get(one.free_nodes)
        by_free[one.free_nodes] = (
            one
            if first is None
            else replace(one, count=first.count + one.count, why=f"{first.why}; {one.why}")
        )
    return (*by_free.values(), *sleeps)


def _order(free: FreeNodes) -> tuple[object, ...]:
    """Return the sort key of pools for waking and sleeping: pools without a group's software on
    their disks come first."""
    return free.cache is not None, free.kind, free.cache or (), free.readiness, free.reserved


class _Type:
    """The free nodes of one type."""

    def __init__(
        self,
        snapshot: SiteSnapshot,
        type_id: int,
        free_nodes: Sequence[FreeNodes],
        kept: Mapping[FreeNodes, int],
        granted: Mapping[FreeNodes, int],
        energy: Energy,
    ) -> None:
        self.node_type = snapshot.types[type_id]
        self._free_nodes = free_nodes
        self._kept = kept
        self._granted = granted
        forecast = snapshot.spare.get(type_id)
        self.low, self.high = marks(self.node_type, energy, forecast)
        self._article = "the" if forecast is None else "by forecast the"
        self.saving = watts(NodeState.INACTIVE, self.node_type, energy) - watts(
            NodeState.OFF, self.node_type, energy
        )
        waking = [each for each in snapshot.coming if each.waking and each.kind.type == type_id]
        self._any_waking = bool(waking)
        self._waking = sum(each.count for each in waking if not each.reserved)
        self._warm = sum(self._spare(free) for free in free_nodes if free.readiness == WARM)
        self.needed = [
            PowerChange(free, self._left(free) - self._spare(free), "for a request that waits")
            for free in free_nodes
            if free.readiness == COLD and self._left(free) > self._spare(free)
        ]

    def _left(self, free: FreeNodes) -> int:
        return free.count - self._granted.get(free, 0)

    def _spare(self, free: FreeNodes) -> int:
        return 0 if free.reserved else self._left(free) - self._kept.get(free, 0)

    def short(self) -> list[PowerChange]:
        """Return the wakes up to the low mark."""
        ready = self._warm + self._waking
        why = (
            f"{ready} of {self.node_type.name} awake and spare, {self._article} low mark is"
            f" {self.low}"
        )
        cold = [(free, self._spare(free)) for free in self._free_nodes if free.readiness == COLD]
        return [PowerChange(free, count, why) for free, count in _deal(self.low - ready, cold)]

    def surplus(self) -> list[PowerChange]:
        """Return nodes that fall asleep, down to the high mark."""
        # else the same nodes would be woken and put to sleep in turn
        if self._any_waking or self.needed or self.short():
            return []
        why = (
            f"{self._warm} of {self.node_type.name} awake and spare, {self._article} high mark is"
            f" {self.high}"
        )
        # those that are granted or kept may be among the idle ones: which, is not settled yet
        idle = [
            (free, min(self._spare(free), free.idle - free.count + self._spare(free)))
            for free in self._free_nodes
            if free.readiness == WARM and not free.reserved
        ]
        return [
            PowerChange(free, count, why, sleep=True)
            for free, count in _deal(self._warm - self.high, idle)
        ]


def _deal(
    wanted: int, inventory: Iterable[tuple[FreeNodes, int]]
) -> Iterator[tuple[FreeNodes, int]]:
    """Yield `wanted` nodes, out of the pools in their order, of each at most as many as it says."""
    for free, most in inventory:
        if (count := min(wanted, most)) > 0:
            yield free, count
            wanted -= count


# ---------------------------------------------------------------- power


def watts(
    state: str, node_type: NodeType | None, energy: Energy, measured: float | None = None
) -> float:
    """Return the watts that one node of the type uses in a state; 0 for new and retired nodes.

    measured  mean watts by the BMCs of the type's nodes in the state's class; None if none measures
    """
    kind = CLASSES[NodeState(state)]
    if kind is None:
        return 0.0
    if measured is not None:
        return measured
    own = None if node_type is None else getattr(node_type, f"watts_{kind}")
    default: float = getattr(energy, f"watts_{kind}")
    return default if own is None else own
