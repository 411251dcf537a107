"""TLS for NMP: its ports, and the identities in VCMs' certificates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from cryptography.x509.oid import NameOID
from OpenSSL import crypto
from twisted.internet.interfaces import IProtocolFactory

from cod.net.servertls import ServerTls, TlsFactory
from cod.security.ca import Ca, serial_text

BACKLOG = 512


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The identity of a peer: serial number and name of its certificate, '' without one; `tls`: it
    speaks TLS; `until`: when its certificate ends, in seconds since the epoch."""

    serial: str = ""
    name: str = ""
    tls: bool = False
    until: float = inf


def listening(
    reactor: Any, ca: Ca, addresses: Sequence[str], port: int, plain_port: int = 0
) -> Callable[[IProtocolFactory], list[Any]]:
    """Return a function that opens a TLS port on each address for a factory. A certificate that is
    not valid, or not signed by the site's CA, fails in the handshake. A peer without a certificate
    must have an invitation (`net.nmp.session`).

    plain_port  the port for VCMs without certificates, which are known by their addresses; 0: none
                is opened
    """
    shown = ServerTls(ca, addresses, time.time, peers=True)

    def listen(factory: IProtocolFactory) -> list[Any]:
        wrapped = TlsFactory(shown, False, factory)  # type: ignore[arg-type] # zope: it is one of these
        ports = [reactor.listenTCP(port, wrapped, BACKLOG, address) for address in addresses]
        plain = addresses if plain_port else ()
        return ports + [
            reactor.listenTCP(plain_port, factory, BACKLOG, address) for address in plain
        ]

    return listen


def identity(transport: Any) -> PeerIdentity:
    """Return the identity of a connection's peer."""
    asked = getattr(transport, "getPeerCertificate", None)  # a plain connection has none
    certificate: crypto.X509 | None = asked() if asked else None
    if certificate is None:
        return PeerIdentity(tls=asked is not None)
    shown = certificate.to_cryptography()
    names = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return PeerIdentity(
        serial_text(shown.serial_number),
        str(names[0].value) if names else "",
        True,
        shown.not_valid_after_utc.timestamp(),
    )
