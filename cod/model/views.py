"""Rows with the names of what they refer to, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from cod.model.addresses import AddressRange
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.machines import HostKey, Node, NodeType
from cod.model.rights import Right
from cod.model.sharing.notices import Notice, Send
from cod.model.sharing.requests import Reclaim, Request
from cod.model.sharing.vclusters import Vcluster, VclusterName, VclusterNetwork
from cod.model.sharing.vcms import Vcm


@dataclass(frozen=True, slots=True)
class ProposedBmc:
    """A BMC that a node has reported of itself.

    driver   that would speak to it: 'ipmi' or 'redfish'
    address  IPv4
    mac      '' where it is not known
    nodes    names of nodes that COD switches by that address, whatever their driver
    """

    driver: str
    address: str
    mac: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def power_address(self) -> str:
        """Return the address as the driver expects it."""
        return f"https://{self.address}" if self.driver == "redfish" else self.address


@dataclass(frozen=True, slots=True)
class Siblings:
    """The nodes to which a node is compared: those of the most frequent type of its product.

    differences  as phrases: 'memory/mib: 4096 MiB; siblings have 8192 MiB'
    """

    type: str
    nodes: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node for people. `address` is the one it has now; `template` is 'name@revision'.

    priority      of the group that holds it; None: nobody, or a preemptible vcluster, which has no
                  inertia
    host_keys     that COD installed it with; read only where the node is shown in full
    bmcs          that it reported of itself; read only there, and for administrators
    siblings      what differs from them; read only there; None: its product is not known
    """

    node: Node
    macs: Annotated[tuple[str, ...], About("MACs", level=FieldLevel.DETAIL)]
    type: Annotated[str | None, About("Type", FieldKind.LINK, level=FieldLevel.WIDE, place="types")]
    vcluster: Annotated[str | None, About("Vcluster", FieldKind.LINK, place="vclusters")]
    template: Annotated[
        str | None, About("Template", FieldKind.LINK, level=FieldLevel.WIDE, place="templates")
    ]
    address: Annotated[str | None, About("Address")]
    immune_until: Annotated[
        float | None,
        About(
            "Immune until",
            FieldKind.MOMENT,
            "when it may be taken for others at the earliest, or might have been",
            none="nobody holds it",
            level=FieldLevel.WIDE,
        ),
    ] = None
    block: Annotated[
        str | None,
        About(
            "Block",
            about="rack or switch of the node",
            none="no block",
            set_by=Right.ADMIN,
            level=FieldLevel.WIDE,
            longest=63,
        ),
    ] = None
    priority: Undescribed[int | None] = None
    host_keys: Undescribed[tuple[HostKey, ...]] = ()
    bmcs: Undescribed[tuple[ProposedBmc, ...]] = ()
    siblings: Undescribed[Siblings | None] = None

    @property
    def position(
        self,
    ) -> Annotated[
        str | None,
        About(
            "Position",
            about="place in its rack, the lowest unit first",
            none="not known",
            example="17",
            set_by=Right.ADMIN,
            level=FieldLevel.WIDE,
            longest=16,
        ),
    ]:
        """Return where the node is in its rack."""
        return self.node.rack_position

    @property
    def tags(
        self,
    ) -> Annotated[
        tuple[str, ...],
        About(
            "Tags",
            about="words by which administrators find nodes",
            none="no tags",
            example="gpu,old",
            set_by=Right.ADMIN,
            level=FieldLevel.WIDE,
            longest=16,
        ),
    ]:
        """Return the node's tags in alphabetical order."""
        return tuple(self.node.tags.split())


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A node that waits for approval. `port`: 'SWITCH PORT', '' where it is not known; `why`: what
    the network said of its rack."""

    view: NodeView
    port: str
    why: str


@dataclass(frozen=True, slots=True)
class NewRack:
    """Nodes that wait for approval and belong into one block: in the order of their switch ports.

    block  their own, or as the network suggests; '': nothing is known
    names  proposed, as a range, one for each; '': they have names already
    """

    block: str
    names: str
    machines: tuple[NewMachine, ...]


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node that runs its vcluster's system, for a monitoring system; '' for what it has not."""

    node: str
    hostname: str
    address: str
    vcluster: str
    group: str
    type: str
    block: str
    template: str


