"""What the REST API's bodies look like: they check requests, shape replies and make the OpenAPI document.

Times are seconds since the epoch (UTC), lengths of time seconds, sizes bytes. Things are named by their names, never by
row ids; a template is named 'name' (its newest revision) or 'name@revision'. Unknown keys of a request are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cod import model

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="a DNS label")]
TemplateName = Annotated[str, Field(min_length=1, max_length=80, description="'name' or 'name@revision'")]
Seconds = Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]
Reason = Annotated[str, Field(min_length=1, max_length=1000)]
Xml = Annotated[str, Field(max_length=2**20)]


class Body(BaseModel):
    """A request's body: no unknown keys, no silent conversions (a number is not a string)."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """A request's query string: text is converted, unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


class Reply(BaseModel):
    """A reply's body, made from a record's attributes."""

    model_config = ConfigDict(from_attributes=True)


# ---------------------------------------------------------------- nodes


class NodeQuery(Query):
    """Which nodes to list."""

    state: str | None = Field(default=None, max_length=16)
    vcluster: str | None = Field(default=None, max_length=63)
    after: str = Field(default="", max_length=63, description="names after this one: the last page's `next`")
    limit: int = Field(default=1000, ge=1, le=10_000)


class NodePatch(Body):
    """What an administrator may change of a node; what is left out stays."""

    name: DnsLabel | None = None
    block: str | None = Field(default=None, max_length=63, description="nodes near each other; '' takes it out of its")
    power_driver: Literal["none", "lab", "ipmi", "redfish", "wol", "pdu"] | None = None
    power_address: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _something(self) -> NodePatch:
        if not self.model_fields_set:
            raise ValueError("names nothing to change")
        return self


class PowerWish(Body):
    """What the node's power shall be."""

    desired: Literal["on", "off", "cycle"]


class Because(Body):
    """Why."""

    reason: Reason


class Progress(Reply):
    """Bytes written or erased of the running step; `rate` in bytes per second."""

    done: int
    total: int
    rate: float


class Power(Reply):
    """A node's power: as last verified, as last wished, and by what it is switched."""

    state: str
    wanted: str | None
    driver: str
    address: str


class NodeReply(Reply):
    """A node."""

    name: str
    state: str
    since: float
    reason: str
    deadline: float | None
    attempts: int
    firmware: str | None
    boot_mac: str
    macs: tuple[str, ...]
    uuid: str | None
    type: str | None
    vcluster: str | None
    template: str | None
    hostname: str | None
    address: str | None
    disk: str
    power: Power
    progress: Progress | None
    reported_at: float | None
    last_seen: float | None

    @classmethod
    def of(cls, view: model.NodeView) -> NodeReply:
        """From the view."""
        return cls(**_node(view))


class BindingReply(Reply):
    """An address bound to the node."""

    address: str
    mac: str | None
    kind: str
    subnet: str
    hostname: str | None
    state: str
    expires_at: float


class Transition(Reply):
    """A row of a node's history."""

    id: int
    at: float
    event: str
    from_state: str | None
    to_state: str
    cause: str
    actor: str
    bytes_written: int | None
    rate: float | None


class NodeInFull(NodeReply):
    """A node with its last hardware report (XML), bindings and history (oldest first)."""

    attributes: str | None
    bindings: list[BindingReply]
    history: list[Transition]

    @classmethod
    def of_parts(
        cls, parts: tuple[model.NodeView, list[model.Binding], list[Mapping[str, Any]]]
    ) -> NodeInFull:
        """From the view, the bindings and the history's rows."""
        view, bindings, history = parts
        return cls(
            **_node(view),
            attributes=view.node.attributes,
            bindings=[_binding(each) for each in bindings],
            history=[Transition(**{key: row[key] for key in Transition.model_fields}) for row in history],
        )


class NodeList(Reply):
    """One page of nodes, by name; `next` is the `after` of the next page, or null on the last."""

    items: list[NodeReply]
    next: str | None


