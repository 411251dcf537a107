"""Actions for many nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field, model_validator

from cod import model
from cod.choices import NodeAction, PowerVerb
from cod.filters.language import LONGEST
from cod.flows import views
from cod.flows.nodes import actions, burnins, nodes
from cod.flows.people.access import Change, RequiredRight, check, noted
from cod.model import Node, Result, Right
from cod.pool import Tx
from cod.web.api.models import Body, Chosen, Reason, Reply, ReplyOf
from cod.web.api.resources.energy import Moment
from cod.web.api.resources.jobs.burnins import BurninWish
from cod.web.api.resources.nodes import RETURNS, NodePatch
from cod.web.api.routes import ADMINS, ANYBODY, Call, Shaped, route

_NEEDS = {
    NodeAction.POWER: "desired",
    NodeAction.QUARANTINE: "reason",
    NodeAction.CHANGE: "changes",
    NodeAction.RENAME: "to",
    NodeAction.TAG: "tags",
    NodeAction.UNTAG: "tags",
}
_ALSO = {
    NodeAction.APPROVE: ("changes", "to"),
    NodeAction.QUARANTINE: ("until",),
    NodeAction.BURNIN: ("burnin",),
}
"""Fields that an action may have in addition."""
_BELONGS = (*_NEEDS.items(), (NodeAction.QUARANTINE, "until"), (NodeAction.BURNIN, "burnin"))
"""(action, field) for the fields that belong to one action, whose name errors give."""
_LABEL = 300  # characters of a name with ranges


class NodeActionBody(Body):
    """An action, and the nodes that it is for: those of `names` that match `where`. A refusal for
    one node does not affect the others. At most 500 nodes."""

    names: list[Annotated[str, Field(max_length=_LABEL, pattern=r"\S")]] = Field(
        default=[],
        max_length=1000,
        description=(
            "names, MACs, serial numbers, UUIDs or host names, with ranges, and blocks: n[001-064],"
            " @rack12; empty: all that `where` means"
        ),
    )
    where: str = Field(
        default="",
        max_length=LONGEST,
        description="a filter: rack=r12 and state=free; empty: all that are named",
    )
    action: Chosen[NodeAction] = Field(description=NodeAction.explained())
    desired: Chosen[PowerVerb] | None = Field(default=None, description="of power")
    reason: Reason | None = Field(default=None, description="of quarantine")
    until: Moment = Field(default=None, description=f"of quarantine: {RETURNS}")
    changes: NodePatch | None = Field(
        default=None, description="of change; of approve, what else is said of each"
    )
    tags: list[Annotated[str, Field(max_length=100)]] = Field(
        default=[], max_length=16, description="of tag and untag"
    )
    burnin: BurninWish | None = Field(
        default=None, description="of burnin: which tests; null: as the site file says"
    )
    stops: list[Annotated[str, Field(max_length=63)]] | None = Field(
        default=None,
        max_length=500,
        description=(
            "the vclusters whose work may stop: a node that another has by then is refused; null:"
            " any"
        ),
    )
    to: str = Field(
        default="",
        max_length=_LABEL,
        description="of rename, and of approve: a name for each, r12-[01-40]",
    )

    @model_validator(mode="after")
    def _needed(self) -> NodeActionBody:
        if not self.names and not self.where.strip():
            raise ValueError("name nodes in names, or say in where which are meant")
        needed = _NEEDS.get(self.action)
        if needed and not getattr(self, needed):
            raise ValueError(f"{needed} is needed for {self.action}")
        for action, other in _BELONGS:
            may_be = other in (needed, *_ALSO.get(self.action, ()))
            if not may_be and getattr(self, other) not in (None, "", []):
                raise ValueError(f"{other} belongs to {action}")
        if self.changes is not None and "name" in self.changes.model_fields_set:
            raise ValueError("names are given by the action rename")
        return self


class ActedNodeReply(ReplyOf[model.ActedNode], whole=True):
    """Outcome of the action for one node. `about`: why it was refused; `code`: the code of that
    error; `state`: the node's state afterwards, null if there is no such node; `stops`: the
    vcluster whose work on the node stops."""


class NodeActionReply(Reply):
    """An action, and its outcome for each node, in the order of the request."""

    action: str
    items: list[ActedNodeReply]

    @classmethod
    def of(cls, acted: model.ActedNodes) -> NodeActionReply:
        return cls(action=acted.action, items=[ActedNodeReply.of(each) for each in acted.nodes])


Asked = Call[Any, NodeActionBody, Any]


def _askers(ask: Asked) -> Sequence[RequiredRight]:
    """Return the rights of everybody who is signed in, for the power of nodes that their groups
    hold; of administrators for other actions."""
    return ANYBODY(ask) if ask.body.action is NodeAction.POWER else ADMINS(ask)


def _many(ask: Asked) -> actions.ManyNodes:
    body = ask.body
    nodes.check_until(body.until, ask.now)
    return actions.ManyNodes(
        ",".join(body.names),
        body.where,
        f"{body.action} {body.desired}" if body.desired else str(body.action),
        partial(_act, ask, actions.new_names(body.to) if body.to else ()),
        body.action is NodeAction.QUARANTINE or body.desired not in (None, PowerVerb.ON),
        body.to,
        body.action is NodeAction.APPROVE,
        None if body.stops is None else frozenset(body.stops),
    )


def _act(ask: Asked, new_names: Sequence[str], tx: Tx, name: str, place: int) -> Result[Node]:
    """Carry out the action on one node, and record it in the audit for the node's group. Raises
    `Refused`."""
    body = ask.body
    arguments: dict[str, Any] = {
        "desired": body.desired,
        "reason": body.reason,
        "until": body.until,
        "burnin": body.burnin and body.burnin.given,
        "changes": body.changes and body.changes.given,
        "to": body.to,
        "tags": body.tags,
    }
    change = Change(
        f"node {body.action}",
        name,
        RequiredRight(Right.ANY, "node", name),
        None,
        {field: value for field, value in arguments.items() if value},
        lambda node: {"name": node.name} if node.name != name else {},
    )
    flow = partial(_done, ask, new_names, name=name, place=place)
    return noted(tx, flow=flow, who=ask.who, change=change, now=ask.now)


def _done(ask: Asked, new_names: Sequence[str], tx: Tx, *, name: str, place: int) -> Result[Node]:
    body = ask.body
    context = ask.context
    match body.action:
        case NodeAction.APPROVE:
            approved = nodes.approve(tx, context, name=name)
            more = body.changes.given if body.changes else {}
            more |= {"name": new_names[place]} if new_names else {}
            if not more:
                return approved
            changed = nodes.change(tx, context, name=name, changes=more)
            return Result(changed.value, (*approved.effects, *changed.effects))
        case NodeAction.POWER:
            check(tx, ask.who, RequiredRight(Right.USE, "node", name))
            return nodes.power(tx, context, name=name, desired=str(body.desired))
        case NodeAction.QUARANTINE:
            return nodes.quarantine(
                tx, context, name=name, reason=body.reason or "", until=body.until
            )
        case NodeAction.RESTORE:
            return nodes.restore(tx, context, name=name)
        case NodeAction.BURNIN:
            asked = {} if body.burnin is None else body.burnin.given
            wanted = burnins.want(tx, context, name=name, **asked)
            return Result(views.node(tx, name).node, wanted.effects)
        case NodeAction.MOVED:
            return nodes.moved(tx, context, name=name)
        case NodeAction.RETIRE:
            return nodes.retire(tx, context, name=name)
        case NodeAction.CHANGE:
            assert body.changes is not None
            return nodes.change(tx, context, name=name, changes=body.changes.given)
        case NodeAction.RENAME:
            return nodes.change(tx, context, name=name, changes={"name": new_names[place]})
        case NodeAction.TAG:
            return nodes.tag(tx, context, name=name, add=body.tags)
        case NodeAction.UNTAG:
            return nodes.tag(tx, context, name=name, remove=body.tags)


NODE_ACTIONS = (
    route(
        "POST /nodes/actions",
        _askers,
        "Do something to many nodes; what is refused for one leaves the others alone",
        lambda a: partial(actions.carry_out, context=a.context, many=_many(a)),
        reply=Shaped(NodeActionReply, NodeActionReply.of),
        body=NodeActionBody,
        idle=lambda acted: all(one.outcome is model.ActionOutcome.REFUSED for one in acted.nodes),
        action="node action",
    ),
    route(
        "POST /nodes/actions/check",
        _askers,
        "Show what an action would do to each of many nodes; nothing is changed",
        lambda a: partial(actions.check, context=a.context, many=_many(a)),
        reply=Shaped(NodeActionReply, NodeActionReply.of),
        body=NodeActionBody,
        quiet=True,
    ),
)
