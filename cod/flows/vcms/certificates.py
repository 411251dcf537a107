"""Certificates of virtual cluster managers: their renewal, and notices before they end."""

from __future__ import annotations

from cod import notice_texts
from cod.core import notices
from cod.model import Refused
from cod.policy.people import certificates as policy
from cod.store import vcms, watermarks
from cod.store.engine import Tx
from cod.store.people import audit
from cod.store.scheduler import vclusters

AUTHORITY = "authority"
MOST = 100  # VCMs whose groups are told in one transaction


def renew(
    tx: Tx,
    *,
    vcluster_id: int,
    epoch: int,
    serial: str,
    ends_at: float,
    address: str,
    now: float,
    run: str | None = None,
) -> None:
    """Record the certificate `serial`, valid until `ends_at`, as the next one of the vcluster's
    VCM. Raises `Refused`.

    The present certificate stays valid until the VCM shows the next one for the first time. If the
    answer is lost, the VCM asks again; the certificate recorded then replaces the lost one.

    epoch  of the VCM's connection; a VCM that has been revoked or enrolled anew since it connected
           gets no certificate
    """
    known = vcms.get(tx, vcluster_id, lock=True)
    found = vclusters.get(tx, vcluster_id)
    if known is None or found is None or known.epoch != epoch:
        raise Refused(
            "forbidden", "a newer connection, or another certificate, has taken its place"
        )
    if not known.serial:
        raise Refused(
            "conflict", "this VCM is known by its address: it has no certificate to renew"
        )
    if not policy.is_worth(ends_at, known.ends_at):
        raise Refused(
            "conflict",
            "the certificate is new, or the site's authority ends with it: another would last no "
            "longer",
        )
    vcms.change(tx, known, next_serial=serial, next_ends_at=ends_at)
    audit.add(
        tx,
        actor=f"vcm:{found.name}",
        address=address,
        action="vcm renew",
        thing=found.name,
        group_id=found.group_id,
        before={"serial": known.serial},
        after={"serial": serial},
        run=run,
        now=now,
    )


def look(tx: Tx, authority_ends_at: float, now: float) -> int:
    """Send notices: to groups about VCM certificates that end soon or have ended, to administrators
    about the end of the site's authority. Return how many were sent. Servers that share a database
    send each once."""
    warned = 0
    for vcluster_id in vcms.ending(tx, now, policy.NEAR, MOST):
        vcluster, known = vclusters.get(tx, vcluster_id), vcms.get(tx, vcluster_id, lock=True)
        if (
            vcluster is None
            or known is None
            or not policy.is_due(known.ends_at, known.warned_at, now)
        ):
            continue
        vcms.change(tx, known, warned_at=now)
        notice = notice_texts.vcm_certificate(
            vcluster, known.ends_at or now, now, inside=known.head is not None
        )
        notices.tell(tx, vcluster, notice, now)
        warned += 1
    before = watermarks.at(tx, AUTHORITY)
    if policy.authority_is_due(authority_ends_at, before, now) and watermarks.move(
        tx, AUTHORITY, before, now
    ):
        notices.add(tx, **notice_texts.authority_ends(authority_ends_at), group_id=None, now=now)
        warned += 1
    return warned
