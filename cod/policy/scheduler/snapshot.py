"""Records of the scheduler: a snapshot of the site at one moment, and the plan made from it.

Nodes that are alike for the policy are counted, not listed: planning grows with types, blocks and
requests, never with nodes. `flows.scheduler.apply_plan` chooses the single nodes of each pool when
it applies the plan, in the order of their ids.

Words: a *pool* is a number of free nodes that are alike (`FreeNodes`); an *allocation* a number of
nodes that one vcluster holds and that are alike; a *kind* is what makes nodes interchangeable for a
request: their type, their block, their subnet; for isolated vclusters also whether their switch
ports can be put into a VLAN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from cod.model import NodeType, RequestTuple

WARM, COLD = 0, 1
USABLE, UNUSABLE = "usable", "unusable"
PREEMPTIBLE = -(2**62)
"""The priority of preemptible vclusters and of their requests: below that of every group."""


def effective(priority: int, preemptible: bool) -> int:
    """Return the priority of a vcluster and of its requests, given its group's."""
    return PREEMPTIBLE if preemptible else priority


class NodeKind(NamedTuple):
    """A kind of nodes, which the planner counts together. `block` is 0 for nodes in no block.
    `subnet` is '' if the site has only one subnet, which every node is on.

    port  USABLE: nodes whose switch port COD can put into a VLAN, which isolated vclusters need;
          UNUSABLE: the others; '': both. Ports are distinguished only while a request for an
          isolated vcluster waits
    windows  the coming maintenance windows that include these nodes: the sum of their bits in
             `SiteSnapshot.windows`
    """

    type: int
    block: int
    subnet: str
    port: str = ""
    windows: int = 0

    @property
    def any_port(self) -> NodeKind:
        """Return the kind of these nodes without regard to switch ports."""
        return self._replace(port="") if self.port else self

    @property
    def usable(self) -> NodeKind:
        """Return the part of the kind that isolated vclusters can have."""
        return NodeKind(self.type, self.block, self.subnet, USABLE, self.windows)

    @property
    def counted(self) -> tuple[NodeKind, ...]:
        """Return the kinds whose counts include nodes of this kind. Nodes with usable ports are
        included in two: the kind of any port, and the kind of usable ports."""
        if not self.port:
            return (self,)
        return (self.any_port, self) if self.port == USABLE else (self.any_port,)

    def among(self, kinds: Set[NodeKind]) -> bool:
        """Return whether `kinds` include nodes of this kind."""
        return self in kinds or (self.port != "" and self.any_port in kinds)


class WindowTimes(NamedTuple):
    """The planner's view of a maintenance window.

    begins  when leases on its nodes must end, so that their grace is over before the window; minus
            infinity: no lease may begin
    ends    when leases may begin again; infinity: unknown
    reason  why a request waits for the window, for people
    """

    begins: float
    ends: float
    reason: str


class Cache(NamedTuple):
    """The software that a node's disk was kept with: a template, for a group."""

    template: int
    group: int


# ---------------------------------------------------------------- what there is


@dataclass(frozen=True, slots=True)
class FreeNodes:
    """Free nodes that are alike. `readiness` WARM (inactive) or COLD (off).

    reserved  id of the request that they are kept for; 0: none
    idle      how many of them have been warm for the site's idle time or longer
    """

    kind: NodeKind
    readiness: int
    count: int
    cache: Cache | None = None
    reserved: int = 0
    idle: int = 0


@dataclass(frozen=True, slots=True)
class IncomingNodes:
    """Nodes without a holder on their way to the reserve.

    waking  they wake from the cold reserve: they need no erasing, and arrive soon
    since   when the last of them entered its present state; None: unknown
    """

    kind: NodeKind
    count: int
    reserved: int = 0
    waking: bool = False
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """All nodes of one kind that a vcluster holds.

    mobile      how many are past their inertia and leave by no reclaim yet
    immune_until  when the inertia of the next protected node ends; None: no node is protected
    started     of a preemptible vcluster: (when assigned, how many) of the mobile nodes, the latest
                first
    """

    vcluster_id: int
    kind: NodeKind
    count: int
    mobile: int
    immune_until: float | None = None
    started: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TypeEntitlement:
    """A group's entitlement to nodes of one type, with the fields of `Entitlement`."""

    guarantee: int = 0
    share: int | None = None
    weight: float = 0.0

    @property
    def own(self) -> int:
        """The nodes of the type that are the group's own; see `Entitlement.own`."""
        return max(self.guarantee, self.share or 0)


