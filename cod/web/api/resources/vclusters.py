"""Vclusters and their requests for nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from cod import model
from cod.flows import views
from cod.flows.nodes import host_keys
from cod.flows.people.access import RequiredRight
from cod.flows.scheduler import moves, requests, vclusters
from cod.flows.vcms import vcms
from cod.model import AskedTuple, AskedVcluster, AskedVolume, Refused, Result, Right, SingleRight
from cod.pool import Tx
from cod.states import RequestState, VclusterState
from cod.web.api.documents import checked
from cod.web.api.models import (
    REVISION,
    Body,
    DnsLabel,
    ListPage,
    OneOrSeveral,
    Paged,
    Query,
    Reply,
    ReplyOf,
    Seconds,
    TemplateName,
    Xml,
)
from cod.web.api.resources import moves as moving
from cod.web.api.resources.energy import Moment
from cod.web.api.resources.nodes import HistoryList, HistoryQuery, Move, NodeReply
from cod.web.api.resources.volumes import DeleteAfter, MountPoint
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Named,
    Names,
    Numbered,
    Shaped,
    listed,
    number,
    route,
    see,
    use,
)

_Shown = tuple[model.VclusterView, list[model.NodeView]]


class TupleAsk(Body):
    """One (count, attributes, template); '' stands for what the vcluster was created with."""

    count: int = Field(ge=1, le=100_000)
    attributes: Xml = ""
    template: str = Field(default="", max_length=REVISION)


class VolumeAsk(Body):
    """A volume that a new vcluster mounts."""

    volume: str = Field(
        min_length=1,
        max_length=127,
        description="its name; one of the vcluster's group may be named without it",
    )
    mount: MountPoint = ""
    read_only: bool = False
    delete_after: DeleteAfter = None


class VclusterCreate(Body):
    """A new vcluster."""

    name: DnsLabel
    size: int = Field(ge=1, le=100_000, description="nodes")
    template: TemplateName
    group: str = Field(default="site", min_length=1, max_length=63)
    attributes: Xml = Field(
        default="", description="requirements for its nodes (XML); empty for any"
    )
    also: list[TupleAsk] = Field(
        default=[],
        max_length=99,
        description=(
            "nodes of other kinds beside the first `size`; it gets all of them at once, or none"
        ),
    )
    lease: Seconds | None = Field(default=None, description="seconds; null for the group's default")
    starts_at: Moment = Field(
        default=None,
        description=(
            "reserves it in advance: seconds since the epoch at which it gets its nodes; its name, "
            "and its addresses or its network, are its own from now on; null: as soon as possible"
        ),
    )
    ends_at: Moment = Field(
        default=None,
        description="of a reservation in advance, in place of `lease`: when its lease ends",
    )
    spread: bool = Field(default=False, description="its nodes may be of several types and blocks")
    wait: bool = Field(
        default=True, description="false: it is rejected if it cannot be had at once"
    )
    preemptible: bool = Field(
        default=False,
        description=(
            "any other request may take its nodes, down to none, with "
            "the grace of a reclaim; it may have nodes that are held for others until then"
        ),
    )
    isolated: bool | None = Field(
        default=None,
        description=(
            "its nodes are in a VLAN and a subnet of their own; null: as the site's rules say"
        ),
    )
    network_size: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description=(
            "prefix length of that subnet; null: the site's default, or what the nodes need"
        ),
    )
    vcm_inside: bool = Field(
        default=False,
        description=(
            "its manager runs on its first node, which finds what that needs when it is primed"
        ),
    )
    homes: bool | None = Field(
        default=None,
        description=(
            "its nodes mount home directories from its group's home "
            "volume; null: as the site's rules say"
        ),
    )
    volumes: list[VolumeAsk] = Field(
        default=[], max_length=32, description="volumes that its nodes mount"
    )


class VclusterQuery(Paged):
    """Which vclusters to list."""

    group: str | None = Field(default=None, max_length=63)
    state: Annotated[str | None, OneOrSeveral(VclusterState)] = Field(
        default=None, max_length=200, description="one, or several with commas between"
    )
    sort: Literal[
        "name",
        "-name",
        "group",
        "-group",
        "state",
        "-state",
        "size",
        "-size",
        "created_at",
        "-created_at",
        "expires_at",
        "-expires_at",
    ] = "name"

    ended: bool = Field(default=False, description="also those that have ended")


class Resize(Body):
    """How many nodes the vcluster shall have."""

    size: int = Field(ge=1, le=100_000)
    seen_size: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="its size as it was seen: refused where it is another now; null: any",
    )
    spread: bool = Field(
        default=False, description="further nodes may be of several types and blocks"
    )
    wait: bool = Field(
        default=True, description="false: growth is rejected if it cannot be had at once"
    )


class Extend(Body):
    """How long from now the lease shall last."""

    lease: Seconds


class Release(Body):
    """Which nodes (by name or host name) the vcluster gives back."""

    nodes: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(
        min_length=1, max_length=100_000
    )


class AddressRangeReply(Reply):
    """Addresses from `first` to `last`, both included."""

    first: str
    last: str


class NetworkReply(Reply):
    """The network of an isolated vcluster.

    subnet  ADDRESS/BITS
    server  COD's address in it; router: the default router of its nodes, null: there is none
    """

    vlan: int
    subnet: str
    server: str
    router: str | None


class VclusterReply(ReplyOf[model.VclusterView]):
    """A vcluster. `states` counts its nodes by state; `addresses` are those of its nodes, in
    ranges; `network`: null where it is not isolated, has no nodes yet, or has ended."""

    name: str
    state: VclusterState
    addresses: list[AddressRangeReply]
    network: NetworkReply | None
    states: dict[str, int]

    @classmethod
    def values(cls, view: model.VclusterView) -> dict[str, Any]:
        """Return the described values, and those made by hand."""
        addresses = [
            AddressRangeReply(first=model.dotted(one.first), last=model.dotted(one.last))
            for one in view.addresses
        ]
        network = None
        if view.network is not None:
            router = view.network.router_address
            network = NetworkReply(
                vlan=view.network.vlan,
                subnet=str(view.network),
                server=model.dotted(view.network.server_address),
                router=None if router is None else model.dotted(router),
            )
        return dict(zip(cls.described, cls.read(view), strict=False)) | {
            "addresses": addresses,
            "network": network,
            "states": dict(view.states),
        }


class VclusterInFull(VclusterReply):
    """A vcluster with its nodes."""

    nodes: list[NodeReply]


class VclusterList(ListPage[VclusterReply]):
    """Vclusters."""


class KnownHostsQuery(Query):
    """How to show a known_hosts file."""

    format: Literal["json", "text"] | None = Field(
        default=None, description="text: the lines alone, a file for OpenSSH's UserKnownHostsFile"
    )


class KnownHosts(Reply):
    """Lines of OpenSSH's known_hosts file, one a host key: the node's name and address, and the key
    that COD installed it with. Nodes that make their keys themselves have none."""

    lines: list[str]

    def as_text(self) -> str:
        """Return the file."""
        return "".join(f"{line}\n" for line in self.lines)


Kind = Literal["create", "grow", "replace", "move"]


class RequestQuery(Paged):
    """Which requests to list."""

    vcluster: str | None = Field(default=None, max_length=63)
    group: str | None = Field(default=None, max_length=63)
    state: Annotated[str | None, OneOrSeveral(RequestState)] = Field(
        default=None, max_length=200, description="one, or several with commas between"
    )
    kind: Kind | None = None
    sort: Literal["id", "-id", "priority", "-priority"] = "-id"


class RequestSubmit(Body):
    """Nodes that a vcluster wants beside those it has."""

    tuples: list[TupleAsk] = Field(min_length=1, max_length=100)
    spread: bool = Field(
        default=False, description="the nodes of one tuple may be of several types and blocks"
    )
    wait: bool = Field(
        default=True, description="false: it is rejected if it cannot be met at once"
    )
    starts_at: Moment = Field(
        default=None,
        description=(
            "reserves the nodes in advance: seconds since the epoch; null: as soon as possible"
        ),
    )
    duration: Seconds | None = Field(
        default=None,
        description=(
            "of a reservation in advance: seconds for which the "
            "vcluster's lease lasts from its start on, at least"
        ),
    )
    before: float | None = Field(
        default=None,
        ge=0,
        le=1e11,
        allow_inf_nan=False,
        description=(
            "in place of a start: the best one is chosen after which `duration` is over by then, "
            "in seconds since the epoch"
        ),
    )


class TupleReply(Reply):
    """One (count, attributes, template) of a request."""

    count: int
    attributes: str
    template: str


class RequestRetry(Body):
    """Try a stopped request again. `template`: name or name@revision of what its nodes are to run;
    '': what they were to run before."""

    template: str = Field(default="", max_length=REVISION)


class RequestChange(Body):
    """What a vcluster that waits for its first nodes is to begin with in place of what it asked
    for. `count`: no more nodes than that; `spread`: as in RequestSubmit, null: as it asked."""

    count: int = Field(ge=1, le=100_000)
    spread: bool | None = None


class ExpectedReply(Reply):
    """When a waiting request is expected to start, as told at `told_at`.

    at  null: nobody can tell; `why` says why not
    sooner_nodes, sooner_at  with so many nodes it would start by then; null: nothing is known
    """

    at: float | None
    why: str
    told_at: float
    sooner_nodes: int | None
    sooner_at: float | None


class RequestReply(Reply):
    """A request for nodes; `reason` says why it waits, is stopped or was rejected.

    may_wait    false: it is rejected unless it can be met at once; may_spread: see RequestSubmit's
                `spread`
    move        of kind 'move': whose nodes it gets, and how far it is; else null
    starts_at   of a reservation in advance, with its `duration` in seconds; null: it is none
    expected    when it is expected to start; null: it does not wait, or nothing is told yet
    """

    id: int
    vcluster: str
    kind: Kind
    state: RequestState
    reason: str
    priority: int
    submitted_at: float
    decided_at: float | None
    may_wait: bool
    may_spread: bool
    starts_at: float | None
    duration: float | None
    tuples: list[TupleReply]
    move: moving.MoveReply | None = None
    expected: ExpectedReply | None = None

    @classmethod
    def of(cls, view: model.RequestView) -> RequestReply:
        """Return the reply from the view."""
        request = view.request
        own = {
            key: getattr(request, key)
            for key in cls.model_fields
            if key not in ("vcluster", "tuples", "move", "expected")
        }
        if view.start is not None:
            own["expected"] = ExpectedReply.model_validate(view.start)
        if request.source_id is not None:
            own["move"] = moving.MoveReply.of(view)
        tuples = [
            TupleReply(count=each.count, attributes=each.attributes, template=name)
            for each, name in zip(request.tuples, view.templates, strict=True)
        ]
        return cls(**own, vcluster=view.vcluster, tuples=tuples)


class RequestList(ListPage[RequestReply]):
    """Requests, the newest first."""


def asked(body: VclusterCreate) -> AskedVcluster:
    """Return the vcluster, or each of the series, that the body asks for. Raises `Refused`."""
    return AskedVcluster(
        name=body.name,
        size=body.size,
        template=body.template,
        group=body.group,
        lease=_lease(body),
        attributes=checked(body.attributes, "requires", "attributes"),
        also=_tuples(body.also, "also"),
        spread=body.spread,
        wait=body.wait,
        preemptible=body.preemptible,
        isolated=body.isolated,
        network_size=body.network_size,
        homes=body.homes,
        mounts=[
            AskedVolume(each.volume, each.mount, each.read_only, each.delete_after)
            for each in body.volumes
        ],
        starts_at=body.starts_at,
    )


def _tuples(tuples: Sequence[TupleAsk], place: str) -> list[AskedTuple]:
    """Return tuples as flows take them; `place`: their field of the body. Raises `Refused`."""
    return [
        AskedTuple(
            each.count,
            checked(each.attributes, "requires", f"{place}.{number}.attributes"),
            each.template,
        )
        for number, each in enumerate(tuples)
    ]


def _vcluster_wanted(ask: Call[Names, VclusterCreate]) -> Flow[Result[_Shown]]:
    create: Flow[Result[_Shown]] = partial(
        vclusters.create, context=ask.context, asked=asked(ask.body), possible=True
    )
    if not ask.body.vcm_inside:
        return create
    if ask.authority is None or not ask.site.nmp.port:
        raise Refused(
            "conflict", "this site has NMP switched off: [nmp] port in the site file", "vcm_inside"
        )

    def with_vcm(tx: Tx) -> Result[_Shown]:
        """Create a vcluster with its VCM in one transaction: before its node is primed."""
        made = create(tx)
        vcms.enrol_inside(tx, vcluster=ask.body.name, head=None, now=ask.now, anew=False)
        return made

    return with_vcm


def _lease(body: VclusterCreate) -> float | None:
    """Return the seconds of the lease that the body asks for, by its length or by its end; None:
    the group's default. Raises `Refused`."""
    if body.ends_at is None:
        return body.lease
    if body.starts_at is None or body.lease is not None:
        raise Refused(
            "invalid",
            "an end belongs to a start, and stands in place of the lease's length",
            "ends_at",
        )
    if body.ends_at <= body.starts_at:
        raise Refused("invalid", "the end is not after the start", "ends_at")
    return body.ends_at - body.starts_at


