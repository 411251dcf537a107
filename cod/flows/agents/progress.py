"""An agent's messages about an order: its progress, its end, its failure.

An order's id is '<node id>.<generation>'. The generation grows with each transition, so the id
shows whether the order is still the node's current one. A message about an earlier order changes
nothing and gets the same answer as before. Every message here is therefore safe to repeat, after a
lost answer, a reconnect or a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from cod import notice_texts
from cod.choices import Wipe
from cod.core import notices
from cod.core.nodes import blame, burnins, kept_disks, next_order, stories, transitions
from cod.model import AgentSession, Node, Peer, Refused, Result, Site
from cod.orders import Erasure, Namesake, Order, TestResult, current_id
from cod.policy.hardware import namesakes as names
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import captures, conflicts, nodes, sessions
from cod.store.scheduler import vclusters

_DONE = {
    NodeState.WIPE: Step(
        NodeEvent.WIPED,
        "its disks are erased",
        {
            "disk": Disk.CLEAN,
            "cached_template_id": None,
            "cached_group_id": None,
            "disk_signature": None,
            "wipe": "",
        },
    ),
    NodeState.PRIME: Step(
        NodeEvent.PRIMED, "its template's images are written", {"disk": Disk.DIRTY}
    ),
    NodeState.CAPTURE: Step(NodeEvent.CAPTURED, "its disk is saved as an image", {"reason": ""}),
}
NAMESAKE_AGAIN = 86400.0  # seconds between two notices of the same names on a node
_TABLES = "its partition tables are erased; kept for its group, or erased whole for another"
_AT_WORK = (*_DONE, NodeState.BURNIN)


def progress(
    tx: Tx,
    peer: Peer,
    order_id: str,
    phase: str,
    done: int,
    total: int,
    rate: float,
    site: Site,
    now: float,
    source: str = "",
) -> Result[None]:
    """Note `done` of `total` bytes of a phase (wipe, write, verify …) at `rate` bytes/s, and where
    the image comes from. The state's deadline moves on if, and only if, something was done."""
    node, _, is_current = _spoken(tx, peer, order_id)
    if not is_current or node.state not in _AT_WORK:
        return Result(None)
    deadline = node.deadline
    if (phase, done, total) != (node.progress_phase, node.progress_done, node.progress_total):
        longest = NODE_RULES[NodeState(node.state)].deadline or 0.0
        deadline = now + longest * site.policy.patience
    nodes.set_progress(
        tx,
        node,
        deadline,
        progress_done=done,
        progress_total=total,
        progress_rate=rate,
        progress_phase=phase[:16],
        progress_source=source[:63],
        last_seen=now,
    )
    return Result(None)


def done(
    tx: Tx,
    peer: Peer,
    order_id: str,
    figures: Mapping[str, float],
    site: Site,
    now: float,
    results: Sequence[TestResult] = (),
    erased: Sequence[Erasure] = (),
    namesakes: Sequence[Namesake] = (),
    disks: str = "",
) -> Result[Order | None]:
    """Note that the order is carried out, and settle the node. Return its next order, as
    `next_order.answer` does.

    figures    bytes_written goes into the history (for a capture, the bytes read), with the rate
               over write_seconds for a primed disk. disk_signature is stored: a BIOS machine finds
               its disk by it at the next boots
    results    of a burn-in's tests, which decide whether the node passes
    erased     how each disk was erased; stored with the transition
    namesakes  volumes on other disks with the name of a written one; administrators and the holder
               are told of them
    disks      what the agent of a held node found on its disks (`policy.stories`)
    """
    node, session, is_current = _spoken(tx, peer, order_id)
    after = node
    if is_current and disks:
        after = stories.by_agent(tx, node, disks, site, now)
    elif is_current and node.state == NodeState.BURNIN:
        moved = kept_disks.remark(tx, burnins.finish(tx, node, results, site, now), site, now)
        after = transitions.settle(tx, moved, now=now, policy=site.policy)
    # only the image server, which checked what it received, can tell that an image has come
    elif is_current and node.state == NodeState.CAPTURE and not captures.is_done(tx, node.id):
        after = _fail(tx, node, "its agent says that it is done, but no image has come", site, now)
    elif is_current and node.state in _AT_WORK:
        after = _finish(tx, node, figures, erased, namesakes, site, now)
    return _answered(tx, node, after, session, peer, order_id, site, now)


