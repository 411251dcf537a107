"""Reinstallation of a vcluster's nodes, which the vcluster keeps meanwhile: requested, shown, and
withdrawn for nodes that have not begun. The manager begins it (`core.nodes.reinstalls`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cod.core.nodes import selection
from cod.filters.ranges import RangeFault, expanded
from cod.model import Effect, FlowContext, Node, Refused, Reinstall, Result, Template, Vcluster
from cod.policy import reinstall
from cod.policy.scheduler import feasibility
from cod.states import VclusterState
from cod.store import lists
from cod.store.engine import Tx, trial
from cod.store.images import templates
from cod.store.nodes import nodes, types
from cod.store.scheduler import reinstalls, vclusters

MOST = 100_000  # names that ranges stand for


@dataclass(frozen=True, slots=True)
class ReinstalledNode:
    """A node that is being reinstalled, or waits for it.

    template  'name@revision' that the node gets
    begun_at  when the node left its system; None: it has not begun
    state     of the node now; `done` of `total` bytes are written to its disks
    """

    name: str
    hostname: str
    template: str
    at_once: int
    actor: str
    asked_at: float
    begun_at: float | None
    state: str
    done: int
    total: int


def want(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    nodes_: Sequence[str] = (),
    where: str = "",
    template: str | None = None,
    at_once: int = 0,
) -> Result[list[ReinstalledNode]]:
    """Have nodes of a vcluster reinstalled; return these nodes. Raises `Refused`.

    nodes_    host names or names, with ranges; none: all nodes that match the filter `where`
    template  a name as `templates.usable` accepts it; None: each node gets its own revision again.
              If all nodes get a template, it becomes the vcluster's template
    at_once   number of nodes that are reinstalled at a time; 0: all
    """
    vcluster = vclusters.named(tx, name, lock=True)
    if vcluster.state != VclusterState.ACTIVE or vcluster.drain_until is not None:
        raise Refused("conflict", f"vcluster {name} has no nodes, or its lease is over", "name")
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    chosen_nodes = _chosen_nodes(tx, context, vcluster, held, nodes_, where)
    chosen = templates.usable(tx, template, vcluster.group_id) if template else None
    for node in chosen_nodes:
        reinstall.check(node)
    _check_hardware(tx, chosen_nodes, chosen)
    rows = [
        Reinstall(
            node.id, vcluster.id, template_id, at_once, context.actor, context.now, begun_at=None
        )
        for node in chosen_nodes
        if (template_id := chosen.id if chosen else node.template_id) is not None
    ]
    reinstalls.put(tx, rows)
    if chosen is not None and len(chosen_nodes) == len(held):
        vclusters.change(tx, vcluster, context.now, template_id=chosen.id)
    ids = {node.id for node in chosen_nodes}
    shown = [one for node_id, one in _shown(tx, vcluster) if node_id in ids]
    return Result(shown, (Effect("wake", "manager"),))


def check(tx: Tx, context: FlowContext, **asked: object) -> list[ReinstalledNode]:
    """Return the nodes that `want` would reinstall, and change nothing. Raises `Refused`."""
    with trial(tx):
        return want(tx, context, **asked).value  # type: ignore[arg-type]


def under_way(tx: Tx, name: str) -> list[ReinstalledNode]:
    """Return the nodes of a vcluster that are being reinstalled, or wait for it."""
    vcluster = vclusters.by_name(tx, name)
    return [] if vcluster is None else [one for _, one in _shown(tx, vcluster)]


def withdraw(tx: Tx, *, name: str) -> Result[list[ReinstalledNode]]:
    """Cancel the reinstallation of nodes that have not begun; return the nodes that go on. Raises
    `Refused`."""
    vcluster = vclusters.named(tx, name, lock=True)
    waiting = [node.id for node, row in reinstalls.every(tx, vcluster.id) if row.begun_at is None]
    reinstalls.remove(tx, waiting)
    return Result([one for _, one in _shown(tx, vcluster)])


# ---------------------------------------------------------------- steps


def _chosen_nodes(
    tx: Tx,
    context: FlowContext,
    vcluster: Vcluster,
    held: Sequence[Node],
    names: Sequence[str],
    where: str,
) -> list[Node]:
    """Return the nodes of the vcluster that are named and that match the filter. Raises
    `Refused`."""
    tree = selection.filter_of(where, context.who, context.now)
    found = list(held)
    if names:
        known = {node.name: node for node in held} | {node.hostname: node for node in held}
        labels = dict.fromkeys(label for text in names for label in _labels(text))
        if unknown := [label for label in labels if label not in known]:
            raise Refused(
                "not_found", f"vcluster {vcluster.name} has no node {unknown[0]!r}", "nodes"
            )
        found = list({known[label].id: known[label] for label in labels}.values())
    if tree is not None:
        ids = [node.id for node in found]
        fitting = dict(lists.node_names(tx, context.who.groups, tree, ids, MOST))
        found = [node for node in found if node.id in fitting]
    if not found:
        raise Refused(
            "not_found", f"no node of {vcluster.name} matches", "where" if where else "nodes"
        )
    return found


def _labels(text: str) -> list[str]:
    try:
        return [label for part in text.replace(",", " ").split() for label in expanded(part, MOST)]
    except RangeFault as fault:
        raise Refused("invalid", f"at character {fault.place + 1}: {fault}", "nodes") from None


def _check_hardware(tx: Tx, chosen_nodes: Sequence[Node], chosen: Template | None) -> None:
    """Raise `Refused` if a type of the nodes lacks hardware that the chosen template needs. None:
    no template was chosen."""
    if chosen is None:
        return
    document = templates.for_matching(tx, [chosen.id])[chosen.id]
    for type_id, count in Counter(node.type_id for node in chosen_nodes).items():
        if type_id is None:
            continue
        kind = types.get(tx, type_id)
        lacking = feasibility.lacking("", document, kind.attributes)
        if lacking:
            raise Refused(
                "conflict",
                f"{count} of the nodes are of type {kind.name}, which lacks what template"
                f" {chosen.name} needs: {'; '.join(map(str, lacking[:3]))}",
                "template",
            )


def _shown(tx: Tx, vcluster: Vcluster) -> list[tuple[int, ReinstalledNode]]:
    """Return each node that is being reinstalled, or waits for it, with its id."""
    every = reinstalls.every(tx, vcluster.id)
    known = {one: templates.get(tx, one) for one in {row.template_id for _, row in every}}
    shown = []
    for node, row in every:
        template, begun = known[row.template_id], row.begun_at is not None
        one = ReinstalledNode(
            name=node.name,
            hostname=node.hostname or node.name,
            template=f"{template.name}@{template.revision}" if template else "",
            at_once=row.at_once,
            actor=row.actor,
            asked_at=row.asked_at,
            begun_at=row.begun_at,
            state=node.state,
            done=node.progress_done if begun else 0,
            total=node.progress_total if begun else 0,
        )
        shown.append((node.id, one))
    return shown