def _nodes_wanted(ask: Call[Named, RequestSubmit]) -> Flow[Result[model.RequestView]]:
    return partial(
        requests.submit,
        context=ask.context,
        vcluster=ask.names.name,
        wanted=_tuples(ask.body.tuples, "tuples"),
        spread=ask.body.spread,
        wait=ask.body.wait,
        starts_at=ask.body.starts_at,
        duration=ask.body.duration,
        before=ask.body.before,
        possible=True,
    )


def creates(ask: Call[Names, Any]) -> list[RequiredRight]:
    """Return members and owners of the group that it shall belong to, who work with the volumes
    that it mounts. Its templates are that group's, or the site's. Owners alone enrol a VCM, and
    choose mount points."""
    owners = ask.body.vcm_inside or any(each.mount for each in ask.body.volumes)
    group = RequiredRight(Right.MANAGE if owners else Right.USE, "group", ask.body.group)
    mounted = [
        RequiredRight(
            Right.USE if each.delete_after is None else Right.MANAGE,
            "volume",
            each.volume if "/" in each.volume else f"{ask.body.group}/{each.volume}",
        )
        for each in ask.body.volumes
    ]
    return [group, *mounted]


_IN_FULL: Shaped[_Shown, VclusterInFull] = Shaped(
    VclusterInFull,
    lambda found: VclusterInFull(
        **VclusterReply.values(found[0]), nodes=[NodeReply.of(each) for each in found[1]]
    ),
)

