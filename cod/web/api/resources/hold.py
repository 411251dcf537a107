"""A held site: comparisons of its machines with the database, and an administrator's decisions."""

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
    """Decisions on held nodes, by name.

    keep   the node is as it should be: a node in use continues, any other is out of service, and
           its disks stay as they are
    erase  the content of its machine is not needed: its disks are erased once the hold of the site
           is over
    """

    keep: Names = Field(default_factory=list)
    erase: Names = Field(default_factory=list)


class HeldNodeReply(Reply):
    """A node of a held site: what the database and its machine say about it.

    known    newest generation in which the database can have had the node installed
    machine  the machine's own report; '': none yet
    source   who reported it: agent, dhcp or switch
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
        """Return the reply for a node and its story."""
        return cls.read_from(story, node=node.name, state=node.state, machine=story.said)


class HoldReply(Reply):
    """The hold of the site: its beginning and its reason. `since` is null if the site is not held.
    Nodes whose machines were silent, or differ from the database, are held one by one, also after
    the site's hold ends."""

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
