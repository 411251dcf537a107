"""Moves of nodes between vclusters: their requests, and the fields that requests of that kind
show."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cod import model
from cod.flows.people.access import RequiredRight
from cod.flows.scheduler.explain import OTHERS
from cod.model import Right
from cod.web.api.models import Body, Reply
from cod.web.api.routes import Call, Named


class MoveStart(Body):
    """Nodes that move to another vcluster."""

    to: str = Field(
        min_length=1,
        max_length=63,
        description="the vcluster that gets them; whoever asks works with both",
    )
    nodes: int = Field(ge=1, le=100_000, description="how many; one stays")
    within: float | None = Field(
        default=None,
        ge=0,
        le=1e10,
        allow_inf_nan=False,
        description=(
            "seconds after which nodes that are still held are taken, 0: in the next pass; null:"
            " the grace of a reclaim of its group"
        ),
    )
    types: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(
        default=[],
        max_length=100,
        description="types of nodes that may move; empty: all that the other matches",
    )


class MoveReply(Reply):
    """A move of nodes from `source`, which is 'a vcluster of another group' if the caller may not
    see it.

    deadline  when nodes that the source still holds are taken from it
    leaving   nodes that the source still holds
    granted   nodes that have arrived; the nodes in neither number are on their way
    """

    source: str
    deadline: float
    leaving: int
    granted: int

    @classmethod
    def of(cls, view: model.RequestView) -> MoveReply:
        """Return the reply from the view of a request of kind 'move'."""
        return cls.read_from(
            view, view.request, source=view.source or OTHERS, deadline=view.request.deadline or 0.0
        )


def claims(ask: Call[Named, MoveStart]) -> list[RequiredRight]:
    """Return the rights of members and owners of both vclusters' groups."""
    return [
        RequiredRight(Right.USE, "vcluster", name, field=field)
        for field, name in (("name", ask.names.name), ("to", ask.body.to))
    ]
