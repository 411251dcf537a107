"""Rows together with the names of the things that they refer to, for people."""

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
from cod.model.site.database import DatabaseHost


@dataclass(frozen=True, slots=True)
class ProposedBmc:
    """A BMC that a node has reported as its own.

    driver   the driver for it: 'ipmi' or 'redfish'
    address  IPv4 address
    mac      '': unknown
    nodes    names of nodes that COD switches by this address, with any driver
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
    """The nodes to which a node is compared: those of the most frequent node type of its product.

    type         name of that type
    nodes        number of its nodes
    differences  as phrases: 'memory/mib: 4096 MiB; siblings have 8192 MiB'
    """

    type: str
    nodes: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node for people. `address`: its present address; `template`: 'name@revision'.

    priority      priority of the group that holds it; None: no group, or a preemptible vcluster,
                  which has no inertia

    Some fields are filled only for the view of a single node:

    host_keys     SSH host keys that COD installed it with
    bmcs          BMCs that it has reported, for administrators
    siblings      nodes to compare it to, with the differences; None: its product is unknown
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
        """Return the node's position in its rack."""
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
    """A node that waits for approval. `port`: 'SWITCH PORT', '' if unknown; `why`: the evidence of
    the network for its rack."""

    view: NodeView
    port: str
    why: str


@dataclass(frozen=True, slots=True)
class NewRack:
    """Nodes that wait for approval and belong to one block.

    block     their block, or the block that the network suggests; '': unknown
    names     proposed names, as a range; '': the nodes have names already
    machines  the nodes, in the order of their switch ports
    """

    block: str
    names: str
    machines: tuple[NewMachine, ...]


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node that runs its vcluster's system, for a monitoring system. '' stands for no value."""

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
    """A node's newest capture for people.

    group       the owner's name; '': the site
    node_state  the node's state
    done, total, rate  while it runs: bytes done, bytes in all, bytes a second
    what        as in `orders.Deposit`
    """

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
    """A burn-in for people.

    node_state  the node's state
    results     for each test, the fields of `orders.TestResult` by name
    phase       while it runs: the present test
    done, total, rate  of this test: bytes done, bytes in all (roughly), bytes a second
    """

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
    """A node type for people. `states`: number of its nodes by state; `facts`: its attributes, such
    as ('memory/mib', '4096 MiB'), with parts of one name numbered: 'nic 2/speed'."""

    type: NodeType
    states: Undescribed[Mapping[str, int]]
    facts: Undescribed[tuple[tuple[str, str], ...]] = ()


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block. `types`: number of its nodes by the type's name; '': nodes without a type."""

    name: str
    types: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VcmView:
    """A VCM for people. `vcluster`: name of its vcluster; `owed`: number of messages that wait for
    it."""

    vcm: Vcm
    vcluster: str
    owed: int


@dataclass(frozen=True, slots=True)
class VclusterView:
    """A vcluster for people.

    states     number of its nodes by state
    addresses  its address ranges, in order
    network    its network, if it is isolated
    waits      sentences about failed parts of the site that its nodes and mounts wait for
    """

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
    """The expected start of a waiting request, as forecast at `told_at`.

    at      None: unknown, for the reason in `why`
    sooner_nodes, sooner_at  if the request asked for only so many nodes, it would start at that
                             time; None: no such number is known
    """

    at: float | None
    why: str
    told_at: float
    sooner_nodes: int | None = None
    sooner_at: float | None = None


@dataclass(frozen=True, slots=True)
class RequestView:
    """A node request for people. `templates`: 'name@revision' of each of its tuples, in order.

    source   of a move: the vcluster whose nodes it gets; None: the caller may not see it
    leaving  of a move: number of nodes that `source` still holds
    start    its expected start; None: it does not wait, or has no forecast yet
    """

    request: Request
    vcluster: Annotated[str, About("Vcluster", FieldKind.LINK, place="vclusters")]
    templates: Undescribed[tuple[str, ...]]
    source: Undescribed[str | None] = None
    leaving: Undescribed[int] = 0
    start: Undescribed[ExpectedStart | None] = None


@dataclass(frozen=True, slots=True)
class ReclaimView:
    """A reclaim for people.

    vcluster   the vcluster that loses nodes
    wanted_by  the vcluster that gets the nodes; None: the caller may not see it
    block      block of the nodes; '': none
    chosen     names of the nodes that go unless others are given back instead
    promised   by name of a node: when the vcluster's VCM has promised to give it back
    moves      whether an owner moves the nodes to `wanted_by`, whatever the priorities
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
    """A notice for people, with the names of its group and vcluster, and its deliveries."""

    notice: Notice
    group: str | None
    vcluster: str | None
    sends: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class NameView:
    """A name of a vcluster for people.

    full      the full name in DNS
    host, address  host name and address of its target node; '': the target is elsewhere, or there
                   is none
    dangling  whether its target node has left the vcluster
    """

    name: VclusterName
    full: str
    host: str
    address: str
    dangling: bool


@dataclass(frozen=True, slots=True)
class FailedNode:
    """A node that is out of service because something failed.

    since     when it went out of service
    block     '': none
    template  the template that its last holder wanted on it; '': none
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
    """A fault of something outside of COD, such as a BMC, switch or file server.

    kind     see `flows.nodes.faults.KINDS`
    what     name of the faulty thing
    since    when the fault began, or when the thing last answered; None: unknown
    ended    when the fault was over; None: it lasts
    affects  names of the nodes or volumes that it affects
    waits    vclusters that hold or wait for these
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
    """A part of the server on a host, as it reports itself.

    server      the host's name
    part        edge, images, manager or web
    addresses   addresses by which nodes reach the host, on the site's subnets
    version     version of the program
    database_schema  version of the database schema that the program needs
    seen_at     when the part reported last, by its host's clock
    key         only of images: key, in hex, of the tokens by which other hosts fetch images here
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
    """The version of the program on a host: with the database schema that it needs, and when one of
    its parts was last seen."""

    name: str
    version: str
    database_schema: str
    seen_at: float


@dataclass(frozen=True, slots=True)
class ImageHolders:
    """Copies of images on other hosts. `needed`: digests of all images of the site; `holders`: by
    digest of an image that a host lacks, the image servers that have it and were seen lately."""

    needed: frozenset[str]
    holders: Mapping[str, tuple[HostPart, ...]]


@dataclass(frozen=True, slots=True)
class ServerView:
    """A host of the site's servers.

    parts    names of its running parts
    silent   names of its parts that have not been seen for a while
    addresses, version, database_schema, started_at, seen_at  of the part that was seen last
    manages  whether the resource manager runs there
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
    """The hosts of the site's servers.

    database_writer  HOST:PORT of the database's writer; '' if the database has only one host
    database         hosts of the database that this server has asked; () if it is a file
    """

    items: tuple[ServerView, ...]
    database_writer: str
    database: tuple[DatabaseHost, ...]
