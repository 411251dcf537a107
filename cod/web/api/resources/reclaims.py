"""Reclaims: nodes that are being taken from a vcluster."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from cod import model
from cod.flows.scheduler import reclaims
from cod.flows.scheduler.explain import OTHERS
from cod.states import ReclaimState
from cod.web.api.models import Body, Paged, Reply
from cod.web.api.routes import ANYBODY, number, numbered_route, paged, route, see, use


class ReclaimQuery(Paged):
    vcluster: str | None = Field(
        default=None, max_length=63, description="only those that take nodes from it"
    )
    state: ReclaimState | None = None
    sort: Literal["id", "-id", "deadline", "-deadline"] = "-id"


class ReclaimAnswer(Body):
    """Nodes (by name or host name) that the vcluster gives back."""

    nodes: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(
        min_length=1, max_length=100_000
    )


class ReclaimReply(Reply):
    """A reclaim: `count` nodes of one type and block are taken from `vcluster` for a request of
    `wanted_by`. If the caller may not see that request, `wanted_by` is 'a vcluster of another
    group', and `request` is null.

    given       how many nodes have been given back or seized
    chosen      nodes that are seized at the deadline unless the vcluster gives others before
    promised    when the vcluster's manager will give back the nodes that it has promised, by node
    attributes  the request's requirements (XML), which every node of the type meets
    moves       an owner moves the nodes to `wanted_by`, whatever the priorities
    """

    id: int
    vcluster: str
    wanted_by: str
    request: int | None
    type: str
    block: str
    subnet: str
    attributes: str
    count: int
    given: int
    deadline: float
    state: ReclaimState
    chosen: list[str]
    promised: dict[str, float]
    moves: bool
    created_at: float
    ended_at: float | None

    @classmethod
    def of(cls, view: model.ReclaimView) -> ReclaimReply:
        return cls.read_from(
            view,
            view.reclaim,
            wanted_by=view.wanted_by or OTHERS,
            request=view.reclaim.request_id if view.wanted_by else None,
        )


RECLAIMS = (
    route(
        "GET /reclaims",
        ANYBODY,
        "List reclaims",
        lambda a: partial(
            reclaims.every,
            page=a.query.page,
            groups=a.who.groups,
            vcluster=a.query.vcluster,
            state=a.query.state,
        ),
        reply=paged(ReclaimReply, "Reclaims, the newest first."),
        query=ReclaimQuery,
    ),
    numbered_route(
        "GET /reclaims/{id}",
        see("reclaim"),
        "Show a reclaim and the nodes that were chosen for it",
        lambda a: partial(reclaims.show, reclaim_id=number(a.names.id), groups=a.who.groups),
        reply=ReclaimReply,
    ),
    numbered_route(
        "POST /reclaims/{id}/answer",
        use("reclaim"),
        "Give nodes of the kind that is taken, in place of those that were chosen",
        lambda a: partial(
            reclaims.answer, context=a.context, reclaim_id=number(a.names.id), nodes_=a.body.nodes
        ),
        reply=ReclaimReply,
        body=ReclaimAnswer,
        status=202,
    ),
)
