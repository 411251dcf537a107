"""The reserve pool: which free nodes are awake, and how much power nodes use. Pure.

**Marks.** The *spare* nodes of each type are counted: nodes that are awake in the reserve, reserved
for no request, and neither granted in this plan nor kept by a waiting request. If fewer than the
low mark are awake or waking, cold nodes are woken up to the low mark. If more than the high mark
are awake, nodes that have been idle long enough are put to sleep down to the high mark. In between
nothing happens, so that nodes are not switched on and off all the time. While any node of a type is
waking or is to be woken, no node of that type is put to sleep: the request that the node is woken
for may need more.

If the snapshot has a forecast of a type (`policy.energy.reserve_forecast`), the forecast sets the
marks, and the configured marks are its bounds.

**Need.** Cold nodes that waiting requests keep, and cold nodes that are reserved, are woken at
once, whatever the marks are, and even if the site does not manage its reserve: they would be woken
later anyway, and the request would wait longer. Waiting requests count on warm and waking nodes
before they keep cold ones (`policy.scheduler.allocate`): otherwise each pass would wake more nodes.

**Sleep.** Only nodes that the snapshot counts as idle are put to sleep; a node that its power
driver could not wake is never counted as idle. Granted and kept nodes of a pool may be among its
idle ones, so as many fewer are put to sleep. If more idle nodes are left, the next plan sees them.

**Power.** The power that a node uses depends on the class of its state: off, idle or busy
(`CLASSES`). It is the mean that BMCs of the type measure in that class, else the value configured
for the type, else that for the site.
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
    NodeState.QUARANTINED: IDLE,  # it may be on or off: its power is unknown
    NodeState.RETIRED: None,  # it belongs to the site no longer
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
        """Return which nodes to wake to reach the low mark."""
        ready = self._warm + self._waking
        why = (
            f"{ready} of {self.node_type.name} awake and spare, {self._article} low mark is"
            f" {self.low}"
        )
        cold = [(free, self._spare(free)) for free in self._free_nodes if free.readiness == COLD]
        return [PowerChange(free, count, why) for free, count in _deal(self.low - ready, cold)]

    def surplus(self) -> list[PowerChange]:
        """Return which nodes to put to sleep to come down to the high mark."""
        # otherwise the same nodes would be woken and put to sleep by turns
        if self._any_waking or self.needed or self.short():
            return []
        why = (
            f"{self._warm} of {self.node_type.name} awake and spare, {self._article} high mark is"
            f" {self.high}"
        )
        # granted and kept nodes may be among the idle ones: the nodes are not chosen yet
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
    """Yield (pool, nodes) for `wanted` nodes in all, from the pools in order, and from each pool at
    most the given number."""
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
