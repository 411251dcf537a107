"""Vclusters."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from cod import model
from cod.flows import views
from cod.flows.nodes import host_keys
from cod.flows.people.access import RequiredRight
from cod.flows.scheduler import vclusters
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, AskedVolume, Refused, Result, Right, SingleRight, set_values
from cod.model.names import ONE_LINE
from cod.pool import Tx
from cod.states import VclusterState
from cod.web.api.models import (
    Body,
    CreateOf,
    DnsLabel,
    Line,
    OneOrSeveral,
    Paged,
    Query,
    Reply,
    ReplyOf,
    Requirements,
    Seconds,
    TemplateName,
)
from cod.web.api.resources.energy import Moment
from cod.web.api.resources.nodes import HISTORY, HistoryQuery, NodeReply
from cod.web.api.resources.requests import TupleAsk, length, tuples
from cod.web.api.resources.volumes import DeleteAfter, MountPoint
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Names,
    Shaped,
    named_route,
    paged,
    route,
    see,
    use,
)

_Shown = tuple[model.VclusterView, list[model.NodeView]]


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


class VclusterCreate(CreateOf[AskedVcluster]):
    """A new vcluster."""

    name: DnsLabel
    size: int = Field(ge=1, le=100_000, description="nodes")
    template: TemplateName
    group: str = Field(default="site", min_length=1, max_length=63)
    attributes: Requirements = Field(
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
    network_size: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description=(
            "prefix length of the subnet of an isolated one; null: the site's default, or what the"
            " nodes need"
        ),
    )
    vcm_inside: bool = Field(
        default=False,
        description=(
            "its manager runs on its first node, which finds what that needs when it is primed"
        ),
    )
    volumes: list[VolumeAsk] = Field(
        default=[], max_length=32, description="volumes that its nodes mount"
    )


class VclusterQuery(Paged):
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
    """The number of nodes that the vcluster is to have."""

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
    """The length of the lease from now on."""

    lease: Seconds


class VclusterPatch(Body):
    """Changes to a vcluster's name and description. A field that is left out stays as it is."""

    name: DnsLabel | None = Field(default=None, description="another name; its nodes' names follow")
    description: str | None = Field(
        default=None, max_length=500, pattern=ONE_LINE, description="what the cluster is for"
    )
    tags: Line | None = Field(default=None, description="words to find it by, with spaces between")

    @property
    def given(self) -> dict[str, str]:
        """Return the fields that the patch names, with their values, without spaces around them."""
        named = {"name": self.name, "description": self.description, "tags": self.tags}
        return {name: " ".join(text.split()) for name, text in named.items() if text is not None}


