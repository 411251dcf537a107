"""Node types and blocks."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import Field

from cod import model
from cod.flows.nodes import blocks, types
from cod.web.api.models import Body, DnsLabel, Paged, PatchOf, Reply, ReplyOf
from cod.web.api.resources.nodes import NodeReply
from cod.web.api.routes import ADMINS, ANYBODY, Shaped, in_parts, named_route, paged, route

NodePattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        description="a node's name, a range or block ('n[01-40]', '@r12'), or a pattern: 'rack1-*'",
    ),
]


class TypePatch(PatchOf[model.TypeView]):
    """Changes to a node type, by an administrator. A field that is left out stays as it is. Null
    marks and watts mean the site's."""


class TypeRefresh(Body):
    """A batch of nodes to examine: at most `limit`, by their numbers, from the first above `after`.
    The first request leaves `after` out; each further one sends the last reply's `next`."""

    after: int = Field(default=0, ge=0, le=2**62)
    limit: int = Field(default=200, ge=1, le=1000)


class TypeRefreshed(ReplyOf[types.Refreshed], whole=True):
    """Number of nodes that were examined, and of those whose type changed. `next` is null when no
    nodes are left."""


class Fact(Reply):
    """An attribute, in words for people."""

    attribute: str
    value: str


class TypeReply(ReplyOf[model.TypeView]):
    """A node type. `states` counts its nodes by state; null marks and watts are the site's."""

    nodes: int
    states: dict[str, int]
    facts: list[Fact]

    @classmethod
    def values(cls, view: model.TypeView) -> dict[str, Any]:
        """Return the described values, and those that are made here."""
        return super().values(view) | {
            "nodes": sum(view.states.values()),
            "states": dict(view.states),
            "facts": [Fact(attribute=name, value=value) for name, value in view.facts],
        }


class TypeQuery(Paged):
    sort: Literal[
        "name", "-name", "cost", "-cost", "nodes", "-nodes", "created_at", "-created_at"
    ] = "name"


class TypeInFull(TypeReply):
    """A node type with its canonical attributes (XML) and the first thousand of its nodes."""

    attributes: str
    members: list[NodeReply]


class BlockCreate(Body):
    """A new block."""

    name: DnsLabel


class BlockNodes(Body):
    """Nodes to put into a block, or to take out of it."""

    nodes: list[NodePattern] = Field(min_length=1, max_length=10_000)


class BlockReply(Reply):
    """A block. `types` counts its nodes by type, '' for nodes without a type yet."""

    name: str
    nodes: int
    types: dict[str, int]

    @classmethod
    def of(cls, view: model.BlockView) -> BlockReply:
        return cls(name=view.name, nodes=sum(view.types.values()), types=dict(view.types))


class BlockQuery(Paged):
    sort: Literal["name", "-name", "nodes", "-nodes"] = "name"


class ProposalApply(Body):
    """Blocks of the proposal to make; null for all."""

    blocks: list[DnsLabel] | None = Field(default=None, max_length=10_000)


class PlaceReply(Reply):
    """A node that is proposed for a block, and why."""

    node: str
    why: str


class ProposedBlock(Reply):
    """A proposed block, and what its nodes have in common. If the block `exists`, the nodes are to
    be added to it."""

    name: str
    exists: bool
    about: str
    places: list[PlaceReply]


class ProposalReply(ReplyOf[blocks.Proposal]):
    """Proposed blocks, by name. `unknown` are nodes in no block about which the network has
    reported nothing."""

    blocks: list[ProposedBlock]
    unknown: list[str]


TYPES = (
    route(
        "GET /types",
        ANYBODY,
        "List node types with their nodes by state",
        lambda a: in_parts(
            types.every,
            a.query.page,
            lambda one: [one.type.name, *(text for _, text in one.facts)],
            name=attrgetter("type.name"),
            cost=attrgetter("type.cost"),
            created_at=attrgetter("type.created_at"),
            nodes=lambda one: sum(one.states.values()),
        ),
        reply=paged(TypeReply, "Node types."),
        query=TypeQuery,
    ),
    route(
        "POST /types/refresh",
        ADMINS,
        "Recompute nodes' types by the site's rules, some nodes at a time",
        lambda a: partial(
            types.refresh, after=a.body.after, limit=a.body.limit, site=a.site, now=a.now
        ),
        reply=TypeRefreshed,
        body=TypeRefresh,
    ),
    named_route(
        "GET /types/{name}",
        ANYBODY,
        "Show a node type with its attributes and nodes",
        lambda a: partial(types.show, name=a.names.name, site=a.site, groups=a.who.groups),
        reply=Shaped(
            TypeInFull,
            lambda found: TypeInFull(
                **TypeReply.values(found[0]),
                attributes=found[0].type.attributes,
                members=[NodeReply.of(each) for each in found[1]],
            ),
        ),
    ),
    named_route(
        "PATCH /types/{name}",
        ADMINS,
        "Change a node type's name, cost, power settings or watts",
        lambda a: partial(
            types.change,
            name=a.names.name,
            site=a.site,
            changes=a.body.model_dump(exclude_unset=True),
        ),
        reply=TypeReply,
        body=TypePatch,
    ),
    named_route(
        "DELETE /types/{name}",
        ADMINS,
        "Delete a node type that has no nodes",
        lambda a: partial(types.delete, name=a.names.name),
    ),
)

BLOCKS = (
    route(
        "GET /blocks",
        ANYBODY,
        "List blocks with their nodes by type",
        lambda a: in_parts(
            blocks.every,
            a.query.page,
            lambda one: (one.name,),
            name=attrgetter("name"),
            nodes=lambda one: sum(one.types.values()),
        ),
        reply=paged(BlockReply, "Blocks."),
        query=BlockQuery,
    ),
    route(
        "POST /blocks",
        ADMINS,
        "Create a block",
        lambda a: partial(blocks.create, name=a.body.name),
        reply=BlockReply,
        body=BlockCreate,
        makes="/blocks/{name}",
    ),
    route(
        "GET /blocks/proposal",
        ADMINS,
        "Show which blocks the network suggests, and why",
        lambda a: blocks.proposal,
        reply=ProposalReply,
    ),
    route(
        "POST /blocks/proposal",
        ADMINS,
        "Create proposed blocks, all or some",
        lambda a: partial(blocks.apply, only=a.body.blocks),
        reply=ProposalReply,
        body=ProposalApply,
    ),
    named_route(
        "GET /blocks/{name}",
        ADMINS,
        "Show a block",
        lambda a: partial(blocks.show, name=a.names.name),
        reply=BlockReply,
    ),
    named_route(
        "DELETE /blocks/{name}",
        ADMINS,
        "Delete a block that has no nodes",
        lambda a: partial(blocks.delete, name=a.names.name),
    ),
    named_route(
        "POST /blocks/{name}/add",
        ADMINS,
        "Add nodes to a block",
        lambda a: partial(blocks.put, name=a.names.name, nodes=a.body.nodes),
        reply=BlockReply,
        body=BlockNodes,
    ),
    named_route(
        "POST /blocks/{name}/remove",
        ADMINS,
        "Remove nodes from a block",
        lambda a: partial(blocks.remove, name=a.names.name, nodes=a.body.nodes),
        reply=BlockReply,
        body=BlockNodes,
    ),
)
