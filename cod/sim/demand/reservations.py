"""Virtual clusters that are reserved in advance, and run from their start to the end of their
lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cod.model import Group, RequestTuple
from cod.policy.reservations import admission, supply
from cod.policy.scheduler import leases
from cod.policy.scheduler.snapshot import PendingRequest
from cod.sim.cluster import Cluster, ClusterRequest, SimMachine
from cod.sim.demand.owners import BaseOwner, schedule
from cod.sim.scenario.records import Reservations
from cod.sim.world import World
from cod.states import VclusterState

NEW_VCLUSTER = -1  # the id of a vcluster that is not there yet


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation that is requested at the time `at`: `size` nodes from `start` on for `length`
    seconds. Times are simulated seconds."""

    at: float
    size: int
    start: float
    length: float


class ReservationOwner(BaseOwner):
    """An owner that requests each reservation at its time. Refused ones are not repeated. A started
    vcluster serves until its lease is over."""

    rule: Reservations

    def __init__(
        self, world: World, rule: Reservations, group: Group, bookings: Iterator[Booking]
    ) -> None:
        super().__init__(world, rule, group)
        self._counts = world.stats.bookings.of_reservations(rule.name)
        self._up: set[SimMachine] = set()
        self._summed = 0.0
        schedule(world, bookings, self._ask)

    def _ask(self, booking: Booking) -> None:
        self._counts["asked"] += 1
        if self._refusal(booking):
            self._counts["refused"] += 1
            return
        self._counts["accepted"] += 1
        name = f"{self.rule.name}-{self._counts['accepted']}"
        self.create(booking.size, name, booking.length, starts_at=booking.start)

    def _refusal(self, booking: Booking) -> str:
        """Return why the reservation is refused, by the policy's own rules; '' if it is accepted.
        Then the manager makes passes at its start, and when nodes can first be preempted for it."""
        group, world = self.group, self.world
        now, policy = world.clock.now, world.policy
        if booking.start <= now:
            return "the start is over"
        if booking.length > leases.longest(group, policy):
            return "no lease of the group lasts so long"
        request = PendingRequest(
            admission.LAST,
            NEW_VCLUSTER,
            group.priority,
            now,
            group.id,
            "",
            (RequestTuple(booking.size, self.rule.needs, self.template_id),),
            may_spread=self.rule.may_spread,
            lease=booking.length,
            starts_at=booking.start,
        )
        seen = world.snapshot(times=True)
        if group.hours_limit is not None:
            used = world.hours_used(group)
            if why := admission.over_hours(seen, request, group.hours_limit, used, now):
                return why
        if why := admission.verdict(seen, request, policy, now).sentence:
            return why
        leads = {supply.lead(seen, one, policy) for one in seen.types}
        for at in (booking.start, *(booking.start - lead for lead in sorted(leads))):
            world.clock.at(at, world.look, max(at, now))
        return ""

    # ------------------------------------------------------------ what it is told

    def granted(self, request: ClusterRequest) -> None:
        """Plan to delete the vcluster at the end of its lease."""
        cluster = request.cluster
        if request.kind == "create" and cluster.expires_at is not None:
            self.world.clock.at(cluster.expires_at, self._leave, cluster)

    def _leave(self, cluster: Cluster) -> None:
        if cluster.state is VclusterState.ACTIVE:
            self.sum_up()
            self._up -= cluster.held.keys()
            self.world.delete(cluster)

    def up(self, machine: SimMachine) -> None:
        """Count a node that is up, after adding up the time before."""
        self.sum_up()
        self._up.add(machine)

    def lost(self, machine: SimMachine, cluster: Cluster, why: str) -> None:
        """Stop counting a lost node, after adding up the time before."""
        self.sum_up()
        self._up.discard(machine)

    def sum_up(self) -> None:
        """Add the node-seconds since the last call to the group's `served`."""
        now = self.world.clock.now
        seconds, self._summed = now - self._summed, now
        self.world.stats.served[self.group.name] += seconds * len(self._up)
