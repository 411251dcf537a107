"""Bodies about vclusters, requests and groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cod import model
from cod.states import RequestState, VclusterState
from cod.web.bodies.base import REVISION, Body, DnsLabel, OneOrSeveral, Paged, Part, Reply, Seconds, TemplateName, Xml
from cod.web.bodies.nodes import NodeReply


class TupleAsk(Body):
    """One (count, attributes, template); '' stands for what the vcluster was created with."""

    count: int = Field(ge=1, le=100_000)
    attributes: Xml = ""
    template: str = Field(default="", max_length=REVISION)


class VclusterCreate(Body):
    """A new vcluster."""

    name: DnsLabel
    size: int = Field(ge=1, le=100_000, description="nodes")
    template: TemplateName
    group: str = Field(default="site", min_length=1, max_length=63)
    attributes: Xml = Field(default="", description="requirements for its nodes (XML); empty for any")
    also: list[TupleAsk] = Field(default=[], max_length=99, description="nodes of other kinds beside the first `size`; "
                                 "it gets all of them at once, or none")
    lease: Seconds | None = Field(default=None, description="seconds; null for the group's default")
    spread: bool = Field(default=False, description="its nodes may be of several types and blocks")
    wait: bool = Field(default=True, description="false: it is rejected if it cannot be had at once")
    vcm_inside: bool = Field(default=False, description="its manager runs on its first node, which finds what "
                             "that needs when it is primed")


class VclusterQuery(Paged):
    """Which vclusters to list."""

    group: str | None = Field(default=None, max_length=63)
    state: Annotated[str | None, OneOrSeveral(VclusterState)] = Field(
        default=None, max_length=200, description="one, or several with commas between")
    sort: Literal["name", "-name", "group", "-group", "state", "-state", "size", "-size", "created_at", "-created_at",
                  "expires_at", "-expires_at"] = "name"

    ended: bool = Field(default=False, description="also those that have ended")


class Resize(Body):
    """How many nodes the vcluster shall have."""

    size: int = Field(ge=1, le=100_000)
    spread: bool = Field(default=False, description="further nodes may be of several types and blocks")
    wait: bool = Field(default=True, description="false: growth is rejected if it cannot be had at once")


class Extend(Body):
    """How long from now the lease shall last."""

    lease: Seconds


class Release(Body):
    """Which nodes (by name or host name) the vcluster gives back."""

    nodes: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(min_length=1, max_length=100_000)


class VclusterReply(Reply):
    """A vcluster. `states` counts its nodes by state; `first_address`, `last_address` bound its block.

    id           tells it from others that had its name: /vclusters/NAME@ID is this one, even after it has ended
    drain_until  set: its lease has run out, and at that time its nodes are taken back
    ready_at     when all its nodes were first active; null: not yet
    """

    id: int
    name: str
    group: str
    state: VclusterState
    template: str
    size: int
    creation_size: int
    attributes: str
    subnet: str | None
    first_address: str | None
    last_address: str | None
    lease_time: float
    expires_at: float | None
    drain_until: float | None
    ready_at: float | None
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


class VclusterList(Part):
    """Vclusters."""

    items: list[VclusterReply]


def _vcluster(view: model.VclusterView) -> dict[str, Any]:
    own = {key: getattr(view.vcluster, key) for key in VclusterReply.model_fields if hasattr(view.vcluster, key)}
    for key in ("first_address", "last_address"):
        own[key] = None if own[key] is None else model.dotted(own[key])
    return own | {"group": view.group, "template": view.template, "states": dict(view.states)}


class RequestQuery(Paged):
    """Which requests to list."""

    vcluster: str | None = Field(default=None, max_length=63)
    group: str | None = Field(default=None, max_length=63)
    state: Annotated[str | None, OneOrSeveral(RequestState)] = Field(
        default=None, max_length=200, description="one, or several with commas between")
    sort: Literal["id", "-id", "priority", "-priority"] = "-id"


class RequestSubmit(Body):
    """Nodes that a vcluster wants beside those it has."""

    tuples: list[TupleAsk] = Field(min_length=1, max_length=100)
    spread: bool = Field(default=False, description="the nodes of one tuple may be of several types and blocks")
    wait: bool = Field(default=True, description="false: it is rejected if it cannot be met at once")


class TupleReply(Reply):
    """One (count, attributes, template) of a request."""

    count: int
    attributes: str
    template: str


class RequestReply(Reply):
    """A request for nodes; `reason` says why it waits or was rejected.

    may_wait    false: it is rejected unless it can be met at once; may_spread: see RequestSubmit's `spread`
    """

    id: int
    vcluster: str
    kind: Literal["create", "grow", "replace"]
    state: RequestState
    reason: str
    priority: int
    submitted_at: float
    decided_at: float | None
    may_wait: bool
    may_spread: bool
    tuples: list[TupleReply]

    @classmethod
    def of(cls, view: model.RequestView) -> RequestReply:
        """From the view."""
        request = view.request
        own = {key: getattr(request, key) for key in cls.model_fields if key not in ("vcluster", "tuples")}
        tuples = [TupleReply(count=each.count, attributes=each.attributes, template=name)
                  for each, name in zip(request.tuples, view.templates, strict=True)]
        return cls(**own, vcluster=view.vcluster, tuples=tuples)


class RequestList(Part):
    """Requests, the newest first."""

    items: list[RequestReply]


Quota = Annotated[int, Field(ge=0, le=2**62, description="bytes that its images and open uploads may take; null: the "
                             "site's default")]
Emails = Annotated[str, Field(max_length=6000, description="whom to tell: addresses, separated by commas")]
Events = Annotated[list[Literal["notices", "vclusters", "nodes"]], Field(
    max_length=3, description="what is posted to the webhook: notices for people, what happens to vclusters, to nodes")]
WebhookUrl = Annotated[str, Field(max_length=2000, description="http(s) URL that notices are posted to; '' for none")]


class GroupCreate(Body):
    """A new group; leases in seconds."""

    name: DnsLabel
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000, description="larger goes first")
    default_lease: Seconds | None = None
    max_lease: Seconds | None = None
    email: Emails = ""
    webhook: WebhookUrl = ""
    events: Events = Field(default=["notices"])
    image_quota: Quota | None = None


class GroupPatch(Body):
    """What to change of a group; what is left out stays. A lease of null: the site's default, no limit; a quota of
    null: the site's."""

    priority: int | None = Field(default=None, ge=-1_000_000, le=1_000_000, description="larger goes first")
    default_lease: Seconds | None = None
    max_lease: Seconds | None = None
    email: Emails | None = None
    webhook: WebhookUrl | None = None
    events: Events | None = None
    image_quota: Quota | None = None

    @model_validator(mode="after")
    def _something(self) -> GroupPatch:
        if not self.model_fields_set:
            raise ValueError("names nothing to change")
        for name in ("priority", "email", "webhook", "events"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null")
        return self


class WebhookSecret(Reply):
    """What the signature of a group's webhook is checked with."""

    group: str
    secret: str


class GroupReply(Reply):
    """A group. `email`: addresses, separated by commas."""

    name: str
    priority: int
    default_lease: float | None
    max_lease: float | None
    email: str
    webhook: str
    events: tuple[str, ...]
    image_quota: int | None
    created_at: float


class GroupQuery(Paged):
    """Which groups to list."""

    sort: Literal["name", "-name", "priority", "-priority", "created_at", "-created_at"] = "name"


class GroupList(Part):
    """Groups."""

    items: list[GroupReply]
