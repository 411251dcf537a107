"""A VCM's connection to COD: TLS with its certificate, to each of the site's servers in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol, wrapClientTLS
from twisted.internet.ssl import Certificate, optionsForClientTLS

from cod.vcm.link import Link

SERVER_NAME = "cod"  # what the site's CA certifies its servers as
PATIENCE = 15  # seconds for a connection


def over_tls(
    reactor: Any,
    servers: Sequence[tuple[str, int]],
    certificate: bytes,
    key: bytes,
    authority: bytes,
) -> Callable[[Link], Deferred[Any]]:
    """Return a function that connects a link to the next of `servers`, each an (address, port)
    pair. The other arguments are PEM; an empty certificate is not shown. Raises ValueError for
    invalid PEM."""
    try:
        own = {}
        if certificate:
            shown, secret = load_pem_x509_certificate(certificate), load_pem_private_key(key, None)
            if secret.public_key() != shown.public_key():
                raise ValueError("the key is of another certificate")
            own = {"certificate": shown, "privateKey": secret}
        options = optionsForClientTLS(
            SERVER_NAME, Certificate.loadPEM(authority), extraCertificateOptions=own
        )
    except Exception as error:  # OpenSSL's own say nothing
        raise ValueError(
            f"the certificate, its key or the authority's certificate cannot be used: {error}"
        ) from None
    return _connecting(reactor, servers, lambda endpoint: wrapClientTLS(options, endpoint))


def days_left(certificate: bytes, now: float) -> float:
    """Return the days until the certificate (PEM) ends. Raises ValueError."""
    try:
        end = load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise ValueError(f"the certificate cannot be read: {error}") from None
    return (end.timestamp() - now) / 86400


def plainly(reactor: Any, servers: Sequence[tuple[str, int]]) -> Callable[[Link], Deferred[Any]]:
    """Return such a function without TLS, for closed networks in which the site knows VCMs by their
    addresses."""
    return _connecting(reactor, servers, lambda endpoint: endpoint)


def _connecting(
    reactor: Any, servers: Sequence[tuple[str, int]], wrap: Callable[[Any], Any]
) -> Callable[[Link], Deferred[Any]]:
    turns = cycle(servers)

    def connect(link: Link) -> Deferred[Any]:
        address, port = next(turns)
        done: Deferred[Any] = connectProtocol(
            wrap(TCP4ClientEndpoint(reactor, address, port, PATIENCE)), link
        )
        return done

    return connect
