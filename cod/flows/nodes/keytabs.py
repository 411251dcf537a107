"""Keytabs of nodes: which the site's command is to make and to remove, and what came of it.

A node that is being primed with a template that asks for Kerberos gets a keytab for the host that
it becomes. Until then its order waits (`flows.agents.orders`). Each installation has new keys, so
that those on the disk of an earlier one are worth nothing; the bytes are dropped here as soon as
they are written there. The host's principals are removed when its node has left the vcluster.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cod.model import Effect, KeytabTask, Node, Result, Site
from cod.policy import volumes
from cod.policy.nodes import template
from cod.policy.people import kerberos
from cod.states import KERBEROS, NodeState
from cod.store import claims
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import host_keys, nodes

CLAIM = "keytabs"
LONGEST = 500  # characters of a reason


def due(tx: Tx, site: Site, now: float) -> list[KeytabTask]:
    """Return what the site's command is to do now, removals last. Reads only."""
    if not (site.kerberos.realm and site.kerberos.keytab_command):
        return []
    known = {one.host: one for one in host_keys.keytabs(tx)}
    wanted = host_keys.priming(tx)
    documents = templates.documents(tx, {one.template_id for one in wanted})
    tasks, kept = [], set()
    for one in wanted:
        if not kerberos.has_keytab(site.kerberos, template.parse(documents[one.template_id])):
            continue
        host = f"{one.name}.{one.vcluster}.{site.domain}"
        kept.add(host)
        there = known.get(host)
        task = KeytabTask(host, one.order_id, one.node_id, one.vcluster_id)
        if there is None:
            tasks.append(task)
        elif there.order_id != one.order_id:
            tasks.append(replace(task, made_at=there.made_at))
        elif there.sealed is None and there.next_at <= now:
            tasks.append(replace(task, attempts=there.attempts, made_at=there.made_at))
    for row in host_keys.stale_keytabs(tx):
        if row.host not in kept and row.next_at <= now:
            tasks.append(
                KeytabTask(
                    row.host,
                    row.order_id,
                    row.node_id,
                    row.vcluster_id,
                    True,
                    row.attempts,
                    row.made_at,
                )
            )
    return tasks


def claim(
    tx: Tx, server: str, busy: Collection[str], site: Site, now: float, lease: float
) -> list[KeytabTask]:
    """Return what `server` is to do now, but for hosts that it is `busy` with; nothing while
    another server does such work, which has it for `lease` seconds."""
    if claims.hold(tx, CLAIM, server, now, lease) is None:
        return []
    return [task for task in due(tx, site, now) if task.host not in busy]


def made(tx: Tx, task: KeytabTask, sealed: bytes, now: float) -> Result[bool]:
    """Store the keytab, sealed, for the order of its node; the value is whether that is still
    wanted."""
    node = _ordered(tx, task)
    # the principals are there either way: the row says so, and they are removed in time
    host_keys.put_keytab(tx, task, sealed if node else None, made_at=now, next_at=now)
    if node is None:
        return Result(False)
    if node.waits_for == KERBEROS:
        nodes.change(tx, node, waits_for="", waits_since=None)
    return Result(True, (Effect("wake", "orders"),))


def removed(tx: Tx, task: KeytabTask) -> None:
    """Forget a host whose principals were removed."""
    host_keys.forget_keytab(tx, task.host, task.order_id)


def failed(tx: Tx, task: KeytabTask, reason: str, now: float) -> float:
    """Record why the command failed; return when it is tried again. The node waits meanwhile."""
    attempts = task.attempts + 1
    next_at = now + volumes.retry_after(attempts)
    host_keys.put_keytab(
        tx,
        task,
        None,
        attempts=attempts,
        next_at=next_at,
        made_at=task.made_at,
        reason=reason[:LONGEST],
    )
    node = None if task.removal else _ordered(tx, task)
    if node is not None:
        columns = {"reason": f"its keytab is not made: {reason}"[:LONGEST]}
        nodes.change(tx, node, waits_for=KERBEROS, waits_since=node.waits_since or now, **columns)
    return next_at


def _ordered(tx: Tx, task: KeytabTask) -> Node | None:
    """Return the task's node, locked, if it is still being primed by the task's order."""
    node = nodes.get(tx, task.node_id, lock=True)
    if node is None or node.state != NodeState.PRIME:
        return None
    return node if f"{node.id}.{node.generation}" == task.order_id else None
