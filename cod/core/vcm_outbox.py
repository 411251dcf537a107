"""What a vcluster's manager (VCM) is owed when rows change: messages for its outbox, by their verbs (docs/nmp.md).

Called in the transaction of the change. Where a vcluster has no VCM, nothing is written. The fields are those of the
records in `wire/nmp/bodies`; values are plain, because the outbox keeps JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, select

from cod.model import Node, Reclaim, Request, Vcluster, dotted
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.notices import vcms

LOST = frozenset({NodeState.QUARANTINED, NodeState.RETIRED})
PREFIX = "vcm"


def request_key(vcluster_id: int, key: str) -> str:
    """A VCM's own key for a request, as it stands in `node_requests.key`, which all clients share."""
    return f"{PREFIX}{vcluster_id}:{key}"


def own_key(key: str | None) -> str:
    """The reverse; '' for requests that no VCM made."""
    return (key or "").partition(":")[2] if (key or "").startswith(PREFIX) else ""


def granted(tx: Tx, request: Request, vcluster: Vcluster, node_ids: Sequence[int], now: float) -> None:
    """The request is satisfied with those nodes."""
    if vcms.get(tx, vcluster.id) is not None:
        vcms.owe(tx, vcluster.id, "grant", {
            "request": request.id, "key": _key(tx, request.id), "expires": vcluster.expires_at or 0.0,
            "members": members(tx, node_ids, attributes=True)}, now)


def refused(tx: Tx, request: Request, reason: str, now: float) -> None:
    """The request is rejected, or was withdrawn."""
    if vcms.get(tx, request.vcluster_id) is not None:
        vcms.owe(tx, request.vcluster_id, "refusal",
                 {"request": request.id, "key": _key(tx, request.id), "reason": reason}, now)


def moved(tx: Tx, node: Node, vcluster_id: int | None, state: str, reason: str, now: float) -> None:
    """A node of that vcluster has come into `state`: a state of its life, or 'lost'."""
    if vcluster_id is not None and vcms.get(tx, vcluster_id) is not None:
        vcms.owe(tx, vcluster_id, "node-state", {
            "node": node.name, "hostname": node.hostname or node.name,
            "address": addresses(tx, [node.id]).get(node.id, ""), "state": state, "reason": reason}, now)


def reclaimed(tx: Tx, reclaim: Reclaim, reason: str, candidates: Iterable[Node], now: float) -> None:
    """Nodes are being taken; `candidates` are all that would do."""
    if vcms.get(tx, reclaim.vcluster_id) is not None:
        vcms.owe(tx, reclaim.vcluster_id, "reclaim", {
            "reclaim": reclaim.id, "count": reclaim.count - reclaim.given, "deadline": reclaim.deadline,
            "reason": reason, "requires": reclaim.attributes,
            "nodes": [{"node": node.hostname or node.name} for node in candidates]}, now)


def over(tx: Tx, reclaim: Reclaim, state: str, now: float) -> None:
    """The reclaim is done or cancelled."""
    vcms.owe(tx, reclaim.vcluster_id, "reclaim-over", {"reclaim": reclaim.id, "state": state}, now)


def leased(tx: Tx, vcluster: Vcluster, event: str, now: float) -> None:
    """Something happened to the lease: warning, draining, extended or ended."""
    vcms.owe(tx, vcluster.id, "lease", {"event": event, "expires": vcluster.expires_at or now}, now)


def members(tx: Tx, node_ids: Sequence[int], *, attributes: bool = False) -> list[dict[str, Any]]:
    """Nodes as their VCM sees them, by hostname; the first of each type with the type's `attributes`, if those are
    wanted: a grant of thousands has to fit into a message."""
    n, c, y = t.nodes.c, t.config_templates.c, t.node_types.c
    found: list[dict[str, Any]] = []
    for part in slices(node_ids):
        there = addresses(tx, part)
        query = (
            select(n.id, n.name, n.hostname, n.state, c.name, c.revision, y.name, y.attributes)
            .outerjoin_from(t.nodes, t.config_templates, c.id == n.template_id)
            .outerjoin(t.node_types, y.id == n.type_id).where(n.id.in_(part)))
        found += [{
            "node": name, "hostname": hostname or name, "address": there.get(node_id, ""), "state": state,
            "template": f"{template}@{revision}" if template else "", "type": kind or "",
            "attributes": canonical or ""}
            for node_id, name, hostname, state, template, revision, kind, canonical in tx.execute(query)]
    found.sort(key=lambda member: str(member["hostname"]))
    shown = set[str]() if attributes else {member["type"] for member in found}
    for member in found:
        if member["type"] in shown:
            member["attributes"] = ""
        shown.add(member["type"])
    return found


def addresses(tx: Tx, node_ids: Sequence[int]) -> Mapping[int, str]:
    """Where the systems of those nodes are, by node: their own addresses in their vclusters."""
    b = t.bindings.c
    query = select(b.node_id, b.address).where(and_(b.node_id.in_(node_ids), b.kind == "vcluster"))
    return {row[0]: dotted(row[1]) for row in tx.execute(query)}


def _key(tx: Tx, request_id: int) -> str:
    return own_key(tx.scalar(select(t.node_requests.c.key).where(t.node_requests.c.id == request_id)))
