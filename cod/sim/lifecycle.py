"""A machine's transitions, and the time that each takes: the simulated counterpart of an agent, its
firmware and its power.

The manager calls `take` and `release`, the reserve calls `wake` and `sleep`; all other transitions
happen by themselves. Each timer carries the machine's generation, and does nothing when the machine
has moved on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cod.model import Energy
from cod.policy.scheduler.snapshot import Cache
from cod.sim.blame import Failures
from cod.sim.clock import Clock
from cod.sim.cluster import SimMachine
from cod.sim.imageserver import ImageServer
from cod.sim.machines import MachinePool
from cod.sim.randomness import HOUR, about
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState

if TYPE_CHECKING:
    from cod.sim.cluster import Cluster

E, S = NodeEvent, NodeState


class MachineLifecycle:
    """The lifecycle of the machines of `pool`: moves them from state to state, with their failures.

    on_up      called with a machine whose holder's system runs
    on_free    called with a machine that is in the reserve again
    on_broken  called with a machine that is about to be set aside; takes the machine from its
               holder
    on_stopped  called with a machine that did not boot, and goes back to the reserve; takes it from
                its holder without requesting another in its place
    """

    def __init__(
        self,
        clock: Clock,
        pool: MachinePool,
        energy: Energy,
        images: ImageServer,
        failures: Failures,
        patience: float,
        *,
        on_up: Callable[[SimMachine], None],
        on_free: Callable[[SimMachine], None],
        on_broken: Callable[[SimMachine], None],
        on_stopped: Callable[[SimMachine], None],
    ) -> None:
        self._clock, self._pool, self._energy, self._images = clock, pool, energy, images
        self._on_up, self._on_free = on_up, on_free
        self._on_broken, self._on_stopped = on_broken, on_stopped
        self._failures = failures
        self._boot_deadline = (NODE_RULES[S.BOOT].deadline or 0.0) * patience
        self.wakes = self.wakes_failed = self.sleeps = self.failures = 0
        for machine in pool.machines:
            self._fail_some_day(machine)

    # ------------------------------------------------------------ orders

    def take(
        self, machine: SimMachine, cluster: Cluster, request_id: int, template_id: int
    ) -> None:
        """Give a free machine to a vcluster, and begin to prime or boot it, or to wake it if it is
        off."""
        pool = self._pool
        pool.count(machine)
        machine.cluster, machine.request_id, machine.template_id = cluster, request_id, template_id
        machine.assigned_at = self._clock.now
        if machine.state is S.OFF:
            self.wake(machine)
        else:
            self._assign(machine)

    def release(self, machine: SimMachine) -> None:
        """Take the machine from its holder and restart it into the trampoline."""
        self._pool.count(machine)
        cluster = machine.cluster
        assert cluster is not None
        keep = machine.state is S.ACTIVE and cluster.cache
        machine.disk = Disk.CACHED if keep else Disk.DIRTY
        machine.cache = Cache(machine.template_id, cluster.group_id) if keep else None
        machine.released, machine.cluster, machine.assigned_at = cluster.id, None, None
        machine.request_id = machine.template_id = machine.reclaim = 0
        if machine.state is S.TRAMPOLINE:  # it is on its way there, and is settled when it reports
            self._pool.place(machine)
        else:
            self._images.drop(machine)
            self._pool.move(machine, E.RELEASED)
            self._after(machine, machine.spec.times.reset, self._report)

    def wake(self, machine: SimMachine) -> None:
        """Switch the machine on."""
        self.wakes += 1
        self._pool.move(machine, E.WOKEN, waking=True)
        self._power_on(machine)

    def sleep(self, machine: SimMachine) -> None:
        """Switch the machine off. Its disk keeps its content."""
        self.sleeps += 1
        self._pool.move(machine, E.POWERED_DOWN)

    def take_out(self, machine: SimMachine, until: float) -> None:
        """Take the machine out of service for maintenance, also from a holder."""
        machine.out_until = max(until, machine.out_until)
        if machine.state is not S.QUARANTINED:
            self._put_aside(machine, E.QUARANTINED)
            self._later(machine, until - self._clock.now, self._return)

    # ------------------------------------------------------------ what happens

    def _after(
        self, machine: SimMachine, median: float, then: Callable[[SimMachine], None]
    ) -> None:
        delay = about(machine.random, median, machine.spec.times.spread)
        self._later(machine, delay, then)

    def _later(self, machine: SimMachine, delay: float, then: Callable[[SimMachine], None]) -> None:
        """Call `then` with the machine after `delay`, unless its generation has changed by then."""
        generation = machine.generation
        self._clock.after(
            delay, lambda: then(machine) if machine.generation == generation else None
        )

    def _power_on(self, machine: SimMachine) -> None:
        fails = machine.spec.wake_fails
        if fails and machine.random.random() < fails:
            self.wakes_failed += 1
            self._later(machine, self._energy.wake_time, self._did_not_wake)
        else:
            self._after(machine, machine.spec.times.wake, self._report)

    def _did_not_wake(self, machine: SimMachine) -> None:
        machine.attempts += 1
        if machine.attempts > NODE_RULES[S.TRAMPOLINE].retries:
            self._set_aside(machine, E.EXHAUSTED)
        else:
            self._pool.move(machine, E.TIMED_OUT, waking=machine.waking)
            self._power_on(machine)

    def _report(self, machine: SimMachine) -> None:
        """Decide the next step of a machine that has reported (`policy.nodes.lifecycle.settle`)."""
        if machine.cluster is not None:
            self._assign(machine)
        elif machine.disk is Disk.DIRTY:
            self._pool.move(machine, E.WIPE_ORDERED)
            self._after(machine, machine.spec.times.wipe, self._wiped)
        else:
            self._idle(machine)

    def _assign(self, machine: SimMachine) -> None:
        cluster = machine.cluster
        assert cluster is not None
        if machine.disk is Disk.CACHED and machine.cache == (machine.template_id, cluster.group_id):
            self._boot(machine, E.BOOT_ORDERED)
        else:
            self._pool.move(machine, E.PRIME_ORDERED)
            times = machine.spec.times
            self._images.prime(
                machine, about(machine.random, times.prime, times.spread), self._primed
            )

    def _primed(self, machine: SimMachine) -> None:
        machine.disk, machine.cache = Disk.DIRTY, None
        self._boot(machine, E.PRIMED)

    def _boot(self, machine: SimMachine, event: NodeEvent) -> None:
        self._pool.move(machine, event)
        if self._failures.at_boot(machine):
            self._later(machine, self._boot_deadline, self._did_not_boot)
        else:
            self._after(machine, machine.spec.times.boot, self._booted)

    def _did_not_boot(self, machine: SimMachine) -> None:
        machine.attempts += 1
        machine.disk, machine.cache = Disk.DIRTY, None
        if machine.attempts <= NODE_RULES[S.BOOT].retries:
            self._pool.move(machine, E.TIMED_OUT)
            self._after(machine, machine.spec.times.reset, self._report)
        elif self._failures.stops(machine):
            machine.attempts = 0
            self._on_stopped(machine)
        else:
            self._set_aside(machine, E.EXHAUSTED)
            machine.blameless = not machine.failing

    def _booted(self, machine: SimMachine) -> None:
        machine.attempts = 0
        self._failures.succeeded(machine.template_id)
        self._pool.move(machine, E.BOOTED)
        self._on_up(machine)

    def _wiped(self, machine: SimMachine) -> None:
        machine.disk = Disk.CLEAN
        self._pool.move(machine, E.WIPED)
        self._idle(machine)

    def _idle(self, machine: SimMachine) -> None:
        machine.attempts = 0
        self._pool.move(machine, E.IDLED)
        self._on_free(machine)
        machine.released = 0

    # ------------------------------------------------------------ failures

    def _fail_some_day(self, machine: SimMachine) -> None:
        if machine.spec.mtbf:
            self._clock.after(
                machine.random.expovariate(1 / (machine.spec.mtbf * HOUR)), self.fail, machine
            )

    def fail(self, machine: SimMachine) -> None:
        """Let the machine break: it is set aside until it is repaired."""
        if machine.state is not S.QUARANTINED:  # it cannot fail twice
            self._set_aside(machine, E.QUARANTINED)
        self._fail_some_day(machine)

    def _set_aside(self, machine: SimMachine, event: NodeEvent) -> None:
        self.failures += 1
        self._put_aside(machine, event)
        self._later(machine, machine.spec.repair * HOUR, self._repaired)

    def _put_aside(self, machine: SimMachine, event: NodeEvent) -> None:
        self._images.drop(machine)
        self._pool.count(machine)
        self._on_broken(machine)
        machine.cluster, machine.assigned_at = None, None
        machine.request_id = machine.template_id = machine.reclaim = machine.released = 0
        machine.disk, machine.cache, machine.attempts = Disk.DIRTY, None, 0
        self._pool.move(machine, event)

    def _repaired(self, machine: SimMachine) -> None:
        self._pool.count(machine)
        machine.blameless = False
        self._failures.repaired(machine)
        self._return(machine)

    def _return(self, machine: SimMachine) -> None:
        """Return the machine to service, unless it is still in a maintenance window."""
        if self._clock.now < machine.out_until:
            self._later(machine, machine.out_until - self._clock.now, self._return)
            return
        self._pool.move(machine, E.RESTORED)
        self._after(machine, machine.spec.times.reset, self._report)
