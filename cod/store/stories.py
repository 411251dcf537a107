"""Machines' accounts of themselves since their site was held: a row for each node that is held.

A node is held while its row says that its machine was silent or differs: nothing is written to its
disks, and its deadline does not pass. The rows stay after the hold of the site has ended.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import case, delete, func, insert, literal, or_, select, update

from cod.model import Node, NodeStory
from cod.states import NODE_RULES, UNAPPROVED, NodeEvent, NodeState, StoryVerdict
from cod.store import dns_zones, vcms, volumes, watermarks
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.rows import Rows
from cod.store.scheduler import maintenance

_s, _n = t.node_stories.c, t.nodes.c
ROWS = Rows(NodeStory, t.node_stories)
get, forget, change = ROWS.get, ROWS.remove, ROWS.change
_TIME_TO_TELL = NODE_RULES[NodeState.TRAMPOLINE].deadline or 0.0
# Nodes in these states wait for an administrator anyway.
_LEFT_OUT = (*sorted(UNAPPROVED), NodeState.QUARANTINED, NodeState.RETIRED)


def begin_hold(tx: Tx, why: str, now: float, since: float | None = None) -> None:
    """Hold the site, and each node until its machine has reported what it holds. `since`: when
    the hold began, if it continues an earlier one.

    A story's `known` is the generation that the node's disk can have at most. A disk is marked with
    the generation of the state *prime* that wrote it. No node is in *prime* when its site is held,
    so its disk was written in an earlier state. A node that is held already keeps its story: its
    generation has grown since, and may have reached that of an installation which the database has
    forgotten.

    Nodes that are out of service, or not approved, stay so until an administrator acts: they may
    have been in service since the backup, which the database has forgotten. Each is held when it
    returns, or is approved.
    """
    tx.execute(
        insert(t.marks).values(name=watermarks.HOLD, at=now if since is None else since, about=why)
    )
    newest = tx.scalar(select(func.max(t.node_history.c.id))) or 0.0
    watermarks.move(tx, watermarks.LAST_HOLD, watermarks.at(tx, watermarks.LAST_HOLD), newest)
    forget_agreed(tx)
    rows = select(_n.id, _n.generation - 1, literal(StoryVerdict.SILENT.value)).where(
        _n.state.not_in(_LEFT_OUT), _n.id.not_in(select(_s.node_id))
    )
    columns = ["node_id", "known", "verdict"]
    tx.execute(insert(t.node_stories).from_select(columns, rows))
    tx.execute(update(t.sessions).values(order_sent=""))  # agents are asked once more
    # They have time for it. At another host of a Galera cluster this refuses the commit of a
    # message that moves such a node, and has found the site not held.
    waiting = _n.state == NodeState.TRAMPOLINE
    nodes.ROWS.set_where(tx, waiting, deadline=now + _TIME_TO_TELL)
    nodes.ROWS.set_where(tx, _n.state == NodeState.QUARANTINED, deadline=None)
    maintenance.let_go(tx)


def include(tx: Tx, node_id: int, known: int = 0) -> None:
    """Hold a node that the database did not know, or that was out of service, when its site was
    held. `known` is as in `begin_hold`."""
    if ROWS.get(tx, node_id) is None:
        ROWS.insert(tx, [NodeStory(node_id, known, StoryVerdict.SILENT)])


def holds(tx: Tx, node_id: int) -> bool:
    """Return whether the node is held by itself: its machine was silent, or differs."""
    story = ROWS.get(tx, node_id)
    return story is not None and story.verdict != StoryVerdict.AGREES


def is_asked(tx: Tx, node_id: int) -> bool:
    """Return whether the node's agent has still to report what its disks hold."""
    story = ROWS.get(tx, node_id)
    return story is not None and story.source != "agent"


def every(tx: Tx) -> list[tuple[Node, NodeStory]]:
    """Return all nodes with a story, by name."""
    query = nodes.ROWS.select.add_columns(*ROWS.columns).join(t.node_stories).order_by(_n.name)
    return [(nodes.ROWS.read(row), ROWS.read(row, nodes.ROWS.width)) for row in tx.execute(query)]


def counts(tx: Tx) -> dict[str, int]:
    """Return the number of nodes by verdict."""
    rows = tx.execute(select(_s.verdict, func.count()).group_by(_s.verdict))
    return {row[0]: row[1] for row in rows}


def forget_agreed(tx: Tx) -> None:
    """Forget the stories of nodes whose machines agree."""
    tx.execute(delete(t.node_stories).where(_s.verdict == StoryVerdict.AGREES))


def tell_anew(tx: Tx, now: float) -> None:
    """Have secondaries, file servers, switches and VCMs told everything anew. They may have been
    told something newer than the database knows, and would take the next older number for a repeat.
    """
    dns_zones.touch_all(tx, now)
    vcms.forget_owed(tx, now)
    v, n, p = t.volumes.c, t.nodes.c, t.switch_ports.c
    newer = case((v.sequence < int(now), int(now)), else_=v.sequence + 1)
    tx.execute(update(t.volumes).values(sequence=newer, applied=0, next_at=now, **volumes.UNTRIED))
    boots = p.mac.in_(select(n.boot_mac))  # who knows which network it was put in since
    tx.execute(
        update(t.switch_ports)
        .where(or_(p.seq > 0, boots))
        .values(seq=p.seq + 1, wished_at=now, next_at=now, attempts=0, reason="", given_up=False)
    )


def move_to_trampoline(
    tx: Tx, states: Collection[NodeState], *, actor: str, cause: str, now: float
) -> None:
    """Move all nodes in those states to the trampoline, where each must report before anything
    else."""
    moved = _n.state.in_(states)
    history = select(
        _n.id,
        literal(now),
        literal(NodeEvent.RESTORED.value),
        _n.state,
        literal(NodeState.TRAMPOLINE.value),
        _n.generation + 1,
        _n.vcluster_id,
        literal(actor),
        literal(cause),
    ).where(moved)
    columns = [
        "node_id",
        "at",
        "event",
        "from_state",
        "to_state",
        "generation",
        "vcluster_id",
        "actor",
        "cause",
    ]
    tx.execute(insert(t.node_history).from_select(columns, history))
    tx.execute(
        update(t.nodes)
        .where(moved)
        .values(
            state=NodeState.TRAMPOLINE,
            since=now,
            generation=_n.generation + 1,
            deadline=now + _TIME_TO_TELL,
            attempts=0,
        )
    )
