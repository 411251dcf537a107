"""The resource manager's decision: which request gets which nodes. Pure: a snapshot of the site in, a plan out.

**Order.** Requests are looked at one after the other, highest priority first, then oldest first. Each is satisfied as a
whole or not at all.

**Which nodes.** Requests match node types, never single nodes: a type is eligible for a tuple of a request when its
canonical attributes satisfy both the tuple's requirements and its template's. The cheapest type that can serve the
tuple alone is taken (the administrator sets costs, and so keeps rare machines for those who need them); at equal cost
one that has enough nodes awake, then the one with most nodes free. Only if no type suffices alone is the tuple spread
over several, cheapest first. Within a type, nodes that hold the wanted template unmodified for the same group go first
(they need no priming), then warm ones, then cold ones, which are woken.

Tuples of one request compete for nodes. `policy.spread` gives each what it wants and, where one stands in another's
way, moves it aside along an augmenting path; so a request is satisfied whenever its tuples can be at all.

**Whoever waits.** A request that free nodes cannot satisfy, but free nodes and those on their way back to the reserve
together could, keeps the free ones it would use: it is next in order, and they are not given to who comes later. A
request that needs nodes which others hold keeps nothing, and smaller requests may pass it. A request that all nodes of
the site together could not satisfy is rejected at once. Every *no* has a reason with a name and a sentence.

**Sameness.** The plan depends on the snapshot as sets, never on the order of its rows; planning again when nothing has
changed gives an empty plan.

The work grows with the number of types and requests; nodes are sorted into buckets once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cod.model import NodeType, RequestTuple
from cod.policy import template
from cod.policy.match import Mismatch, satisfies
from cod.policy.spread import Demand, Kind, spread

WARM, COLD = 0, 1

Cache = tuple[int, int] | None
"""(template id, group id) of the software that a node's disk was kept with."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A node that nobody holds: `readiness` WARM (inactive) or COLD (off)."""

    id: int
    generation: int
    kind: Kind
    readiness: int
    cache: Cache = None