VCLUSTERS = (
    route(
        "GET",
        "/vclusters",
        ANYBODY,
        "List vclusters",
        lambda a: partial(
            views.vcluster_list,
            page=a.query.page,
            groups=a.who.groups,
            ended=a.query.ended,
            state=a.query.state,
            group=a.query.group,
        ),
        reply=listed(VclusterList, VclusterReply.of),
        query=VclusterQuery,
    ),
    route(
        "GET",
        "/vclusters/{name}",
        see("vcluster"),
        "Show a vcluster with its nodes",
        lambda a: partial(views.vcluster, name=a.names.name, policy=a.site.policy),
        reply=_IN_FULL,
        audit_view=lambda a: (
            lambda tx: VclusterReply(**VclusterReply.values(views.vcluster_alone(tx, a.names.name)))
        ),
        names=Named,
    ),
    route(
        "GET",
        "/vclusters/{name}/history",
        see("vcluster"),
        "List the transitions of nodes while a vcluster held them",
        lambda a: partial(
            views.vcluster_history, name=a.names.name, page=a.query.page, groups=a.who.groups
        ),
        reply=listed(HistoryList, Move.of),
        query=HistoryQuery,
        names=Named,
    ),
    route(
        "GET",
        "/vclusters/{name}/known_hosts",
        see("vcluster"),
        "List the SSH host keys of a vcluster's nodes, as known_hosts lines",
        lambda a: partial(host_keys.known_hosts, name=a.names.name, site=a.site),
        reply=Shaped(KnownHosts, lambda lines: KnownHosts(lines=lines)),
        query=KnownHostsQuery,
        names=Named,
    ),
    route(
        "POST",
        "/vclusters",
        creates,
        "Create a vcluster; the manager grants its nodes later",
        _vcluster_wanted,
        reply=_IN_FULL,
        body=VclusterCreate,
        status=202,
        makes="/vclusters/{name}",
    ),
    route(
        "POST",
        "/vclusters/{name}/resize",
        use("vcluster", SingleRight.RESIZE),
        "Ask for more nodes, or give some back",
        lambda a: partial(
            vclusters.resize,
            context=a.context,
            name=a.names.name,
            size=a.body.size,
            seen_size=a.body.seen_size,
            spread=a.body.spread,
            wait=a.body.wait,
            possible=True,
        ),
        reply=_IN_FULL,
        body=Resize,
        status=202,
        names=Named,
    ),
    route(
        "POST",
        "/vclusters/{name}/extend",
        use("vcluster", SingleRight.RESIZE),
        "Extend the lease",
        lambda a: partial(
            vclusters.extend, context=a.context, name=a.names.name, lease=a.body.lease
        ),
        reply=_IN_FULL,
        body=Extend,
        names=Named,
    ),
    route(
        "POST",
        "/vclusters/{name}/release",
        use("vcluster", SingleRight.RESIZE),
        "Release some nodes",
        lambda a: partial(
            vclusters.release, context=a.context, name=a.names.name, nodes_=a.body.nodes
        ),
        reply=_IN_FULL,
        body=Release,
        status=202,
        names=Named,
    ),
    route(
        "DELETE",
        "/vclusters/{name}",
        use("vcluster"),
        "Release all nodes and end the vcluster",
        lambda a: partial(vclusters.delete, context=a.context, name=a.names.name),
        reply=_IN_FULL,
        status=202,
        names=Named,
    ),
)

