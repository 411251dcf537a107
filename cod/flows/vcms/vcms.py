"""Messages between COD and a vcluster's manager: its identity, its outbox, its requests."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cod.core import preemption
from cod.model import OutboxMessage, Reclaim, Refused, Request, Vcluster, VcmView
from cod.policy.nodes import inner_vcm, template
from cod.policy.people import names
from cod.policy.sharing import parked
from cod.policy.sharing.parked import Needs, ParkedNode
from cod.states import OWN_SYSTEM, UNDECIDED, NodeState, VclusterState
from cod.store import vcms, views
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import nodes, types
from cod.store.people import audit
from cod.store.scheduler import maintenance, node_counts, reclaims, requests, vclusters

every, find = views.vcms, views.vcm
gone = vcms.gone
started = vcms.started
progress = vcms.progress
acknowledge = vcms.acknowledge
own_key = requests.own_key
request_key = requests.request_key
own_keys = requests.keys
configuration = inner_vcm.configuration
windows = maintenance.of_vcluster
T = TypeVar("T")
MOST_AT_ONCE, MOST_EACH = 1000, 100  # messages that `fresh` returns: in all, for one VCM


@dataclass(frozen=True, slots=True)
class Greeted:
    """A connection that was let in.

    vcluster_id  the vcluster it speaks for
    epoch        the connection's number; the newest wins
    acked        messages up to this number are not sent again
    enrolled_at  when the VCM was enrolled, as seconds since the epoch
    serial       of the certificate that the VCM showed; '' for none
    """

    vcluster_id: int
    epoch: int
    acked: int
    enrolled_at: float = 0.0
    serial: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A vcluster as its VCM sees it.

    members   its nodes, as in `store.vcms.members`
    keys      keys of its requests, by the requests' ids
    would_do  host names of all nodes that an open reclaim could take, by the reclaims' ids
    """

    vcluster: Vcluster
    members: list[dict[str, Any]]
    requests: list[Request]
    keys: Mapping[int, str]
    reclaims: list[Reclaim]
    would_do: Mapping[int, list[str]]


# ---------------------------------------------------------------- what the administrator does


def enrol(
    tx: Tx, *, vcluster: str, serial: str, address: str, now: float, ends_at: float | None = None
) -> VcmView:
    """Let a VCM speak for the vcluster, and return the VCM's view. COD recognises the VCM by the
    serial number of its certificate, which is valid until `ends_at`, and by its address. One of the
    two may be '': then only the other is checked. Raises `Refused`."""
    if not serial and not address:
        raise Refused(
            "invalid", "a VCM without a certificate is known by its address: say which", "address"
        )
    found = _vcluster(tx, vcluster)
    vcms.enrol(tx, found.id, serial=serial, address=address, head=None, now=now, ends_at=ends_at)
    return show(tx, vcluster)


def check(tx: Tx, vcluster: str) -> None:
    """Raise `Refused` ('not_found') unless a VCM can be enrolled for a vcluster of that name."""
    _vcluster(tx, vcluster)


def enrol_inside(
    tx: Tx, *, vcluster: str, head: str | None, now: float, replace_enrolled: bool = True
) -> tuple[VcmView, bool]:
    """Enrol a VCM that runs on the vcluster's node with the host name `head` (None: its first
    node). The node gets the VCM's invitation when it is primed. Return the VCM's view, and whether
    the node is still to be primed. Raises `Refused`.

    replace_enrolled  False: a VCM that is enrolled already stays
    """
    found = _vcluster(tx, vcluster)
    if not replace_enrolled and vcms.get(tx, found.id) is not None:
        return show(tx, vcluster), False
    held = {
        node.hostname: node.state for node in nodes.every(tx, vcluster_id=found.id) if node.hostname
    }
    if head is not None:
        names.check_label(head)
    wanted = templates.known(tx, found.template_id)
    inner_vcm.check(template.parse(wanted.document))
    chosen = inner_vcm.head(held, head)
    vcms.enrol(tx, found.id, serial="", address="", head=chosen, now=now)
    return show(tx, vcluster), held.get(chosen) not in (NodeState.PRIME, *OWN_SYSTEM)


