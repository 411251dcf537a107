"""A machine's own account of its system while its node is held, and the consequences.

An agent has proven the secret of its machine's boot: its word sets its own node aside, and no
other. Anybody on the network can send a DHCP message in a machine's name: it holds the node, which
then waits for its agent or an administrator, and moves nothing.
"""

from __future__ import annotations

from cod.core.nodes import transitions
from cod.model import Node, Site
from cod.policy import stories as policy
from cod.states import Disk, NodeEvent, NodeState, Step, StoryVerdict
from cod.store import stories, watermarks
from cod.store.engine import Tx
from cod.store.nodes import bindings, holding, nodes
from cod.store.scheduler import vclusters


def by_agent(tx: Tx, node: Node, marks: str, site: Site, now: float) -> Node:
    """Take in what a node's agent found on its disks, which nobody had written to since the site
    was held. Return the node as it is now: set aside where that differs from the database.

    A node that is on its way to its holder's system, and has that very system on its disk, boots it
    as it is.
    """
    story = stories.get(tx, node.id)
    if story is None or node.state != NodeState.TRAMPOLINE:
        return node
    bindings.returned(tx, node.id)
    verdict, sentence = policy.judge(node.id, story.known, marks)
    _note(tx, node.id, verdict, "agent", sentence, now)
    if verdict is StoryVerdict.DIFFERS:
        holder = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
        why = policy.both(node.state, holder.name if holder else None, story.known, sentence)
        step = Step(NodeEvent.QUARANTINED, why, {"reason": why})
        return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)
    installed = holding.installed_in(tx, node.id)
    if node.vcluster_id is not None and policy.is_mark_of(node.id, installed, marks):
        node = nodes.change(tx, node, disk=Disk.SYSTEM)
    return transitions.settle(tx, node, now=now, policy=site.policy)


def could_not_look(tx: Tx, node: Node, reason: str, now: float) -> None:
    """Take in why a node's agent cannot tell what its disks hold: the machine stays silent."""
    story = stories.get(tx, node.id, lock=True)
    if story is not None and story.verdict is not StoryVerdict.DIFFERS:
        sentence = f"its agent could not look: {reason}"
        stories.change(tx, story, verdict=StoryVerdict.SILENT, at=now, said=sentence[:300])


def by_system(tx: Tx, node_id: int, verdict: StoryVerdict, sentence: str, now: float) -> None:
    """Take in that a node's system asked for an address."""
    _note(tx, node_id, verdict, "dhcp", sentence, now)


def _note(
    tx: Tx, node_id: int, verdict: StoryVerdict, source: str, sentence: str, now: float
) -> None:
    held = watermarks.at(tx, watermarks.HOLD) is not None
    if verdict is StoryVerdict.AGREES and not held:
        stories.forget(tx, node_id)
        return
    story = stories.get(tx, node_id, lock=True)
    if story is not None:
        stories.change(tx, story, verdict=verdict, source=source, at=now, said=sentence[:300])
