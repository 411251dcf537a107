"""Virtual cluster managers."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Address
from operator import attrgetter
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cod.flows.vcms import vcms
from cod.model import Refused, VcmView
from cod.pool import Tx
from cod.security.ca import Issued
from cod.security.signer import SignerAway
from cod.web.api.models import Body, Paged, Reply
from cod.web.api.routes import (
    ANYBODY,
    Call,
    Flow,
    Named,
    as_it_is,
    in_parts,
    manage,
    named_route,
    paged,
    route,
    see,
)

Address = Annotated[str, AfterValidator(lambda text: str(IPv4Address(text)))]


class VcmEnrol(Body):
    """The VCM that speaks for a vcluster from now on."""

    address: Address | None = Field(
        default=None, description="the only address it may come from; null: any"
    )
    plain: bool = Field(
        default=False, description="it is known by its address alone, and shows no certificate"
    )
    inside: bool = Field(
        default=False,
        description=(
            "it runs on a node of the vcluster, which gets configuration and "
            "invitation when it is primed"
        ),
    )
    head: str | None = Field(
        default=None, description="host name of that node; null: the vcluster's first"
    )


class VcmReply(Reply):
    """A VCM. `server` holds its connection, null while it has none; `owed`: messages that it has
    not acknowledged yet. `head`: the node of the vcluster that it runs on; while `serial` is empty,
    it has no certificate yet. `ends_at`: when its certificate expires; null: it has none, or its
    expiry was never recorded. `warned_at`: when its group was told of the coming expiry, because
    the VCM, which renews its certificate months before, has not."""

    vcluster: str
    serial: str
    address: str | None
    about: str
    server: str | None
    since: float | None
    enrolled_at: float
    owed: int
    head: str | None
    ends_at: float | None
    warned_at: float | None

    @classmethod
    def of(cls, view: VcmView) -> VcmReply:
        vcm = view.vcm
        return cls.read_from(view, vcm, address=vcm.address or None, since=vcm.connected_at)


class VcmQuery(Paged):
    sort: Literal["vcluster", "-vcluster", "enrolled_at", "-enrolled_at"] = "vcluster"


class VcmEnrolled(Reply):
    """Credentials and configuration of a new VCM, shown once: the server does not keep its key. Key
    and certificates are PEM, and empty if the VCM is known by its address alone. `configuration` is
    the text of its file. A VCM inside its vcluster gets all that on the node `head`; `primed`: that
    node was primed before the VCM was enrolled, and has not got it."""

    vcluster: str
    serial: str
    key: str
    certificate: str
    authority: str
    servers: list[str]
    configuration: str
    head: str | None = None
    primed: bool = False


_Ask = Call[Named, VcmEnrol]


def _enrol(ask: _Ask) -> Flow[VcmEnrolled]:
    """Enrol a VCM. Nothing is issued, and nothing is said about the site, before the caller's
    rights have been checked."""
    return lambda tx: _issued(ask, tx)(tx)


def _issued(ask: _Ask, tx: Tx) -> Flow[VcmEnrolled]:
    """Return the flow that enrols the VCM. For a VCM with a certificate, issue that first; its
    serial number is stored in the same transaction."""
    name, address = ask.names.name, ask.body.address or ""
    if ask.body.inside:
        return _inside(ask, name)
    port, issued, authority = _plain(ask) if ask.body.plain else _certified(ask, tx, name)
    addresses = {each for subnet in ask.site.subnets for each in subnet.servers}
    servers = [f"{each}:{port}" for each in sorted(addresses)]

    def enrol(tx: Tx) -> VcmEnrolled:
        vcms.enrol(
            tx,
            vcluster=name,
            serial=issued.serial,
            address=address,
            now=ask.now,
            ends_at=issued.ends_at or None,
        )
        return VcmEnrolled(
            vcluster=name,
            serial=issued.serial,
            key=issued.key.decode(),
            certificate=issued.certificate.decode(),
            authority=authority.decode(),
            servers=servers,
            configuration=vcms.configuration(name, servers, tls=not ask.body.plain),
        )

    return enrol


def _inside(ask: _Ask, name: str) -> Flow[VcmEnrolled]:
    """Enrol a VCM inside its vcluster. Nothing is issued now: the node gets an invitation when it
    is primed."""
    if ask.body.plain or ask.body.address:
        raise Refused(
            "invalid",
            "a VCM inside its vcluster is known by its certificate, and comes from its node",
            "inside",
        )
    _port(ask)

    def enrol(tx: Tx) -> VcmEnrolled:
        view, to_come = vcms.enrol_inside(tx, vcluster=name, head=ask.body.head, now=ask.now)
        return VcmEnrolled(
            vcluster=name,
            serial="",
            key="",
            certificate="",
            authority="",
            servers=[],
            configuration="",
            head=view.vcm.head,
            primed=not to_come,
        )

    return enrol


def _port(ask: Call) -> int:
    if ask.authority is None or not ask.site.nmp.port:
        raise Refused("conflict", "this site has NMP switched off: [nmp] port in the site file")
    return ask.site.nmp.port


def _certified(ask: _Ask, tx: Tx, name: str) -> tuple[int, Issued, bytes]:
    port = _port(ask)
    vcms.check(tx, name)  # some names cannot be written in a certificate
    assert ask.authority is not None
    try:
        issued = ask.authority.vcm(name, datetime.fromtimestamp(ask.now, UTC))
    except SignerAway as error:
        raise Refused("conflict", str(error)) from None
    return port, issued, ask.authority.certificate


def _plain(ask: Call) -> tuple[int, Issued, bytes]:
    """Return the port for VCMs that are known by their address alone, and empty credentials."""
    if not ask.site.nmp.port or not ask.site.nmp.plain_port:
        raise Refused(
            "conflict",
            "this site lets no VCM in without a certificate: [nmp] plain_port in the site file",
            "plain",
        )
    return ask.site.nmp.plain_port, Issued(b"", b"", ""), b""


VCMS = (
    route(
        "GET /vcms",
        ANYBODY,
        "List virtual cluster managers, and whether they are connected",
        lambda a: in_parts(
            partial(vcms.every, groups=a.who.groups),
            a.query.page,
            lambda one: (one.vcluster, one.vcm.about),
            "vcluster",
            vcluster=attrgetter("vcluster"),
            enrolled_at=attrgetter("vcm.enrolled_at"),
        ),
        reply=paged(VcmReply, "VCMs."),
        query=VcmQuery,
    ),
    named_route(
        "GET /vclusters/{name}/vcm",
        see("vcluster"),
        "Show a vcluster's manager",
        lambda a: partial(vcms.show, vcluster=a.names.name),
        reply=VcmReply,
    ),
    named_route(
        "POST /vclusters/{name}/vcm",
        manage("vcluster"),
        "Enrol a manager for a vcluster: a key and a certificate, shown once. "
        "Whoever was enrolled before may not speak for it any more",
        _enrol,
        reply=as_it_is(VcmEnrolled),
        body=VcmEnrol,
        status=201,
        secret=True,
        action="vcm enrol",
    ),
    named_route(
        "DELETE /vclusters/{name}/vcm",
        manage("vcluster"),
        "Let nobody speak for a vcluster any more",
        lambda a: partial(vcms.revoke, vcluster=a.names.name),
    ),
)
