"""Statements of held nodes' machines and switches about the nodes, and the consequences.

An agent has proven that it has the secret of its machine's boot, so its report can put its own node
out of service, but no other node. Any host on the network can forge a DHCP message in a machine's
name, so such a message changes no node's state: the node stays held until its agent reports or an
administrator decides.

A switch is believed about the VLAN of a node's port. A VLAN in which the database never had the
port shows that it has forgotten who holds the node, or that it gave the node back. The VLAN that
the database wants shows nothing: the disk may have been written anew for the same vcluster.
"""

from __future__ import annotations

from cod.core.nodes import transitions
from cod.model import Node, Site, SwitchPort
from cod.policy import stories as policy
from cod.states import Disk, NodeEvent, NodeState, Step, StoryVerdict
from cod.store import stories, watermarks
from cod.store.engine import Tx
from cod.store.nodes import bindings, holding, nodes
from cod.store.scheduler import vclusters

SWITCH = "switch"  # the source of a story


def site_held(tx: Tx) -> str:
    """Return a clause that says that the site is held, and why; '' if it is not held."""
    if watermarks.at(tx, watermarks.HOLD) is None:
        return ""
    why = watermarks.about(tx, watermarks.HOLD)
    return f"the site is held: {why}; nothing is granted until the hold ends"


def by_agent(tx: Tx, node: Node, marks: str, site: Site, now: float) -> Node:
    """Record the `marks` that a held node's agent found on the node's disks, and return the node as
    it is now. A node whose disks differ from what the database says is put out of service.

    The disks were not written to since the site was held. A node that is being prepared for its
    holder, and already has the holder's system on its disk, boots that system unchanged.
    """
    story = stories.get(tx, node.id)
    if story is None or node.state != NodeState.TRAMPOLINE:
        return node
    bindings.returned(tx, node.id)
    mark = policy.read_mark(marks)
    recorded = holding.recorded(tx, node.id, mark.generation if mark else None)
    verdict, sentence = policy.judge(node.id, story.known, marks, recorded)
    _note(tx, node.id, verdict, "agent", sentence, now)
    if verdict is StoryVerdict.DIFFERS:
        holder = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
        why = policy.both(node.state, holder.name if holder else None, story.known, sentence)
        step = Step(NodeEvent.QUARANTINED, why, {"reason": why})
        return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)
    if node.vcluster_id is not None and policy.is_mark_of(marks, recorded):
        node = nodes.change(tx, node, disk=Disk.SYSTEM)
    return transitions.settle(tx, node, now=now, policy=site.policy)


def could_not_look(tx: Tx, node: Node, reason: str, now: float) -> None:
    """Record why a held node's agent cannot tell what its disks hold. The node's verdict becomes
    SILENT, unless it is DIFFERS already."""
    story = stories.get(tx, node.id, lock=True)
    if story is not None and story.verdict != StoryVerdict.DIFFERS:
        sentence = f"its agent could not look: {reason}"
        stories.change(tx, story, verdict=StoryVerdict.SILENT, at=now, said=sentence[:300])


def by_system(tx: Tx, node_id: int, verdict: StoryVerdict, sentence: str, now: float) -> None:
    """Record the verdict on a held node whose system asked DHCP for an address, unless a switch
    contradicts the database about the node."""
    story = stories.get(tx, node_id)
    if story is not None and story.source != SWITCH:
        _note(tx, node_id, verdict, "dhcp", sentence, now)


def by_switch(tx: Tx, port: SwitchPort, vlan: int, home: int, now: float) -> bool:
    """Return whether a node's switch port, which was found in `vlan`, is to be left there: the node
    is held, its agent has not reported, and the database never had the port in that VLAN. Record
    the verdict on the node.

    port  as it was before `vlan` was read
    home  the provisioning VLAN of its switch
    """
    story = None if port.node_id is None else stories.get(tx, port.node_id)
    if story is None or story.source == "agent":
        return False
    if nodes.known(tx, story.node_id).boot_mac != port.mac:
        return False  # of a NIC whose port COD puts into no VLAN
    if story.source != SWITCH:
        put = home if port.applied_vlan is None else port.applied_vlan
        if vlan == put:
            return False
        where = f"its port {port.port} of switch {port.switch} is in VLAN {vlan}"
        sentence = f"{where}, where the database had it in VLAN {put}"
        _note(tx, story.node_id, StoryVerdict.DIFFERS, SWITCH, sentence, now)
    return True


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