OTHERS = 0
"""The key, in counts by type, of nodes of all types that are not apart (`SiteSnapshot.apart`)."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """A group's limits, guarantee and share; made by `policy.sharing.entitlements`.

    limit        most nodes that it may hold at once; None: no limit
    type_limits  most nodes of a type that it may hold at once, by the type's id
    guarantee    nodes that contention never takes from it
    share        its share of the site, in nodes, among the groups that hold or request nodes
                 (`entitlements.among`). Groups of equal priority may preempt nodes that it holds
                 beyond its share. None: shares are off
    rank         its rank among groups of its priority, by shares and usage: 1 is the best, equals
                 have the same; 0: shares are off
    used_up      it has used all node-hours of the period, and gets no more nodes in it
    weight       its shares, in proportion to its siblings'
    parent       id of its parent group; 0: it is no subgroup
    apart        its entitlements to the types that are apart (`SiteSnapshot.apart`), by type id.
                 The other fields, except limits and rank, then concern nodes of all other types
    part         its share as a part of the whole site, 0 to 1; 0: shares are off
    odd          its share includes an extra node for this turn, out of those that cannot be divided
                 evenly (`sharing.turns`); `had_odd`: it had one earlier in this turn
    """

    limit: int | None = None
    type_limits: Mapping[int, int] = field(default_factory=dict)
    guarantee: int = 0
    share: int | None = None
    rank: int = 0
    used_up: bool = False
    weight: float = 0.0
    parent: int = 0
    part: float = 0.0
    odd: bool = False
    had_odd: bool = False
    apart: Mapping[int, TypeEntitlement] = field(default_factory=dict)

    def of(self, type_id: int) -> Entitlement | TypeEntitlement:
        """Return the entitlement to nodes of a type that is apart, or to those of `OTHERS`."""
        return self if type_id == OTHERS else self.apart.get(type_id, TypeEntitlement())

    @property
    def own(self) -> int:
        """The number of the group's own nodes: the group may preempt them from groups of equal
        priority, and such groups may not preempt them."""
        return max(self.guarantee, self.share or 0)


ANYTHING = Entitlement()


@dataclass(frozen=True, slots=True)
class VclusterHolder:
    """A pending or active vcluster.

    held         how many nodes it holds
    floor        how many of them preemption leaves it: its creation size, or 0 if preemptible
    leaving      nodes that its reclaims have still to bring
    expires_at   end of its lease; None: it has none, or the vcluster is pending
    drain_until  when its nodes return because its lease has ended; None: the lease is running
    group_id     the group whose entitlement counts; 0: no group has one, or the vcluster is
                 preemptible
    """

    id: int
    name: str
    priority: int
    held: int
    floor: int
    leaving: int = 0
    expires_at: float | None = None
    drain_until: float | None = None
    group_id: int = 0

    @property
    def preemptible(self) -> bool:
        """Return whether any request may take its nodes, down to none."""
        return self.priority == PREEMPTIBLE


@dataclass(frozen=True, slots=True)
class OpenReclaim:
    """An open reclaim: `open` nodes of `kind` are still to be given back for the request, by
    `deadline`."""

    id: int
    vcluster_id: int
    request_id: int
    kind: NodeKind
    open: int
    deadline: float


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A pending request, with the facts of its vcluster that a plan needs.

    subnet     the subnet of the vcluster's addresses, on which its nodes must be
    own        nodes that the vcluster holds already, by type: the request cannot get these
    reason     the last reported reason why it waits
    lease      seconds of its vcluster's lease if it begins now; infinite where unknown
    starts_at  start of the reservation in advance (`policy.reservations`); None: the request is no
               reservation
    isolated   its vcluster is in a VLAN of its own: its nodes need switch ports that COD can change
    source_id  the vcluster from which a move gets all its nodes; None: the request is no move
    parts      (type that is apart or `OTHERS`, requested nodes); (): all nodes are of `OTHERS`
    user_rank  rank of its user among those of its group, 1 is the best; 0: users have no ranks
    """

    id: int
    vcluster_id: int
    priority: int
    submitted_at: float
    group_id: int
    subnet: str
    tuples: tuple[RequestTuple, ...]
    may_wait: bool = True
    may_spread: bool = False
    own: Mapping[int, int] = field(default_factory=dict)
    reason: str = ""
    lease: float = float("inf")
    isolated: bool = False
    source_id: int | None = None
    starts_at: float | None = None
    parts: tuple[tuple[int, int], ...] = ()
    user_rank: int = 0

    @property
    def asked(self) -> tuple[tuple[int, int], ...]:
        """Return (type that is apart or `OTHERS`, requested nodes) for all requested nodes."""
        return self.parts or ((OTHERS, sum(one.count for one in self.tuples)),)

    @property
    def preemptible(self) -> bool:
        """Return whether any other request may preempt the nodes that this request gets."""
        return self.priority == PREEMPTIBLE


