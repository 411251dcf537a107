"""Nodes and their consoles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from cod import model
from cod.choices import PowerVerb
from cod.filters.language import LONGEST as FILTER_LONGEST
from cod.flows import views
from cod.flows.nodes import consoles, nodes
from cod.model import Node, NodeView, Result
from cod.pool import Tx
from cod.states import Disk, NodeState
from cod.web.api import pci_names
from cod.web.api.models import (
    Body,
    Chosen,
    OneOrSeveral,
    Paged,
    PatchOf,
    Reason,
    Reply,
    ReplyOf,
)
from cod.web.api.resources.consoles import (
    ConsoleQuery,
    ConsoleReply,
    ConsoleTyped,
    ConsoleTypedReply,
    console_reply,
)
from cod.web.api.resources.energy import Moment
from cod.web.api.resources.server import ConflictReply
from cod.web.api.routes import (
    ADMINS,
    ANYBODY,
    Call,
    Shaped,
    Worked,
    listed,
    named_route,
    paged,
    route,
    see,
    use,
)

RETURNS = "when nodes return to service by themselves; null: when they are restored"


class NodeQuery(Paged):
    state: Annotated[str | None, OneOrSeveral(NodeState)] = Field(
        default=None, max_length=200, description="one, or several with commas between"
    )
    vcluster: str | None = Field(default=None, max_length=63)
    type: str | None = Field(default=None, max_length=63)
    block: str | None = Field(default=None, max_length=63)
    group: str | None = Field(
        default=None, max_length=63, description="those that vclusters of this group hold"
    )
    power: Literal["on", "off", "unknown"] | None = None
    names: str = Field(
        default="",
        max_length=FILTER_LONGEST,
        description=(
            "nodes by names, MACs, serial numbers, UUIDs or host names, with ranges and blocks:"
            " n[001-064],@rack12"
        ),
    )
    where: str = Field(
        default="",
        max_length=FILTER_LONGEST,
        description="a filter: rack=r12 and state=free (docs/filters)",
    )
    sort: Literal[
        "name",
        "-name",
        "state",
        "-state",
        "since",
        "-since",
        "type",
        "-type",
        "block",
        "-block",
        "vcluster",
        "-vcluster",
        "hostname",
        "-hostname",
    ] = "name"


class HistoryQuery(Paged):
    """Selection of transitions; the newest come first."""

    sort: Literal["id", "-id"] = "-id"


class NodePatch(PatchOf[model.NodeView]):
    """Changes to a node, by an administrator. A field that is left out stays as it is."""

    null_stays = True
    beside = frozenset({"keep_was"})
    keep: list[Annotated[str, Field(max_length=120)]] | None = Field(
        default=None,
        max_length=16,
        description=(
            "all its disks that are never written nor erased: serial:SERIAL, "
            "path:/dev/NAME or model:PATTERN"
        ),
    )
    keep_was: list[str] | None = Field(
        default=None,
        max_length=16,
        description=(
            "the value of `keep` that the change is based on; the change is "
            "refused if somebody changed the marks since"
        ),
    )

    @property
    def given(self) -> dict[str, Any]:
        """Return the fields that the patch names, with their values."""
        return self.model_dump(exclude_unset=True)


class PowerWish(Body):
    """The state that the node's power is to have."""

    desired: Chosen[PowerVerb] = Field(description=f"soft: {PowerVerb.SOFT.about}")


class WishReply(ReplyOf[model.PowerAction]):
    """A wish for a node's power. `done_at`: null while it is being tried; `error`: the error of the
    last attempt, or why the wish was dropped or given up."""

    desired: str
    wished_at: float
    attempts: int
    next_at: float
    done_at: float | None
    error: str


class NodeMoved(Body):
    """An administrator's decision on a node that boots elsewhere."""

    also: int | None = Field(
        default=None,
        ge=1,
        description=(
            "the id of a place where the node was heard: it may boot there too. null: it boots next"
            " where it belongs, and all other places are forgotten"
        ),
    )


class PlaceReply(ReplyOf[model.NodePlace]):
    """A place where the node's MAC was heard: by DHCP (its subnet, and option 82), or by its
    switch's table of MAC addresses or LLDP (`port`, as 'SWITCH PORT').

    id        0: the place that is remembered as the node's own
    approved  the node may boot there
    """

    id: int
    subnet: str | None
    circuit: str | None
    remote: str | None
    port: str | None
    heard_at: float
    approved: bool


