"""The server that nodes get their images from, which many nodes share.

A node that is primed alone takes the time of its type. If the scenario limits how many nodes are
primed at once (`image_at_once`), further nodes wait for their turn. If it limits the server's MB/s
(`image_mb_per_s`), this rate is divided evenly, and the part that a node cannot use goes to the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cod.sim.clock import Clock
from cod.sim.cluster import SimMachine

DONE = 1e-6  # seconds left of a priming that has ended, by rounding


@dataclass(slots=True)
class _Transfer:
    """A node that is being primed. `left`: seconds that it would still take alone; `speed`: how
    many of these pass in a second."""

    machine: SimMachine
    then: Callable[[SimMachine], None]
    began: float
    left: float
    most_mb_per_s: float
    speed: float = 1.0


class ImageServer:
    """The image server, which primes nodes.

    took     of each primed node, the seconds from the order to the written disk
    most     the largest number of nodes that were primed at once
    size     MB of an image
    at_once  nodes that are primed at once; None for any number
    rate     MB/s of the server; None for any rate
    """

    def __init__(self, clock: Clock, size: float, at_once: int | None, rate: float | None) -> None:
        self._clock, self._size, self._at_once, self._rate = clock, size, at_once, rate
        self._shared = at_once is not None or rate is not None
        self._active: dict[SimMachine, _Transfer] = {}
        self._turn: dict[SimMachine, _Transfer] = {}
        self._since, self._version = 0.0, 0
        self.took: list[float] = []
        self.most = 0

    def prime(
        self, machine: SimMachine, seconds: float, then: Callable[[SimMachine], None]
    ) -> None:
        """Begin to prime `machine`, which would take `seconds` alone; at the end call `then` with
        the machine."""
        rate = self._size / seconds if seconds else 0.0
        transfer = _Transfer(machine, then, self._clock.now, seconds, rate)
        if self._shared:
            self._turn[machine] = transfer
            self._divide()
        else:
            self._active[machine] = transfer
            self.most = max(self.most, len(self._active))
            self._clock.after(seconds, self._alone, transfer)

    def drop(self, machine: SimMachine) -> None:
        """Stop priming a node, if it is being primed or waits for its turn."""
        if self._turn.pop(machine, None) is None and self._active.pop(machine, None) is None:
            return
        if self._shared:
            self._divide()

    def _alone(self, transfer: _Transfer) -> None:
        if self._active.get(transfer.machine) is transfer:
            self._end(transfer)

    def _end(self, transfer: _Transfer) -> None:
        self._active.pop(transfer.machine, None)
        self.took.append(self._clock.now - transfer.began)
        transfer.then(transfer.machine)

    def _divide(self) -> None:
        """Begin with the nodes whose turn it is, divide the rate among all, and schedule the first
        end."""
        now = self._clock.now
        for one in self._active.values():
            one.left -= (now - self._since) * one.speed
        self._since = now
        while self._turn and (self._at_once is None or len(self._active) < self._at_once):
            machine = next(iter(self._turn))
            self._active[machine] = self._turn.pop(machine)
        self.most = max(self.most, len(self._active))
        if self._rate is not None:
            rate = self._rate
            takers = sorted(self._active.values(), key=lambda one: one.most_mb_per_s)
            for place, one in enumerate(takers):
                part = min(one.most_mb_per_s, rate / (len(takers) - place))
                one.speed = part / one.most_mb_per_s if one.most_mb_per_s else 1.0
                rate -= part
        self._version += 1
        if self._active:
            first = min(max(one.left, 0.0) / one.speed for one in self._active.values())
            self._clock.after(first, self._look, self._version)

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        now = self._clock.now
        done = [
            one
            for one in self._active.values()
            if one.left - (now - self._since) * one.speed <= DONE
        ]
        for one in done:
            del self._active[one.machine]
        self._divide()
        for one in done:
            self._end(one)
