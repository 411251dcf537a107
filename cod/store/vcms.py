"""Virtual cluster managers, and the outbox of messages that COD owes them.

Sequence numbers are given out under the lock of the VCM's row, so messages are committed in the
order of their numbers: a VCM that acknowledges 6 has been sent 5. When too many messages wait for a
VCM that is away, all are deleted. `welcome` then tells the VCM that it has to query the state.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, case, delete, insert, or_, select, update

from cod.model import OutboxMessage, Vcm, VcmInvitation, dotted
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.rows import Rows, found_in

MOST_UNACKNOWLEDGED = 5000  # messages for one VCM

_v, _o, _i = t.vcms.c, t.outbox.c, t.vcm_invitations.c
ROWS = Rows(Vcm, t.vcms)
_INVITATIONS = Rows(VcmInvitation, t.vcm_invitations)
get, change, invitation = ROWS.get, ROWS.change, _INVITATIONS.get


def runs_on(tx: Tx, vcluster_id: int, hostname: str | None) -> bool:
    """Return whether the vcluster's VCM runs on its node of that name."""
    return ROWS.exists(tx, _v.vcluster_id == vcluster_id, _v.head == hostname)


def enrolled(tx: Tx, vcluster_ids: Collection[int]) -> set[int]:
    """Return those of the vclusters that have a VCM."""
    return found_in(tx, _v.vcluster_id, sorted(vcluster_ids))


def enrol(
    tx: Tx,
    vcluster_id: int,
    *,
    serial: str,
    address: str,
    head: str | None,
    now: float,
    ends_at: float | None = None,
) -> Vcm:
    """Let the holder of that certificate (or address) speak for the vcluster, in place of the VCM
    that did so before."""
    known = get(tx, vcluster_id, lock=True)
    _INVITATIONS.remove(tx, vcluster_id)
    columns: dict[str, Any] = {
        "address": address,
        "head": head,
        "enrolled_at": now,
        **_shows(serial, ends_at),
    }
    if known is None:
        # A connection of an enrolment that was revoked may still be open: its number must not come
        # again.
        tx.execute(insert(t.vcms).values(vcluster_id=vcluster_id, **columns, epoch=int(now * 1000)))
    else:
        change(tx, known, **columns, epoch=known.epoch + 1, server=None, connected_at=now)
    return ROWS.known(tx, vcluster_id)


def revoke(tx: Tx, vcluster_id: int) -> None:
    """Delete the vcluster's VCM, and what it was owed."""
    _INVITATIONS.remove(tx, vcluster_id)
    tx.execute(delete(t.outbox).where(_o.vcluster_id == vcluster_id))
    ROWS.remove(tx, vcluster_id)


def started(tx: Tx, server: str, now: float) -> None:
    """Record that the server of that name has started: it has no connections of before `now`."""
    ROWS.set_where(tx, _v.server == server, _v.connected_at < now, server=None, connected_at=now)


def gone(tx: Tx, vcluster_id: int, server: str, epoch: int, now: float) -> None:
    """Record that the connection has ended; a newer one is left alone."""
    tx.execute(
        update(t.vcms)
        .where(_v.vcluster_id == vcluster_id, _v.server == server, _v.epoch == epoch)
        .values(server=None, connected_at=now)
    )


def take_renewed(tx: Tx, vcm: Vcm) -> Vcm:
    """Record that a VCM has shown its renewed certificate: the former one is no longer valid."""
    return change(tx, vcm, **_shows(vcm.next_serial or "", vcm.next_ends_at))


def _shows(serial: str, ends_at: float | None) -> dict[str, Any]:
    """Return the values of the columns when the VCM's certificate becomes the one with that serial
    and expiry: no renewed certificate is awaited, and no warning about its end has been sent."""
    return {
        "serial": serial,
        "ends_at": ends_at,
        "next_serial": None,
        "next_ends_at": None,
        "warned_at": None,
    }


