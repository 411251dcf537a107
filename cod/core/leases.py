"""The end of a vcluster's lease: it is warned, drained, and its nodes are taken back.

Each looks at the row again, locked: a lease may have been extended, or the vcluster deleted, since
somebody decided that its time had come. Then nothing is done, and the answer is False or None.
"""

from __future__ import annotations

from cod import notice_texts
from cod.core import notices, preemption, requests, vcm_outbox, volumes
from cod.core.nodes import assignment
from cod.model import Effect, Policy, Vcluster
from cod.states import VclusterState
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import requests as reservation_rows
from cod.store.scheduler import vclusters

LATE = 3600.0
"""Seconds by which a lease goes on at a time while a reservation of its vcluster is late."""

REPRIEVE = 3600.0
"""Seconds that a lease lasts at least after the hold of a site."""


def _active(tx: Tx, vcluster_id: int) -> Vcluster | None:
    vcluster = vclusters.get(tx, vcluster_id, lock=True)
    return vcluster if vcluster is not None and vcluster.state == VclusterState.ACTIVE else None


def warn(tx: Tx, vcluster_id: int, seconds: float, now: float) -> bool:
    """Tell the group, once, that the lease ends within `seconds`."""
    vcluster = _active(tx, vcluster_id)
    if (
        vcluster is None
        or vcluster.expires_at is None
        or not now < vcluster.expires_at <= now + seconds
    ):
        return False
    if vcluster.warned is not None and vcluster.warned <= seconds:
        return False
    notices.tell(tx, vcluster, notice_texts.lease_warning(vcluster, vcluster.expires_at - now), now)
    vclusters.change(tx, vcluster, now, warned=seconds)
    vcm_outbox.leased(tx, vcluster, "warning", now)
    return True


def reprieve(tx: Tx, now: float) -> None:
    """Let leases that have ended, or end within `REPRIEVE` seconds, last so long: nobody could
    extend them while the site was held, and an extension may be lost with what a backup lacks.
    Their groups are warned anew."""
    until = now + REPRIEVE
    active = [one.id for one in vclusters.every(tx, (VclusterState.ACTIVE,))]
    for vcluster in vclusters.lock(tx, active).values():
        has_ended = vcluster.state != VclusterState.ACTIVE
        if not has_ended and vcluster.expires_at is not None and vcluster.expires_at < until:
            longer = vclusters.change(
                tx, vcluster, now, expires_at=until, drain_until=None, warned=None
            )
            vcm_outbox.leased(tx, longer, "extended", now)


def drain(tx: Tx, vcluster_id: int, grace: float, now: float) -> bool:
    """Drain the vcluster, whose lease has run out: it has `grace` seconds to save what it needs, or
    to extend the lease; it gets nothing more. While a reservation of it is late its lease goes on
    in place of this.
    """
    vcluster = _active(tx, vcluster_id)
    if (
        vcluster is None
        or vcluster.drain_until is not None
        or (vcluster.expires_at or now + 1) > now
    ):
        return False
    if any(
        one.vcluster_id == vcluster.id and (one.starts_at or now + 1) <= now
        for one in reservation_rows.dated(tx)
    ):
        longer = vclusters.change(tx, vcluster, now, expires_at=now + LATE)
        vcm_outbox.leased(tx, longer, "extended", now)
        return True
    drained = vclusters.change(tx, vcluster, now, drain_until=now + grace)
    requests.suspend(tx, vcluster.id, now)
    notices.tell(tx, drained, notice_texts.lease_ended(drained), now)
    vcm_outbox.leased(tx, drained, "draining", now)
    return True


def expire(
    tx: Tx, vcluster_id: int, *, now: float, actor: str, policy: Policy
) -> tuple[Effect, ...] | None:
    """Take the nodes back by power: the grace after the lease is over."""
    vcluster = _active(tx, vcluster_id)
    if vcluster is None or vcluster.drain_until is None or vcluster.drain_until > now:
        return None
    requests.withdraw(tx, vcluster.id, "the vcluster's lease ran out", now)
    held = nodes.every(tx, vcluster_id=vcluster.id, lock=True)
    preemption.deserted(tx, vcluster.id, held, now)
    effects = assignment.release(
        tx, held, cause="the lease ran out", now=now, actor=actor, policy=policy
    )
    volumes.detach_all(tx, vcluster, now)
    vclusters.change(tx, vcluster, now, state=VclusterState.RELEASING)
    notices.tell(tx, vcluster, notice_texts.drained(vcluster), now)
    vcm_outbox.leased(tx, vcluster, "ended", now)
    return effects
