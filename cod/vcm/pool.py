"""The interface that an author of a virtual cluster manager implements: four functions, called by
`cod.vcm.service`.

They are plain functions that may block; they are called in threads, never two at a time for one
node. Each may be called again for what it has done already (after a crash, or when its outcome is
not known), so each says what shall be, not what shall change. What they raise is logged and tried
again later.
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
    """A kind of nodes that a pool asks for: its name among the pool's own, and what COD is told to
    look for.

    template, requires   as in a VCM's settings; '' what those say
    """

    name: str = ""
    template: str = ""
    requires: str = ""


ANY = Nodeset()  # the nodes of a pool whose nodes are all alike


@dataclass(frozen=True, slots=True)
class Member(bodies.Member):
    """A node of the vcluster, as a pool sees it. `nodeset`: the name of the one it was asked for
    as, '' where that is not known; `since`: when it was added, in seconds since the epoch, 0 before
    that."""

    nodeset: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a pool.

    grow      by nodeset, nodes beyond its present ones and those on their way
    leave     host names that may go
    drain     host names that go as soon as their work has ended: `recall` names them with an
              infinite time
    withdraw  by the nodeset's name, requested and not yet granted nodes that are no longer needed
    why       the reason, for the log and COD's own pages
    parked    host names that go as soon as a waiting request at COD, of any vcluster, needs them
    """

    grow: Mapping[Nodeset, int] = field(default_factory=dict)
    leave: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    withdraw: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    parked: tuple[str, ...] = ()


class NotYet(Exception):
    """Raised by one of the four functions: ask again in a few seconds; nothing is wrong."""


class GivenUp(Exception):
    """Raised by `add`: the node will not take part, for the reason given. It is given back, and for
    a while no other is asked for."""


class Pool(Protocol):
    """A pool that runs on a vcluster's nodes."""

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        """Return the demand. Called every `interval`.

        members  by host name: nodes that were added; `coming`: nodes requested, or granted and not
                 yet added, by the nodeset's name
        """
        ...

    def add(self, member: Member) -> None:
        """Let a node take part, whose system is up."""
        ...

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        """Name the nodes that COD gets back, each with the seconds until it can leave.

        `members` has only matching nodes. Named nodes are removed, then released."""
        ...

    def remove(self, member: Member, lost: bool) -> None:
        """Take the node out of the pool, what runs on it first; when this returns its power may be
        cut.

        lost  it is gone already: only the pool's own books need to be put right
        """
        ...


@runtime_checkable
class Recalling(Protocol):
    """Optional method of a pool that lets work end before a node goes."""

    def recall(self, promised: Mapping[str, float]) -> None:
        """Take back the nodes that `choose` named before a restart of the VCM and that are still
        here: by host name, the promised time in seconds since the epoch (infinity for those that
        `look` drains). Called before all other functions; must not block."""
        ...


@runtime_checkable
class Maintained(Protocol):
    """Optional method of a pool whose nodes shall be empty when a maintenance window takes them."""

    def maintain(
        self, windows: Sequence[Window], members: Mapping[str, Member], next_look: float
    ) -> Mapping[str, float]:
        """Prepare for the maintenance windows that have nodes of the vcluster: let no work start
        that would outlast a window's beginning. `windows` is complete: a window that was moved has
        other times, and what was prepared for one that is missing is undone. Called before each
        `look` on which COD has said what there is; at `next_look` again, in seconds since the
        epoch: what would leave too late then leaves now.

        Returns which of `members` leave now, by host name, each with the time until when its work
        may go on, in seconds since the epoch (infinity: to its end). Such a node stays after all
        when it is named no more before it has left: it is added again."""
        ...


@runtime_checkable
class Ending(Protocol):
    """Optional method of a pool whose nodes prepare for the lease's end."""

    def ending(self, left: float, members: Mapping[str, Member]) -> None:
        """Prepare for the lease's end, of which COD has warned: `left` seconds remain, and this may
        be the last call before the end. Called before each `look`."""
        ...