REQUESTS = (
    route(
        "GET",
        "/requests",
        ANYBODY,
        "List requests for nodes",
        lambda a: partial(
            views.request_list,
            page=a.query.page,
            groups=a.who.groups,
            vcluster=a.query.vcluster,
            state=a.query.state,
            group=a.query.group,
            kind=a.query.kind,
        ),
        reply=listed(RequestList, RequestReply.of),
        query=RequestQuery,
    ),
    route(
        "GET",
        "/requests/{id}",
        see("request"),
        "Show a request and why it waits",
        lambda a: partial(views.request, request_id=number(a.names.id), groups=a.who.groups),
        reply=RequestReply,
        names=Numbered,
    ),
    route(
        "POST",
        "/vclusters/{name}/requests",
        use("vcluster"),
        "Ask for more nodes: all of the tuples, or nothing",
        _nodes_wanted,
        reply=RequestReply,
        body=RequestSubmit,
        status=202,
        makes="/requests/{id}",
        names=Named,
    ),
    route(
        "DELETE",
        "/requests/{id}",
        use("request"),
        "Withdraw a request that waits",
        lambda a: partial(
            requests.withdraw,
            request_id=number(a.names.id),
            reason=f"withdrawn by {a.actor}",
            now=a.now,
            seen=a.who.groups,
        ),
        reply=RequestReply,
        names=Numbered,
    ),
    route(
        "POST",
        "/requests/{id}/change",
        use("request"),
        "Ask for fewer nodes, or other types, for a vcluster that waits for its first",
        lambda a: partial(
            requests.change,
            request_id=number(a.names.id),
            count=a.body.count,
            spread=a.body.spread,
            now=a.now,
            seen=a.who.groups,
        ),
        reply=RequestReply,
        body=RequestChange,
        status=202,
        makes="/requests/{id}",
        names=Numbered,
    ),
    route(
        "POST",
        "/requests/{id}/retry",
        use("request"),
        "Try a stopped request again, with another template if one is given",
        lambda a: partial(
            requests.retry,
            request_id=number(a.names.id),
            template=a.body.template,
            now=a.now,
            seen=a.who.groups,
        ),
        reply=RequestReply,
        body=RequestRetry,
        names=Numbered,
    ),
    route(
        "POST",
        "/vclusters/{name}/moves",
        moving.claims,
        "Move nodes to another vcluster; the reply is its request",
        lambda a: partial(
            moves.start,
            context=a.context,
            source=a.names.name,
            target=a.body.to,
            count=a.body.nodes,
            within=a.body.within,
            only=a.body.types,
        ),
        reply=RequestReply,
        body=moving.MoveStart,
        status=202,
        makes="/requests/{id}",
        names=Named,
    ),
)