class OutOfService(Body):
    """Reason for which a node is taken out of service, and the time of its return."""

    reason: Reason
    until: Moment = Field(default=None, description=RETURNS)


class Progress(Reply):
    """Progress of the running step in bytes; `rate` in bytes per second.

    phase   the step: wipe, zero, write, verify, pass on, capture or capture anew (at another
            server); empty: its agent has not reported it
    source  where the image comes from: the name of a node that passes it on, or 'the server';
            empty: its agent has not reported it
    """

    done: int
    total: int
    rate: float
    phase: str = ""
    source: str = ""


class Power(Reply):
    """A node's power: `state` as its driver saw it last, at `seen_at` (null: never); `wanted`, as
    people wished last; the `driver` that switches it; `watts`, as last measured. `address` and
    `account`, by which the driver reaches the switch, are for administrators only."""

    closed = frozenset({"address", "account"})

    state: Literal["on", "off", "unknown"]
    seen_at: float | None
    wanted: str | None
    driver: str
    address: str | None
    account: str | None
    watts: float | None


class NodeReply(ReplyOf[model.NodeView]):
    """A node."""

    state: NodeState
    disk: Disk
    keep: list[str] = Field(
        description="the node's own marks of disks that are never written nor erased"
    )
    kept: list[str] = Field(
        description=(
            "the disks that these and the site's rules mean, as it reported last: their "
            "content is not erased when `disk` says clean"
        )
    )
    power: Power
    progress: Progress | None

    @classmethod
    def values(cls, view: model.NodeView) -> dict[str, Any]:
        """Return the described values, and those that are made here."""
        node = view.node
        switched: Any = node.power
        power = Power(
            state=switched,
            seen_at=node.power_seen_at,
            wanted=node.power_wanted,
            driver=node.power_driver,
            address=node.power_address,
            account=node.power_account,
            watts=node.watts,
        )
        progress = Progress(
            done=node.progress_done,
            total=node.progress_total,
            rate=node.progress_rate,
            phase=node.progress_phase,
            source=node.progress_source,
        )
        return super().values(view) | {
            "power": power,
            "progress": progress if node.progress_total else None,
            "keep": list(filter(None, node.keep.split("\n"))),
            "kept": list(nodes.kept(node)),
        }


class HostKeyReply(ReplyOf[model.HostKey]):
    """An SSH host key that the node was installed with. `fingerprint` is in the form that ssh
    shows."""

    algorithm: str
    key: str
    fingerprint: str


class BindingReply(Reply):
    """An address bound to the node."""

    address: str
    mac: str | None
    kind: str
    subnet: str
    hostname: str | None
    state: Literal["offered", "bound", "reserved", "declined"]
    expires_at: float | None = Field(description="null: when the node leaves its virtual cluster")


class ErasedDisk(Reply):
    """The erasure of one disk. `method`: write zeroes (by the disk), discard, overwrite (by the
    kernel), write zeroes or overwrite with discard, truncate (a file in place of a disk), or tables
    alone (the data stays). If the disk was purged, the command's name comes first: NVMe Format,
    NVMe Sanitize or ATA Sanitize. `seconds`: the time that the erasure took. `checked`: bytes that
    were read back as zeros afterwards."""

    disk: str
    model: str
    serial: str
    wwid: str
    size: int
    method: str
    seconds: float
    checked: int


class Transition(ReplyOf[Mapping[str, Any]]):
    """A row of a node's history. `erased`: disks that the state before it erased."""

    id: int
    at: float
    event: str
    from_state: NodeState | None
    to_state: NodeState
    cause: str
    actor: str
    bytes_written: int | None
    rate: float | None
    erased: list[ErasedDisk]


class Move(Transition):
    """A transition of one of several nodes. `vcluster`: its holder afterwards."""

    node: str
    vcluster: str | None


HISTORY = paged(Move, "Transitions, the newest first.", "HistoryList")


class PciDevice(Reply):
    """A function of a PCI device. Ids of class, vendor, device and board are hex digits. Names are
    empty unless the server has the list of names (Debian's package pci.ids). `driver` is the Linux
    driver in use."""

    slot: str
    class_id: str
    class_name: str
    vendor: str
    device: str
    subvendor: str
    subdevice: str
    name: str
    driver: str


class HardwareFact(Reply):
    """A fact about a node's hardware, such as 'memory/mib' of '4096 MiB'."""

    name: str
    value: str