@dataclass(frozen=True, slots=True)
class SiteSnapshot:
    """The site at one moment. Every sequence is a set: its order means nothing.

    types      by id
    free_nodes, coming   nodes that nobody holds
    allocations, holders   nodes that vclusters hold; holders by id
    reclaims    open reclaims
    site       how many nodes of a type the site has, whoever holds them (those set aside count:
               they can be restored)
    requests   pending requests
    templates  documents by id, of all templates that the requests name
    deserted   releasing vclusters whose last node is back
    warned     active vclusters' last lease warning: vcluster id -> seconds before its end
    entitlements  of groups, by id; a group without an entry has no limit and no guarantee
    turn       number of the turn for which groups have extra nodes (`sharing.turns`)
    version    of the reservations in advance: counts changes of the nodes that they leave to others
    expected   nodes that have not reported their hardware, or wait for approval: they may turn out
               to be of any type
    spare      by type, how many spare nodes are forecast to be needed soon, and in the next hours
               (`policy.energy.reserve_forecast`); types that have no forecast are not in it
    dear       why energy is too dear for preemptible vclusters to get nodes now; '': it is not
    windows    maintenance windows that are planned or run, by bit
    """

    types: Mapping[int, NodeType]
    free_nodes: Sequence[FreeNodes] = ()
    coming: Sequence[IncomingNodes] = ()
    allocations: Sequence[Allocation] = ()
    holders: Mapping[int, VclusterHolder] = field(default_factory=dict)
    reclaims: Sequence[OpenReclaim] = ()
    site: Mapping[int, int] = field(default_factory=dict)
    requests: Sequence[PendingRequest] = ()
    templates: Mapping[int, str] = field(default_factory=dict)
    deserted: Sequence[int] = ()
    warned: Mapping[int, float] = field(default_factory=dict)
    entitlements: Mapping[int, Entitlement] = field(default_factory=dict)
    turn: int = 0
    version: float = 0.0
    expected: int = 0
    spare: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    dear: str = ""
    windows: Mapping[int, WindowTimes] = field(default_factory=dict)

    @property
    def apart(self) -> frozenset[int]:
        """Return the types whose nodes are apart: groups have guarantees and shares of each of
        these types, and their general guarantees and shares do not cover it."""
        return frozenset(type_id for one in self.entitlements.values() for type_id in one.apart)


# ---------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class Share:
    """`count` nodes of a pool for one tuple of a request; `position` is the index of the tuple."""

    position: int
    template_id: int
    free_nodes: FreeNodes
    count: int


@dataclass(frozen=True, slots=True)
class RequestGrant:
    """A request that is granted free nodes: all nodes that it asks for, or, if the request is a
    move, as many of them as have come free."""

    request_id: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Preempt:
    """Nodes to reclaim from a vcluster for a request, no more than the request lacks."""

    request_id: int
    vcluster_id: int
    kind: NodeKind
    count: int


@dataclass(frozen=True, slots=True)
class PreemptLess:
    """The reduction of an open reclaim: `count` of its open nodes are needed no longer, and `left`
    stay open."""

    reclaim_id: int
    count: int
    left: int


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """A request that is not satisfied now.

    code  of a request that waits: 'coming' (nodes are on their way), 'taking' (nodes are being
          reclaimed for it), 'busy' (others hold the nodes that it needs), 'reserved' (its start is
          to come), 'late' (its start is over), 'limit' (its group may not hold more), 'ports' (its
          vcluster is isolated, and too few matching nodes have usable switch ports),
          'maintenance' (maintenance windows keep matching nodes from it), 'dear' (its vcluster is
          preemptible, and energy is dear).
          Of a request that is rejected: 'impossible' (the site will never have the nodes, or the
          group's limit is lower), 'now' (it may not wait), 'ended' (a move that has no nodes left)
    """

    request_id: int
    code: str
    sentence: str

    @property
    def final(self) -> bool:
        """Return whether the request is rejected."""
        return self.code in ("impossible", "now", "ended")


