"""Checks of nodes' histories for states that must never occur, and the holders of each node over
time. Pure.

A node's history is its transitions (`node_history`). `Histories` reads the transitions of a node in
the order of their generations, and nodes in any order. It finds violations, and records each node's
holders over time. `compare` compares the rows of nodes, read at the same moment, with the histories
and with each other. The checks use the table of transitions but no other part of the policy, so
that they do not repeat a mistake of the server.

A disk may be handed on without being erased in one case only: to the group whose data is on it, if
its last holder's template keeps disks, or if only its partition tables were erased.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cod.states import NODE_TRANSITIONS, OWN_SYSTEM, UNBELIEVED, Disk, NodeEvent, NodeState

FREE = frozenset({NodeState.INACTIVE, NodeState.OFF})
WRITTEN = OWN_SYSTEM | {NodeState.PRIME}
"""States in which a node's disks are written for its holder, or by its holder."""
KEPT = frozenset({Disk.CLEAN, Disk.FOREIGN, Disk.CACHED, Disk.TABLES})
"""The allowed states of a free node's disks. CACHED and TABLES are kept for one group. DIRTY is
allowed, too, if no holder has written to them: a disk was marked keep, and no longer is."""

_ARROWS = {
    (state.value, event.value): to.value for (state, event), to in NODE_TRANSITIONS.items()
} | {(state.value, NodeEvent.RESTORED.value): NodeState.TRAMPOLINE.value for state in UNBELIEVED}


class ViolationKind(StrEnum):
    """The rule that is broken."""

    OWNERS = "two owners"
    IMAGE = "another's image"
    FREE = "free while dirty"
    HANDED_ON = "handed on without a wipe"
    VOLUME = "foreign volume"
    VLAN = "foreign VLAN"
    HISTORY = "history"  # a gap, a step that is no transition, a row that contradicts its history


@dataclass(frozen=True, slots=True)
class Owner:
    """A vcluster that holds nodes, or held them. `keeps`: its templates may keep disks."""

    name: str
    group: str
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class NodeTransition:
    """One row of `node_history`. `holder`: the vcluster that holds the node afterwards; `erased`:
    how the disks were erased before, 'whole', 'tables' or '' (not recorded)."""

    id: int
    node: int
    event: str
    from_state: str | None
    to_state: str
    generation: int
    holder: int | None
    at: float = 0.0
    erased: str = ""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node at one moment.

    holder_state    state of its vcluster
    group           group of its vcluster
    users           groups that may use the node
    addresses       number of its addresses in vclusters' address blocks
    strange         of these, the addresses that are in no block of its holder
    template_group  group of the template that it runs; None: it is the site's, or there is none
    vlan            VLAN that its switch port is to be in; None: the provisioning VLAN, or unknown
    own_vlan        VLAN of its holder; None: none
    volumes         (volume, its group) for each volume that its holder mounts
    """

    node: int
    state: str
    generation: int
    disk: str
    holder: int | None = None
    holder_state: str | None = None
    group: str | None = None
    users: tuple[str, ...] = ()
    addresses: int = 0
    strange: tuple[str, ...] = ()
    template_group: str | None = None
    vlan: int | None = None
    own_vlan: int | None = None
    volumes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """A state of a node that must never occur. `row`: the row of `node_history` that shows it;
    None: the node's own row shows it."""

    node: int
    row: int | None
    at: float | None
    kind: ViolationKind
    about: str

    def __str__(self) -> str:
        """Return the violation as a sentence with the numbers of node and row."""
        where = f"node {self.node}" if self.row is None else f"node {self.node}, row {self.row}"
        return f"{where}: {self.about}"


@dataclass(slots=True)
class Span:
    """A time in which a node had one holder, or none.

    until   None: it has not ended
    erased  whether the disks were erased while the node had no holder
    """

    holder: int | None
    since: float
    until: float | None = None
    erased: bool = False


