"""Order of users' requests inside a group that has users' shares (`Group.user_shares`). Pure.

Users of a group are ranked as groups without subgroups are: by the ratio of their share to their
usage, which fades like that of groups. The user of a request is the creator of its vcluster. Users'
ranks do not change the order between groups: requests of a group only exchange their places with
each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from cod.model import GroupUser
from cod.policy.sharing.shares import ShareAccount, ShareStanding, faded, fair_tree

T = TypeVar("T")


def standings(
    users: Iterable[GroupUser], half_life: float, now: float
) -> dict[int, dict[int, ShareStanding]]:
    """Return users' standings in their groups, by the group's id and the user's; empty if shares
    are off (`half_life` is 0)."""
    accounts: dict[int, list[ShareAccount]] = defaultdict(list)
    for one in users if half_life > 0 else ():
        usage = faded(one.faded_usage, now - one.faded_at, half_life)
        accounts[one.group_id].append(ShareAccount(one.user_id + 1, one.shares, usage))
    return {
        group_id: {one - 1: each for one, each in fair_tree(members).items()}
        for group_id, members in accounts.items()
    }


def with_users(users: Sequence[GroupUser], asking: Iterable[tuple[int, int]]) -> list[GroupUser]:
    """Return `users`, plus a record with the defaults for each of `asking`, (group, user), that has
    none."""
    known = {(one.group_id, one.user_id) for one in users}
    return [*users, *(GroupUser(*one) for one in sorted(set(asking) - known))]


def in_turn(
    queue: Sequence[T], family: Callable[[T], Hashable], rank: Callable[[T], int]
) -> list[T]:
    """Return the queue with the members of each family in the order of their ranks. Equal ranks
    stay in order. Each family keeps the places that it has in the queue."""
    families: dict[Hashable, list[T]] = defaultdict(list)
    for one in queue:
        families[family(one)].append(one)
    ordered = {key: iter(sorted(each, key=rank)) for key, each in families.items()}
    return [next(ordered[family(one)]) for one in queue]


def apart(queue: Iterable[T], rank: Callable[[T], tuple[int, int]]) -> list[list[T]]:
    """Return the queue in parts, so that no part has requests of two ranks of one group.

    rank  the request's group, and the rank of its user; 0: the group's users are not ranked
    """
    parts: list[list[T]] = []
    seen: dict[int, int] = {}
    for one in queue:
        group_id, place = rank(one)
        if not parts or seen.get(group_id, place) != place:
            parts.append([])
            seen = {}
        seen[group_id] = place
        parts[-1].append(one)
    return parts
