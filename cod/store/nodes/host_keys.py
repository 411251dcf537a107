"""Host keys of nodes: for SSH the public keys that nodes were installed with, and the salts of keys
that are being installed; for Kerberos the hosts that have principals, and the keytabs that are
being installed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, exists, insert, or_, select

from cod.model import HostKey, Keytab, KeytabTask, PrimingNode
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx, grouped, rows_among
from cod.store.rows import Rows, remove_all

_k = t.host_keys.c
_t = t.keytabs.c
_ROWS = Rows(HostKey, t.host_keys)
_KEYTABS = Rows(Keytab, t.keytabs)


def of_nodes(tx: Tx, node_ids: Collection[int]) -> dict[int, list[HostKey]]:
    """Return the SSH host keys of those nodes, by node; nodes without keys are left out."""
    query = select(_k.node_id, *_ROWS.columns).order_by(_k.node_id, _k.algorithm)
    return grouped(
        (row[0], _ROWS.read(row, 1)) for row in rows_among(tx, query, _k.node_id, node_ids)
    )


def salt(tx: Tx, node_id: int, order_id: str) -> str:
    """Return the salt of the keys that this order installs; '' if the order has none yet."""
    query = select(_k.salt).where(_k.node_id == node_id, _k.order_id == order_id).with_for_update()
    return tx.scalar(query.limit(1)) or ""


def put(tx: Tx, node_id: int, key: HostKey, *, order_id: str, salt: str, now: float) -> bool:
    """Record the key that this order installs, in place of all former keys of the node; return
    whether the key is new."""
    if of_nodes(tx, [node_id]) == {node_id: [key]}:
        return False
    forget(tx, node_id)
    tx.execute(
        insert(t.host_keys).values(
            node_id=node_id,
            algorithm=key.algorithm,
            key=key.key,
            order_id=order_id,
            salt=salt,
            made_at=now,
        )
    )
    return True


def written(tx: Tx, node_id: int) -> None:
    """Delete the node's salt and keytab: the secrets are on its disk, or the order is over."""
    _ROWS.set_where(tx, _k.node_id == node_id, _k.salt != "", salt="")
    own = (_t.node_id == node_id, _t.sealed.is_not(None))
    _KEYTABS.set_where(tx, *own, sealed=None)


def forget(tx: Tx, node_id: int) -> bool:
    """Delete the keys of a node whose disk no longer holds them. Return whether there were any."""
    return tx.execute(delete(t.host_keys).where(_k.node_id == node_id)).rowcount > 0


def forget_all(tx: Tx, node_ids: Sequence[int]) -> None:
    """Delete the keys of all those nodes."""
    remove_all(tx, _k.node_id, node_ids)


# ---------------------------------------------------------------- Kerberos


def keytabs(tx: Tx, hosts: Sequence[str]) -> list[Keytab]:
    """Return the keytabs of those hosts."""
    return _KEYTABS.among(tx, _t.host, hosts)


def priming(tx: Tx, domain: str) -> list[PrimingNode]:
    """Return the nodes that are being primed for a vcluster, of the site with that domain."""
    n, v = t.nodes.c, t.vclusters.c
    query = (
        select(n.id, n.generation, v.id, n.hostname, n.name, v.name, n.template_id)
        .join_from(t.nodes, t.vclusters, v.id == n.vcluster_id)
        .where(n.state == NodeState.PRIME, n.template_id.is_not(None))
        .order_by(n.id)
    )
    return [
        PrimingNode(
            f"{node}.{generation}", node, holder, f"{host or name}.{vcluster}.{domain}", template
        )
        for node, generation, holder, host, name, vcluster, template in tx.execute(query)
    ]


def stale_keytabs(tx: Tx) -> list[Keytab]:
    """Return keytabs that no node needs: of hosts whose nodes have left the vcluster, or were
    installed under another name there since. A node that was renamed while it was installed may
    use either keytab, so both stay until its next installation."""
    n, newer = t.nodes.c, t.keytabs.alias().c
    held = exists().where(n.id == _t.node_id, n.vcluster_id == _t.vcluster_id)
    renamed = exists().where(
        newer.node_id == _t.node_id, newer.order_id != _t.order_id, newer.made_at > _t.made_at
    )
    return _KEYTABS.every(tx, or_(~held, renamed), order=_t.host)


def sealed_keytab(tx: Tx, host: str, order_id: str) -> bytes | None:
    """Return the host's sealed keytab that this order writes; None if there is none yet."""
    return tx.scalar(select(_t.sealed).where(_t.host == host, _t.order_id == order_id))


def put_keytab(
    tx: Tx,
    task: KeytabTask,
    sealed: bytes | None,
    *,
    made_at: float | None,
    next_at: float,
    attempts: int = 0,
    reason: str = "",
) -> None:
    """Write the keytab's row for the task's host."""
    forget_keytab(tx, task.host)
    _KEYTABS.add(
        tx,
        host=task.host,
        node_id=task.node_id,
        vcluster_id=task.vcluster_id,
        order_id=task.order_id,
        sealed=sealed,
        attempts=attempts,
        next_at=next_at,
        reason=reason,
        made_at=made_at,
    )


def forget_keytab(tx: Tx, host: str, order_id: str = "") -> None:
    """Delete the host's keytab; with `order_id`, only if it is still this order's."""
    own = (_t.order_id == order_id,) if order_id else ()
    tx.execute(delete(t.keytabs).where(_t.host == host, *own))