class ProposedBmcReply(ReplyOf[model.ProposedBmc]):
    """A BMC that the node reported of itself. The report is a proposal: COD uses the BMC once it is
    the node's power address. `driver`: the driver that would switch it; `nodes`: nodes that COD
    already switches by that address."""

    driver: Literal["ipmi", "redfish"]
    address: str
    power_address: str
    mac: str
    nodes: list[str]


class SiblingsReply(ReplyOf[model.Siblings]):
    """The nodes that a node is compared with: those of the most frequent type of its product."""

    type: str
    nodes: int
    differences: list[str]


class NodeInFull(NodeReply):
    """A node with its last hardware report (XML), its bindings, its SSH host keys, its newest
    transitions (oldest first), and conflicts about it (newest first)."""

    attributes: str | None
    phrase: str = Field(description="the hardware in a phrase: 96 CPUs, 2 TiB, 25 Gb/s")
    siblings: SiblingsReply | None = Field(
        description="what differs from the most frequent type of its product; null: its product is not known"
    )
    hardware: list[HardwareFact] = Field(description="the same, for people; without PCI devices")
    pci: list[PciDevice]
    bindings: list[BindingReply]
    bmcs: list[ProposedBmcReply] = Field(description="for administrators; others see none")
    host_keys: list[HostKeyReply] = Field(
        description=(
            "those that COD installed it with; none where its template says "
            'hostkeys="own", or writes no seed'
        )
    )
    history: list[Transition]
    conflicts: list[ConflictReply]

    @classmethod
    def of_parts(
        cls,
        parts: tuple[
            model.NodeView, list[model.Binding], list[dict[str, Any]], list[dict[str, Any]]
        ],
    ) -> NodeInFull:
        """Return the reply from the view, the bindings, and the rows of history and conflicts."""
        view, bindings, history, conflicts = parts
        return cls(
            **cls.values(view),
            attributes=view.node.attributes,
            phrase=nodes.phrase(view.node, pci_names.installed().short),
            siblings=SiblingsReply.of(view.siblings) if view.siblings else None,
            hardware=[
                HardwareFact(name=name, value=value)
                for name, value in nodes.hardware(view.node)
                if not name.startswith("pci ")
            ],
            pci=pci_devices(view.node),
            bindings=[
                BindingReply.read_from(
                    each, address=model.dotted(each.address), expires_at=each.until
                )
                for each in bindings
            ],
            bmcs=[ProposedBmcReply.of(each) for each in view.bmcs],
            host_keys=[HostKeyReply.of(key) for key in view.host_keys],
            history=[
                Transition(**{key: row[key] for key in Transition.model_fields}) for row in history
            ],
            conflicts=[ConflictReply.of(row) for row in conflicts],
        )


def pci_devices(node: model.Node) -> list[PciDevice]:
    """Return the PCI devices of a node's last report, with their names."""
    names, found = pci_names.installed(), []
    for device in nodes.parts(node, "pci"):
        get = {
            key: device.get(key, "")
            for key in ("slot", "vendor", "device", "subvendor", "subdevice", "driver")
        }
        class_id = device.get("class", "")
        found.append(
            PciDevice(
                class_id=class_id,
                class_name=names.of_class(class_id),
                name=names.of_device(get["vendor"], get["device"]),
                **get,
            )
        )
    return found


def _shown(
    ask: Call[Any, Any, Any], flow: Callable[[Tx], Result[Node]]
) -> Callable[[Tx], Result[NodeView]]:
    """Return the flow with its value replaced by the node as `GET /nodes/{name}` shows it."""
    return partial(nodes.shown, flow=flow, policy=ask.site.policy)


