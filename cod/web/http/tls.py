"""TLS for the web server: connections with a certificate that may be replaced while the server
runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import CertificateOptions, TLSVersion
from zope.interface import implementer

from cod.security import webcert
from cod.security.webcert import WebCertificate

log = logging.getLogger("cod.api")


@implementer(IOpenSSLServerConnectionCreator)
class WebTls:
    """Certificate options for `listenSSL`. `files` returns the files of the certificate and its
    key, which it makes if need be; each `reread` calls it again.

    `fingerprint`: the certificate's SHA-256, hex. Raises the exceptions of `files`, and
    `webcert.BadWebCertificate`.
    """

    def __init__(self, files: Callable[[], WebCertificate]) -> None:
        self._files = files
        self._options: Any = None
        self.fingerprint = ""
        self.reread()

    def reread(self) -> None:
        """Read certificate and key from their files again, for new connections."""
        files = self._files()
        chain: Any  # as pyOpenSSL takes it now; Twisted's annotations are those of older versions
        key: Any
        chain, key = webcert.loaded(files)
        self._options = CertificateOptions(
            privateKey=key,
            certificate=chain[0],
            extraCertChain=chain[1:],
            raiseMinimumTo=TLSVersion.TLSv1_2,
            # browsers offer HTTP/2 as well, and may fail if the server chooses no protocol
            acceptableProtocols=[b"http/1.1"],
        )
        if (shown := files.fingerprint()) != self.fingerprint:
            self.fingerprint = shown
            log.info("the web server's certificate has the SHA-256 %s", shown)

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        """Return a connection that may negotiate its protocol (ALPN), because browsers ask for
        that."""
        connection: SSL.Connection = self._options.serverConnectionForTLS(protocol)
        return connection