@dataclass(frozen=True, slots=True)
class CaptureView:
    """A node's newest capture for people. `group`: the owner's name, '' for the site; `node_state`:
    where the node is; bytes `done` of `total` at `rate` a second, while it is running; `what`: as
    in `orders.Deposit`."""

    node: str
    image: str
    template: str
    group: str
    state: str
    actor: str
    asked_at: float
    ended_at: float | None
    reason: str
    node_state: str
    done: int
    total: int
    rate: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class BurninView:
    """A burn-in for people. `node_state`: where the node is; while it runs, bytes `done` of about
    `total` of the test `phase` at `rate` a second; `results`: of the tests, each a mapping of the
    fields of `orders.TestResult`."""

    id: int
    node: str
    state: str
    cause: str
    tests: tuple[str, ...]
    seconds: int
    erase: bool
    actor: str
    asked_at: float
    started_at: float | None
    ended_at: float | None
    reason: str
    results: tuple[Mapping[str, Any], ...]
    node_state: str
    done: int
    total: int
    rate: float
    phase: str


@dataclass(frozen=True, slots=True)
class TypeView:
    """A node type for people. `states` counts its nodes by state; `facts` are its attributes as
    ('memory/mib', '4096 MiB'), those of several like parts numbered: 'nic 2/speed'."""

    type: NodeType
    states: Undescribed[Mapping[str, int]]
    facts: Undescribed[tuple[tuple[str, str], ...]] = ()


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block, with its nodes' types. `types` counts the nodes by type name; '' stands for nodes
    without a type."""

    name: str
    types: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VcmView:
    """A VCM for people. `vcluster` is the name; `owed`: how many messages wait for it."""

    vcm: Vcm
    vcluster: str
    owed: int


@dataclass(frozen=True, slots=True)
class VclusterView:
    """A vcluster for people. `states` counts its nodes by state; `addresses` are its ranges, in
    order; `network` is that of an isolated one; `waits` are sentences: for which parts of the site,
    which are down, its nodes and mounts wait."""

    vcluster: Vcluster
    group: Annotated[str, About("Group", FieldKind.LINK, place="groups")]
    template: Annotated[str, About("Template", FieldKind.LINK, place="templates")]
    states: Undescribed[Mapping[str, int]]
    addresses: Undescribed[tuple[AddressRange, ...]] = ()
    network: Undescribed[VclusterNetwork | None] = None
    waits: Annotated[
        tuple[str, ...],
        About(
            "Waits",
            about="for which parts of the site, which are down, its nodes and mounts wait, as"
            " sentences",
            level=FieldLevel.DETAIL,
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """Expected start of a waiting request, as forecast at `told_at`.

    at      None: nobody can tell; `why` says why not
    sooner_nodes, sooner_at  with so many nodes it would start by then; None: nothing is known
    """

    at: float | None
    why: str
    told_at: float
    sooner_nodes: int | None = None
    sooner_at: float | None = None


@dataclass(frozen=True, slots=True)
class RequestView:
    """A node request for people. `templates`: 'name@revision' of each of its tuples, in order.

    source   of a move: the vcluster whose nodes it gets; None for those who may not see it
    leaving  of a move: nodes that `source` still holds
    start    when it is expected to start; None: it does not wait, or nothing is told yet
    """

    request: Request
    vcluster: Annotated[str, About("Vcluster", FieldKind.LINK, place="vclusters")]
    templates: Undescribed[tuple[str, ...]]
    source: Undescribed[str | None] = None
    leaving: Undescribed[int] = 0
    start: Undescribed[ExpectedStart | None] = None


@dataclass(frozen=True, slots=True)
class ReclaimView:
    """A reclaim for people. `vcluster` loses nodes to `wanted_by`; `chosen`: names of those that go
    unless others are given instead; `promised`: by when the vcluster's VCM gives back those of them
    that it has promised, by name; `block` is '' for nodes in no block; `wanted_by` is None for
    those who may not see it; `moves`: an owner moves the nodes there, whatever the priorities.
    """

    reclaim: Reclaim
    vcluster: str
    wanted_by: str | None
    type: str
    block: str
    chosen: tuple[str, ...]
    promised: Mapping[str, float] = field(default_factory=dict)
    moves: bool = False


@dataclass(frozen=True, slots=True)
class NoticeView:
    """A notice for people: with the names of its group and vcluster, and how its deliveries
    stand."""

    notice: Notice
    group: str | None
    vcluster: str | None
    sends: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class NameView:
    """A name of a vcluster for people. `full`: as DNS has it; `host` and `address`: of the node
    that it leads to, '' for one elsewhere or none; `dangling`: it leads to a node that has left."""

    name: VclusterName
    full: str
    host: str
    address: str
    dangling: bool


@dataclass(frozen=True, slots=True)
class FailedNode:
    """A node that is out of service because something failed. `template`: that its last holder
    wanted on it; '' for none, as `block`.

    since  when it went out of service
    """

    name: str
    reason: str
    since: float
    block: str
    template: str
    power_driver: str
    power_address: str


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Nodes that failed alike: by their reason, their block, or their template."""

    key: str
    nodes: tuple[FailedNode, ...]


