"""Routes about virtual cluster managers."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from cod.ca import Issued
from cod.flows import vcms
from cod.model import Refused
from cod.net import bodies as b
from cod.net.routes import Ask, Flow, listed, route


def _enrol(ask: Ask) -> Flow:
    """A certificate is issued, and its number written down with the same stroke."""
    if ask.authority is None or not ask.site.nmp_port:
        raise Refused("conflict", "this site has NMP switched off: [nmp] port in the site file")
    name, address = ask.names["name"], str(ask.body.address or "")
    issued = ask.authority.vcm(name, datetime.fromtimestamp(ask.now, UTC))
    servers = [f"{each}:{ask.site.nmp_port}" for each in sorted({subnet.server for subnet in ask.site.subnets})]

    def enrol(tx: Any) -> b.VcmEnrolled:
        vcms.enrol(tx, vcluster=name, serial=issued.serial, address=address, now=ask.now)
        return _enrolled(name, issued, ask.authority.certificate if ask.authority else b"", servers)

    return enrol


def _enrolled(name: str, issued: Issued, authority: bytes, servers: list[str]) -> b.VcmEnrolled:
    return b.VcmEnrolled(
        vcluster=name, serial=issued.serial, key=issued.key.decode(), certificate=issued.certificate.decode(),
        authority=authority.decode(), servers=servers)


VCMS = (
    route("GET", "/vcms", "List virtual cluster managers, and whether they are connected", lambda a: vcms.every,
          shape=listed(b.VcmList, b.VcmReply.of), reply=b.VcmList),
    route("GET", "/vclusters/{name}/vcm", "Show a vcluster's manager",
          lambda a: partial(vcms.show, vcluster=a.names["name"]), shape=b.VcmReply.of, reply=b.VcmReply),
    route("POST", "/vclusters/{name}/vcm", "Enrol a manager for a vcluster: a key and a certificate, shown once. "
          "Whoever was enrolled before may not speak for it any more", _enrol,
          shape=lambda enrolled: enrolled, reply=b.VcmEnrolled, body=b.VcmEnrol, status=201),
    route("DELETE", "/vclusters/{name}/vcm", "Let nobody speak for a vcluster any more",
          lambda a: partial(vcms.revoke, vcluster=a.names["name"]), status=204),
)
