"""The work of each verb of NMP, in a transaction, and the body of the answer. No sockets: these are
in `session` and `server`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cod.flows.scheduler import reclaims, requests, vclusters
from cod.flows.vcms import vcms
from cod.flows.vcms.vcms import own_key, request_key
from cod.model import (
    AskedNodes,
    AskedTuple,
    FlowContext,
    OutboxMessage,
    Result,
    Site,
    Who,
)
from cod.model import Reclaim as ReclaimRow
from cod.model import Request as RequestRow
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml


@dataclass(frozen=True, slots=True)
class VcmPeer:
    """The sender of a message: its vcluster's name and id."""

    vcluster: str
    id: int


def answer(tx: Any, body: b.Body, peer: VcmPeer, site: Site, now: float) -> Result[b.Body]:
    """Carry out a VCM's request, and return the answer. Raises `Refused`."""
    # histories show the VCM by this name
    context = FlowContext(site, now, Who(f"vcm:{peer.vcluster}"))
    found: Result[b.Body] = _FLOWS[type(body)](tx, body, peer, context)
    return found


def _request_nodes(
    tx: Any, body: b.RequestNodes, peer: VcmPeer, context: FlowContext
) -> Result[b.Request]:
    requests.check_size(body.wanted)  # before anything is read for the request
    wanted = [AskedTuple(one.count, one.requires, one.template) for one in body.wanted]
    done = requests.submit(
        tx,
        replace(context, key=request_key(peer.id, body.key)),
        vcluster=peer.vcluster,
        asked=AskedNodes(wanted, body.spread, body.wait),
    )
    return Result(_request(done.value.request, body.key), done.effects)


def _request(row: RequestRow, key: str) -> b.Request:
    return b.Request(row.id, key, row.state, row.reason)


def _request_status(
    tx: Any, body: b.RequestStatus, peer: VcmPeer, context: FlowContext
) -> Result[b.Request]:
    return Result(_request(vcms.request(tx, peer.id, body.request), _key(tx, body.request)))


def _withdraw(tx: Any, body: b.Withdraw, peer: VcmPeer, context: FlowContext) -> Result[b.Request]:
    request, key = vcms.request(tx, peer.id, body.request), _key(tx, body.request)
    if request.state != "pending":  # said twice, or overtaken by its grant
        return Result(_request(request, key))
    done = requests.withdraw(
        tx, request_id=body.request, reason="its VCM does not need it any more", now=context.now
    )
    return Result(_request(done.value.request, key), done.effects)


def _key(tx: Any, request: int) -> str:
    return own_key(vcms.own_keys(tx, [request]).get(request))


def _release(tx: Any, body: b.ReleaseNodes, peer: VcmPeer, context: FlowContext) -> Result[b.Done]:
    # what a peer says must not look like several lines
    reason = " ".join(body.reason.split())[:200]
    done = vclusters.release(
        tx,
        context,
        name=peer.vcluster,
        nodes_=[one.node for one in body.nodes],
        passing_over=True,
        cause=f"its VCM gave it back: {reason}" if reason else "its VCM gave it back",
    )
    return Result(b.Done(), done.effects)


def _park(tx: Any, body: b.ParkNodes, peer: VcmPeer, context: FlowContext) -> Result[b.NeededNodes]:
    needed = vcms.needed(tx, peer.id, [one.node for one in body.nodes])
    return Result(b.NeededNodes(tuple(map(b.Named, needed))))


def _maintenance_status(
    tx: Any, body: b.MaintenanceStatus, peer: VcmPeer, context: FlowContext
) -> Result[b.NodeMaintenance]:
    windows = tuple(
        b.Window(
            one.id,
            one.begins_at or 0.0,
            one.ends_at or 0.0,
            one.drain,
            one.reason,
            tuple(map(b.Named, names)),
        )
        for one, names in vcms.windows(tx, peer.id)
    )
    return Result(b.NodeMaintenance(windows))


def _reclaim_answer(
    tx: Any, body: b.ReclaimAnswer, peer: VcmPeer, context: FlowContext
) -> Result[b.Done]:
    """Take the nodes that can leave at once (`within` 0). The other nodes leave when the VCM
    releases them, or at the reclaim's deadline."""
    vcms.owns_reclaim(tx, peer.id, body.reclaim)
    done = reclaims.answer(
        tx,
        context,
        reclaim_id=body.reclaim,
        nodes_=[one.node for one in body.nodes if one.within <= 0],
        later={one.node: context.now + one.within for one in body.nodes if one.within > 0},
        passing_over=True,
    )
    return Result(b.Done(), done.effects)


def _extend(tx: Any, body: b.Extend, peer: VcmPeer, context: FlowContext) -> Result[b.Done]:
    done = vclusters.extend(tx, context, name=peer.vcluster, lease=body.seconds, clip=True)
    return Result(b.Done(), done.effects)


def _status(tx: Any, body: b.Status, peer: VcmPeer, context: FlowContext) -> Result[b.Vcluster]:
    seen = vcms.picture(tx, peer.id)
    v = seen.vcluster
    return Result(
        b.Vcluster(
            v.name,
            v.state,
            v.size,
            0 if v.preemptible else v.creation_size,
            v.expires_at or 0.0,
            tuple(b.Member(**member) for member in seen.members),
            tuple(_request(one, own_key(seen.keys.get(one.id))) for one in seen.requests),
            tuple(_reclaim(one, seen.would_do[one.id]) for one in seen.reclaims),
        )
    )


def _reclaim(row: ReclaimRow, suitable: Sequence[str]) -> b.Reclaim:
    named = tuple(map(b.Named, suitable))
    return b.Reclaim(
        row.id, row.count - row.given, row.deadline, "still open", row.attributes, named
    )


_FLOWS: dict[type[Any], Callable[..., Any]] = {
    b.RequestNodes: _request_nodes,
    b.RequestStatus: _request_status,
    b.Withdraw: _withdraw,
    b.ReleaseNodes: _release,
    b.ParkNodes: _park,
    b.MaintenanceStatus: _maintenance_status,
    b.ReclaimAnswer: _reclaim_answer,
    b.Extend: _extend,
    b.Status: _status,
}


def outbox_body(row: OutboxMessage) -> b.Body:
    """Return a message of the outbox as a record."""
    fields = dict(row.body)
    nested: Sequence[tuple[str, Any]] = (("members", b.Member), ("nodes", b.Named))
    for name, record in nested:
        if name in fields:
            fields[name] = tuple(record(**each) for each in fields[name])
    body: b.Body = xml.RECORDS[row.verb](**fields)
    return body
