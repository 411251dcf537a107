"""Frozen worlds: random simulated sites in which nothing new is asked for from a moment on. What is
told of the starts of those that wait then is compared with what happens.

`python -m tests.unit.frozen [worlds]` prints how good it is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from cod.policy.reservations.starts import Start, predicted
from cod.sim import apply_plan
from cod.sim.cluster import Cluster, ClusterRequest
from cod.sim.demand.owners import BaseOwner
from cod.sim.randomness import HOUR
from cod.sim.scenario.records import Jobs, Scenario
from cod.sim.scenario.tables import read
from cod.sim.world import World
from cod.states import RequestState, VclusterState

TURNAROUND = 170.0  # of machines: their median
FROZEN = 12 * HOUR
HORIZON = 60 * 24 * HOUR


class Outcome(NamedTuple):
    """A request that waited when its world was frozen: what was told, and when it was granted."""

    told: Start
    granted: float | None


class Owner(BaseOwner):
    """Asks, and does nothing else; notes when it is granted what it asked for."""

    def __init__(self, world: World, rule: Jobs, priority: int, **entitled: Any) -> None:
        group = world.groups.get(rule.group) or world.group(
            rule.group, priority, None, None, **entitled
        )
        super().__init__(world, rule, group)
        self.running: list[Cluster] = []
        self.times: dict[int, float] = {}

    def granted(self, request: ClusterRequest) -> None:
        """Note when."""
        self.times[request.id] = self.world.clock.now
        if request.kind == "create":
            self.running.append(request.cluster)


def scenario(dice: Random, shares: bool, spread: float) -> Scenario:
    """Return a random site with random rules. `spread`: of the times that machines take."""
    policy = {
        "inertia": dice.choice([0, 600, 1800]),
        "reclaim_grace": dice.choice([60, 300]),
        "drain_grace": dice.choice([0, 120, 600]),
        "hold_after": dice.choice([0, 1800, 3600]),
        "turnaround": TURNAROUND,
        "fair_half_life": 86400.0 if shares else 0.0,
        "lease_warnings": [],
    }
    types = [
        {
            "name": f"type-{number}",
            "blocks": [dice.randint(2, 16) for _ in range(dice.randint(1, 3))],
            "cost": number,
            "memory_mib": 32768 * number,
            "times": {"spread": spread},
        }
        for number in range(1, dice.randint(2, 4))
    ]
    groups = [{"name": "any"}]
    nobody = {"name": "nobody", "model": "jobs", "group": "any", "arrivals": {"per_day": 0}}
    return read({"type": types, "group": groups, "demand": [nobody], "policy": policy})


def frozen(seed: int, spread: float = 0.0) -> tuple[World, list[Owner]]:
    """Return a world at the moment from which on nothing new is asked for, and its owners."""
    dice = Random(seed)
    world = World(scenario(dice, dice.random() < 0.3, spread), seed, apply_plan.apply)
    sizes = sorted(sum(one.kind.type == kind for one in world.pool.machines) for kind in (1, 2))
    needs = '<requires><memory mib="&gt;= 65536"/></requires>' if sizes[0] else ""
    owners = [
        Owner(
            world,
            Jobs(
                f"demand-{number}",
                f"group-{number}",
                needs=needs if dice.random() < 0.3 else "",
                may_spread=dice.random() < 0.3,
                preemptible=dice.random() < 0.15,
            ),
            dice.choice([0, 0, 5, 10]),
            guarantee=dice.choice([0, 0, 0, 2]),
            node_limit=dice.choice([None, None, None, 12]),
        )
        for number in range(dice.randint(2, 6))
    ]
    nodes = len(world.pool.machines)
    longest = dice.choice([2, 6, 12]) * HOUR
    mean = 3600.0 * 4 / nodes * dice.choice([0.4, 0.8])
    at = 0.0
    while (at := at + dice.expovariate(1 / mean)) < FROZEN:
        world.clock.run(at)
        owner = dice.choice(owners)
        alive = [one for one in owner.running if one.state is VclusterState.ACTIVE]
        if alive and dice.random() < 0.2:
            world.grow(dice.choice(alive), dice.randint(1, 3))
        else:
            count = dice.choice([1, 1, 1, 2, 3, 4, 8])
            lease = None if dice.random() < 0.03 else dice.uniform(600, longest)
            owner.create(count, f"cluster-{at}", lease)
    world.clock.run(FROZEN)
    return world, owners


def outcomes(seed: int, spread: float = 0.0) -> Iterator[Outcome]:
    """Yield what is told in a frozen world, and what happens."""
    world, owners = frozen(seed, spread)
    waiting = [one for one in world.pending.values() if one.state is RequestState.PENDING]
    groups = world.groups_as_used()
    told = predicted(world.snapshot(), world.policy, FROZEN, groups)
    starts = {one.request_id: one for one in told}
    world.clock.run(HORIZON, lambda: not world.pending)
    for request in waiting:
        granted = next((own.times[request.id] for own in owners if request.id in own.times), None)
        yield Outcome(starts[request.id], granted)


def shares(found: list[Outcome]) -> tuple[int, int, int]:
    """Return how many were granted, how many of those were told, and how many of those within their
    nodes' turnaround."""
    granted = [one for one in found if one.granted is not None]
    told = [one for one in granted if one.told.at is not None]
    right = [one for one in told if abs((one.told.at or 0) - (one.granted or 0)) <= TURNAROUND]
    return len(granted), len(told), len(right)


def main(worlds: int, spread: float) -> None:
    """Print how good it is."""
    total: Counter[str] = Counter()
    errors = []
    for seed in range(worlds):
        found = list(outcomes(seed, spread))
        granted, told, right = shares(found)
        total.update(waiting=len(found), granted=granted, told=told, right=right)
        total["told and never granted"] += sum(
            one.told.at is not None and one.granted is None for one in found
        )
        errors += [
            (one.granted - one.told.at, seed, one.told.request_id)
            for one in found
            if one.granted is not None and one.told.at is not None
        ]
        print(seed, len(found), granted, told, right)
    print(dict(total))
    errors.sort(key=lambda one: abs(one[0]))
    for part in (0.5, 0.8, 0.9, 0.95, 0.99):
        print(part, round(abs(errors[int(part * (len(errors) - 1))][0])))
    print(errors[-12:])


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 40,
        float(sys.argv[2]) if len(sys.argv) > 2 else 0.0,
    )