@dataclass(frozen=True, slots=True)
class Hold:
    """Nodes of a kind that are held back for a request that has waited long
    (`policy.scheduler.backfill`): `free` ones, and some that are on their way.

    since  when the request had waited `Policy.hold_after` seconds
    until  when all its nodes are there, by the ends of leases. Leases that end by then may use the
           free nodes meanwhile
    """

    request_id: int
    kind: NodeKind
    free: int
    coming: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """Nodes of a kind, free or on their way, that a reservation in advance needs at its start.
    Leases that end by then, with grace and erasing, may use them before."""

    request_id: int
    kind: NodeKind
    count: int
    start: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome for the pending requests: each is in `grants` or in `refusals`.

    reductions  of reclaims for requests that still wait; a reclaim ends with its request
    kept  how many free nodes of each pool waiting requests keep: later requests do not get these
    holds  nodes that are held back for requests that have waited long
    reserved  nodes, free or on their way, that reservations in advance need
    """

    grants: tuple[RequestGrant, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    refusals: tuple[RequestRefusal, ...] = ()
    reductions: tuple[PreemptLess, ...] = ()
    kept: Mapping[FreeNodes, int] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    reserved: tuple[Reserved, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerChange:
    """`count` cold nodes of a pool to be woken, or (with `sleep`) warm ones to be put to sleep;
    `why` is for people."""

    free_nodes: FreeNodes
    count: int
    why: str
    sleep: bool = False


@dataclass(frozen=True, slots=True)
class Sharing:
    """The groups' shares of the site by which a plan was made.

    shares  nodes, by (group, type that is apart or `OTHERS`)
    site    nodes of the site, by type
    apart   types whose nodes are apart
    parts   `PendingRequest.parts` by request id, of requests that have any
    """

    shares: Mapping[tuple[int, int], int] = field(default_factory=dict)
    site: Mapping[int, int] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()
    parts: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def pool(self, type_id: int) -> int:
        """Return the key by which nodes of a type are counted: the type if it is apart, else
        `OTHERS`."""
        return type_id if type_id in self.apart else OTHERS

    def nodes(self, pool: int) -> int:
        """Return how many nodes the site has of a type that is apart, or of `OTHERS`."""
        return sum(count for one, count in self.site.items() if self.pool(one) == pool)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Actions of a pass, in the order in which they are done. `refusals` has a waiting request only
    if its reason has changed. A plan that only holds nodes back, or reserves them, has no action.

    warnings  (vcluster id, seconds): its lease ends within these seconds, and a warning is due
    drains    vclusters whose lease has run out
    expired   draining vclusters whose grace is over: their nodes are seized
    deserted  vclusters that can end
    overdue   reclaims whose deadline has passed: what is open in them is seized
    version   `SiteSnapshot.version` of the snapshot that the plan was made from
    sharing   shares by which nodes are preempted from groups of equal priority. Applying the plan
              uses them: they depend on the whole site, which is counted once for a plan
    odd       (group id, turn): the group got an extra node for that turn; (group id, None): the
              group gave its extra node up before the turn ended
    """

    warnings: tuple[tuple[int, float], ...] = ()
    drains: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()
    deserted: tuple[int, ...] = ()
    overdue: tuple[int, ...] = ()
    grants: tuple[RequestGrant, ...] = ()
    reductions: tuple[PreemptLess, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    refusals: tuple[RequestRefusal, ...] = ()
    power_changes: tuple[PowerChange, ...] = ()
    holds: tuple[Hold, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    version: float = 0.0
    sharing: Sharing = field(default_factory=lambda: Sharing(), compare=False)
    odd: tuple[tuple[int, int | None], ...] = ()

    def __bool__(self) -> bool:
        return any(
            getattr(self, name)
            for name in self.__slots__
            if name not in ("holds", "reserved", "version", "sharing")
        )
