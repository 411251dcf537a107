"""An owner that moves nodes between the virtual clusters of two other demands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cod.sim import moves
from cod.sim.demand.owners import PermanentOwner, schedule
from cod.sim.scenario.records import Moves
from cod.sim.world import World


@dataclass(frozen=True, slots=True)
class Moving:
    """A move of `count` nodes, requested at the time `at`."""

    at: float
    count: int


class Mover:
    """An owner that requests each move at its time. Refused moves are not repeated."""

    def __init__(
        self,
        world: World,
        rule: Moves,
        source: PermanentOwner,
        target: PermanentOwner,
        wanted: Iterator[Moving],
    ) -> None:
        self._world, self._rule, self._source, self._target = world, rule, source, target
        self._counts = world.stats.bookings.of_moves(rule.name)
        schedule(world, wanted, self._ask)

    def _ask(self, wanted: Moving) -> None:
        self._counts["asked"] += 1
        source, target = self._source.cluster, self._target.cluster
        try:
            moves.start(
                self._world, source, target, wanted.count, self._rule.within, self._rule.name
            )
        except moves.NotMoved:
            self._counts["refused"] += 1
        else:
            self._counts["nodes"] += wanted.count