def admit(
    tx: Tx,
    *,
    vcluster: str,
    invitation: str,
    address: str,
    serial: str,
    key: str,
    now: float,
    ends_at: float | None = None,
    run: str | None = None,
) -> None:
    """Accept the invitation of the VCM on the vcluster's head, and record the VCM's certificate
    `serial`, which ends at `ends_at`. Raises `Refused` ('forbidden').

    key  digest of the VCM's public key. A VCM with the same key may use the invitation again,
         because the answer may have been lost
    """
    found = vclusters.by_name(tx, vcluster)
    known = vcms.get(tx, found.id, lock=True) if found else None
    given = vcms.invitation(tx, found.id) if found else None
    digest = hashlib.sha256(invitation.encode()).hexdigest()
    if (
        found is None
        or known is None
        or given is None
        or not hmac.compare_digest(given.digest, digest)
    ):
        raise Refused(
            "forbidden", f"this is no invitation to speak for a vcluster {vcluster!r} (any more)"
        )
    if now >= given.expires_at:
        raise Refused("forbidden", "the invitation has run out: the node has to be primed anew")
    node = nodes.get(tx, given.node_id)
    if node is None or node.vcluster_id != found.id or node.hostname != known.head:
        raise Refused(
            "forbidden", f"the node that was invited is not {known.head} of {vcluster} any more"
        )
    if vcms.addresses(tx, [node.id]).get(node.id) != address:
        raise Refused(
            "forbidden", f"{known.head} of {vcluster} is invited, and that is not at {address}"
        )
    if given.taken_by not in (None, key):
        raise Refused("forbidden", "somebody else has used the invitation: enrol the VCM anew")
    vcms.admit(tx, known, serial=serial, ends_at=ends_at, key=key, now=now)
    audit.add(
        tx,
        actor=f"vcm:{vcluster}",
        address=address,
        action="vcm admit",
        thing=vcluster,
        group_id=found.group_id,
        after={"serial": serial, "head": known.head},
        run=run,
        now=now,
    )


def revoke(tx: Tx, *, vcluster: str) -> None:
    """Revoke the vcluster's VCM. Its nodes, requests and reclaims stay as they are."""
    vcms.revoke(tx, _vcluster(tx, vcluster).id)


def show(tx: Tx, vcluster: str) -> VcmView:
    """Return the vcluster's VCM. Raises `Refused` where it has none."""
    found = find(tx, vcluster)
    if found is not None:
        return found
    raise Refused(
        "not_found",
        f"nobody is enrolled for vcluster {vcluster!r}: enrol its VCM first",
        "vcluster",
    )


# ---------------------------------------------------------------- connections


def greet(
    tx: Tx,
    *,
    vcluster: str,
    serial: str,
    address: str,
    about: str,
    seen: int,
    server: str,
    now: float,
    ends_at: float | None = None,
) -> Greeted:
    """Open a VCM's connection. Raises `Refused` ('forbidden') if the VCM may not speak for that
    vcluster.

    serial   of the VCM's certificate; '' if it showed none: then its address must be the enrolled
             one. A renewed certificate replaces the former one when it is first shown
    ends_at  when that certificate ends
    seen     number of the last message that the VCM says it has dealt with; a number that no
             message has yet is not believed
    """
    found = vclusters.by_name(tx, vcluster)
    known = vcms.get(tx, found.id, lock=True) if found else None
    if found is None or known is None:
        raise Refused("forbidden", f"nobody is enrolled for a vcluster {vcluster!r}")
    if not (known.serial or known.address):
        raise Refused(
            "forbidden", f"{known.head} of {vcluster} has not fetched its certificate yet"
        )
    follows = bool(serial) and serial == known.next_serial
    if serial != known.serial and not follows:
        raise Refused(
            "forbidden",
            (
                "this certificate was replaced or revoked"
                if serial
                else "a certificate is wanted: connect by TLS"
            ),
        )
    expected = known.address if known.head is None else _address(tx, found.id, known.head)
    if expected not in ("", address):
        raise Refused(
            "forbidden", f"the VCM of {vcluster} comes from {expected}, not from {address}"
        )
    if follows:
        known = vcms.take_renewed(tx, known)
    acked = min(max(seen, known.acked), known.sequence)
    vcms.change(
        tx,
        known,
        server=server,
        epoch=known.epoch + 1,
        connected_at=now,
        about=about,
        ends_at=known.ends_at or ends_at,
    )
    vcms.acknowledge(tx, found.id, acked)
    return Greeted(found.id, known.epoch + 1, acked, known.enrolled_at, serial)


def spoken(tx: Tx, greeted: Greeted, flow: Callable[[Tx], T]) -> T:
    """Carry out a VCM's message by calling `flow`, and return its result. Raises `Refused`
    ('forbidden'), with the reason, if the VCM's connection is over."""
    over = why_over(tx, greeted)
    if over:
        raise Refused("forbidden", over)
    return flow(tx)


