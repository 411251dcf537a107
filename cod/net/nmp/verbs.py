"""What each verb of NMP does: the flow that it is, and the body of the answer. No sockets; `server`
has those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cod.flows import views
from cod.flows.scheduler import reclaims, requests, vclusters
from cod.flows.vcms import vcms
from cod.flows.vcms.vcms import Picture, own_key, request_key
from cod.model import (
    AskedNodes,
    AskedTuple,
    FlowContext,
    MaintenanceWindow,
    Owed,
    RequestView,
    Result,
    Site,
    Who,
)
from cod.model import Reclaim as ReclaimRow
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml

Flow = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class VcmPeer:
    """Whose words they are: a vcluster's name and id."""

    vcluster: str
    id: int

    @property
    def actor(self) -> str:
        """Return the VCM's name as histories show it."""
        return f"vcm:{self.vcluster}"


def flow(
    body: b.Body, peer: VcmPeer, site: Site, now: float
) -> tuple[Flow, Callable[[Any], b.Body]]:
    """Return the flow for a question, and the function that makes the answer of its value (of
    `Result.value`, if it is one)."""
    context = FlowContext(site, now, Who(peer.actor))
    found: tuple[Flow, Callable[[Any], b.Body]] = _FLOWS[type(body)](body, peer, context)
    return found


def _request_nodes(body: b.RequestNodes, peer: VcmPeer, context: FlowContext) -> Any:
    requests.check_size(body.wanted)  # before anything is looked up for them
    wanted = [AskedTuple(one.count, one.requires, one.template) for one in body.wanted]
    submit = partial(
        requests.submit,
        context=replace(context, key=request_key(peer.id, body.key)),
        vcluster=peer.vcluster,
        asked=AskedNodes(wanted, body.spread, body.wait),
    )
    return submit, partial(_request_message, body.key)


def _request_message(key: str, view: RequestView) -> b.Request:
    return b.Request(view.request.id, key, view.request.state, view.request.reason)


def _request_status(body: b.RequestStatus, peer: VcmPeer, context: FlowContext) -> Any:
    def ask(tx: Any) -> tuple[str, RequestView]:
        vcms.request(tx, peer.id, body.request)
        return _key(tx, body.request), views.request(tx, body.request)

    return ask, lambda found: _request_message(*found)


def _withdraw(body: b.Withdraw, peer: VcmPeer, context: FlowContext) -> Any:
    def ask(tx: Any) -> Any:
        there = vcms.request(tx, peer.id, body.request)
        key = _key(tx, body.request)
        if there.state != "pending":  # said twice, or overtaken by its grant
            return key, views.request(tx, body.request)
        done = requests.withdraw(
            tx, request_id=body.request, reason="its VCM does not need it any more", now=context.now
        )
        return Result((key, done.value), done.effects)

    return ask, lambda found: _request_message(*found)


def _key(tx: Any, request: int) -> str:
    return own_key(vcms.own_keys(tx, [request]).get(request))


def _release(body: b.ReleaseNodes, peer: VcmPeer, context: FlowContext) -> Any:
    # what a peer says must not look like several lines
    reason = " ".join(body.reason.split())[:200]
    cause = f"its VCM gave it back: {reason}" if reason else "its VCM gave it back"
    return (
        partial(
            vclusters.release,
            context=context,
            name=peer.vcluster,
            nodes_=[one.node for one in body.nodes],
            passing_over=True,
            cause=cause,
        ),
        lambda _: b.Done(),
    )


def _park(body: b.ParkNodes, peer: VcmPeer, context: FlowContext) -> Any:
    named = [one.node for one in body.nodes]
    return (
        partial(vcms.needed, vcluster_id=peer.id, hostnames=named),
        lambda needed: b.NeededNodes(tuple(map(b.Named, needed))),
    )


def _maintenance_status(body: b.MaintenanceStatus, peer: VcmPeer, context: FlowContext) -> Any:
    return partial(vcms.windows, vcluster_id=peer.id), _maintenance_message


def _maintenance_message(
    found: Sequence[tuple[MaintenanceWindow, Sequence[str]]],
) -> b.NodeMaintenance:
    return b.NodeMaintenance(
        tuple(
            b.Window(
                one.id,
                one.begins_at or 0.0,
                one.ends_at or 0.0,
                one.drain,
                one.reason,
                tuple(map(b.Named, names)),
            )
            for one, names in found
        )
    )


def _reclaim_answer(body: b.ReclaimAnswer, peer: VcmPeer, context: FlowContext) -> Any:
    """Take the nodes that can leave at once (`within` 0). Wait for each other node until the VCM
    releases it, or until the reclaim's deadline."""
    at_once = [one.node for one in body.nodes if one.within <= 0]
    later = {one.node: context.now + one.within for one in body.nodes if one.within > 0}

    def ask(tx: Any) -> Any:
        vcms.owns_reclaim(tx, peer.id, body.reclaim)
        return reclaims.answer(
            tx, context, reclaim_id=body.reclaim, nodes_=at_once, later=later, passing_over=True
        )

    return ask, lambda _: b.Done()


def _extend(body: b.Extend, peer: VcmPeer, context: FlowContext) -> Any:
    return (
        partial(
            vclusters.extend, context=context, name=peer.vcluster, lease=body.seconds, clip=True
        ),
        lambda _: b.Done(),
    )


def _status(body: b.Status, peer: VcmPeer, context: FlowContext) -> Any:
    return partial(vcms.picture, vcluster_id=peer.id), _vcluster_message


def _vcluster_message(seen: Picture) -> b.Vcluster:
    v = seen.vcluster
    return b.Vcluster(
        v.name,
        v.state,
        v.size,
        0 if v.preemptible else v.creation_size,
        v.expires_at or 0.0,
        tuple(b.Member(**member) for member in seen.members),
        tuple(
            b.Request(one.id, own_key(seen.keys.get(one.id)), one.state, one.reason)
            for one in seen.requests
        ),
        tuple(_reclaim(one, seen.would_do[one.id]) for one in seen.reclaims),
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


def owed(row: Owed) -> b.Body:
    """Return a message of the outbox as a record."""
    fields = dict(row.body)
    nested: Sequence[tuple[str, Any]] = (("members", b.Member), ("nodes", b.Named))
    for name, record in nested:
        if name in fields:
            fields[name] = tuple(record(**each) for each in fields[name])
    body: b.Body = xml.RECORDS[row.verb](**fields)
    return body