NODES = (
    route(
        "GET /nodes",
        ANYBODY,
        "List nodes",
        lambda a: partial(
            views.node_list,
            page=a.query.page,
            policy=a.site.policy,
            groups=a.who.groups,
            state=a.query.state,
            vcluster=a.query.vcluster,
            type=a.query.type,
            block=a.query.block,
            power=a.query.power,
            group=a.query.group,
            names=a.query.names,
            where=a.query.where,
            who=a.who,
            now=a.now,
        ),
        reply=paged(NodeReply, "Nodes."),
        query=NodeQuery,
    ),
    named_route(
        "GET /nodes/{name}",
        see("node"),
        "Show a node with its report, bindings and history",
        lambda a: partial(
            views.node_in_full, name=a.names.name, policy=a.site.policy, groups=a.who.groups
        ),
        reply=Shaped(NodeInFull, NodeInFull.of_parts),
    ),
    named_route(
        "GET /nodes/{name}/history",
        see("node"),
        "List a node's transitions",
        lambda a: partial(views.history, node=a.names.name, page=a.query.page, groups=a.who.groups),
        reply=HISTORY,
        query=HistoryQuery,
    ),
    named_route(
        "PATCH /nodes/{name}",
        ADMINS,
        "Change a node's name, place, tags, power driver or kept disks",
        lambda a: _shown(
            a,
            partial(
                nodes.change,
                context=a.context,
                name=a.names.name,
                changes=a.body.model_dump(exclude_unset=True),
            ),
        ),
        reply=NodeReply,
        body=NodePatch,
    ),
    named_route(
        "POST /nodes/{name}/moved",
        ADMINS,
        "Confirm that a node was moved: the place where it boots next is remembered as its own;"
        " or approve another place where it was heard",
        lambda a: _shown(
            a, partial(nodes.moved, context=a.context, name=a.names.name, also=a.body.also)
        ),
        reply=NodeReply,
        body=NodeMoved,
    ),
    named_route(
        "GET /nodes/{name}/places",
        ADMINS,
        "List the places where a node may boot, and those where its MAC was heard",
        lambda a: partial(nodes.places_of, name=a.names.name),
        reply=listed(PlaceReply, "The places of a node.", "NodePlaces"),
    ),
    named_route(
        "POST /nodes/{name}/approve",
        ADMINS,
        "Approve a new machine; COD may erase its disks from then on",
        lambda a: _shown(a, partial(nodes.approve, context=a.context, name=a.names.name)),
        reply=NodeReply,
    ),
    named_route(
        "GET /nodes/{name}/power",
        ADMINS,
        "List recent power commands to a node, and their results",
        lambda a: partial(nodes.power_wishes, name=a.names.name),
        reply=listed(WishReply, "A node's newest wishes, the newest first."),
    ),
    named_route(
        "POST /nodes/{name}/power",
        use("node"),
        "Power a node on or off, or cycle it",
        lambda a: _shown(
            a,
            partial(nodes.power, context=a.context, name=a.names.name, desired=a.body.desired),
        ),
        reply=NodeReply,
        body=PowerWish,
        status=202,
    ),
    named_route(
        "GET /nodes/{name}/console",
        use("node", model.SingleRight.CONSOLES),
        "Show what a node wrote on its serial console",
        lambda a: partial(
            consoles.readable,
            name=a.names.name,
            rules=a.site.consoles,
            everything=a.who.admin,
            now=a.now,
        ),
        reply=Worked(
            ConsoleReply,
            lambda a, found: console_reply(
                a.consoles, found, a.query.since, a.query.bytes, raw=a.query.raw
            ),
        ),
        query=ConsoleQuery,
        secret=True,
    ),
    named_route(
        "POST /nodes/{name}/console",
        use("node"),
        "Type on a node's serial console",
        lambda a: partial(
            consoles.type_,
            name=a.names.name,
            text=a.body.typed.replace("\r\n", "\n").replace("\n", "\r"),
            rules=a.site.consoles,
            everything=a.who.admin,
            now=a.now,
        ),
        reply=Shaped(
            ConsoleTypedReply,
            lambda found: ConsoleTypedReply(node=found.node, bytes=found.bytes),
        ),
        body=ConsoleTyped,
        status=202,
    ),
    named_route(
        "POST /nodes/{name}/quarantine",
        ADMINS,
        "Take a node out of service (quarantine)",
        lambda a: _shown(
            a,
            partial(
                nodes.quarantine,
                context=a.context,
                name=a.names.name,
                reason=a.body.reason,
                until=a.body.until,
            ),
        ),
        reply=NodeReply,
        body=OutOfService,
    ),
    named_route(
        "POST /nodes/{name}/restore",
        ADMINS,
        "Return a node from quarantine or retirement",
        lambda a: _shown(a, partial(nodes.restore, context=a.context, name=a.names.name)),
        reply=NodeReply,
    ),
    named_route(
        "POST /nodes/{name}/retire",
        ADMINS,
        "Retire a node",
        lambda a: _shown(a, partial(nodes.retire, context=a.context, name=a.names.name)),
        reply=NodeReply,
    ),
)
