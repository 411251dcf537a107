"""The end of a vcluster's lease: its group is warned, it is drained, and its nodes are taken back.

Each function reads the vcluster's row again, locked, because the lease may have been extended or
the vcluster deleted since the plan was made. Then nothing is done, and the result is False or None.
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
"""Seconds by which a lease is extended at a time while a reservation of its vcluster is late."""

REPRIEVE = 3600.0
"""Seconds that a lease lasts at least after the hold of a site."""


def _active(tx: Tx, vcluster_id: int) -> Vcluster | None:
    vcluster = vclusters.get(tx, vcluster_id, lock=True)
    return vcluster if vcluster is not None and vcluster.state == VclusterState.ACTIVE else None


def warn(tx: Tx, vcluster_id: int, seconds: float, now: float) -> bool:
    """Tell the group and the VCM, once, that the lease ends within `seconds`. Return whether they
    were told."""
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
    """Extend leases that have ended, or end within `REPRIEVE` seconds, until then: nobody could
    extend them while the site was held, and a restored backup may lack an extension. Their groups
    are warned anew."""
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
    """Drain a vcluster whose lease has run out, and return True. Its users have `grace` seconds to
    save their data, or to extend the lease; the vcluster gets no more nodes. While a reservation of
    the vcluster is late, its lease is extended by `LATE` seconds instead.
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
    """Take back all nodes of a vcluster whose grace after the lease is over; return the effects."""
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
