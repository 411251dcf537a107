"""A checker of nodes' histories: one owner at a time, never free while dirty, no gaps. Pure.

It reads rows of `node_history`, and the rows of nodes at one moment, and knows nothing of the
policy: only the table of transitions, and what `docs/architecture.md` promises. It is for sites
whose templates keep no disks (`cache="no"`): a kept disk may be handed on without a wipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cod.states import NODE_TRANSITIONS, Disk, NodeEvent, NodeState

FREE = (NodeState.INACTIVE, NodeState.OFF)
WRITTEN = (NodeState.PRIME, NodeState.BOOT, NodeState.ACTIVE)
"""States in which a node's disks are written for its holder, or by its holder."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of `node_history`. `holder`: the vcluster that holds the node after it."""

    id: int
    node: int
    event: str
    from_state: str | None
    to_state: str
    generation: int
    holder: int | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node at one moment. `holder_state`: of its vcluster; `users`: the groups that may use it;
    `addresses`: those it has in a vcluster's block; `group`: its holder's."""

    node: int
    state: str
    generation: int
    disk: str
    holder: int | None = None
    holder_state: str | None = None
    group: int | None = None
    users: tuple[int, ...] = ()
    addresses: int = 0


@dataclass(slots=True)
class _Past:
    """What is known of one node so far: its last transition, whether its disks were written since
    the last wipe, and its last holder, until it is free."""

    last: Transition
    dirty: bool = False
    owner: int | None = None


class HistoryChecker:
    """Reads transitions as they come, and says what none of them may show."""

    def __init__(self) -> None:
        self._pasts: dict[int, _Past] = {}
        self._last_id = 0

    def add(self, row: Transition) -> list[str]:
        """Read one further transition; return what is wrong with it, a sentence each."""
        past = self._pasts.get(row.node)
        found = [f"row {row.id} comes after row {self._last_id}"] * (row.id <= self._last_id)
        self._last_id = max(row.id, self._last_id)
        if past is None:
            found += _first(row)
            past = self._pasts[row.node] = _Past(row)
        else:
            found += _follows(past.last, row)
            found += _owned(past, row)
        if row.event == NodeEvent.WIPED:
            past.dirty = False
        elif row.to_state in WRITTEN:
            past.dirty = True
        if row.to_state in FREE and past.dirty:
            found.append(f"is {row.to_state}, and was not wiped since its disks were written")
        if row.to_state in FREE:
            past.owner = None
        elif row.holder is not None:
            past.owner = row.holder
        past.last = row
        return [f"node {row.node}, row {row.id}: {one}" for one in found]

    def compare(self, rows: Iterable[NodeRow]) -> list[str]:
        """Return in what the rows of nodes, read at one moment together with the history up to
        here, contradict the history or themselves."""
        return [f"node {row.node}: {one}" for row in rows for one in self._contradictions(row)]

    def _contradictions(self, row: NodeRow) -> Iterator[str]:
        past = self._pasts.get(row.node)
        if past is None:
            yield "has no history"
            return
        if (row.state, row.generation) != (past.last.to_state, past.last.generation):
            yield (
                f"is {row.state} of generation {row.generation}, and its history ends with"
                f" {past.last.to_state} of {past.last.generation}"
            )
        if row.holder is not None and row.holder != past.last.holder:
            yield f"is held by {row.holder}, and its history ends with {past.last.holder}"
        if row.state in FREE and row.disk not in (Disk.CLEAN, Disk.FOREIGN):
            yield f"is {row.state} with a disk that is {row.disk}"
        if row.state in FREE and row.holder is not None:
            yield f"is {row.state} and held by {row.holder}"
        if row.holder_state == "ended":
            yield f"is held by {row.holder}, which has ended"
        if row.users != (() if row.holder is None else (row.group,)):
            yield f"is held by group {row.group}, and may be used by {row.users}"
        if row.addresses != (row.holder is not None):
            yield f"is held by {row.holder}, and has {row.addresses} addresses of a vcluster"


def violations(history: Iterable[Transition]) -> list[str]:
    """Return all that is wrong with a history, oldest first."""
    checker = HistoryChecker()
    return [one for row in history for one in checker.add(row)]


def _first(row: Transition) -> Iterator[str]:
    if row.generation or row.from_state is not None:
        yield f"its history begins with generation {row.generation}, from {row.from_state}"


def _follows(last: Transition, row: Transition) -> Iterator[str]:
    """Yield why `row` cannot be the next after `last`."""
    if row.generation != last.generation + 1:
        yield f"generation {row.generation} comes after {last.generation}"
    if row.from_state != last.to_state:
        yield f"comes from {row.from_state}, and was {last.to_state}"
    arrows = {(str(state), str(event)): str(to) for (state, event), to in NODE_TRANSITIONS.items()}
    target = arrows.get((str(row.from_state), row.event))
    if target != row.to_state:
        yield f"{row.event} leads from {row.from_state} to {target}, not to {row.to_state}"


def _owned(past: _Past, row: Transition) -> Iterator[str]:
    """Yield why the node cannot have the holder that `row` says."""
    if row.holder is not None and row.to_state in FREE:
        yield f"is {row.to_state} and held by {row.holder}"
    if row.holder is None or row.holder == past.last.holder:
        return
    if past.owner is not None:
        yield f"goes from {past.owner} to {row.holder} without having been free"
    elif past.last.to_state not in FREE:
        yield f"is taken by {row.holder} while it is {past.last.to_state}"
