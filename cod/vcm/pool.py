"""The interface that the author of a virtual cluster manager implements: four functions, called by
`cod.vcm.service`.

They are plain functions that may block. They are called in threads, never two at a time for one
node. Each may be called again after it has succeeded (after a crash, or when its outcome is not
known), so each sets a state, and a repeated call must do no harm. An exception is logged, and the
call is repeated later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from cod.wire.nmp import bodies
from cod.wire.nmp.bodies import Named, Reclaim, Window

__all__ = [
    "ANY",
    "Demand",
    "Ending",
    "GivenUp",
    "Maintained",
    "Member",
    "Named",
    "Nodeset",
    "NotYet",
    "Pool",
    "Recalling",
    "Reclaim",
    "Window",
]


@dataclass(frozen=True, slots=True)
class Nodeset:
    """A kind of nodes that a pool requests: its name within the pool, and the description that COD
    is given.

    template, requires   as in a VCM's settings; '': those of the settings
    """

    name: str = ""
    template: str = ""
    requires: str = ""


ANY = Nodeset()  # the nodes of a pool whose nodes are all alike


@dataclass(frozen=True, slots=True)
class Member(bodies.Member):
    """A node of the vcluster, as a pool sees it. `nodeset`: the name of the nodeset that it was
    requested for, '' if that is not known; `since`: when it was added, in seconds since the epoch,
    0 before that."""

    nodeset: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a pool.

    grow      nodes to request, by nodeset, beyond present nodes and nodes on their way
    leave     host names of nodes to release
    drain     host names of nodes that leave as soon as their work has ended: `recall` names them
              with an infinite time
    withdraw  by the nodeset's name, requested and not yet granted nodes that are no longer needed
    why       the reason, for the log and COD's own pages
    parked    host names of nodes that leave as soon as a waiting request at COD, of any vcluster,
              needs them
    """

    grow: Mapping[Nodeset, int] = field(default_factory=dict)
    leave: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    withdraw: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    parked: tuple[str, ...] = ()


class NotYet(Exception):
    """Raised by one of the four functions to be called again in a few seconds; it is no error."""


class GivenUp(Exception):
    """Raised by `add`: the pool cannot use the node, for the reason given. The node is released,
    and no other is requested for a while."""


class Pool(Protocol):
    """A pool that runs on a vcluster's nodes."""

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        """Return the demand. Called every `interval`.

        members  by host name: nodes that were added; `coming`: nodes requested, or granted and not
                 yet added, by the nodeset's name
        """
        ...

    def add(self, member: Member) -> None:
        """Let a node, whose system is up, take part in the pool."""
        ...

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        """Return the nodes that COD gets back, each with the seconds until it can leave.

        `members` has only nodes that suit the reclaim. The chosen nodes are removed, then released.
        """
        ...

    def remove(self, member: Member, lost: bool) -> None:
        """Take the node out of the pool, after its work. Its power may be cut when this returns.

        lost  the node is gone already: only the pool's records need to be corrected
        """
        ...


@runtime_checkable
class Recalling(Protocol):
    """Optional method of a pool whose nodes finish their work before they leave."""

    def recall(self, promised: Mapping[str, float]) -> None:
        """Take note of nodes that `choose` named before a restart of the VCM and that have not
        left: by host name, the promised time in seconds since the epoch (infinity for nodes that
        `look` drains). Called before all other functions; must not block."""
        ...


@runtime_checkable
class Maintained(Protocol):
    """Optional method of a pool whose nodes should be empty when a maintenance window takes
    them."""

    def maintain(
        self, windows: Sequence[Window], members: Mapping[str, Member], next_look: float
    ) -> Mapping[str, float]:
        """Prepare for the maintenance windows of the vcluster's nodes: let no work start that would
        still run when a window begins. Return which of `members` leave now, by host name, each with
        the time until which its work may go on, in seconds since the epoch (infinity: until it
        ends).

        `windows` is complete: a window that was moved has other times, and preparations for a
        window that is missing are undone. This method is called before each `look` for which COD
        has told its windows, next at `next_look` (seconds since the epoch): a node that would then
        leave too late leaves now. A node that is no longer returned before it has left stays, and
        is added again.
        """
        ...


@runtime_checkable
class Ending(Protocol):
    """Optional method of a pool whose nodes prepare for the end of the lease."""

    def ending(self, left: float, members: Mapping[str, Member]) -> None:
        """Prepare for the end of the lease, of which COD has warned, in `left` seconds. Called
        before each `look`; no further call before the end is certain."""
        ...
