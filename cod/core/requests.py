"""Ends of requests for nodes, and requests that COD itself makes, with all that follows from
them."""

from __future__ import annotations

from collections.abc import Sequence

from cod import notice_texts
from cod.core import notices, preemption, vcm_outbox, volumes
from cod.core.networks import address_blocks
from cod.model import Assignment, Node, Request, RequestTuple, Vcluster
from cod.states import UNDECIDED, RequestState, VclusterState
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import reclaims, requests, reservations, vclusters, watchers


def replace(tx: Tx, node: Node, runs: Assignment | None, now: float) -> Request | None:
    """Request a replacement for `node`, which its vcluster is losing, and return the request. A
    repeated call for the same generation of the node returns the same request.

    runs  the node's assignment, whose template the replacement gets; None when no vcluster holds
          the node: then nothing is requested
    """
    vcluster = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    if vcluster is None or runs is None:
        return None
    key = f"replace {node.id}.{node.generation}"
    existing = requests.by_key(tx, key)
    if existing is not None:
        return existing
    asked = runs.requires[0] if runs.requires else vcluster.attributes
    wanted = RequestTuple(1, asked, runs.template_id)
    return requests.add(
        tx,
        vcluster_id=vcluster.id,
        kind="replace",
        tuples=[wanted],
        now=now,
        key=key,
        priority=groups.get(tx, vcluster.group_id).priority,
    )


def stop(tx: Tx, request: Request, reason: str, now: float) -> None:
    """Stop a request for a replacement until somebody tries it again, because another node would
    fail like the last one. The group is told of a vcluster's first stopped request only."""
    vcluster = vclusters.get(tx, request.vcluster_id, lock=True)
    stopped = requests.every(tx, states=[RequestState.STOPPED], vcluster_id=request.vcluster_id)
    if not requests.turn(tx, request.id, RequestState.PENDING, RequestState.STOPPED, reason):
        return
    _drop(tx, [request.id], now)
    if vcluster is not None and not stopped:
        notices.tell(tx, vcluster, notice_texts.request_stopped(vcluster, request.id, reason), now)


def decide(tx: Tx, request_id: int, state: RequestState, reason: str, now: float) -> bool:
    """Decide an undecided request: set its state and reason, cancel its reclaims and reservations
    of nodes, and tell those who watch it. Return False, and change nothing, if it was decided
    already."""
    done = requests.end(tx, request_id, state, reason, now)
    if done:
        _drop(tx, [request_id], now)
        _tell_watchers(tx, [request_id], now)
        request = requests.get(tx, request_id)
        if request is not None and (
            request.kind == "move" or (request.kind == "grow" and state != RequestState.GRANTED)
        ):
            address_blocks.trim(tx, request.vcluster_id)
    return done


def grant_all(tx: Tx, request_ids: Sequence[int], now: float) -> None:
    """Decide that pending requests are granted, with the same consequences as `decide`. Each of the
    requests gets all its nodes, and none is a move."""
    requests.end_all(tx, request_ids, RequestState.GRANTED, "", now)
    _drop(tx, request_ids, now)
    _tell_watchers(tx, request_ids, now)


def _tell_watchers(tx: Tx, request_ids: Sequence[int], now: float) -> None:
    """Send an e-mail to each person who watches one of the decided requests."""
    for request_id, people in watchers.take(tx, request_ids).items():
        request = requests.get(tx, request_id)
        vcluster = vclusters.get(tx, request.vcluster_id) if request else None
        if request is not None and vcluster is not None:
            text = notice_texts.request_decided(vcluster, request.id, request.state, request.reason)
            notices.tell_people(tx, vcluster, text, people, now)


def _drop(tx: Tx, ids: Sequence[int], now: float) -> None:
    """Cancel the reclaims for these requests, and the reservations of nodes."""
    preemption.cancel(tx, ids, now)
    reservations.clear(tx, ids)


def reject(tx: Tx, request_id: int, reason: str, now: float) -> bool:
    """Reject a request, and tell its group and VCM. Return False if it was not pending any more.

    A pending vcluster, whose first request this is, ends. A vcluster whose replacement is rejected
    becomes one node smaller.
    """
    if not decide(tx, request_id, RequestState.REJECTED, reason, now):
        return False
    request = requests.numbered(tx, request_id)
    vcluster = vclusters.known(tx, request.vcluster_id, lock=True)
    notices.tell(tx, vcluster, notice_texts.request_rejected(vcluster, request.id, reason), now)
    vcm_outbox.refused(tx, request, reason, now)
    if vcluster.state == VclusterState.PENDING:
        end(tx, vcluster, now)
    elif request.kind == "replace":
        vclusters.change(tx, vcluster, now, size=vcluster.size - 1)
    return True


def conclude_move(tx: Tx, request_id: int, now: float) -> bool:
    """End a move that no node is reserved or reclaimed for any more: it is granted with the nodes
    that have moved, or rejected if none has. Return False while nodes are yet to move."""
    request = requests.get(tx, request_id, lock=True)
    if request is None or request.state != RequestState.PENDING:
        return False
    if reservations.any_for(tx, request_id) or reclaims.open_for(tx, [request_id]):
        return False
    wanted = sum(one.count for one in request.tuples)
    if not request.granted:
        return reject(tx, request_id, "none of the nodes that were to move is left", now)
    short = (
        ""
        if request.granted == wanted
        else f"{request.granted} of {wanted} nodes have moved; no others are left"
    )
    return decide(tx, request_id, RequestState.GRANTED, short, now)


def end(tx: Tx, vcluster: Vcluster, now: float) -> Vcluster:
    """End a vcluster that holds no node. If volumes are attached to it, it stays in state releasing
    until the volumes are no longer exported to its addresses."""
    if volumes.detach_all(tx, vcluster, now):
        return vclusters.end(tx, vcluster, now)
    return vclusters.change(tx, vcluster, now, state=VclusterState.RELEASING)


def withdraw(tx: Tx, vcluster_id: int, reason: str, now: float, kind: str | None = None) -> None:
    """Withdraw the undecided requests of a vcluster; only those of a `kind`, if that is given."""
    for one in _undecided(tx, vcluster_id):
        if kind in (None, one.kind):
            take_back(tx, one, reason, now)


def take_back(tx: Tx, request: Request, reason: str, now: float) -> bool:
    """Withdraw a request, and tell the vcluster's VCM. Return False if the request was not pending
    any more."""
    done = decide(tx, request.id, RequestState.WITHDRAWN, reason, now)
    if done:
        vcm_outbox.refused(tx, request, reason, now)
    return done


def suspend(tx: Tx, vcluster_id: int, now: float) -> None:
    """Stop grants to a vcluster whose lease has run out. Its moves are withdrawn. Its other
    requests wait, with no nodes reserved and no reclaims open for them."""
    withdraw(tx, vcluster_id, "the lease of its vcluster has run out", now, kind="move")
    _drop(tx, [one.id for one in _undecided(tx, vcluster_id)], now)


def _undecided(tx: Tx, vcluster_id: int) -> list[Request]:
    return requests.every(tx, states=UNDECIDED, vcluster_id=vcluster_id)
