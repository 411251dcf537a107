"""The site at one moment, as the resource manager's policy sees it, and what is to be done about
it. Records only.

Nodes that are alike for the policy are counted, not listed: planning grows with types, blocks and
requests, never with nodes. Which rows are meant is settled when the plan is applied
(`flows.scheduler.apply_plan`), by the same rules for all nodes of a pool, in the order of their
ids.

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
    `subnet` is '' where the site has only one: then every node is on it.

    port  USABLE: nodes whose switch port COD can put into a VLAN, which isolated vclusters need;
          UNUSABLE: the others; '': both. Nodes are counted apart by it only while a request for an
          isolated vcluster waits
    windows  the maintenance windows to come that they are in: the sum of bits of
             `SiteSnapshot.windows`
    """

    type: int
    block: int
    subnet: str
    port: str = ""
    windows: int = 0

    @property
    def any_port(self) -> NodeKind:
        """Return the kind that these nodes are of, whatever their switch ports are."""
        return self._replace(port="") if self.port else self

    @property
    def usable(self) -> NodeKind:
        """Return the part of the kind that isolated vclusters can have."""
        return NodeKind(self.type, self.block, self.subnet, USABLE, self.windows)

    @property
    def counted(self) -> tuple[NodeKind, ...]:
        """Return the kinds that nodes of this kind are counted in: those with a usable port in
        both."""
        if not self.port:
            return (self,)
        return (self.any_port, self) if self.port == USABLE else (self.any_port,)

    def among(self, kinds: Set[NodeKind]) -> bool:
        """Return whether nodes of this kind count where `kinds` match."""
        return self in kinds or (self.port != "" and self.any_port in kinds)


class WindowTimes(NamedTuple):
    """The planner's view of a maintenance window.

    begins  no lease on its nodes may last longer, with its grace; minus infinity: none may begin
    ends    leases may begin again; infinity: unknown
    reason  why a request waits for it, for people
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

    waking  they wake from the cold reserve: they come clean, and soon
    since   when the last of them entered its present state; None: unknown
    """

    kind: NodeKind
    count: int
    reserved: int = 0
    waking: bool = False
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes of one kind that a vcluster holds, all of them.

    mobile      how many are outside their inertia, and not on their way out by a reclaim already
    immune_until  when the next of the others leaves its inertia; None when there are none such
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
    """A group's entitlement to nodes of one type; as in `Entitlement`."""

    guarantee: int = 0
    share: int | None = None
    weight: float = 0.0

    @property
    def own(self) -> int:
        """Nodes of the type that are its own."""
        return max(self.guarantee, self.share or 0)


OTHERS = 0
"""Stands for nodes of all types that are not apart where nodes are counted by type."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """A group's limits, guarantee and share; made by `policy.sharing.entitlements`.

    limit        most nodes that it may hold at once; None: no limit
    type_limits  the same for a type, by the type's id
    guarantee    nodes that contention never takes from it
    share        its share of the site, in nodes, among the groups that hold or want nodes
                 (`entitlements.among`): groups of equal priority may preempt what it holds beyond;
                 None: shares are off
    rank         its rank among groups of its priority, by shares and usage: 1 is the best, equals
                 have the same; 0: shares are off
    used_up      it has used all node-hours of the period, and gets no more nodes in it
    weight       its shares, in proportion to its siblings'
    parent       id of its parent group; 0: it is no subgroup
    apart        by types whose nodes are apart (`SiteSnapshot.apart`): the other fields, except
                 limits and rank, are then of the nodes of all other types
    part         its share as a part of the whole site, 0 to 1; 0: shares are off
    odd          one node of its share is an odd one, which it has for a turn (`sharing.turns`);
                 `had_odd`: it had one earlier in this turn
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
        """Return what holds for nodes of a type that is apart, or for `OTHERS`."""
        return self if type_id == OTHERS else self.apart.get(type_id, TypeEntitlement())

    @property
    def own(self) -> int:
        """The nodes that are the group's own: it may preempt them from groups of equal priority,
        and none of these may preempt them."""
        return max(self.guarantee, self.share or 0)


ANYTHING = Entitlement()


