"""Slurm's Fair Tree, written from the page that Slurm publishes about it, to compare with COD's.

Written in another way than `cod.policy.sharing.shares`: a walk through a tree of accounts and users
that hands out ranks, with a level fair share as a pair of integers, compared by cross products. A
group is a user, or, with subgroups, an account whose users are its subgroups and the group itself,
with the mean of their shares. `draw` makes sets of groups of which many tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cmp_to_key
from random import Random

from cod.policy.sharing.shares import ShareAccount


@dataclass
class Association:
    """A user, or an account with children. `level` is the level fair share, numerator and
    denominator; a denominator of 0 makes it infinite."""

    id: int
    shares: int
    usage: int
    children: list[Association] = field(default_factory=list)
    level: tuple[int, int] = (0, 1)


def ranks(accounts: Iterable[ShareAccount]) -> dict[int, int]:
    """Return each group's rank, the best one 1."""
    found: dict[int, int] = {}
    _walk(_children_levelled(_tree(list(accounts))), found, tied=False)
    return found


def _tree(accounts: list[ShareAccount]) -> list[Association]:
    """Return the children of the root, their numbers as integers of the same proportions."""
    there = {one.id for one in accounts}
    whole = 1
    for one in accounts:
        for number in (one.shares, one.usage):
            whole *= number.as_integer_ratio()[1]
    numbers = {one.id: (int(one.shares * whole), int(one.usage * whole)) for one in accounts}
    root = []
    for one in accounts:
        if one.parent in there:
            continue
        shares, usage = numbers[one.id]
        inner = [Association(sub.id, *numbers[sub.id]) for sub in accounts if sub.parent == one.id]
        if inner:
            together = sum(sub.shares for sub in inner)
            for sub in inner:
                sub.shares *= len(inner)
            inner.append(Association(one.id, together, usage))
            usage = sum(sub.usage for sub in inner)
        root.append(Association(one.id, shares, usage, inner))
    return root


def _children_levelled(siblings: list[Association]) -> list[Association]:
    """Set the level fair shares of siblings, S / U; 0 without shares."""
    shares, usage = sum(one.shares for one in siblings), sum(one.usage for one in siblings)
    for one in siblings:
        one.level = (one.shares * usage, one.usage * shares) if one.shares else (0, 1)
        if one.shares and not one.usage:
            one.level = (1, 0)
    return siblings


def _above(one: Association, other: Association) -> int:
    """Compare for sorting: the higher level first, users before accounts of the same."""
    cross = other.level[0] * one.level[1] - one.level[0] * other.level[1]
    return cross or bool(one.children) - bool(other.children)


def _walk(siblings: list[Association], found: dict[int, int], *, tied: bool) -> None:
    """Rank siblings by Slurm's rules for ties: users of the same level have the same rank, accounts
    of the same level have their children merged, and a user has the rank of the best user of an
    account of the same level.

    `tied`: the first of them has the rank of the user ranked last.
    """
    siblings = sorted(siblings, key=cmp_to_key(_above))
    place = 0
    while place < len(siblings):
        one = siblings[place]
        if place:
            before = siblings[place - 1]
            tied = one.level[0] * before.level[1] == before.level[0] * one.level[1]
        if not one.children:
            found[one.id] = list(found.values())[-1] if tied else len(found) + 1
            place += 1
            continue
        merged: list[Association] = []
        first = one
        while place < len(siblings) and (
            siblings[place].level[0] * first.level[1] == first.level[0] * siblings[place].level[1]
        ):
            merged += _children_levelled(siblings[place].children)
            place += 1
        _walk(merged, found, tied=tied)


def draw(random: Random) -> list[ShareAccount]:
    """Return up to twelve groups with small numbers, some of them without shares or usage, some of
    them subgroups."""
    count = random.randint(1, 12)
    alone = random.randint(1, count)
    most = random.choice((1, 3, 12))
    unit = random.choice((1, 0.25, 3600.0, 0.1))
    accounts = [
        ShareAccount(
            number,
            random.choice((0, 1, 1, 2, 3, 0.5, 10, 7)),
            unit * random.randint(0, most),
            0 if number <= alone else random.randint(1, alone),
        )
        for number in range(1, count + 1)
    ]
    random.shuffle(accounts)
    return accounts


def sets(count: int) -> Iterator[list[ShareAccount]]:
    """Yield so many random sets of groups, the same in each run."""
    random = Random(43)
    for _ in range(count):
        yield draw(random)