def _finish(
    tx: Tx,
    node: Node,
    figures: Mapping[str, float],
    erased: Sequence[Erasure],
    namesakes: Sequence[Namesake],
    site: Site,
    now: float,
) -> Node:
    """Apply the end of a wipe, a prime or a capture, and settle the node; return the node."""
    count = int(figures.get("bytes_written", node.progress_done))
    seconds = figures.get("write_seconds", 0.0) if node.state == NodeState.PRIME else 0.0
    written = replace(
        node, progress_done=count, progress_rate=count / seconds if seconds > 0 else 0.0
    )
    step = _DONE[NodeState(node.state)]
    if node.state == NodeState.WIPE and node.wipe == Wipe.TABLES:
        kept = {"disk": Disk.TABLES, "cached_group_id": node.cached_group_id}
        step = replace(step, cause=_TABLES, columns={**step.columns, **kept})
    if node.state == NodeState.PRIME:
        signature = int(figures.get("disk_signature", 0))
        step = replace(step, columns={**step.columns, "disk_signature": signature or None})
    if erased and node.state in (NodeState.WIPE, NodeState.PRIME):
        step = replace(step, erased=json.dumps([asdict(disk) for disk in erased]))
    moved = transitions.apply(tx, written, step, now=now, actor="agent", policy=site.policy)
    moved = kept_disks.remark(tx, moved, site, now)
    if namesakes and node.state == NodeState.PRIME:
        _tell_namesakes(tx, node, names.sentence(namesakes), now)
    return transitions.settle(tx, moved, now=now, policy=site.policy)


def _answered(
    tx: Tx,
    before: Node,
    after: Node,
    session: AgentSession,
    peer: Peer,
    order_id: str,
    site: Site,
    now: float,
) -> Result[Order | None]:
    """Return the next order of a node that came from `before` to `after` by a message about an
    order."""
    order = next_order.answer(tx, after, session, peer, site, now, about=order_id)
    return Result(order, transitions.wakes(before, after, look=order is None))


def _tell_namesakes(tx: Tx, node: Node, about: str, now: float) -> None:
    recorded = conflicts.add_of(
        tx, node, "namesake", f"{node.name}: {about}", now, within=NAMESAKE_AGAIN
    )
    if not recorded:
        return
    holder = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    text = notice_texts.namesakes(node.name, about)
    notices.add(tx, **text, group_id=None, now=now)
    if holder is not None:
        notices.add(tx, **text, group_id=holder.group_id, vcluster_id=holder.id, now=now)


def failed(
    tx: Tx, peer: Peer, order_id: str, reason: str, site: Site, now: float, cause: str = ""
) -> Result[Order | None]:
    """Note that the order cannot be carried out. The node rests in the trampoline, is put out of
    service, or goes back to the reserve. Return its next order, as `next_order.answer` does.
    `cause`: as in `policy.nodes.blame.FAULTS`."""
    node, session, is_current = _spoken(tx, peer, order_id)
    after = node
    if is_current and current_id(order_id) != order_id:
        stories.could_not_look(tx, node, reason, now)
    elif is_current and node.state in _AT_WORK:
        after = _fail(tx, node, reason, site, now, cause)
    return _answered(tx, node, after, session, peer, order_id, site, now)


def _fail(tx: Tx, node: Node, reason: str, site: Site, now: float, cause: str = "") -> Node:
    step = blame.on_trouble(tx, node, NodeEvent.FAILED, reason, site.policy, cause)
    return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)


def _spoken(tx: Tx, peer: Peer, order_id: str) -> tuple[Node, AgentSession, bool]:
    """Return the peer's node and connection, both locked, and whether the order is the node's
    current one, not an earlier one. Raises `Refused` for an order of another node."""
    node, session = sessions.of_peer(tx, peer)
    owner, _, generation = current_id(order_id).partition(".")
    if owner != str(node.id):
        raise Refused("forbidden", f"order {order_id} is not of {node.name}")
    return node, session, generation == str(node.generation)