def _node(view: model.NodeView) -> dict[str, Any]:
    node = view.node
    progress = Progress(done=node.progress_done, total=node.progress_total, rate=node.progress_rate)
    own = {key: getattr(node, key) for key in NodeReply.model_fields if hasattr(node, key)}
    joined = {key: getattr(view, key) for key in ("macs", "type", "vcluster", "template", "address")}
    power = Power(state=node.power, wanted=node.power_wanted, driver=node.power_driver, address=node.power_address)
    return own | joined | {"power": power, "progress": progress if node.progress_total else None}


def _binding(binding: model.Binding) -> BindingReply:
    own = {key: getattr(binding, key) for key in BindingReply.model_fields if key != "address"}
    return BindingReply(address=model.dotted(binding.address), **own)


# ---------------------------------------------------------------- images and templates


class ImageAdd(Body):
    """A file on the server to take in as an image; only the local administrator may name one."""

    name: DnsLabel
    path: str = Field(min_length=1, max_length=4096)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$", description="of the file; checked")


class ImageUpload(Query):
    """What is said of an upload in its query string."""

    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$", description="of the file; checked")


class ImageReply(Reply):
    """An image. `size` is of the disk, `used` of its used chunks, `stored` of the served form."""

    name: str
    state: str
    format: str
    size: int
    used: int
    stored: int
    sha256: str
    digest: str
    created_at: float
    reason: str


class ImageList(Reply):
    """Images, by name."""

    items: list[ImageReply]


class Verified(Reply):
    """What reading an image again found: `bad` names damaged chunks."""

    ok: bool
    chunks: int
    bad: list[str]


class TemplateDocument(Body):
    """A template's XML."""

    document: Annotated[str, Field(min_length=1, max_length=2**20)]


class TemplateReply(Reply):
    """A revision of a template."""

    name: str
    revision: int
    digest: str
    created_at: float
    retired_at: float | None


class TemplateInFull(TemplateReply):
    """A revision of a template with its XML."""

    document: str


class TemplateList(Reply):
    """Templates."""

    items: list[TemplateReply]


class TemplateFault(Reply):
    """One fault of a template's document."""

    line: int
    sentence: str


class TemplateCheck(Reply):
    """What is wrong with a template's document; nothing, if `ok`."""

    ok: bool
    faults: list[TemplateFault]


# ---------------------------------------------------------------- vclusters, requests, groups


class VclusterCreate(Body):
    """A new vcluster."""

    name: DnsLabel
    size: int = Field(ge=1, le=100_000, description="nodes")
    template: TemplateName
    group: str = Field(default="site", min_length=1, max_length=63)
    attributes: Xml = Field(default="", description="requirements for its nodes (XML); empty for any")
    lease: Seconds | None = Field(default=None, description="seconds; null for the group's default")


class VclusterQuery(Query):
    """Which vclusters to list."""

    ended: bool = Field(default=False, description="also those that have ended")


class Resize(Body):
    """How many nodes the vcluster shall have."""

    size: int = Field(ge=1, le=100_000)


class Extend(Body):
    """How long from now the lease shall last."""

    lease: Seconds


class Release(Body):
    """Which nodes (by name or host name) the vcluster gives back."""

    nodes: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(min_length=1, max_length=100_000)


class VclusterReply(Reply):
    """A vcluster. `states` counts its nodes by state; `first_address`, `last_address` bound its block."""

    name: str
    group: str
    state: str
    template: str
    size: int
    creation_size: int
    attributes: str
    subnet: str | None
    first_address: str | None
    last_address: str | None
    lease_time: float
    expires_at: float | None
    created_at: float
    ended_at: float | None
    states: dict[str, int]

    @classmethod
    def of(cls, view: model.VclusterView) -> VclusterReply:
        """From the view."""
        return cls(**_vcluster(view))


class VclusterInFull(VclusterReply):
    """A vcluster with its nodes."""

    nodes: list[NodeReply]

    @classmethod
    def of_parts(cls, parts: tuple[model.VclusterView, list[model.NodeView]]) -> VclusterInFull:
        """From the view and its nodes."""
        return cls(**_vcluster(parts[0]), nodes=[NodeReply.of(each) for each in parts[1]])


