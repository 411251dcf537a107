"""A held site: whether its machines and its database agree, and what an administrator decides."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from cod import model
from cod.flows.nodes import hold
from cod.states import NodeState, StoryVerdict
from cod.web.api.models import Body, Reply
from cod.web.api.routes import ADMINS, route

Names = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=100_000)
]


class HoldDecision(Body):
    """Decision on held nodes, by name.

    keep   the node is as it should be: one in use goes on, any other is out of service with its
           disks
    erase  what its machine holds is not wanted: it is erased, once the hold of the site is over
    """

    keep: Names = Field(default_factory=list)
    erase: Names = Field(default_factory=list)


class HeldNodeReply(Reply):
    """A node of a held site: what the database and its machine say of it.

    known    newest generation in which the database can have had it installed
    machine  what the machine says; '': nothing yet
    source   who says it: agent or dhcp
    """

    node: str
    state: NodeState
    known: int
    machine: str
    source: str
    at: float | None
    verdict: StoryVerdict

    @classmethod
    def of(cls, node: model.Node, story: model.NodeStory) -> HeldNodeReply:
        """Return the reply of a node and its story."""
        return cls.read_from(story, node=node.name, state=node.state, machine=story.said)


class HoldReply(Reply):
    """The hold of the site: since when and why; `since` is null where the site is not held. Nodes
    whose machines were silent or differ are held one by one, also after the end."""

    held: bool
    since: float | None
    why: str
    nodes: list[HeldNodeReply]

    @classmethod
    def of(cls, found: hold.SiteHold) -> HoldReply:
        nodes = [HeldNodeReply.of(*each) for each in found.nodes]
        return cls(held=found.since is not None, since=found.since, why=found.why, nodes=nodes)


HOLD = (
    route(
        "GET /hold",
        ADMINS,
        "Show whether the site is held, and what its machines say",
        lambda a: hold.show,
        reply=HoldReply,
    ),
    route(
        "POST /hold/end",
        ADMINS,
        "End the hold of the site",
        lambda a: partial(hold.end, now=a.now),
        reply=HoldReply,
    ),
    route(
        "POST /hold/wake",
        ADMINS,
        "Switch on the silent nodes of a held site",
        lambda a: partial(hold.wake, now=a.now),
        reply=HoldReply,
    ),
    route(
        "POST /hold/decide",
        ADMINS,
        "Keep or erase held nodes",
        lambda a: partial(hold.decide, context=a.context, keep=a.body.keep, erase=a.body.erase),
        reply=HoldReply,
        body=HoldDecision,
    ),
)
