"""Captures: nodes' disks that become images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Literal

from pydantic import Field, model_validator

from cod.flows.nodes import captures
from cod.flows.people.access import RequiredRight
from cod.model import CaptureView, Result, Right, SingleRight
from cod.states import CaptureState, NodeState
from cod.web.api.models import FULL, Body, OwnName, Paged, ReplyOf
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Named,
    in_parts,
    named_route,
    owner,
    paged,
    route,
    see,
    use,
)


class CaptureWish(Body):
    """A wish to save a node's disk as an image: the whole disk, one partition, or the map of the
    partitions."""

    image: OwnName
    template: str | None = Field(
        default=None,
        max_length=FULL,
        description=(
            "what the template that writes it shall be "
            "called; left out: as the image; '': make none"
        ),
    )
    group: str | None = Field(
        default=None,
        max_length=63,
        description=(
            "whose both shall be; left out: the group's that holds the node; '': the site's"
        ),
    )

    partition: int | None = Field(
        default=None, ge=1, le=128, description="number of the partition to save alone"
    )
    map: bool = Field(
        default=False,
        description="save the map of the partitions, and what lies before the first, alone",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> CaptureWish:
        if self.map and self.partition is not None:
            raise ValueError("partition and map: say one of them")
        return self

    @property
    def what(self) -> str:
        """Return what is captured, in the form of `orders.Deposit`."""
        return "map" if self.map else str(self.partition or "")


class CaptureReply(ReplyOf[CaptureView], whole=True):
    """A node's newest capture. `state`: wanted, running, done, failed or cancelled. While it is
    running, `done` of `total` bytes are done, at `rate` bytes a second. `what`: map, a partition's
    number, or '' for the whole disk."""

    state: CaptureState
    node_state: NodeState


class CaptureQuery(Paged):
    sort: Literal["node", "-node", "asked_at", "-asked_at"] = "node"


def _wants(ask: Call[Named, CaptureWish]) -> Sequence[RequiredRight]:
    """Return the rights of members and owners of the node's group and of the group that gets the
    image, and of users with the single right capture there."""
    node = RequiredRight(Right.USE, "node", ask.names.name, SingleRight.CAPTURE)
    if ask.body.group is None:
        return (node,)
    return (node, replace(owner(ask.body.group), single=SingleRight.CAPTURE))


def _want(ask: Call[Named, CaptureWish]) -> Flow[Result[CaptureView]]:
    return partial(
        captures.want,
        context=ask.context,
        name=ask.names.name,
        image=ask.body.image,
        template=ask.body.template,
        group=ask.body.group,
        what=ask.body.what,
        secret=os.urandom(32).hex(),
    )


CAPTURES = (
    route(
        "GET /captures",
        ANYBODY,
        "List the newest capture of each node",
        lambda a: in_parts(
            partial(captures.every, groups=a.who.groups),
            a.query.page,
            lambda one: (one.node, one.image),
            "node",
            node=attrgetter("node"),
            asked_at=attrgetter("asked_at"),
        ),
        reply=paged(CaptureReply, "A page of captures, sorted by their nodes' names."),
        query=CaptureQuery,
    ),
    named_route(
        "GET /nodes/{name}/capture",
        see("node"),
        "Show a node's newest capture",
        lambda a: partial(captures.show, name=a.names.name, groups=a.who.groups),
        reply=CaptureReply,
    ),
    named_route(
        "POST /nodes/{name}/capture",
        _wants,
        "Save a node's disk as an image: an active node reboots for it, and then goes on",
        _want,
        reply=CaptureReply,
        body=CaptureWish,
        status=202,
    ),
    named_route(
        "DELETE /nodes/{name}/capture",
        use("node", SingleRight.CAPTURE),
        "Cancel a node's capture: it goes back to where it was",
        lambda a: partial(captures.cancel, context=a.context, name=a.names.name),
        reply=CaptureReply,
    ),
)
