"""Bodies about captures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cod.states import CaptureState, NodeState
from cod.web.bodies.base import FULL, Body, OwnName, Paged, Part, Reply


class CaptureWish(Body):
    """A node's disk is to be saved as an image."""

    image: OwnName
    template: str | None = Field(default=None, max_length=FULL, description="what the template that writes it shall be "
                                 "called; left out: as the image; '': make none")
    group: str | None = Field(default=None, max_length=63, description="whose both shall be; left out: the group's "
                              "that holds the node; '': the site's")


class CaptureReply(Reply):
    """A node's newest capture. `state`: wanted, running, done, failed or cancelled; bytes `done` of `total` at `rate` a
    second while it is running."""

    node: str
    image: str
    template: str
    group: str
    state: CaptureState
    actor: str
    asked_at: float
    ended_at: float | None
    reason: str
    node_state: NodeState
    done: int
    total: int
    rate: float


class CaptureQuery(Paged):
    """Which captures to list."""

    sort: Literal["node", "-node", "asked_at", "-asked_at"] = "node"


class CaptureList(Part):
    """Captures, by their nodes' names."""

    items: list[CaptureReply]
