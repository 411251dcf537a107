"""How long a vcluster keeps its nodes, how many it has addresses for, and which it loses first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cod.model import Group, Node, Policy
from cod.states import NodeState


def granted_time(asked: float | None, group: Group, policy: Policy) -> float:
    """Seconds of a new lease: the smaller of the group's default and what was asked, up to the group's maximum."""
    default = policy.default_lease if group.default_lease is None else group.default_lease
    return longest(default if asked is None else min(asked, default), group)


def longest(asked: float, group: Group) -> float:
    """Seconds that a lease may last from now on when it is extended by `asked`."""
    return asked if group.max_lease is None else min(asked, group.max_lease)


def room(first: int, last: int) -> int:
    """Nodes that a block of addresses is good for: those ending in .0 and .255 are not used (`store.bindings`)."""
    return sum(address & 0xFF not in (0, 0xFF) for address in range(first, last + 1))


def victims(held: Iterable[Node], count: int) -> list[Node]:
    """The nodes that a vcluster gives up when it shrinks by `count` and its owner names none.

    Those that do not run its software yet go first, then the newest members; names settle what is left.
    """
    order = sorted(held, key=lambda node: (node.state == NodeState.ACTIVE, -(node.assigned_at or 0.0), node.name))
    return order[:max(count, 0)]