class Release(Body):
    """Nodes (by name or host name) that the vcluster gives back."""

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
    server  COD's address in it; router: the default router of its nodes, null: it has none
    """

    vlan: int
    subnet: str
    server: str
    router: str | None


class VclusterReply(ReplyOf[model.VclusterView]):
    """A vcluster. `states` counts its nodes by state; `addresses` are those of its nodes, in
    ranges; `network`: null if the vcluster is not isolated, has no nodes yet, or has ended."""

    name: str
    state: VclusterState
    addresses: list[AddressRangeReply]
    network: NetworkReply | None
    states: dict[str, int]

    @classmethod
    def values(cls, view: model.VclusterView) -> dict[str, Any]:
        """Return the described values, and those that are made here."""
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


class KnownHostsQuery(Query):
    """Format of a known_hosts file."""

    format: Literal["json", "text"] | None = Field(
        default=None, description="text: the lines alone, a file for OpenSSH's UserKnownHostsFile"
    )


class KnownHosts(Reply):
    """Lines of OpenSSH's known_hosts file, one for each host key, with the node's name and address,
    and the key that COD installed on it. Nodes that make their keys themselves have none."""

    lines: list[str]

    def as_text(self) -> str:
        """Return the text of the file."""
        return "".join(f"{line}\n" for line in self.lines)


def asked(body: VclusterCreate) -> AskedVcluster:
    """Return the vcluster, or each of the series, that the body requests. Raises `Refused`."""
    return AskedVcluster(
        name=body.name,
        size=body.size,
        template=body.template,
        group=body.group,
        lease=length(body.lease, body.starts_at, body.ends_at),
        attributes=body.attributes,
        also=tuples(body.also),
        spread=body.spread,
        wait=body.wait,
        network_size=body.network_size,
        mounts=[
            AskedVolume(each.volume, each.mount, each.read_only, each.delete_after)
            for each in body.volumes
        ],
        starts_at=body.starts_at,
        **set_values(AskedVcluster, body),
    )


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
        """Create a vcluster and its VCM in one transaction, so that the VCM exists before its node
        is primed."""
        made = create(tx)
        vcms.enrol_inside(
            tx, vcluster=ask.body.name, head=None, now=ask.now, replace_enrolled=False
        )
        return made

    return with_vcm


def creates(ask: Call[Names, Any]) -> list[RequiredRight]:
    """Return the rights of members and owners of the vcluster's group, who work with the volumes
    that it mounts. Its templates are that group's, or the site's. Only owners enrol a VCM or choose
    mount points."""
    owners = ask.body.vcm_inside or any(each.mount for each in ask.body.volumes)
    right = Right.MANAGE if owners else Right.USE
    group = RequiredRight(right, "group", ask.body.group, field="group")
    mounted = [
        RequiredRight(
            Right.USE if each.delete_after is None else Right.MANAGE,
            "volume",
            each.volume if "/" in each.volume else f"{ask.body.group}/{each.volume}",
            field=f"volumes.{place}.volume",
        )
        for place, each in enumerate(ask.body.volumes)
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
        "GET /vclusters",
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
        reply=paged(VclusterReply, "Vclusters."),
        query=VclusterQuery,
    ),
    named_route(
        "GET /vclusters/{name}",
        see("vcluster"),
        "Show a vcluster with its nodes",
        lambda a: partial(views.vcluster, name=a.names.name, policy=a.site.policy),
        reply=_IN_FULL,
        audit_view=lambda a: (
            lambda tx: VclusterReply(**VclusterReply.values(views.vcluster_alone(tx, a.names.name)))
        ),
    ),
    named_route(
        "GET /vclusters/{name}/history",
        see("vcluster"),
        "List the transitions of nodes while a vcluster held them",
        lambda a: partial(
            views.history, vcluster=a.names.name, page=a.query.page, groups=a.who.groups
        ),
        reply=HISTORY,
        query=HistoryQuery,
    ),
    named_route(
        "GET /vclusters/{name}/known_hosts",
        see("vcluster"),
        "List the SSH host keys of a vcluster's nodes, as known_hosts lines",
        lambda a: partial(host_keys.known_hosts, name=a.names.name, site=a.site),
        reply=Shaped(KnownHosts, lambda lines: KnownHosts(lines=lines)),
        query=KnownHostsQuery,
    ),
    route(
        "POST /vclusters",
        creates,
        "Create a vcluster; the manager grants its nodes later",
        _vcluster_wanted,
        reply=_IN_FULL,
        body=VclusterCreate,
        status=202,
        makes="/vclusters/{name}",
    ),
    named_route(
        "POST /vclusters/{name}/resize",
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
    ),
    named_route(
        "POST /vclusters/{name}/extend",
        use("vcluster", SingleRight.RESIZE),
        "Extend the lease",
        lambda a: partial(
            vclusters.extend, context=a.context, name=a.names.name, lease=a.body.lease
        ),
        reply=_IN_FULL,
        body=Extend,
    ),
    named_route(
        "POST /vclusters/{name}/release",
        use("vcluster", SingleRight.RESIZE),
        "Release some nodes",
        lambda a: partial(
            vclusters.release, context=a.context, name=a.names.name, nodes_=a.body.nodes
        ),
        reply=_IN_FULL,
        body=Release,
        status=202,
    ),
    named_route(
        "PATCH /vclusters/{name}",
        use("vcluster"),
        "Rename, describe and tag a vcluster",
        lambda a: partial(
            vclusters.describe, context=a.context, name=a.names.name, changes=a.body.given
        ),
        reply=_IN_FULL,
        body=VclusterPatch,
    ),
    named_route(
        "DELETE /vclusters/{name}",
        use("vcluster"),
        "Release all nodes and end the vcluster",
        lambda a: partial(vclusters.delete, context=a.context, name=a.names.name),
        reply=_IN_FULL,
        status=202,
    ),
)