@dataclass(slots=True)
class _Past:
    """The result of one node's history so far.

    last    the last transition
    spans   its holders over time
    owner   its last holder, until the node is free
    groups  groups whose data may be on its disks
    kept    whether the disks may be handed on unerased to the one group whose data they hold
    """

    last: NodeTransition
    spans: list[Span]
    owner: int | None = None
    groups: frozenset[str] = frozenset()
    kept: bool = False


@dataclass(slots=True)
class Histories:
    """A checker that reads transitions one by one.

    owners  vclusters by id. A missing vcluster counts as a group of its own that keeps no disks
    whole   whether each history begins with the machine's first appearance: nothing was pruned
    """

    owners: Mapping[int, Owner] = field(default_factory=dict)
    whole: bool = True
    _pasts: dict[int, _Past] = field(default_factory=dict)

    def add(self, row: NodeTransition) -> list[Violation]:
        """Read the next transition of a node, and return its violations."""
        past = self._pasts.get(row.node)
        if past is None:
            found = list(_first(row)) if self.whole else []
            past = self._pasts[row.node] = _Past(row, [Span(row.holder, row.at)])
        else:
            found = [*_follows(past.last, row), *self._owned(past, row)]
            if row.holder != past.last.holder:
                past.spans[-1].until = row.at
                past.spans.append(Span(row.holder, row.at))
        found += self._disks(past, row)
        if row.to_state in FREE:
            past.owner = None
        elif row.holder is not None:
            past.owner = row.holder
        past.last = row
        return [Violation(row.node, row.id, row.at, kind, about) for kind, about in found]

    def spans(self, node: int) -> list[Span]:
        """Return the node's holders over time, the oldest first."""
        past = self._pasts.get(node)
        return [] if past is None else past.spans

    def name(self, holder: int | None) -> str:
        """Return a vcluster's name as 'group/name'; its id if it is unknown; 'nobody' for None."""
        if holder is None:
            return "nobody"
        owner = self.owners.get(holder)
        return str(holder) if owner is None else f"{owner.group}/{owner.name}"

    def compare(self, rows: Iterable[NodeRow]) -> list[Violation]:
        """Return the violations in rows of nodes that were read at the same moment as the history:
        contradictions to the history, or inside a row."""
        return [
            Violation(row.node, None, None, kind, about)
            for row in rows
            for kind, about in (*self._contradictions(row), *_strange(row))
        ]

    def _group(self, holder: int) -> str:
        owner = self.owners.get(holder)
        return f"of vcluster {holder}" if owner is None else owner.group

    def _owned(self, past: _Past, row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
        """Yield the reasons why the node cannot have the holder of `row`."""
        holder = self.name(row.holder)
        if row.holder is not None and row.to_state in FREE:
            yield ViolationKind.OWNERS, f"is {row.to_state} and held by {holder}"
        if row.holder is None or row.holder == past.last.holder:
            return
        if past.owner is not None:
            was = self.name(past.owner)
            yield ViolationKind.OWNERS, f"goes from {was} to {holder} without having been free"
        elif past.last.to_state not in FREE:
            yield ViolationKind.OWNERS, f"is taken by {holder} while it is {past.last.to_state}"

    def _disks(self, past: _Past, row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
        """Keep track of the groups whose data may be on the node's disks. Yield cases in which
        another group could read the data."""
        if row.event == NodeEvent.WIPED:
            # if only tables were erased, the data is still there, and only its group may get it
            past.kept = row.erased == "tables"
            past.groups = past.groups if past.kept else frozenset()
            if past.spans[-1].holder is None:
                past.spans[-1].erased = True
        elif row.holder is not None and row.to_state in WRITTEN:
            group = self._group(row.holder)
            others = ", ".join(sorted(past.groups - {group}))
            if row.event == NodeEvent.PRIMED and row.erased == "whole":
                past.groups = frozenset()
            elif row.event == NodeEvent.PRIMED and others:
                yield (
                    ViolationKind.HANDED_ON,
                    f"is primed for {self.name(row.holder)} over data of {others}, not erased",
                )
            elif row.event == NodeEvent.BOOT_ORDERED and others:
                yield (
                    ViolationKind.IMAGE,
                    f"boots for {self.name(row.holder)} with data of {others} on disk",
                )
            past.groups |= {group}
            owner = self.owners.get(row.holder)
            past.kept = owner is not None and owner.keeps
        if row.to_state in FREE and past.groups and not (past.kept and len(past.groups) == 1):
            whose = ", ".join(sorted(past.groups))
            yield (
                ViolationKind.FREE,
                f"is {row.to_state}, and was not wiped since its disks were written by {whose}",
            )

    def _contradictions(self, row: NodeRow) -> Iterator[tuple[ViolationKind, str]]:
        """Yield the contradictions between a node's row and its history."""
        past = self._pasts.get(row.node)
        if past is None:
            yield ViolationKind.HISTORY, "has no history"
            return
        last = past.last
        if (row.state, row.generation) != (last.to_state, last.generation):
            yield (
                ViolationKind.HISTORY,
                f"is {row.state} of generation {row.generation}, and its history ends with"
                f" {last.to_state} of {last.generation}",
            )
        if row.holder is not None and row.holder != last.holder:
            held, was = self.name(row.holder), self.name(last.holder)
            yield ViolationKind.OWNERS, f"is held by {held}, and its history ends with {was}"
        if row.holder is not None and row.state in FREE:
            yield ViolationKind.OWNERS, f"is {row.state} and held by {self.name(row.holder)}"
        written = row.disk == Disk.SYSTEM or past.groups
        if row.state in FREE and row.disk not in KEPT and written:
            yield ViolationKind.FREE, f"is {row.state} with a disk that is {row.disk}"
        if row.holder_state == "ended":
            yield ViolationKind.OWNERS, f"is held by {self.name(row.holder)}, which has ended"
        if row.addresses != (row.holder is not None):
            yield (
                ViolationKind.OWNERS,
                f"is held by {self.name(row.holder)}, and has {row.addresses} addresses of a"
                " vcluster",
            )


def violations(history: Iterable[NodeTransition], *, whole: bool = True) -> list[Violation]:
    """Return all violations in histories, without knowledge of the vclusters' groups."""
    histories = Histories(whole=whole)
    return [one for row in history for one in histories.add(row)]


def _first(row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
    if row.generation or row.from_state is not None:
        yield (
            ViolationKind.HISTORY,
            f"its history begins with generation {row.generation}, from {row.from_state}",
        )


def _follows(last: NodeTransition, row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
    """Yield the reasons why `row` cannot follow `last`."""
    if row.generation == last.generation:
        yield (
            ViolationKind.OWNERS,
            f"generation {row.generation} was written twice: two servers decided",
        )
    elif row.generation != last.generation + 1:
        yield ViolationKind.HISTORY, f"generation {row.generation} comes after {last.generation}"
    if row.from_state != last.to_state:
        yield ViolationKind.HISTORY, f"comes from {row.from_state}, and was {last.to_state}"
    target = _ARROWS.get((row.from_state or "", row.event))
    if target != row.to_state:
        yield (
            ViolationKind.HISTORY,
            f"{row.event} leads from {row.from_state} to {target}, not to {row.to_state}",
        )


def _strange(row: NodeRow) -> Iterator[tuple[ViolationKind, str]]:
    """Yield things that a node has at one moment although they are not its holder's."""
    if row.users != (() if row.holder is None else (row.group,)):
        users = ", ".join(row.users) or "nobody"
        yield ViolationKind.OWNERS, f"is held by group {row.group}, and may be used by {users}"
    for address in row.strange:
        yield ViolationKind.OWNERS, f"has the address {address}, which is in no block of its holder"
    if row.template_group not in (None, row.group):
        yield (
            ViolationKind.IMAGE,
            f"is held by group {row.group}, and runs a template of {row.template_group}",
        )
    if row.vlan not in (None, row.own_vlan):
        own = "none" if row.own_vlan is None else str(row.own_vlan)
        yield (
            ViolationKind.VLAN,
            f"its switch port is wanted in VLAN {row.vlan}; its holder's is {own}",
        )
    for volume, group in row.volumes:
        if group != row.group:
            yield (
                ViolationKind.VOLUME,
                f"its holder, of group {row.group}, mounts {volume} of {group}",
            )
