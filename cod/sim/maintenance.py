"""Maintenance windows of a simulated site: the counterpart of `flows.scheduler.maintenance`, with
the same rule for leases (`policy.reservations.maintenance`).

A window is announced some time before it begins. From then on its machines are counted as a kind of
their own, and no lease begins on them that would run into the window. When the window begins, its
machines are taken out of service, also from their holders; when it ends they return and are erased.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import repeat

from cod.model import MaintenanceWindow, Policy
from cod.policy.reservations import maintenance as policy
from cod.policy.scheduler.snapshot import WindowTimes
from cod.sim.clock import Clock
from cod.sim.cluster import SimMachine
from cod.sim.lifecycle import MachineLifecycle
from cod.sim.machines import MachinePool
from cod.sim.scenario.records import PlannedWindow
from cod.states import WindowState


class SimWindows:
    """The windows of a scenario, carried out on the clock.

    times  the times of announced and running windows, by bit: the planner's view
    taken  how often a machine was taken from a vcluster
    stir   called when something has changed that the manager may have to act on
    """

    def __init__(
        self,
        clock: Clock,
        pool: MachinePool,
        lifecycle: MachineLifecycle,
        rules: Policy,
        windows: tuple[PlannedWindow, ...],
        stir: Callable[[], None],
    ) -> None:
        self._clock, self._pool, self._lifecycle = clock, pool, lifecycle
        self._rules, self._stir = rules, stir
        self._open: list[MaintenanceWindow] = []
        self.times: Mapping[int, WindowTimes] = {}
        self.taken = 0
        for number, spec in enumerate(windows, 1):
            clock.at(spec.begins - spec.ahead, self._plan, number, spec)

    def _plan(self, number: int, spec: PlannedWindow) -> None:
        clock = self._clock
        window = MaintenanceWindow(
            id=number,
            state=WindowState.PLANNED,
            begins_at=spec.begins,
            ends_at=spec.begins + spec.length,
            reason=spec.name,
            names=", ".join(f"@{block}" for block in spec.blocks),
            filter="",
            drain=False,
            stay_out=False,
            bit=policy.bit(self._open),
            warned=None,
            created_at=clock.now,
            created_by="",
        )
        self._open.append(window)
        left = dict(zip(spec.blocks, spec.counts or repeat(sys.maxsize), strict=False))
        machines = []
        for machine in self._pool.machines:
            block = machine.kind.block or 0
            if not spec.blocks or left.get(block, 0) > 0:
                machines.append(machine)
                left[block] = left.get(block, 0) - 1
        self._mark(machines, window.bit)
        clock.at(spec.begins, self._begin, machines, spec.begins + spec.length)
        clock.at(spec.begins + spec.length, self._end, machines, window)

    def _begin(self, machines: list[SimMachine], ends: float) -> None:
        for machine in machines:
            self.taken += machine.cluster is not None
            self._lifecycle.take_out(machine, ends)
        self._stir()

    def _end(self, machines: list[SimMachine], window: MaintenanceWindow) -> None:
        self._open.remove(window)
        self._mark(machines, -window.bit)

    def _mark(self, machines: list[SimMachine], bit: int) -> None:
        """Add the window's bit to the machines' kind, so that they are counted apart; a negative
        bit removes it."""
        self.times = policy.times(self._open, self._rules)
        for machine in machines:
            machine.kind = machine.kind._replace(windows=machine.kind.windows + bit)
            self._pool.place(machine)
            if machine.cluster is not None:
                machine.cluster.changed()
        self._stir()
