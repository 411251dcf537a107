"""TLS for NMP: the server's key and certificate, and whom a VCM's certificate names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography.x509.oid import NameOID
from OpenSSL import crypto
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.ssl import Certificate, CertificateOptions, PrivateCertificate, TLSVersion
from twisted.protocols.tls import TLSMemoryBIOFactory

from cod.ca import Ca, serial_text

BACKLOG = 512


def listening(reactor: Any, ca: Ca, addresses: Sequence[str], port: int) -> Callable[[IProtocolFactory], list[Any]]:
    """What opens a TLS port on each address for a factory; a VCM without a valid certificate of the site's CA gets no
    further than the handshake. Certificates of servers are made at each start: nobody remembers them."""
    issued = ca.server(list(addresses), datetime.now(UTC))
    own = PrivateCertificate.loadPEM(issued.key + issued.certificate)
    options = CertificateOptions(
        privateKey=own.privateKey.original, certificate=own.original, trustRoot=Certificate.loadPEM(ca.certificate),
        raiseMinimumTo=TLSVersion.TLSv1_2)

    def listen(factory: IProtocolFactory) -> list[Any]:
        wrapped = TLSMemoryBIOFactory(options, False, factory)  # type: ignore[arg-type] # zope: it is one of these
        return [reactor.listenTCP(port, wrapped, BACKLOG, address) for address in addresses]

    return listen


def identity(transport: Any) -> tuple[str, str]:
    """(serial number, common name) of the peer's certificate."""
    asked = getattr(transport, "getPeerCertificate", None)  # a plain connection has none
    certificate: crypto.X509 | None = asked() if asked else None
    if certificate is None:
        return "", ""
    shown = certificate.to_cryptography()
    names = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return serial_text(shown.serial_number), str(names[0].value) if names else ""