def ending(tx: Tx, now: float, near: float, limit: int) -> list[int]:
    """Return the vclusters whose VCMs' certificates end within `near` seconds, or have ended, and
    that have not been warned of it yet, the first to end first."""
    has_ended_since = and_(_v.ends_at <= now, _v.warned_at < _v.ends_at)
    query = select(_v.vcluster_id).where(
        _v.ends_at <= now + near, or_(_v.warned_at.is_(None), has_ended_since)
    )
    return list(tx.scalars(query.order_by(_v.ends_at).limit(limit)))


# ---------------------------------------------------------------- invitations


def invite(tx: Tx, vcm: Vcm, *, node_id: int, digest: str, expires_at: float) -> None:
    """Accept from now on only the invitation with that digest: earlier invitations, and the VCM's
    present certificate, are no longer valid. Do nothing if this invitation is accepted already."""
    known = invitation(tx, vcm.vcluster_id)
    if known is not None and known.digest == digest:
        return
    _INVITATIONS.remove(tx, vcm.vcluster_id)
    tx.execute(
        insert(t.vcm_invitations).values(
            vcluster_id=vcm.vcluster_id, node_id=node_id, digest=digest, expires_at=expires_at
        )
    )
    change(tx, vcm, **_shows("", None), epoch=vcm.epoch + 1, server=None)


def admit(tx: Tx, vcm: Vcm, *, serial: str, ends_at: float | None, key: str, now: float) -> None:
    """Exchange a VCM's invitation for that certificate, whose public key has the digest `key`."""
    _INVITATIONS.set(tx, vcm.vcluster_id, taken_by=key)
    change(tx, vcm, **_shows(serial, ends_at), epoch=vcm.epoch + 1, server=None, connected_at=now)


# ---------------------------------------------------------------- the outbox


def enqueue(tx: Tx, vcluster_id: int, verb: str, body: Mapping[str, Any], now: float) -> bool:
    """Put a message for the vcluster's VCM in its outbox; False where it has none."""
    vcm = get(tx, vcluster_id, lock=True)
    if vcm is None:
        return False
    if vcm.sequence - vcm.acked >= MOST_UNACKNOWLEDGED:
        tx.execute(delete(t.outbox).where(_o.vcluster_id == vcluster_id))
        change(tx, vcm, acked=vcm.sequence, epoch=vcm.epoch + 1, server=None)
    change(tx, vcm, sequence=vcm.sequence + 1)
    tx.execute(
        insert(t.outbox).values(
            vcluster_id=vcluster_id,
            sequence=vcm.sequence + 1,
            verb=verb,
            body=json.dumps(body),
            at=now,
        )
    )
    return True


def forget_owed(tx: Tx, now: float) -> None:
    """Forget what all VCMs are owed: each connects anew, and asks how things are. Numbers that were
    given meanwhile, and that the database does not know, do not come again."""
    tx.execute(delete(t.outbox))
    newer = case((_v.sequence < int(now), int(now)), else_=_v.sequence + 1)
    epoch = case((_v.epoch < int(now * 1000), int(now * 1000)), else_=_v.epoch + 1)
    tx.execute(update(t.vcms).values(sequence=newer, epoch=epoch, server=None))
    tx.execute(update(t.vcms).values(acked=_v.sequence))


def unacknowledged(
    tx: Tx, after: Mapping[int, int], limit: int = 100, most: int = 1000
) -> list[OutboxMessage]:
    """Return messages for those vclusters, each after a sequence number, in order; at most `limit`
    for each, and not many more than `most` in all."""
    found: list[OutboxMessage] = []
    for vcluster_id, sequence in after.items():
        if len(found) >= most:
            break
        query = select(_o.vcluster_id, _o.sequence, _o.verb, _o.body).where(
            _o.vcluster_id == vcluster_id, _o.sequence > sequence
        )
        found += [
            OutboxMessage(*row[:3], json.loads(row[3]))
            for row in tx.execute(query.order_by(_o.sequence).limit(limit))
        ]
    return found


