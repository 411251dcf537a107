"""How long a vcluster keeps its nodes, how many it has addresses for, which it loses first, and what is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cod.model import Group, Node, Policy, Refused
from cod.policy.world import Holder, Snapshot
from cod.states import NodeState

LONGEST = 4_000_000_000.0  # seconds of a lease, as the site file has it


def check(asked: float | None, field: str = "lease") -> None:
    """Raise `Refused` for a length of time that none can have: not positive, endless, or no number. None is no wish."""
    if asked is not None and not 0 < asked <= LONGEST:  # what is no number compares false
        raise Refused("invalid", f"a lease lasts more than 0 and at most {LONGEST:.0f} seconds, not {asked}", field)


def granted_time(asked: float | None, group: Group, policy: Policy) -> float:
    """Seconds of a new lease: the smaller of the group's default and what was asked, up to the group's maximum."""
    default = policy.default_lease if group.default_lease is None else group.default_lease
    return longest(default if asked is None else min(asked, default), group)


def longest(asked: float, group: Group) -> float:
    """Seconds that a lease may last from now on when it is extended by `asked`."""
    return asked if group.max_lease is None else min(asked, group.max_lease)


def room(first: int, last: int) -> int:
    """Return how many nodes a block of addresses is good for. Addresses that end in .0 or .255 are not used
    (`store.bindings`). Counted in closed form: blocks may have 2**20 addresses, and DHCP waits for the same thread."""
    in_zero = (last >> 8) - ((first - 1) >> 8)
    in_255 = ((last + 1) >> 8) - (first >> 8)
    return max(last - first + 1, 0) - in_zero - in_255


def victims(held: Iterable[Node], count: int) -> list[Node]:
    """The nodes that a vcluster gives up when it shrinks by `count` and its owner names none.

    Those that do not run its software yet go first, then the newest members; names settle what is left.
    """
    order = sorted(held, key=lambda node: (node.state == NodeState.ACTIVE, -(node.assigned_at or 0.0), node.name))
    return order[:max(count, 0)]


# ---------------------------------------------------------------- what is due


def warnings(snapshot: Snapshot, policy: Policy, now: float) -> tuple[tuple[int, float], ...]:
    """(vcluster id, seconds) of those whose lease ends within so many seconds and that have not been told.

    One that several warnings are due for gets the most urgent only. A warning is due again once the lease has been
    extended, when what was said last is no longer in `snapshot.warned`.
    """
    due = []
    for holder in snapshot.holders.values():
        if holder.expires_at is None or holder.drain_until is not None or holder.expires_at <= now:
            continue
        reached = [ahead for ahead in policy.lease_warnings if holder.expires_at - now <= ahead]
        if reached and min(reached) < snapshot.warned.get(holder.id, float("inf")):
            due.append((holder.id, min(reached)))
    return tuple(sorted(due))


def begun(seconds: float, policy: Policy) -> float | None:
    """What counts as the last warning of a lease that begins, or is extended, with `seconds` to go: nobody has to be
    warned of an end that was in sight from the beginning.
    """
    return min((ahead for ahead in policy.lease_warnings if seconds <= ahead), default=None)


def drains(snapshot: Snapshot, now: float) -> tuple[int, ...]:
    """Vclusters whose lease has run out and that are not draining yet."""
    return tuple(sorted(holder.id for holder in snapshot.holders.values()
                        if holder.drain_until is None and over(holder, now)))


def expired(snapshot: Snapshot, now: float) -> tuple[int, ...]:
    """Draining vclusters whose grace is over."""
    return tuple(sorted(holder.id for holder in snapshot.holders.values()
                        if holder.drain_until is not None and holder.drain_until <= now))


def overdue(snapshot: Snapshot, now: float) -> tuple[int, ...]:
    """Reclaims of which something is open past their deadline."""
    return tuple(sorted(reclaim.id for reclaim in snapshot.reclaims if reclaim.open and reclaim.deadline <= now))


def over(holder: Holder, now: float) -> bool:
    """Has its lease run out? Then its nodes come back by themselves, and contention leaves them alone."""
    return holder.drain_until is not None or (holder.expires_at is not None and holder.expires_at <= now)
