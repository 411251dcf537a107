"""TLS for NMP: the server's key and certificate, and whom a VCM's certificate names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto
from twisted.internet.interfaces import IAddress, IOpenSSLServerConnectionCreator, IProtocolFactory
from twisted.internet.ssl import Certificate, CertificateOptions, TLSVersion
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from cod.security.ca import Ca, Issued, serial_text

BACKLOG = 512
BACK = 3600.0  # seconds by which the clock may be set back before a certificate is taken for one of the future


@dataclass(frozen=True, slots=True)
class Shown:
    """What a peer has shown of itself: serial number and name of its certificate, '' without one; `tls`: does it speak
    TLS at all? `until`: when its certificate ends, in seconds since the epoch."""

    serial: str = ""
    name: str = ""
    tls: bool = False
    until: float = inf


class _TlsFactory(TLSMemoryBIOFactory):
    """With room for a refusal: its own would wrap None."""

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override] # as IProtocolFactory allows
        """Return a connection, if the factory inside wants one."""
        inner = self.wrappedFactory.buildProtocol(addr)
        return None if inner is None else self.protocol(self, inner)


@implementer(IOpenSSLServerConnectionCreator)
class ServerTls:
    """TLS for the connections of VCMs. The server's own certificate is made anew when half of its life is over: a
    server may run for years."""

    def __init__(self, ca: Ca, addresses: Sequence[str], clock: Callable[[], float]) -> None:
        self._ca, self._addresses, self._clock = ca, list(addresses), clock
        self._options: Any = None
        self._since = self._until = -inf

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        """Return the next connection."""
        now = self._clock()
        if not self._since - BACK <= now < self._until:
            issued = self._ca.server(self._addresses, datetime.fromtimestamp(now, UTC))
            self._options, self._since, self._until = _options(issued, self._ca), now, now + (issued.ends_at - now) / 2
        connection: SSL.Connection = self._options.serverConnectionForTLS(protocol)
        return connection


def _options(issued: Issued, ca: Ca) -> CertificateOptions:
    key: Any = load_pem_private_key(issued.key, None)  # what pyOpenSSL wants today; twisted's annotations name what it
    own: Any = load_pem_x509_certificate(issued.certificate)  # wanted before
    options = CertificateOptions(
        privateKey=key, certificate=own, trustRoot=Certificate.loadPEM(ca.certificate),
        raiseMinimumTo=TLSVersion.TLSv1_2)
    options.requireCertificate = False  # cannot be said together with trustRoot; it is looked at later
    return options


def listening(
    reactor: Any, ca: Ca, addresses: Sequence[str], port: int, plain_port: int = 0,
    clock: Callable[[], float] = time.time,
) -> Callable[[IProtocolFactory], list[Any]]:
    """Return what opens a TLS port on each address for a factory; a certificate that is not valid, or not of the site's
    CA, gets no further than the handshake. Who shows none has an invitation, or is shown out (`nmpsession`).
    Certificates of servers are made at each start, and anew before they end: nobody remembers them.

    plain_port  where VCMs without certificates connect, which are known by their addresses; 0: nowhere
    """
    shown = ServerTls(ca, addresses, clock)

    def listen(factory: IProtocolFactory) -> list[Any]:
        wrapped = _TlsFactory(shown, False, factory)  # type: ignore[arg-type] # zope: it is one of these
        ports = [reactor.listenTCP(port, wrapped, BACKLOG, address) for address in addresses]
        plain = addresses if plain_port else ()
        return ports + [reactor.listenTCP(plain_port, factory, BACKLOG, address) for address in plain]

    return listen


def identity(transport: Any) -> Shown:
    """Return the identity of a connection's peer."""
    asked = getattr(transport, "getPeerCertificate", None)  # a plain connection has none
    certificate: crypto.X509 | None = asked() if asked else None
    if certificate is None:
        return Shown(tls=asked is not None)
    shown = certificate.to_cryptography()
    names = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Shown(serial_text(shown.serial_number), str(names[0].value) if names else "", True,
                 shown.not_valid_after_utc.timestamp())
