"""Burn-ins of nodes: requested, cancelled, and their results.

A free node is tested in the trampoline; a node that is off is woken first. If erasing was
requested, its disks are erased before. The agent's order (`flows.agents.orders`) says what to test,
and `core.nodes.burnins.finish` decides whether the node passed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cod.choices import BurninTest
from cod.core.nodes import burnins as core
from cod.core.nodes import transitions
from cod.model import Burnin, BurninView, FlowContext, Node, Refused, Result
from cod.policy.nodes import burnin, lifecycle
from cod.states import BurninState, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import burnins, holding, nodes, sessions
from cod.store.scheduler import reservations

SHOWN = 100  # burn-ins of a node that are shown
ON_DEMAND = "on demand"


def want(
    tx: Tx,
    context: FlowContext,
    *,
    name: str,
    tests: Sequence[str] | None = None,
    seconds: int | None = None,
    erase: bool = False,
) -> Result[BurninView]:
    """Have the node `name` tested; return the burn-in. Raises `Refused`, also if the node is being
    tested already.

    tests, seconds  None: as the site file says
    erase           erase disks that are not clean first, so that they are tested by writing;
                    otherwise such disks are only read
    """
    site, now, actor = context.site, context.now, context.actor
    node = nodes.named(tx, name, lock=True)
    if burnins.open_of(tx, node.id) is not None:
        raise Refused("conflict", f"node {name} is being burnt in already", "name")
    burnin.check(node)
    core.ask(
        tx, node, site, now, cause=ON_DEMAND, actor=actor, tests=tests, seconds=seconds, erase=erase
    )
    moved = node
    if node.state == NodeState.OFF:
        woken = Step(NodeEvent.WOKEN, f"{actor} wants its burn-in", power="on")
        moved = transitions.apply_for(tx, context, node, woken)
    elif node.state == NodeState.INACTIVE:
        row = burnins.open_of(tx, node.id)
        assert row is not None
        moved = transitions.apply_for(tx, context, node, burnin.begin(node, row))
    reservations.drop(tx, [node.id])  # a request that it was kept for gets another node, sooner
    return Result(show(tx, name=name), transitions.wakes(node, moved))


def cancel(tx: Tx, context: FlowContext, *, name: str) -> Result[BurninView]:
    """Cancel the node's burn-in, and return it. The node goes back to the reserve, after a wipe if
    its disks were written to. Raises `Refused`."""
    node = nodes.named(tx, name, lock=True)
    row = burnins.open_of(tx, node.id)
    if row is None:
        raise Refused("conflict", f"node {name} is not being burnt in", "name")
    cause = f"cancelled by {context.actor}"
    if node.state != NodeState.BURNIN:  # the test has not begun: the node is settled without it
        burnins.end(tx, row.id, BurninState.CANCELLED, cause, context.now)
        return Result(show(tx, name=name))
    cancelled = Step(NodeEvent.CANCELLED, cause, {"reason": "", "attempts": 0})
    moved = transitions.apply_for(tx, context, node, cancelled)
    session = sessions.get(tx, node.id)
    if session is not None and session.reported:
        moved = transitions.apply_for(
            tx, context, moved, lifecycle.settle(moved, holding.assignment(tx, moved))
        )
    return Result(show(tx, name=name), transitions.wakes(node, moved))


def show(tx: Tx, *, name: str) -> BurninView:
    """Return the node's newest burn-in. Raises `Refused` where it was never burnt in."""
    found = history(tx, name=name, limit=1)
    if not found:
        raise Refused("not_found", f"node {name} was never burnt in", "name")
    return found[0]


def history(tx: Tx, *, name: str, limit: int = SHOWN) -> list[BurninView]:
    """Return the node's burn-ins, the newest first. Raises `Refused` for a node that is not
    known."""
    node = nodes.named(tx, name)
    return [_view(node, row) for row in burnins.of_node(tx, node.id, limit)]


def disks_health(tx: Tx, *, name: str) -> tuple[float | None, dict[str, Mapping[str, float]]]:
    """Return when a burn-in last read SMART figures of the node's disks, and the figures by disk,
    'sda (serial X)'; (None, {}) if there are none."""
    for view in history(tx, name=name):
        found = {
            each["part"]: each["figures"]
            for each in view.results
            if each["test"] == BurninTest.DISK
        }
        if any(figure.startswith("smart_") for figures in found.values() for figure in figures):
            return view.ended_at or view.started_at, found
    return None, {}


def _view(node: Node, row: Burnin) -> BurninView:
    runs = row.state == BurninState.RUNNING and node.generation == row.generation
    done, total, rate = (
        (node.progress_done, node.progress_total, node.progress_rate) if runs else (0, 0, 0.0)
    )
    return BurninView(
        id=row.id,
        node=node.name,
        state=row.state,
        cause=row.cause,
        tests=tuple(row.tests.split(",")),
        seconds=row.seconds,
        erase=row.erase,
        actor=row.actor,
        asked_at=row.asked_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        reason=row.reason,
        results=tuple(json.loads(row.results)),
        node_state=node.state,
        done=done,
        total=total,
        rate=rate,
        phase=node.progress_phase if runs else "",
    )
