"""Checks of nodes' histories: the holders of each node, and states that must never be. Pure.

A node's history is its transitions (`node_history`). `Histories` reads them, a node's in the order
of their generations and nodes in any order, and tells of each node its owners over time and its
violations. `compare` holds the rows of nodes, read at the same moment, against the histories and
against themselves. It knows the table of transitions and nothing of the rest of the policy, so
that what it finds is no mistake that it shares with the server.

A disk may be handed on without being erased in one case: to the group whose data is on it, where
its last holder's template keeps disks, or where partition tables alone were erased.
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
"""What the disks of a free node may be. CACHED and TABLES are kept for one group. DIRTY, too, where
nobody has written to them: a disk was marked keep, and is no longer."""

_ARROWS = {
    (state.value, event.value): to.value for (state, event), to in NODE_TRANSITIONS.items()
} | {(state.value, NodeEvent.RESTORED.value): NodeState.TRAMPOLINE.value for state in UNBELIEVED}


class ViolationKind(StrEnum):
    """Rule that a violation breaks."""

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
    """One row of `node_history`. `holder`: the vcluster that holds the node after it; `erased`:
    'whole', 'tables' or '' (not told), of the disks before it."""

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

    holder_state    of its vcluster
    users           the groups that may use it; `group`: its holder's
    addresses       how many it has of a vcluster's block; `strange`: those of them that are not in
                    a block of its holder
    template_group  whose template it runs; null: the site's, or none
    vlan            that its switch port is wanted in; null: the provisioning VLAN, or not known;
                    `own_vlan`: its holder's
    volumes         that its holder mounts, each with its group
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
    """A state of a node that must never be. `row`: of `node_history`; None: of the node itself."""

    node: int
    row: int | None
    at: float | None
    kind: ViolationKind
    about: str

    def __str__(self) -> str:
        """Return the violation as a sentence for people who read rows."""
        where = f"node {self.node}" if self.row is None else f"node {self.node}, row {self.row}"
        return f"{where}: {self.about}"


@dataclass(slots=True)
class Span:
    """A time in which a node had one holder, or none.

    until   null: it lasts
    erased  nobody held the node, and its disks were erased
    """

    holder: int | None
    since: float
    until: float | None = None
    erased: bool = False


@dataclass(slots=True)
class _Past:
    """One node's history up to the row that is read.

    owner   its last holder, until it is free
    groups  whose data may be on its disks
    kept    the disks may be handed on to the one group whose data they hold
    """

    last: NodeTransition
    spans: list[Span]
    owner: int | None = None
    groups: frozenset[str] = frozenset()
    kept: bool = False


@dataclass(slots=True)
class Histories:
    """Reads transitions as they come, and says what none of them may show.

    owners  vclusters by id; one that is missing counts as its own group, which keeps no disks
    whole   each history begins with the machine's first appearance: nothing was pruned
    """

    owners: Mapping[int, Owner] = field(default_factory=dict)
    whole: bool = True
    _pasts: dict[int, _Past] = field(default_factory=dict)

    def add(self, row: NodeTransition) -> list[Violation]:
        """Read one further transition; return what is wrong with it."""
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
        """Return the node's owners over time, the oldest first."""
        past = self._pasts.get(node)
        return [] if past is None else past.spans

    def name(self, holder: int | None) -> str:
        """Return what a vcluster is called: by its group and its name."""
        if holder is None:
            return "nobody"
        owner = self.owners.get(holder)
        return str(holder) if owner is None else f"{owner.group}/{owner.name}"

    def compare(self, rows: Iterable[NodeRow]) -> list[Violation]:
        """Return in what the rows of nodes, read at one moment together with the history up to
        here, contradict the history or themselves."""
        return [
            Violation(row.node, None, None, kind, about)
            for row in rows
            for kind, about in (*self._contradictions(row), *_strange(row))
        ]

    def _group(self, holder: int) -> str:
        owner = self.owners.get(holder)
        return f"of vcluster {holder}" if owner is None else owner.group

    def _owned(self, past: _Past, row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
        """Yield why the node cannot have the holder that `row` says."""
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
        """Follow what may be on the node's disks; yield who gets to see it that must not."""
        if row.event == NodeEvent.WIPED:
            # the data is still there, and may be met by the same group alone
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
        """Yield in what a node's row contradicts its history."""
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
    """Return all that is wrong with histories of nodes whose vclusters are not told."""
    histories = Histories(whole=whole)
    return [one for row in history for one in histories.add(row)]


def _first(row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
    if row.generation or row.from_state is not None:
        yield (
            ViolationKind.HISTORY,
            f"its history begins with generation {row.generation}, from {row.from_state}",
        )


def _follows(last: NodeTransition, row: NodeTransition) -> Iterator[tuple[ViolationKind, str]]:
    """Yield why `row` cannot be the next after `last`."""
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
    """Yield what a node has at one moment that is not its holder's."""
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
