"""Certificates of virtual cluster managers: they are renewed, and those who should know are told
when they end."""

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
    tx: Tx, *, vcluster_id: int, epoch: int, serial: str, ends_at: float, address: str, now: float
) -> None:
    """The certificate `serial`, until `ends_at`, is to take the place of the one that the
    vcluster's VCM shows. Raises `Refused`.

    That one counts until the new one is shown for the first time: should the answer be lost, or the
    VCM die before it has written it, it asks again, and what it did not get is worth nothing any
    more.

    epoch  of the connection that asks: whoever was revoked, or enrolled anew, a moment ago gets no
           successor
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
        now=now,
    )


def look(tx: Tx, authority_ends_at: float, now: float) -> int:
    """Tell groups whose VCMs' certificates are near their end or have ended, and the administrators
    of the end of the site's authority; how many were told. Each is told once, whoever looks."""
    told = 0
    for vcluster_id in vcms.ending(tx, now, policy.NEAR, MOST):
        vcluster, known = vclusters.get(tx, vcluster_id), vcms.get(tx, vcluster_id, lock=True)
        if (
            vcluster is None
            or known is None
            or not policy.is_due(known.ends_at, known.warned_at, now)
        ):
            continue
        vcms.change(tx, known, warned_at=now)
        said = notice_texts.vcm_certificate(
            vcluster, known.ends_at or now, now, inside=known.head is not None
        )
        notices.tell(tx, vcluster, said, now)
        told += 1
    before = watermarks.at(tx, AUTHORITY)
    if policy.authority_is_due(authority_ends_at, before, now) and watermarks.move(
        tx, AUTHORITY, before, now
    ):
        notices.add(tx, **notice_texts.authority_ends(authority_ends_at), group_id=None, now=now)
        told += 1
    return told
