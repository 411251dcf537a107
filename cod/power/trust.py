"""Trust in a BMC's certificate. A certificate is trusted if an authority of the system, or of a
given file, has signed it for the BMC's name; if it has a given fingerprint, whatever else it says;
or in any case, if the administrator has decided so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet import ssl
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from cod.power.driver import PowerError

FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@implementer(IPolicyForHTTPS)
@dataclass(frozen=True)
class Trust:
    """The trusted certificates. `authorities`: in PEM, '' for the system's; `fingerprint`: SHA-256,
    hex, of a BMC's own certificate, with any signer; `anyone`: the peer is not checked."""

    authorities: str = ""
    fingerprint: str = ""
    anyone: bool = False

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        """Return the object that sets up TLS to a host. Twisted's Agent calls this method."""
        host = hostname.decode("ascii")
        if self.anyone or self.fingerprint:
            return _Pinned(host, None if self.anyone else partial(_is, self.fingerprint))
        if not self.authorities:
            return ssl.optionsForClientTLS(host)
        own = [ssl.Certificate.loadPEM(pem) for pem in _PEM.findall(self.authorities)]
        return ssl.optionsForClientTLS(host, trustRoot=ssl.trustRootFromCertificates(own))


@implementer(IPolicyForHTTPS)
class Noting:
    """A trust in any certificate, which records its `fingerprint`: for a first request that sends
    no password."""

    def __init__(self) -> None:
        self.fingerprint = ""

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        """Return the object that sets up TLS to that host. Twisted's Agent calls this method."""
        return _Pinned(hostname.decode("ascii"), self._note)

    def _note(self, _connection: object, certificate: Any, _error: int, depth: int, _: int) -> bool:
        if depth == 0:
            self.fingerprint = _digest(certificate)
        return True


def trust_of(options: dict[str, str]) -> Trust:
    """Return the trust that an address's options ca, fingerprint and insecure name. At most one of
    them may be given. Raises `PowerError`."""
    if len(options) > 1:
        raise PowerError(f"of {', '.join(sorted(options))} one may be given", lasting=True)
    if "ca" in options:
        return Trust(authorities=_authorities(options["ca"]))
    if "fingerprint" in options:
        digits = options["fingerprint"].replace(":", "").lower()
        if not FINGERPRINT.fullmatch(digits):
            raise PowerError(
                "fingerprint should be the certificate's SHA-256, 64 hexadecimal digits",
                lasting=True,
            )
        return Trust(fingerprint=digits)
    if options.get("insecure", "yes") != "yes":
        raise PowerError("insecure may be 'yes' or left out", lasting=True)
    return Trust(anyone="insecure" in options)


def _authorities(file: str) -> str:
    try:
        text = Path(file).read_text()
        for pem in (found := _PEM.findall(text)):
            ssl.Certificate.loadPEM(pem)
    except (OSError, ValueError, crypto.Error) as error:
        why = getattr(error, "strerror", None) or "it holds something else"
        raise PowerError(f"no certificates can be read from {file}: {why}") from None
    if not found:
        raise PowerError(f"no certificates can be read from {file}: it holds none")
    return text


@implementer(IOpenSSLClientConnectionCreator)
class _Pinned:
    """Sets up TLS connections that accept a certificate if `accepts` (a callback of pyOpenSSL)
    returns True, or any certificate (None)."""

    def __init__(self, host: str, accepts: Callable[..., bool] | None) -> None:
        self._host = host
        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        if accepts is not None:
            self._context.set_verify(SSL.VERIFY_PEER, accepts)

    def clientConnectionForTLS(self, _protocol: object) -> SSL.Connection:
        """Return the connection; Twisted calls this method."""
        connection = SSL.Connection(self._context, None)
        if not re.fullmatch(r"[0-9.]+|.*:.*", self._host):
            connection.set_tlsext_host_name(self._host.encode("ascii"))
        return connection


def _is(
    fingerprint: str, _connection: object, certificate: Any, _error: int, depth: int, _ok: int
) -> bool:
    """Return whether the certificate is the expected one. Only the peer's own certificate counts,
    not its signers'."""
    return depth > 0 or _digest(certificate) == fingerprint


def _digest(certificate: Any) -> str:
    return str(certificate.digest("sha256").replace(b":", b"").decode().lower())
