"""Reinstallation of vclusters' nodes in place."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field

from cod.filters.language import LONGEST
from cod.flows.scheduler import reinstalls
from cod.flows.scheduler.reinstalls import ReinstalledNode
from cod.states import NodeState
from cod.web.api.models import Body, Items, ReplyOf, TemplateName
from cod.web.api.routes import Shaped, listed, named_route, see, use


class ReinstallStart(Body):
    """Nodes to install again in place. All data on their disks is lost; names and addresses
    stay."""

    nodes: list[Annotated[str, Field(max_length=4000, pattern=r"\S")]] = Field(
        default=[],
        max_length=1000,
        description="host names or names, with ranges: n[1-40]; empty: all that `where` means",
    )
    where: str = Field(
        default="", max_length=LONGEST, description="a filter: state=active; empty: all"
    )
    template: TemplateName | None = Field(
        default=None,
        description=(
            "null: each node the revision that it has. Where all nodes get it, it is the vcluster's"
            " from then on"
        ),
    )
    at_once: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description=(
            "nodes at a time, 0: all. Where one is lost on its way, those that have not begun keep"
            " their system"
        ),
    )


class ReinstalledReply(ReplyOf[ReinstalledNode], whole=True):
    """A node that is being installed again in place, or waits for that (`begun_at`: null), until it
    is active. `done` of `total` bytes of its disks are written."""

    state: NodeState


_LIST: Shaped[list[ReinstalledNode], Items[Any]] = listed(
    ReinstalledReply,
    "Nodes of a vcluster that are installed anew, or wait for it.",
    "ReinstallList",
)
_PATH = "/vclusters/{name}/reinstall"

REINSTALLS = (
    named_route(
        f"GET {_PATH}",
        see("vcluster"),
        "List nodes that are being reinstalled, or wait for it",
        lambda a: partial(reinstalls.under_way, name=a.names.name),
        reply=_LIST,
    ),
    named_route(
        f"POST {_PATH}",
        use("vcluster"),
        "Reinstall nodes where they are; what is on their disks is lost",
        lambda a: partial(
            reinstalls.want,
            context=a.context,
            name=a.names.name,
            nodes_=a.body.nodes,
            where=a.body.where,
            template=a.body.template,
            at_once=a.body.at_once,
        ),
        reply=_LIST,
        body=ReinstallStart,
        status=202,
    ),
    named_route(
        f"POST {_PATH}/check",
        use("vcluster"),
        "Show which nodes would be reinstalled; nothing is changed",
        lambda a: partial(
            reinstalls.check,
            context=a.context,
            name=a.names.name,
            nodes_=a.body.nodes,
            where=a.body.where,
            template=a.body.template,
            at_once=a.body.at_once,
        ),
        reply=_LIST,
        body=ReinstallStart,
        quiet=True,
    ),
    named_route(
        f"DELETE {_PATH}",
        use("vcluster"),
        "Withdraw the reinstallation of nodes that have not begun",
        lambda a: partial(reinstalls.withdraw, name=a.names.name),
        reply=_LIST,
    ),
)
