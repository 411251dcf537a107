"""COD's own evidence of a node's boot, which an agent's claim to have booted it is checked against.

COD gives a boot's secret to any machine that has the node's MAC and address, and both can be forged
on the nodes' network. So an agent with a new boot's secret is refused while the agent of the node's
earlier boot is heard, and while the node's power driver, asked at that moment, says that the node
is off. A boot that COD did not order is believed if the driver says that the node is on. Otherwise
COD cycles the node's power or, where it cannot, an administrator decides.

After an outage of the whole site all machines boot without COD's order, and BMCs start late: then
none of this is a conflict.
"""

from __future__ import annotations

from cod import notice_texts
from cod.choices import CANNOT_TELL
from cod.core import notices
from cod.model import Node, Site
from cod.policy.nodes import lifecycle
from cod.states import UNAPPROVED, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import conflicts, nodes, sessions
from cod.store.people import audit

AGAIN = 3600.0  # seconds in which the same contradiction is recorded once
OUTAGE = 1800.0  # seconds after the loss of a site's agents in which machines boot by themselves


def contradiction(tx: Tx, node: Node, power: str, *, heard: bool, now: float) -> str:
    """Return a sentence why an agent with a new boot's secret is not believed to run on `node`; ''
    if it is. A refusal is recorded as a conflict. If the driver says that the node is off,
    administrators are told, and the refusal is in the audit log.

    power  'on', 'off' or 'unknown', as the node's driver says now
    heard  the agent of the node's earlier boot is connected
    """
    if node.state in UNAPPROVED:
        return ""
    if power == "off":
        why = f"the power driver of {node.name} says that the node is off"
        if is_outage(tx, now):
            return why  # the BMC may have started late: the agent tries again
    elif heard:
        why = f"the agent of the earlier boot of {node.name} is still connected"
    else:
        return ""
    refusal = f"an agent with the MAC of {node.name} was refused: {why}"
    known = conflicts.add_of(tx, node, "identity", refusal, now, within=AGAIN)
    # A node that was reset a moment ago is refused for a few seconds, too: that is no alarm.
    if known and power == "off":
        notices.add(tx, **notice_texts.not_believed(node.name, why), group_id=None, now=now)
        audit.add(
            tx,
            actor="confd",
            action="agent refuse",
            thing=node.name,
            after={"mac": node.boot_mac, "reason": why},
            now=now,
        )
    return why


def is_outage(tx: Tx, now: float) -> bool:
    """Return whether at least half of the agents, and two at least, were lost in the last `OUTAGE`
    seconds."""
    lost = nodes.count_lost(tx, now - OUTAGE)
    return lost >= 2 and 2 * lost >= sessions.count(tx)


def unproven(tx: Tx, node: Node, site: Site, now: float) -> Step | None:
    """Return the step for a node in the trampoline whose boot COD did not order and no power driver
    has confirmed; None for all other nodes."""
    if not node.boot_unordered or node.state != NodeState.TRAMPOLINE or site.policy.auto_approve:
        return None
    if is_outage(tx, now):
        return None
    if node.power_driver in CANNOT_TELL:
        why = (
            "it was reset or switched on by nobody's order, and no power driver can confirm that it"
            " is the same machine: restore it if somebody did so by hand"
        )
        return Step(NodeEvent.QUARANTINED, why, {"reason": why})
    why = "it was reset or switched on by nobody's order, and its power driver did not answer"
    if not site.policy.power_cycle:
        why += ": restore it if somebody did so by hand"
        return Step(NodeEvent.QUARANTINED, why, {"reason": why})
    return lifecycle.on_trouble(node, NodeEvent.TIMED_OUT, why, site.policy)