@dataclass(frozen=True, slots=True)
class Wish:
    """A pending request, with what the plan needs to know of its vcluster.

    subnet  the vcluster's block of addresses is in it, so its nodes must be on it
    own     nodes that the vcluster holds already, by type: it cannot get those
    reason  what was last said about why it waits
    """

    id: int
    priority: int
    submitted_at: float
    group_id: int
    subnet: str
    tuples: tuple[RequestTuple, ...]
    own: Mapping[int, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The site at one moment.

    types      by id
    free       nodes that can be had now
    coming     how many nodes of a kind are on their way back to the reserve
    site       how many nodes of a type the site has, whoever holds them (those set aside count: they can be restored)
    templates  documents by id, of all templates that the wishes name
    leases     (vcluster id, time it expires), of active vclusters
    deserted   releasing vclusters whose last node is back
    """

    types: Mapping[int, NodeType]
    free: Sequence[FreeNode] = ()
    coming: Mapping[Kind, int] = field(default_factory=dict)
    site: Mapping[int, int] = field(default_factory=dict)
    wishes: Sequence[Wish] = ()
    templates: Mapping[int, str] = field(default_factory=dict)
    leases: Sequence[tuple[int, float]] = ()
    deserted: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """One granted node: (id, generation) as in the snapshot, and the template of the tuple it was granted for."""

    node_id: int
    generation: int
    template_id: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that is satisfied, with its nodes in the order of its tuples."""

    request_id: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class No:
    """A request that is not satisfied now. `code`: 'coming' or 'busy' (it waits), 'impossible' (it is rejected)."""

    request_id: int
    code: str
    sentence: str

    @property
    def final(self) -> bool:
        """Is it rejected?"""
        return self.code == "impossible"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. Waits are listed only when their reason has changed.

    expired   vclusters whose lease has run out: their nodes are released
    deserted  vclusters that can end
    """

    grants: tuple[Grant, ...] = ()
    noes: tuple[No, ...] = ()
    expired: tuple[int, ...] = ()
    deserted: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.grants or self.noes or self.expired or self.deserted)


def plan(snapshot: Snapshot, now: float) -> Plan:
    """What the manager does about the site as it is in `snapshot`."""
    choice = _Choice(snapshot)
    grants, noes = [], []
    for wish in sorted(snapshot.wishes, key=lambda wish: (-wish.priority, wish.submitted_at, wish.id)):
        decision = choice.decide(wish)
        if isinstance(decision, Grant):
            grants.append(decision)
        elif decision.final or decision.sentence != wish.reason:
            noes.append(decision)
    expired = sorted(vcluster for vcluster, expires_at in snapshot.leases if expires_at <= now)
    return Plan(tuple(grants), tuple(noes), tuple(expired), tuple(sorted(snapshot.deserted)))


# ---------------------------------------------------------------- choosing


def lacking(configuration: template.Configuration, attributes: str, kind: str) -> list[Mismatch]:
    """What keeps nodes with the canonical attributes `kind` from a tuple that wants `attributes` and that template."""
    mismatches = satisfies(attributes, kind) + satisfies(configuration.requires, kind)
    for target in dict.fromkeys(choice.target for choice in configuration.images):
        if all(satisfies(choice.when, kind) for choice in configuration.images if choice.target == target):
            mismatches.append(Mismatch("image", f"one for target {target} that fits the hardware", "none"))
    return mismatches


class _Stock:
    """The free nodes, in buckets of equals, and how many are coming; shrinks while they are given out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.free = Counter(node.kind for node in snapshot.free)
        self.warm = Counter(node.kind for node in snapshot.free if node.readiness == WARM)
        self.coming = Counter(dict(snapshot.coming))
        self._buckets: dict[Kind, dict[tuple[int, Cache], list[FreeNode]]] = defaultdict(lambda: defaultdict(list))
        for node in sorted(snapshot.free, key=lambda node: -node.id):
            self._buckets[node.kind][node.readiness, node.cache].append(node)

    def take(self, kind: Kind, count: int, cache: Cache) -> list[FreeNode]:
        """The `count` best nodes of `kind` for somebody who wants what `cache` names; fewer if there are fewer."""
        taken: list[FreeNode] = []
        for key in sorted(self._buckets[kind], key=lambda key: self._rank(key, cache)):
            bucket = self._buckets[kind][key]
            while bucket and len(taken) < count:
                taken.append(bucket.pop())
        self.free[kind] -= len(taken)
        self.warm[kind] -= sum(node.readiness == WARM for node in taken)
        return taken

    @staticmethod
    def _rank(key: tuple[int, Cache], wanted: Cache) -> tuple[object, ...]:
        readiness, cache = key
        # Last come nodes that hold software of others, who may want it again.
        return (cache != wanted or cache is None, readiness, cache is not None, cache or ())


class _Choice:
    """Decides request after request, remembering what is still to be had."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._stock = _Stock(snapshot)
        self._kinds = sorted(self._stock.free.keys() | self._stock.coming.keys())
        self._lacking: dict[tuple[str, int], dict[int, list[Mismatch]]] = {}

    def decide(self, wish: Wish) -> Grant | No:
        """A grant, or why not; what it takes, or keeps for itself, is gone from the stock."""
        stock = self._stock
        demands = [self._demand(wish, one) for one in wish.tuples]
        shares = spread(demands, stock.free)
        if shares is not None:
            return Grant(wish.id, tuple(self._seats(wish, shares)))
        shares = spread(demands, stock.free + stock.coming)
        if shares is not None:
            return self._wait_for_coming(wish, shares)
        if self._possible(wish):
            return No(wish.id, "busy", self._why_busy(wish, demands))
        return No(wish.id, "impossible", self._why_impossible(wish))

    def _demand(self, wish: Wish, one: RequestTuple) -> Demand:
        lacking, stock, types = self._lacking_types(one), self._stock, self._snapshot.types
        kinds = [kind for kind in self._kinds if not lacking[kind[0]] and kind[1] in ("", wish.subnet)]
        kinds.sort(key=lambda kind: (types[kind[0]].cost, stock.warm[kind] < one.count, -stock.free[kind], kind))
        return Demand(one.count, tuple(kinds))

    def _lacking_types(self, one: RequestTuple) -> dict[int, list[Mismatch]]:
        """By type, what it lacks for a tuple: nothing where it is eligible."""
        key = one.attributes, one.template_id
        if key not in self._lacking:
            wanted = template.parse(self._snapshot.templates[one.template_id])
            self._lacking[key] = {
                type_id: lacking(wanted, one.attributes, kind.attributes)
                for type_id, kind in self._snapshot.types.items()}
        return self._lacking[key]

    def _seats(self, wish: Wish, shares: Iterable[Counter[Kind]]) -> Iterable[Seat]:
        for one, share in zip(wish.tuples, shares, strict=True):
            for kind in sorted(+share):
                for node in self._stock.take(kind, share[kind], (one.template_id, wish.group_id)):
                    yield Seat(node.id, node.generation, one.template_id)

    def _wait_for_coming(self, wish: Wish, shares: Iterable[Counter[Kind]]) -> No:
        missing = 0
        for one, share in zip(wish.tuples, shares, strict=True):
            for kind in sorted(+share):
                short = share[kind] - len(self._stock.take(kind, share[kind], (one.template_id, wish.group_id)))
                self._stock.coming[kind] -= short
                missing += short
        return No(wish.id, "coming", f"waits for {_nodes(missing)} on {'its' if missing == 1 else 'their'} way back")

    # ------------------------------------------------------------ why not

    def _possible(self, wish: Wish) -> bool:
        """Could all nodes of the site together satisfy it?"""
        site = self._snapshot.site
        demands = [Demand(one.count, tuple((type_id, "") for type_id in self._eligible(one))) for one in wish.tuples]
        others = {(type_id, ""): count - wish.own.get(type_id, 0) for type_id, count in site.items()}
        return spread(demands, others) is not None

    def _eligible(self, one: RequestTuple) -> list[int]:
        return sorted(type_id for type_id, lacking in self._lacking_types(one).items() if not lacking)

    def _why_busy(self, wish: Wish, demands: Sequence[Demand]) -> str:
        suitable = {type_id for one in wish.tuples for type_id in self._eligible(one)}
        free = sum(self._stock.free[kind] for kind in {kind for demand in demands for kind in demand.kinds})
        site = sum(self._snapshot.site.get(type_id, 0) for type_id in suitable)
        return (f"waits: {_nodes(sum(one.count for one in wish.tuples))} wanted, {free} free of {site} that would do; "
                "others hold the rest")

    def _why_impossible(self, wish: Wish) -> str:
        for number, one in enumerate(wish.tuples, 1):
            eligible = self._eligible(one)
            have = sum(self._snapshot.site.get(kind, 0) - wish.own.get(kind, 0) for kind in eligible)
            if have < one.count:
                where = f" (tuple {number})" if len(wish.tuples) > 1 else ""
                besides = " besides its own" if wish.own else ""
                return (f"{_nodes(one.count)} wanted{where}, the site has {have}{besides} that would do"
                        + self._lacks(one))
        return f"its {len(wish.tuples)} tuples together want more nodes than the site has that would do"

    def _lacks(self, one: RequestTuple) -> str:
        """What keeps the other types of the site from being eligible, the first few of them."""
        lines = [f"{self._snapshot.types[type_id].name} lacks {'; '.join(map(str, lacking[:3]))}"
                 for type_id, lacking in sorted(self._lacking_types(one).items())
                 if lacking and self._snapshot.site.get(type_id)]
        return "".join(f". {line}" for line in lines[:3])


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