class VclusterList(Reply):
    """Vclusters, by name."""

    items: list[VclusterReply]


def _vcluster(view: model.VclusterView) -> dict[str, Any]:
    own = {key: getattr(view.vcluster, key) for key in VclusterReply.model_fields if hasattr(view.vcluster, key)}
    for key in ("first_address", "last_address"):
        own[key] = None if own[key] is None else model.dotted(own[key])
    return own | {"group": view.group, "template": view.template, "states": dict(view.states)}


class RequestQuery(Query):
    """Which requests to list."""

    vcluster: str | None = Field(default=None, max_length=63)
    state: str | None = Field(default=None, max_length=16)
    limit: int = Field(default=1000, ge=1, le=10_000)


class TupleAsk(Body):
    """One (count, attributes, template); '' stands for what the vcluster was created with."""

    count: int = Field(ge=1, le=100_000)
    attributes: Xml = ""
    template: str = Field(default="", max_length=80)


class RequestSubmit(Body):
    """Nodes that a vcluster wants beside those it has."""

    tuples: list[TupleAsk] = Field(min_length=1, max_length=100)


class TupleReply(Reply):
    """One (count, attributes, template) of a request."""

    count: int
    attributes: str
    template: str


class RequestReply(Reply):
    """A request for nodes; `reason` says why it waits or was rejected."""

    id: int
    vcluster: str
    kind: str
    state: str
    reason: str
    priority: int
    submitted_at: float
    decided_at: float | None
    tuples: list[TupleReply]

    @classmethod
    def of(cls, view: model.RequestView) -> RequestReply:
        """From the view."""
        request = view.request
        own = {key: getattr(request, key) for key in cls.model_fields if key not in ("vcluster", "tuples")}
        tuples = [TupleReply(count=each.count, attributes=each.attributes, template=name)
                  for each, name in zip(request.tuples, view.templates, strict=True)]
        return cls(**own, vcluster=view.vcluster, tuples=tuples)


class RequestList(Reply):
    """The newest requests, oldest first."""

    items: list[RequestReply]


class GroupCreate(Body):
    """A new group; leases in seconds."""

    name: DnsLabel
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000, description="larger goes first")
    default_lease: Seconds | None = None
    max_lease: Seconds | None = None


class GroupReply(Reply):
    """A group."""

    name: str
    priority: int
    default_lease: float | None
    max_lease: float | None
    created_at: float


class GroupList(Reply):
    """Groups, by name."""

    items: list[GroupReply]


# ---------------------------------------------------------------- the server itself


class ConflictReply(Reply):
    """Address or identity trouble."""

    id: int
    at: float
    kind: str
    subnet: str | None
    address: str | None
    mac: str | None
    about: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ConflictReply:
        """From the table's row."""
        own = {key: row[key] for key in cls.model_fields}
        return cls(**own | {"address": None if row["address"] is None else model.dotted(row["address"])})


class ConflictList(Reply):
    """The newest conflicts first."""

    items: list[ConflictReply]


class Arrow(Reply):
    """An arrow of the lifecycle."""

    state: str
    event: str
    to: str


class StateReply(Reply):
    """A state of the lifecycle; `deadline` in seconds, null where nothing is owed."""

    name: str
    kind: str
    about: str
    deadline: float | None
    retries: int


class Lifecycle(Reply):
    """The nodes' lifecycle as it is compiled into this server."""

    states: list[StateReply]
    arrows: list[Arrow]


class Health(Reply):
    """The server answers and its database too; `counts` by thing and label."""

    ok: bool
    counts: dict[str, dict[str, int]]


class ServerInfo(Reply):
    """What this server is."""

    name: str
    domain: str
    version: str
    subnets: list[str]
    http_port: int
    confd_port: int


class EventQuery(Query):
    """From where to follow the events."""

    after: int | None = Field(default=None, ge=0, description="id of the last event seen; left out: only new ones")


class Problem(Reply):
    """An error (RFC 9457). `code` is stable; `field` names the part of the input that is meant, if one is."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
