"""One action for many nodes: if it is refused for one node, it is still carried out for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cod.core.nodes import selection
from cod.filters.ranges import RangeFault, expanded
from cod.model import (
    ActedNode,
    ActedNodes,
    ActionOutcome,
    Effect,
    FlowContext,
    Node,
    Refused,
    Result,
)
from cod.store.engine import Tx, savepoint, trial
from cod.store.nodes import nodes
from cod.store.scheduler import vclusters

Act = Callable[[Tx, str, int], Result[Node]]
"""The action on one node, given by name and by its index (from 0) among the chosen nodes. Raises
`Refused`."""


@dataclass(frozen=True, slots=True)
class ManyNodes:
    """An action for many nodes.

    names, where  select the nodes, in the language of `cod.filters`
    action        the action's name for people: 'power off'
    act           carries it out on one node
    stops         the action stops the work of the vcluster that holds a node
    to            pattern of the new names, one for each node; '': the action gives no names
    spare         `to` may have more names than there are nodes
    may_stop      the vclusters whose work may stop; None: any
    """

    names: str
    where: str
    action: str
    act: Act
    stops: bool = False
    to: str = ""
    spare: bool = False
    may_stop: frozenset[str] | None = None


def carry_out(tx: Tx, context: FlowContext, *, many: ManyNodes) -> Result[ActedNodes]:
    """Carry out the action on each selected node; return the outcome for each."""
    chosen = selection.selected(tx, many.names, many.where, context.who, context.now)
    if many.to:
        _check_count(many.to, len(chosen.nodes), many.spare)
    before = {node.id: node for node in nodes.lock(tx, [node_id for node_id, _ in chosen.nodes])}
    holders = vclusters.names(
        tx, {node.vcluster_id for node in before.values() if node.vcluster_id is not None}
    )
    done: list[ActedNode] = []
    effects: list[Effect] = []
    for place, (node_id, name) in enumerate(chosen.nodes):
        held = holders.get(before[node_id].vcluster_id or 0) if many.stops else None
        try:
            # a user who checked the action first has agreed to stop the work of these alone
            if held is not None and many.may_stop is not None and held not in many.may_stop:
                raise Refused("conflict", f"the work of {held} on node {name} would stop", "stops")
            with savepoint(tx):
                acted = many.act(tx, name, place)
        except Refused as refused:
            done.append(_refused(name, refused, before[node_id].state))
            continue
        effects += acted.effects
        node = acted.value
        done.append(ActedNode(node.name, ActionOutcome.DONE, "", node.state, held))
    done += [_refused(name, Refused("not_found", why)) for name, why in chosen.missing]
    return Result(ActedNodes(many.action, tuple(done)), tuple(dict.fromkeys(effects)))


def check(tx: Tx, context: FlowContext, *, many: ManyNodes) -> ActedNodes:
    """Return the changes that `carry_out` would make, and change nothing."""
    with trial(tx):
        return carry_out(tx, context, many=many).value


def _refused(name: str, refused: Refused, state: str | None = None) -> ActedNode:
    return ActedNode(name, ActionOutcome.REFUSED, refused.sentence, state=state, code=refused.code)


def _check_count(to: str, count: int, spare: bool) -> None:
    given = len(new_names(to))
    if given < count or (given > count and not spare):
        names = "this is 1 name" if given == 1 else f"these are {given} names"
        meant = "1 node is" if count == 1 else f"{count} nodes are"
        raise Refused("invalid", f"{names}, and {meant} meant", "to")


def new_names(to: str) -> list[str]:
    """Return the names that a pattern stands for: 'r12-[01-40]'. Raises `Refused`."""
    try:
        return expanded(to, selection.MOST)
    except RangeFault as fault:
        raise Refused("invalid", f"at character {fault.place + 1}: {fault}", "to") from None
