"""What the author of a virtual cluster manager writes: four functions, called by `cod.vcm.service`.

They are plain functions that may block; they are called in threads, never two at a time for one node. Each may be
called again for what it has done already (after a crash, or when its outcome is not known), so each says what shall be,
not what shall change. What they raise is logged and tried again later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cod.wire.nmp.bodies import Member, Named, Reclaim

__all__ = ["Demand", "GivenUp", "Member", "Named", "NotYet", "Pool", "Recalling", "Reclaim"]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pool wants. `grow`: so many nodes more than it has and than are coming; `leave`: hostnames that may go.

    withdraw  so many of the nodes that were asked for and are not granted yet are not needed any more
    why       for the log, and for COD's own pages
    """

    grow: int = 0
    leave: tuple[str, ...] = ()
    withdraw: int = 0
    why: str = ""


class NotYet(Exception):
    """Raised by one of the four functions: ask again in a few seconds; nothing is wrong."""


class GivenUp(Exception):
    """Raised by `add`: the node will not take part, for the reason given. It is given back, and for a while no other is
    asked for."""


class Pool(Protocol):
    """A pool that runs on a vcluster's nodes."""

    def look(self, members: Mapping[str, Member], coming: int, now: float) -> Demand:
        """Return what is wanted? Asked every `interval`.

        members  by hostname: nodes that were added; `coming`: nodes asked for, or granted and not yet added
        """
        ...

    def add(self, member: Member) -> None:
        """The node's system is up: let it take part."""
        ...

    def choose(self, reclaim: Reclaim, members: Mapping[str, Member], now: float) -> Sequence[Named]:
        """COD needs nodes back: which, and within how many seconds can each be had?

        Among `members` are only those that would do. Nodes that are named are removed, then given back.
        """
        ...

    def remove(self, member: Member, lost: bool) -> None:
        """Take the node out of the pool, what runs on it first; when this returns its power may be cut.

        lost  it is gone already: only the pool's own books need to be put right
        """
        ...


@runtime_checkable
class Recalling(Protocol):
    """What a pool may have besides, if it lets work end before a node goes."""

    def recall(self, promised: Mapping[str, float]) -> None:
        """The VCM was started anew: these nodes were named by `choose` in its former life and have not been given back;
        by hostname, when each was promised, in seconds since the epoch. Called first of all, and must not block."""
        ...