def unacknowledged_grants(tx: Tx, vcluster_id: int) -> set[str]:
    """Return the nodes (names at the site) whose grants the vcluster's VCM has not acknowledged,
    and so cannot name yet."""
    query = select(_o.body).where(_o.vcluster_id == vcluster_id, _o.verb == "grant")
    return {member["node"] for body in tx.scalars(query) for member in json.loads(body)["members"]}


def heads(tx: Tx, server: str) -> dict[int, tuple[int, int]]:
    """Return (epoch, last sequence number) of the VCMs whose connections that server holds, by
    vcluster."""
    query = select(_v.vcluster_id, _v.epoch, _v.sequence).where(_v.server == server)
    return {vcluster_id: (epoch, sequence) for vcluster_id, epoch, sequence in tx.execute(query)}


def progress(tx: Tx, server: str) -> list[tuple[int, str, str, int, int]]:
    """Return how far disks are written: (vcluster, the node's name, its state, bytes done, bytes in
    all), for the VCMs whose connections that server holds."""
    n = t.nodes.c
    query = (
        select(_v.vcluster_id, n.name, n.state, n.progress_done, n.progress_total)
        .join_from(t.vcms, t.nodes, n.vcluster_id == _v.vcluster_id)
        .where(_v.server == server, n.progress_total > 0)
    )
    return [(row[0], row[1], row[2], row[3], row[4]) for row in tx.execute(query)]


def acknowledge(tx: Tx, vcluster_id: int, sequence: int) -> None:
    """Delete the messages up to `sequence`, which the VCM has acknowledged."""
    tx.execute(
        update(t.vcms)
        .where(_v.vcluster_id == vcluster_id, _v.acked < sequence, _v.sequence >= sequence)
        .values(acked=sequence)
    )
    tx.execute(delete(t.outbox).where(_o.vcluster_id == vcluster_id, _o.sequence <= sequence))


# ---------------------------------------------------------------- what VCMs are told of


def members(tx: Tx, node_ids: Sequence[int], *, attributes: bool = False) -> list[dict[str, Any]]:
    """Return nodes as their VCM sees them, by hostname. With `attributes`, the first node of each
    type has the type's attributes; the others do not, so that thousands of nodes fit a message."""
    n, c, y = t.nodes.c, t.config_templates.c, t.node_types.c
    found: list[dict[str, Any]] = []
    for part in slices(node_ids):
        by_node = addresses(tx, part)
        query = (
            select(n.id, n.name, n.hostname, n.state, c.name, c.revision, y.name, y.attributes)
            .outerjoin_from(t.nodes, t.config_templates, c.id == n.template_id)
            .outerjoin(t.node_types, y.id == n.type_id)
            .where(n.id.in_(part))
        )
        found += [
            {
                "node": name,
                "hostname": hostname or name,
                "address": by_node.get(node_id, ""),
                "state": state,
                "template": f"{template}@{revision}" if template else "",
                "type": kind or "",
                "attributes": canonical or "",
            }
            for node_id, name, hostname, state, template, revision, kind, canonical in tx.execute(
                query
            )
        ]
    found.sort(key=lambda member: str(member["hostname"]))
    shown = set[str]() if attributes else {member["type"] for member in found}
    for member in found:
        if member["type"] in shown:
            member["attributes"] = ""
        shown.add(member["type"])
    return found


def addresses(tx: Tx, node_ids: Sequence[int]) -> Mapping[int, str]:
    """Return the addresses that those nodes have in their vclusters, by node."""
    b = t.bindings.c
    query = select(b.node_id, b.address).where(
        b.node_id.in_(node_ids), b.kind == "vcluster", b.state != "left"
    )
    return {row[0]: dotted(row[1]) for row in tx.execute(query)}
