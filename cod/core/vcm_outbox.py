"""Messages for the outbox of a vcluster's manager (VCM) when rows change, by their verbs
(docs/nmp).

The functions are called in the transaction of the change. If the vcluster has no VCM, they write
nothing. The fields are those of the records in `wire/nmp/bodies`; values are plain, because the
outbox keeps JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cod.model import Node, Reclaim, Request, Vcluster
from cod.store import vcms
from cod.store.engine import Tx
from cod.store.scheduler import requests
from cod.store.scheduler.node_picks import Member


def granted(
    tx: Tx, request: Request, vcluster: Vcluster, node_ids: Sequence[int], now: float
) -> None:
    """Add the message that a request is granted those nodes."""
    if vcms.get(tx, vcluster.id) is not None:
        vcms.enqueue(
            tx,
            vcluster.id,
            "grant",
            {
                "request": request.id,
                "key": _key(tx, request.id),
                "expires": vcluster.expires_at or 0.0,
                "members": vcms.members(tx, node_ids, attributes=True),
            },
            now,
        )


def refused(tx: Tx, request: Request, reason: str, now: float) -> None:
    """Add the message that a request is rejected, or was withdrawn."""
    if vcms.get(tx, request.vcluster_id) is not None:
        vcms.enqueue(
            tx,
            request.vcluster_id,
            "refusal",
            {"request": request.id, "key": _key(tx, request.id), "reason": reason},
            now,
        )


def moved(tx: Tx, node: Node, vcluster_id: int | None, state: str, reason: str, now: float) -> None:
    """Add the message of a node's new state: a state of its lifecycle, or 'lost'."""
    if vcluster_id is not None and vcms.get(tx, vcluster_id) is not None:
        vcms.enqueue(
            tx,
            vcluster_id,
            "node-state",
            {
                "node": node.name,
                "hostname": node.hostname or node.name,
                "address": vcms.addresses(tx, [node.id]).get(node.id, ""),
                "state": state,
                "reason": reason,
            },
            now,
        )


def reclaimed(
    tx: Tx, reclaim: Reclaim, reason: str, candidates: Iterable[Node | Member], now: float
) -> None:
    """Add the message of a reclaim; `candidates` are all nodes that the VCM may give for it."""
    if vcms.get(tx, reclaim.vcluster_id) is not None:
        vcms.enqueue(
            tx,
            reclaim.vcluster_id,
            "reclaim",
            {
                "reclaim": reclaim.id,
                "count": reclaim.count - reclaim.given,
                "deadline": reclaim.deadline,
                "reason": reason,
                "requires": reclaim.attributes,
                "nodes": [{"node": node.hostname or node.name} for node in candidates],
            },
            now,
        )


def over(tx: Tx, reclaim: Reclaim, state: str, now: float) -> None:
    """Add the message that a reclaim is done or cancelled."""
    vcms.enqueue(
        tx, reclaim.vcluster_id, "reclaim-over", {"reclaim": reclaim.id, "state": state}, now
    )


def leased(tx: Tx, vcluster: Vcluster, event: str, now: float) -> None:
    """Add the message of an event of the lease: warning, draining, extended or ended."""
    vcms.enqueue(
        tx, vcluster.id, "lease", {"event": event, "expires": vcluster.expires_at or now}, now
    )


def _key(tx: Tx, request_id: int) -> str:
    return requests.own_key(requests.keys(tx, [request_id]).get(request_id))
