"""An agent's messages about an order: its progress, its end, its failure.

An order's id is '<node id>.<generation>'. The generation grows with each transition, so an order
that is not the current one any more is recognised by its id: whatever is said about it changes
nothing and is answered like the first time. That makes every message here safe to repeat, after a
lost answer, a reconnect or a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from cod import notice_texts
from cod.core import notices
from cod.core.nodes import blame, burnins, kept_disks, stories, transitions
from cod.model import Node, Peer, Refused, Result, Site
from cod.orders import Erasure, Namesake, TestResult, current_id
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
NAMESAKE_AGAIN = 86400.0  # seconds in which the same names of a node are told once
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
    node = _current(tx, peer, order_id)
    if node is None or node.state not in _AT_WORK:
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
) -> Result[None]:
    """Note that the order is carried out. Of the figures, bytes_written goes into the history, with
    the rate of the writing alone where its seconds are told (write_seconds); of a capture, what was
    read. A primed disk's signature is kept: the next boots of a BIOS machine find the disk by it.
    By the `results` of a burn-in it passes or not. How disks were `erased` is kept with the
    transition. `namesakes` of what was written are told to administrators and to the holder.
    `disks` is what the agent of a held node found there (`policy.stories`)."""
    node = _current(tx, peer, order_id)
    if node is not None and disks:
        updated = stories.by_agent(tx, node, disks, site, now)
        return Result(None, transitions.wakes(node, updated))
    if node is None or node.state not in _AT_WORK:
        return Result(None)
    if node.state == NodeState.BURNIN:
        moved = kept_disks.remark(tx, burnins.finish(tx, node, results, site, now), site, now)
        settled = transitions.settle(tx, moved, now=now, policy=site.policy)
        return Result(None, transitions.wakes(node, settled))
    # that an image came is the image server's to say: it checked what it received
    if node.state == NodeState.CAPTURE and not captures.is_done(tx, node.id):
        return failed(
            tx, peer, order_id, "its agent says that it is done, but no image has come", site, now
        )
    count = int(figures.get("bytes_written", node.progress_done))
    seconds = figures.get("write_seconds", 0.0) if node.state == NodeState.PRIME else 0.0
    written = replace(
        node, progress_done=count, progress_rate=count / seconds if seconds > 0 else 0.0
    )
    step = _DONE[NodeState(node.state)]
    if node.state == NodeState.WIPE and node.wipe == "tables":
        kept = {"disk": Disk.TABLES, "cached_group_id": node.cached_group_id}
        step = replace(step, cause=_TABLES, columns={**step.columns, **kept})
    if node.state == NodeState.PRIME:
        signature = int(figures.get("disk_signature", 0))
        step = replace(step, columns={**step.columns, "disk_signature": signature or None})
    moved = transitions.apply(tx, written, step, now=now, actor="agent", policy=site.policy)
    if erased and node.state in (NodeState.WIPE, NodeState.PRIME):
        nodes.note_erased(tx, moved, json.dumps([asdict(disk) for disk in erased]))
    moved = kept_disks.remark(tx, moved, site, now)
    if namesakes and node.state == NodeState.PRIME:
        _tell_namesakes(tx, node, names.sentence(namesakes), now)
    settled = transitions.settle(tx, moved, now=now, policy=site.policy)
    return Result(None, transitions.wakes(node, settled))


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
) -> Result[None]:
    """Note that the order cannot be carried out. The node rests in the trampoline, is set aside, or
    goes back to the reserve. `cause`: as in `policy.nodes.blame.FAULTS`."""
    node = _current(tx, peer, order_id)
    if node is not None and current_id(order_id) != order_id:
        stories.could_not_look(tx, node, reason, now)
        return Result(None)
    if node is None or node.state not in _AT_WORK:
        return Result(None)
    step = blame.on_trouble(tx, node, NodeEvent.FAILED, reason, site.policy, cause)
    moved = transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)
    return Result(None, transitions.wakes(node, moved))


def _current(tx: Tx, peer: Peer, order_id: str) -> Node | None:
    """Return the node, locked, if that is its order now. Raises `Refused` for an order that is
    another node's."""
    node, _ = sessions.of_peer(tx, peer)
    owner, _, generation = current_id(order_id).partition(".")
    if owner != str(node.id):
        raise Refused("forbidden", f"order {order_id} is not of {node.name}")
    return node if generation == str(node.generation) else None
