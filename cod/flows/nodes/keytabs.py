"""Keytabs of nodes, which the site's command makes and removes, and the outcomes.

A node that is primed with a template that asks for Kerberos gets a keytab for its host name in the
vcluster. Until the keytab is made, the node's order waits (`flows.agents.orders`). Each
installation gets new keys, so that keys on a disk from an earlier installation are invalid. COD
deletes a keytab as soon as it is written to the node. The host's principals are removed when its
node has left the vcluster.
"""

from __future__ import annotations

from dataclasses import replace

from cod.core.nodes import keytabs as core
from cod.model import Effect, KeytabTask, Node, Result, Site
from cod.policy import volumes
from cod.states import KERBEROS, NODE_RULES, NodeState
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.nodes import host_keys, nodes

CLAIM = "keytabs"
LONGEST = 500  # characters of a reason


def due(tx: Tx, site: Site, now: float) -> list[KeytabTask]:
    """Return the tasks of the site's command that are due: those with the fewest failures first,
    and removals last. Return none while the site is held: hosts that are gone by the database may
    have been installed again since. Reads only."""
    if watermarks.at(tx, watermarks.HOLD) is not None:
        return []
    tasks, kept = [], set()
    for one, row in core.wanted(tx, site):
        kept.add(one.host)
        again = row is not None and row.order_id == one.order_id
        if core.is_there(one, row) or (row is not None and again and row.next_at > now):
            continue
        task = KeytabTask(one.host, one.order_id, one.node_id, one.vcluster_id)
        if row is not None:
            task = replace(task, attempts=row.attempts if again else 0, made_at=row.made_at)
        tasks.append(task)
    tasks.sort(key=lambda task: task.attempts)
    return tasks + [
        KeytabTask(
            row.host, row.order_id, row.node_id, row.vcluster_id, True, row.attempts, row.made_at
        )
        for row in host_keys.stale_keytabs(tx)
        if row.host not in kept and row.next_at <= now
    ]


def made(tx: Tx, task: KeytabTask, sealed: bytes, site: Site, now: float) -> Result[bool]:
    """Store the sealed keytab for its node's order, and give the node a whole deadline from now.
    Return whether the keytab is still needed; if it is not, it is not stored."""
    node = _ordered(tx, task)
    # the principals exist in either case: the row records that, so that they are removed later
    host_keys.put_keytab(tx, task, sealed if node else None, made_at=now, next_at=now)
    if node is None:
        return Result(False)
    if node.waits_for == KERBEROS:
        nodes.change(tx, node, waits_for="", waits_since=None)
    whole = NODE_RULES[NodeState.PRIME].deadline or 0.0
    nodes.set_deadline(tx, node, now + whole * site.policy.patience)
    return Result(True, (Effect("wake", "orders"),))


def removed(tx: Tx, task: KeytabTask) -> None:
    """Forget a host whose principals were removed."""
    host_keys.forget_keytab(tx, task.host, task.order_id)


def failed(tx: Tx, task: KeytabTask, reason: str, now: float) -> None:
    """Record why the command failed, and when it is tried again. The node waits meanwhile."""
    attempts = task.attempts + 1
    host_keys.put_keytab(
        tx,
        task,
        None,
        attempts=attempts,
        next_at=now + volumes.retry_after(attempts),
        made_at=task.made_at,
        reason=reason[:LONGEST],
    )
    node = None if task.removal else _ordered(tx, task)
    if node is not None:
        columns = {"reason": f"its keytab is not made: {reason}"[:LONGEST]}
        nodes.change(tx, node, waits_for=KERBEROS, waits_since=node.waits_since or now, **columns)


def _ordered(tx: Tx, task: KeytabTask) -> Node | None:
    """Return the task's node, locked, if it is still being primed by the task's order."""
    node = nodes.get(tx, task.node_id, lock=True)
    if node is None or node.state != NodeState.PRIME:
        return None
    return node if f"{node.id}.{node.generation}" == task.order_id else None
