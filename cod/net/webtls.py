"""TLS for the web server: contexts for connections from a certificate that may be another one tomorrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.ssl import CertificateOptions, TLSVersion

from cod import webcert
from cod.webcert import WebCertificate


class WebTls:
    """What `listenSSL` wants. `files` names the certificate and makes it if need be; it is asked at each `reread`.

    Raises what `files` does, and `webcert.Unusable`.
    """

    def __init__(self, files: Callable[[], WebCertificate]) -> None:
        self._files = files
        self._context: Any = None
        self.reread()

    def reread(self) -> None:
        """From now on new connections get the certificate as it is in the files now."""
        files = self._files()
        webcert.check(files)
        chain = crypto_chain(files)
        with open(files.key, "rb") as file:
            key = crypto.load_privatekey(crypto.FILETYPE_PEM, file.read())
        options = CertificateOptions(
            privateKey=key, certificate=chain[0], extraCertChain=chain[1:], raiseMinimumTo=TLSVersion.TLSv1_2)
        self._context = options.getContext()

    def getContext(self) -> SSL.Context:
        """The context for the next connection."""
        context: SSL.Context = self._context
        return context


def crypto_chain(files: WebCertificate) -> list[crypto.X509]:
    """The certificates in the file: the server's own first."""
    end = b"-----END CERTIFICATE-----"
    parts = files.certificate.read_bytes().split(end)[:-1]
    return [crypto.load_certificate(crypto.FILETYPE_PEM, part + end) for part in parts]
