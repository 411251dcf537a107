"""In which order requests are looked at. Pure.

Highest priority first, then the oldest; requests whose ages fall into the same step of `Policy.age_step` seconds count
as of one age. Among those the more constraining goes first, the one that fewest nodes of the site would do for: what it
needs is rare, and who can do with anything finds something else. Then the older one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from cod.model import Policy
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import PendingRequest


def ordered(wishes: Iterable[PendingRequest], policy: Policy, fitting: Feasibility) -> list[PendingRequest]:
    """Return the wishes, the one that is looked at first in front. The order of two depends on no third."""
    return sorted(wishes, key=lambda wish: (
        -wish.priority, age(wish, policy), choice(wish, fitting), wish.submitted_at, wish.id))


def peers(wishes: Iterable[PendingRequest], policy: Policy, fitting: Feasibility) -> list[list[PendingRequest]]:
    """Return the same in groups of one priority and one age."""
    groups = itertools.groupby(ordered(wishes, policy, fitting), key=lambda wish: (wish.priority, age(wish, policy)))
    return [list(group) for _, group in groups]


def age(wish: PendingRequest, policy: Policy) -> float:
    """Return the step that a request was submitted in; where there are no steps, the time."""
    return math.floor(wish.submitted_at / policy.age_step) if policy.age_step > 0 else wish.submitted_at


def choice(wish: PendingRequest, fitting: Feasibility) -> int:
    """Return how many nodes of the site would do for its most constraining tuple, in blocks that are large enough."""
    fits = ((one, fitting.fit(one, wish.subnet)) for one in wish.tuples)
    return min(fit.site if wish.may_spread else fit.in_blocks_of(one.count) for one, fit in fits)