def why_over(tx: Tx, greeted: Greeted) -> str:
    """Return why a connection may no longer speak for its vcluster; '' while it may."""
    known = vcms.get(tx, greeted.vcluster_id)
    if known is None:
        found = vclusters.get(tx, greeted.vcluster_id)
        is_there = found is not None and found.state != VclusterState.ENDED
        return "the VCM was revoked" if is_there else "the vcluster has ended"
    if known.enrolled_at != greeted.enrolled_at:
        return "the VCM was enrolled anew"
    if known.epoch == greeted.epoch:
        return ""
    if known.server is not None:
        return "a newer connection has taken its place"
    if known.serial != greeted.serial:
        inner_vcm = known.head is not None and not known.serial
        return (
            f"{known.head} was invited anew: the certificate is void"
            if inner_vcm
            else "the VCM was enrolled anew"
        )
    most = vcms.MOST_UNACKNOWLEDGED
    return f"more than {most} messages were owed and were dropped: ask for the whole picture"


def fresh(
    tx: Tx, server: str, sent: Mapping[int, tuple[Greeted, int | None]]
) -> tuple[list[OutboxMessage], dict[int, str]]:
    """Return the messages to send on a server's connections, at most about `MOST_AT_ONCE`, and, by
    vcluster, why connections are over.

    server  name of the server that holds the connections
    sent    by vcluster: the connection, and the number of the last message sent on it; None while
            nothing can be sent on it
    """
    heads = vcms.heads(tx, server)
    over = {
        one: why_over(tx, greeted) or "another server holds the connection"
        for one, (greeted, _) in sent.items()
        if one not in heads or heads[one][0] != greeted.epoch
    }
    behind = {
        one: last
        for one, (_, last) in sent.items()
        if last is not None and one not in over and heads[one][1] > last
    }
    return vcms.unacknowledged(tx, behind, MOST_EACH, MOST_AT_ONCE), over


# ---------------------------------------------------------------- how things are


def request(tx: Tx, vcluster_id: int, request_id: int) -> Request:
    """Return the vcluster's request with that id. Raises `Refused` if it has none."""
    found = requests.get(tx, request_id)
    if found is None or found.vcluster_id != vcluster_id:
        raise Refused("not_found", f"this vcluster has no request {request_id}", "request")
    return found


def owns_reclaim(tx: Tx, vcluster_id: int, reclaim_id: int) -> None:
    """Raise `Refused` unless the reclaim is from that vcluster."""
    found = reclaims.get(tx, reclaim_id)
    if found is None or found.vcluster_id != vcluster_id:
        raise Refused("not_found", f"this vcluster has no reclaim {reclaim_id}", "reclaim")


def picture(tx: Tx, vcluster_id: int) -> Picture:
    """Return the vcluster as it is now, for its VCM."""
    found = vclusters.known(tx, vcluster_id)
    held = nodes.every(tx, vcluster_id=vcluster_id)
    pending = requests.every(tx, states=UNDECIDED, vcluster_id=vcluster_id)
    taking = reclaims.open_(tx, vcluster_id)
    would_do = {
        one.id: [node.hostname or node.name for node in preemption.fitting(tx, one, held)]
        for one in taking
    }
    return Picture(
        found,
        vcms.members(tx, [node.id for node in held]),
        pending,
        requests.keys(tx, [one.id for one in pending]),
        taking,
        would_do,
    )


def needed(tx: Tx, vcluster_id: int, hostnames: Sequence[str]) -> list[str]:
    """Return the host names, among those of a VCM's parked nodes, of the nodes that waiting
    requests need. Only requests that a pass has seen and left waiting count: reservations in
    advance and moves get their nodes in other ways."""
    named = set(hostnames)
    idle = [
        ParkedNode(node.hostname or "", node.type_id, vcluster_id, node.template_id)
        for node in nodes.every(tx, vcluster_id=vcluster_id)
        if node.hostname in named and node.type_id is not None
    ]
    waiting = [
        Needs(one.vcluster_id, each.count, each.attributes, each.template_id)
        for one in sorted(requests.pending(tx), key=lambda one: (-one.priority, one.id))
        if one.reason and one.starts_at is None and one.source_id is None
        for each in one.tuples
    ]
    if not (idle and waiting):
        return []
    unheld = Counter[int]()
    for free in node_counts.free(tx, (), False, 0.0):
        unheld[free.key.kind.type] += free.nodes
    for coming, count in node_counts.coming(tx, (), False).items():
        unheld[coming.kind.type] += count
    return parked.needed(idle, waiting, unheld, {one.id: one.attributes for one in types.every(tx)})


def _address(tx: Tx, vcluster_id: int, hostname: str) -> str:
    """Return the address of the vcluster's node of that name; 'nowhere' where there is none."""
    addresses = [
        node.id for node in nodes.every(tx, vcluster_id=vcluster_id) if node.hostname == hostname
    ]
    return next(iter(vcms.addresses(tx, addresses).values()), "nowhere")


def _vcluster(tx: Tx, name: str) -> Vcluster:
    found = vclusters.by_name(tx, name, lock=True)
    if found is None or found.state == VclusterState.ENDED:
        raise Refused("not_found", f"there is no vcluster {name!r}", "vcluster")
    return found
