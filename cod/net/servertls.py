"""TLS of the ports that nodes and VCMs connect to: the server's key and certificate, signed by the
site's authority.

Server certificates are made at each start, and again when half of their life is over, as a server
may run for years. Clients trust the authority and remember no server's certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from OpenSSL import SSL
from twisted.internet.interfaces import IAddress, IOpenSSLServerConnectionCreator
from twisted.internet.ssl import Certificate, CertificateOptions, TLSVersion
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from cod.security.ca import Ca, Issued

# seconds by which the clock may be set back before a certificate seems to begin in the future
BACK = 3600.0


class TlsFactory(TLSMemoryBIOFactory):
    """A TLS factory that can refuse a connection: Twisted's own would wrap None."""

    def buildProtocol(self, addr: IAddress | None) -> TLSMemoryBIOProtocol | None:  # type: ignore[override] # as IProtocolFactory allows
        """Return a connection; None if the wrapped factory refuses it."""
        inner = self.wrappedFactory.buildProtocol(addr)
        return None if inner is None else self.protocol(self, inner)


@implementer(IOpenSSLServerConnectionCreator)
class ServerTls:
    """TLS for the connections of a server on `addresses`. `peers`: peers may show certificates of
    the authority."""

    def __init__(
        self, ca: Ca, addresses: Sequence[str], clock: Callable[[], float], *, peers: bool = False
    ) -> None:
        self._ca, self._addresses, self._clock, self._peers = ca, list(addresses), clock, peers
        self._options: Any = None
        self._since = self._until = -inf

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        now = self._clock()
        if not self._since - BACK <= now < self._until:
            issued = self._ca.server(self._addresses, datetime.fromtimestamp(now, UTC))
            self._options = _options(issued, self._ca if self._peers else None)
            self._since, self._until = now, now + (issued.ends_at - now) / 2
        connection: SSL.Connection = self._options.serverConnectionForTLS(protocol)
        return connection


def _options(issued: Issued, ca: Ca | None) -> CertificateOptions:
    # what pyOpenSSL wants today; twisted's annotations name what it
    key: Any = load_pem_private_key(issued.key, None)
    own: Any = load_pem_x509_certificate(issued.certificate)  # wanted before
    if ca is None:
        return CertificateOptions(
            privateKey=key, certificate=own, raiseMinimumTo=TLSVersion.TLSv1_2
        )
    options = CertificateOptions(
        privateKey=key,
        certificate=own,
        trustRoot=Certificate.loadPEM(ca.certificate),
        raiseMinimumTo=TLSVersion.TLSv1_2,
    )
    # its arguments may not combine this with trustRoot; the attribute is read for each connection
    options.requireCertificate = False
    return options