@dataclass(frozen=True, slots=True)
class OutsideFault:
    """Something outside of COD that does not do its part.

    kind     see `flows.nodes.faults.KINDS`
    what     its name
    since    when it began, or what is at fault last answered; None: not known
    ended    when it was over; None: it lasts
    affects  nodes or volumes, by name
    waits    vclusters that hold or wait for those
    """

    kind: str
    what: str
    since: float | None
    ended: float | None
    affects: tuple[str, ...]
    waits: tuple[str, ...]
    about: str


@dataclass(frozen=True, slots=True)
class HostPart:
    """A part of the server on a host, as it says of itself.

    server      the host's name; `part`: edge, images, manager or web
    addresses   by which nodes reach the host, on the site's subnets
    version     of the program; `database_schema`: that it was written for
    seen_at     when the part said so last, by its host's clock
    key         of the tokens by which other hosts fetch images here, hex; of images alone
    """

    server: str
    part: str
    addresses: tuple[str, ...]
    version: str
    database_schema: str
    started_at: float
    seen_at: float
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """A program that a host runs: its version, the schema that it was written for, and when one of
    its parts was seen last."""

    name: str
    version: str
    database_schema: str
    seen_at: float


@dataclass(frozen=True, slots=True)
class ImageHolders:
    """Copies of images on other hosts: `needed` are the digests of all images of the site;
    `holders` are the image servers, seen lately, that have those that a host lacks."""

    needed: frozenset[str]
    holders: Mapping[str, tuple[HostPart, ...]]


@dataclass(frozen=True, slots=True)
class ServerView:
    """A host of the site's servers.

    parts    those that run, by name; `silent`: those that have not been seen for a while
    addresses, version, database_schema, started_at, seen_at  of the part that was seen last
    manages  the resource manager is there
    """

    name: str
    addresses: tuple[str, ...]
    parts: tuple[str, ...]
    silent: tuple[str, ...]
    version: str
    database_schema: str
    started_at: float
    seen_at: float
    manages: bool


@dataclass(frozen=True, slots=True)
class ServersView:
    """The hosts of the site's servers; `database_writer`: the host of the database that is its
    writer, HOST:PORT; '' where the database has one host."""

    items: tuple[ServerView, ...]
    database_writer: str
