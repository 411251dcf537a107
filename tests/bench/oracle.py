"""How far the manager's plans are from the best there are: `python -m tests.bench.oracle [sites]`.

On random small sites the requests that `policy.scheduler.allocate` grants out of free nodes are
compared with an optimum that scipy's solver for mixed-integer programs (HiGHS) finds under the same
constraints: each tuple from one block (or from several where the request may be spread), all or
nothing, no node twice. The solver sees all requests at once. First it finds how many can be
satisfied; then what the cheapest way to satisfy so many costs (the sum of the types' costs). All
requests are of one priority and one age: where they are not, the manager prefers the higher and the
older on purpose.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # loads its parts when they are used: a worker that only collects tests does without

from cod.model import NodeType, Policy, RequestTuple
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.snapshot import (
    WARM,
    Decision,
    FreeNodes,
    NodeKind,
    PendingRequest,
    SiteSnapshot,
)

POLICY = Policy()
MEMORY = (1, 2, 4, 8)  # GiB
TEMPLATE = '<template><image target="disk" name="any"/></template>'


@dataclass(frozen=True)
class Load:
    """A sort of site. `demand` nodes are wanted for each free one, at most `most` by a tuple; a
    type has `blocks`."""

    name: str
    demand: float
    most: int
    blocks: int
    tuples: int = 1
    spread: float = 0.0


LOADS = (
    Load("half of the nodes wanted", 0.5, 4, 2),
    Load("all wanted, small requests", 1.0, 3, 2),
    Load("all wanted, large requests", 1.0, 8, 2),
    Load("all wanted, two tuples each", 1.0, 4, 2, tuples=2),
    Load("all wanted, half may be spread", 1.0, 8, 2, spread=0.5),
    Load("all wanted, one block a type", 1.0, 6, 1),
    Load("twice as many wanted", 2.0, 4, 2),
)


def random_site(load: Load, dice: random.Random) -> SiteSnapshot:
    """Four types with two sorts of network, each memory size dearer than the one before; all nodes
    are free."""
    types = {}
    for memory in MEMORY:
        for nics in (1, 2):
            number = len(types) + 1
            types[number] = NodeType(
                number,
                f"m{memory}n{nics}",
                "",
                f'<node><memory mib="{memory * 1024}"/>' + "<nic/>" * nics + "</node>",
                float(memory * nics),
                0.0,
            )
    free_nodes = [
        FreeNodes(NodeKind(number, block, ""), WARM, dice.randint(2, 12))
        for number in types
        for block in range(1, load.blocks + 1)
    ]
    total = sum(free.count for free in free_nodes)
    requests: list[PendingRequest] = []
    wanted = 0
    while wanted < load.demand * total:
        tuples = tuple(
            RequestTuple(dice.randint(1, load.most), _attributes(dice), 1)
            for _ in range(dice.randint(1, load.tuples))
        )
        wanted += sum(one.count for one in tuples)
        requests.append(
            PendingRequest(
                len(requests) + 1,
                len(requests) + 1,
                0,
                dice.random(),
                1,
                "",
                tuples,
                may_spread=dice.random() < load.spread,
            )
        )
    site = Counter[int]()
    for free in free_nodes:
        site[free.kind.type] += free.count
    return SiteSnapshot(
        types, free_nodes, site=dict(site), requests=requests, templates={1: TEMPLATE}
    )


def _attributes(dice: random.Random) -> str:
    memory = dice.choice((0, 0, 1, 2, 4, 8))
    return (
        (f'<requires><memory><mib min="{memory}GiB"/></memory>' if memory else "<requires>")
        + ("<nic/><nic/>" if dice.random() < 0.25 else "")
        + "</requires>"
    )


def cost(seen: SiteSnapshot, done: Decision) -> float:
    """The sum of the granted nodes' types' costs."""
    return sum(
        seen.types[share.free_nodes.kind.type].cost * share.count
        for grant in done.grants
        for share in grant.shares
    )


# ---------------------------------------------------------------- the optimum


class Program:
    """The site as a mixed-integer program: x = 1 for each satisfied request, y = nodes of a kind
    for a tuple.

    Where a tuple must not be spread there is one y of 0 or 1 for each kind, worth the tuple's
    count.
    """

    def __init__(self, seen: SiteSnapshot) -> None:
        self._seen = seen
        feasibility = Feasibility(seen, 0.0)
        self.columns: list[tuple[PendingRequest, int, NodeKind | None, int]] = [
            (request, -1, None, 0) for request in seen.requests
        ]
        for request in seen.requests:
            for position, one in enumerate(request.tuples):
                for kind in feasibility.fit(one, request).kinds:
                    self.columns.append(
                        (request, position, kind, 1 if request.may_spread else one.count)
                    )
        self._free = Counter[NodeKind]()
        for free in seen.free_nodes:
            self._free[free.kind] += free.count
        count = len(seen.requests)
        self.satisfied = np.array([1.0] * count + [0.0] * (len(self.columns) - count))
        self.costs = np.array(
            [
                0.0 if kind is None else seen.types[kind.type].cost * worth
                for _, _, kind, worth in self.columns
            ]
        )
        self._constraints = [self._whole(), self._capacity()]

    def _whole(self) -> scipy.optimize.LinearConstraint:
        """Each tuple of a satisfied request has all its nodes, of another none."""
        rows = {
            (request.id, position): number
            for number, (request, position) in enumerate(
                (request, position)
                for request in self._seen.requests
                for position in range(len(request.tuples))
            )
        }
        matrix = scipy.sparse.lil_array((len(rows), len(self.columns)))
        for column, (request, position, kind, worth) in enumerate(self.columns):
            if kind is None:
                for place, one in enumerate(request.tuples):
                    matrix[rows[request.id, place], column] = -one.count
            else:
                matrix[rows[request.id, position], column] = worth
        return scipy.optimize.LinearConstraint(matrix.tocsr(), 0, 0)

    def _capacity(self) -> scipy.optimize.LinearConstraint:
        kinds = sorted({*self._free, *(kind for _, _, kind, _ in self.columns if kind is not None)})
        matrix = scipy.sparse.lil_array((len(kinds), len(self.columns)))
        for column, (_, _, kind, worth) in enumerate(self.columns):
            if kind is not None:
                matrix[kinds.index(kind), column] = worth
        return scipy.optimize.LinearConstraint(
            matrix.tocsr(), -np.inf, [self._free[kind] for kind in kinds]
        )

    def _highest(self) -> list[int]:
        return [
            one.tuples[position].count if one.may_spread and kind is not None else 1
            for one, position, kind, _ in self.columns
        ]

    def best(self, objective: Any, *more: scipy.optimize.LinearConstraint) -> float:
        """The smallest value of an objective."""
        answer = scipy.optimize.milp(
            objective,
            integrality=1,
            bounds=scipy.optimize.Bounds(0, self._highest()),
            constraints=[*self._constraints, *more],
            options={"time_limit": 20, "mip_rel_gap": 1e-4},
        )
        assert answer.success, answer.message
        return float(answer.fun)

    def most(self) -> int:
        """How many requests can be satisfied."""
        return round(-self.best(-self.satisfied))

    def cheapest(self, satisfied: int) -> float:
        """What it costs to satisfy so many."""
        return self.best(
            self.costs, scipy.optimize.LinearConstraint(self.satisfied[None, :], satisfied, np.inf)
        )

    def cheapest_of(self, granted: set[int]) -> float:
        """What it costs to satisfy just those."""
        wanted = np.array(
            [float(kind is None and request.id in granted) for request, _, kind, _ in self.columns]
        )
        return self.best(
            self.costs, scipy.optimize.LinearConstraint(wanted[None, :], len(granted), np.inf)
        )


@dataclass
class Tally:
    """Sums over sites: requests, those granted, those of the optimum; costs of what is granted, and
    of the optimum."""

    requests: int = 0
    granted: int = 0
    optimum: int = 0
    cost: float = 0.0
    least: float = 0.0

    def add(self, seen: SiteSnapshot) -> None:
        """One more site."""
        done = decide(seen, POLICY, 0.0)
        program = Program(seen)
        self.requests += len(seen.requests)
        self.granted += len(done.grants)
        self.optimum += program.most()
        self.cost += cost(seen, done)
        self.least += program.cheapest_of({grant.request_id for grant in done.grants})


def tallies(sites: int, seed: int = 1) -> Iterator[tuple[Load, Tally]]:
    """For each sort of site."""
    for load in LOADS:
        dice, tally = random.Random(seed), Tally()
        for _ in range(sites):
            tally.add(random_site(load, dice))
        yield load, tally


def main() -> None:
    sites = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("| Sites | requests | granted | optimum | lost | cost above the least |")
    print("|---|---:|---:|---:|---:|---:|")
    for load, tally in tallies(sites):
        share, best = tally.granted / tally.requests, tally.optimum / tally.requests
        print(
            f"| {load.name} | {tally.requests} | {share:.1%} | {best:.1%} | {best - share:.1%} | "
            f"{tally.cost / tally.least - 1:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
