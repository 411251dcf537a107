"""Routes about virtual cluster managers."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any

from cod.ca import Issued
from cod.flows.notices import vcms
from cod.model import Refused
from cod.web import bodies as b
from cod.web.routes import ANYBODY, Call, Flow, in_parts, listed, manage, route, see


def _enrol(ask: Call) -> Flow:
    """Nothing is issued, or said about the site, before it is known that whoever asks may."""
    return lambda tx: _issued(ask, tx)(tx)


def _issued(ask: Call, tx: Any) -> Flow:
    """A certificate is issued, and its number written down with the same stroke."""
    name, address = ask.names["name"], ask.body.address or ""
    if ask.body.inside:
        return _inside(ask, name)
    port, issued, authority = _plain(ask) if ask.body.plain else _certified(ask, tx, name)
    servers = [f"{each}:{port}" for each in sorted({subnet.server for subnet in ask.site.subnets})]

    def enrol(tx: Any) -> b.VcmEnrolled:
        vcms.enrol(tx, vcluster=name, serial=issued.serial, address=address, now=ask.now,
                   ends_at=issued.ends_at or None)
        return b.VcmEnrolled(
            vcluster=name, serial=issued.serial, key=issued.key.decode(), certificate=issued.certificate.decode(),
            authority=authority.decode(), servers=servers,
            configuration=vcms.configuration(name, servers, tls=not ask.body.plain))

    return enrol


def _inside(ask: Call, name: str) -> Flow:
    """Nothing is issued now: the node gets an invitation when it is primed."""
    if ask.body.plain or ask.body.address:
        raise Refused("invalid", "a VCM inside its vcluster is known by its certificate, and comes from its node",
                      "inside")
    _port(ask)

    def enrol(tx: Any) -> b.VcmEnrolled:
        view, to_come = vcms.enrol_inside(tx, vcluster=name, head=ask.body.head, now=ask.now)
        return b.VcmEnrolled(vcluster=name, serial="", key="", certificate="", authority="", servers=[],
                             configuration="", head=view.vcm.head, primed=not to_come)

    return enrol


def _port(ask: Call) -> int:
    if ask.authority is None or not ask.site.nmp_port:
        raise Refused("conflict", "this site has NMP switched off: [nmp] port in the site file")
    return ask.site.nmp_port


def _certified(ask: Call, tx: Any, name: str) -> tuple[int, Issued, bytes]:
    port = _port(ask)
    vcms.check(tx, name)  # not each word can stand in a certificate
    assert ask.authority is not None
    issued = ask.authority.vcm(name, datetime.fromtimestamp(ask.now, UTC))
    return port, issued, ask.authority.certificate


def _plain(ask: Call) -> tuple[int, Issued, bytes]:
    """Return no certificate: a plain connection shows none."""
    if not ask.site.nmp_port or not ask.site.nmp_plain_port:
        raise Refused("conflict", "this site lets no VCM in without a certificate: [nmp] plain_port in the site file",
                      "plain")
    return ask.site.nmp_plain_port, Issued(b"", b"", ""), b""


VCMS = (
    route("GET", "/vcms", ANYBODY, "List virtual cluster managers, and whether they are connected",
          lambda a: in_parts(partial(vcms.every, groups=a.who.groups), a.query.page,
                             lambda one: (one.vcluster, one.vcm.about), "vcluster", vcluster=attrgetter("vcluster"),
                             enrolled_at=attrgetter("vcm.enrolled_at")),
          shape=listed(b.VcmList, b.VcmReply.of), reply=b.VcmList, query=b.VcmQuery),
    route("GET", "/vclusters/{name}/vcm", see("vcluster"), "Show a vcluster's manager",
          lambda a: partial(vcms.show, vcluster=a.names["name"]), shape=b.VcmReply.of, reply=b.VcmReply),
    route("POST", "/vclusters/{name}/vcm", manage("vcluster"),
          "Enrol a manager for a vcluster: a key and a certificate, shown once. "
          "Whoever was enrolled before may not speak for it any more", _enrol,
          shape=lambda enrolled: enrolled, reply=b.VcmEnrolled, body=b.VcmEnrol, status=201, secret=True,
          action="vcm enrol"),
    route("DELETE", "/vclusters/{name}/vcm", manage("vcluster"), "Let nobody speak for a vcluster any more",
          lambda a: partial(vcms.revoke, vcluster=a.names["name"]), status=204),
)