@dataclass(frozen=True, slots=True)
class VclusterHolder:
    """A pending or active vcluster. `held`: all its nodes; `leaving`: those still open in its
    reclaims.

    expires_at   end of its lease; None: it has none, or the vcluster is pending
    drain_until  set: its lease has ended, and its nodes return at that time by themselves
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
    own        nodes that the vcluster holds already, by type: it cannot get those
    reason     the last reported reason why it waits
    lease      seconds of its vcluster's lease if it begins now; infinite where unknown
    starts_at  set: it is a reservation in advance, and begins then (`policy.reservations`)
    isolated   its vcluster is in a VLAN of its own: its nodes need switch ports that COD can change
    source_id  of a move: the vcluster whose nodes it gets, and no others; None: it is no move
    parts      (type, nodes) for matching nodes of types that are apart; (): all are of others
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
        """Return (type that is apart or `OTHERS`, nodes that are asked for)."""
        return self.parts or ((OTHERS, sum(one.count for one in self.tuples)),)

    @property
    def preemptible(self) -> bool:
        """Return whether the nodes that it gets may be taken again by any other request."""
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
    entitlements  of groups, by id; those that are not in it may have anything and are sure of
                  nothing
    turn       which turn it is of those in which groups have the odd nodes of their shares
    version    of the reservations in advance: how often what they leave to others has changed
    expected   nodes that have not reported their hardware, or wait for approval: they may turn out
               to be of any type
    spare      by type, how many spare nodes are forecast to be needed soon, and in the next hours
               (`policy.energy.reserve_forecast`); types that have no forecast are not in it
    dear       why preemptible vclusters get no nodes now: energy is dear; '' where they do
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
        """Return the types whose nodes are apart: guarantees and shares of other nodes do not hold
        for them."""
        return frozenset(type_id for one in self.entitlements.values() for type_id in one.apart)


# ---------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class Share:
    """`count` nodes of a pool for one tuple of a request; `position` is the tuple's."""

    position: int
    template_id: int
    free_nodes: FreeNodes
    count: int


@dataclass(frozen=True, slots=True)
class RequestGrant:
    """A request that is satisfied out of free nodes: whole, but for a move, which gets nodes as
    they come."""

    request_id: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Preempt:
    """Nodes to be reclaimed from a vcluster for a request: exactly what is short."""

    request_id: int
    vcluster_id: int
    kind: NodeKind
    count: int


@dataclass(frozen=True, slots=True)
class PreemptLess:
    """Nodes that an open reclaim need not bring any more: `count` of what was open in it, so that
    `left` stay open."""

    reclaim_id: int
    count: int
    left: int


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """A request that is not satisfied now.

    code  'coming' (nodes are on their way), 'taking' (nodes are being reclaimed for it), 'busy'
          (others hold what it needs), 'reserved' (its start is to come), 'late' (its start is
          over), 'limit' (its group may not hold more), 'ports' (its vcluster is isolated, and too
          few matching nodes have usable switch ports), 'dear' (its vcluster is preemptible, and
          energy is dear): it waits. 'impossible' (the site will never
          have it, or the group's limit is lower), 'now' (it would not wait): it is rejected;
          'ended': a move that nothing is left of
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

    since  when it had waited so long
    until  when it can have all that it wants, as far as leases tell: who is done by then may use
           free ones meanwhile
    """

    request_id: int
    kind: NodeKind
    free: int
    coming: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """Nodes of a kind, free or on their way, that a reservation in advance needs at its start:
    leases may use them that end, with grace and erasing, by then."""

    request_id: int
    kind: NodeKind
    count: int
    start: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome for the pending requests: each is in `grants` or in `refusals`.

    reductions  of reclaims whose requests wait on: reclaims of ended requests end with them
    kept  how many free nodes of each pool waiting requests keep: nobody behind them gets those
    holds  what is held back for those that have waited long
    reserved  what reservations in advance need of what is free, or on its way
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
    """Shares of the site as a plan was made.

    shares  nodes by group and by type that is apart, or `OTHERS`
    site    nodes by type
    apart   types whose nodes are apart
    parts   what pending requests ask for by type, where nodes of types that are apart would do
    """

    shares: Mapping[tuple[int, int], int] = field(default_factory=dict)
    site: Mapping[int, int] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()
    parts: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def pool(self, type_id: int) -> int:
        """Return the type if it is apart, else `OTHERS`."""
        return type_id if type_id in self.apart else OTHERS

    def nodes(self, pool: int) -> int:
        """Return nodes of the site of a type that is apart, or of all others."""
        return sum(count for one, count in self.site.items() if self.pool(one) == pool)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Actions of a pass, in the order in which they are done. Waits are listed only when their
    reason has changed. A plan that only holds nodes back, or reserves them, has no action.

    warnings  (vcluster id, seconds): its lease ends within those seconds, and it has not been told
    drains    vclusters whose lease has run out
    expired   draining vclusters whose grace is over: their nodes are seized
    deserted  vclusters that can end
    overdue   reclaims whose deadline has passed: what is open in them is seized
    version   of the reservations in advance that the grants were planned beside
    sharing   by which nodes are taken from equals. Acts use it: it depends on the whole site, which
              is counted once for a plan
    odd       (group id, turn) that has been given an odd node for that turn, (group id, None) that
              has given its one up before the turn ends
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
