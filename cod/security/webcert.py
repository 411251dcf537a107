"""The certificate of the web server: the site's own, or one that COD makes and signs by itself.

A self-signed certificate names the server's addresses and host names. It is made at the first
start, and anew when it is about to end or the names have changed, always with the same key, a file
that only its owner can read. Until then, people who have compared the certificate's fingerprint
once can recognise the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cod.security import secretfile
from cod.security.ca import pem

DAYS = 397  # longer than that browsers trust none
RENEWED = timedelta(days=40)  # before its end
EARLY = timedelta(hours=1)  # valid from before now: clocks differ


@dataclass(frozen=True, slots=True)
class WebCertificate:
    """The files of the certificate (PEM, followed by the certificates of its signers) and of its
    key."""

    certificate: Path
    key: Path

    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate, in hex. Raises ValueError, OSError."""
        found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        return hashlib.sha256(found.public_bytes(serialization.Encoding.DER)).hexdigest()


class BadWebCertificate(Exception):
    """The certificate or its key cannot be used; the sentence names the file."""


def self_signed(folder: Path, names: Sequence[str], now: datetime | None = None) -> WebCertificate:
    """Return the self-signed certificate in `folder`; a new one is made where there is no valid
    one. `names`: addresses and host names, the main one first. Raises OSError,
    `BadWebCertificate`."""
    now = now or datetime.now(UTC)
    files = WebCertificate(folder / "web.crt", folder / "web.key")
    with secretfile.alone_in(folder):  # the parts of a new site start at once
        if not _will_do(files, names, now):
            key = _key(files.key)
            secretfile.write(
                files.certificate, _signed(key, names, now).public_bytes(serialization.Encoding.PEM)
            )
    return files


def loaded(files: WebCertificate) -> tuple[list[x509.Certificate], PrivateKeyTypes]:
    """Return the certificates, the server's own first, and its key. Raises `BadWebCertificate`,
    also where certificate and key do not belong together."""
    try:
        chain = x509.load_pem_x509_certificates(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except OSError as error:
        raise BadWebCertificate(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise BadWebCertificate(
            f"{files.certificate} or {files.key} is no certificate or no key without a password, "
            "as PEM"
        ) from None
    if _public(key.public_key()) != _public(chain[0].public_key()):
        raise BadWebCertificate(f"{files.key} is not the key of {files.certificate}")
    return chain, key


def _will_do(files: WebCertificate, names: Sequence[str], now: datetime) -> bool:
    with suppress(OSError, ValueError, x509.ExtensionNotFound, BadWebCertificate):
        (shown, *_), _key_there = loaded(files)
        own = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        lasts = shown.not_valid_before_utc <= now < shown.not_valid_after_utc - RENEWED
        return lasts and set(own) == set(_alternatives(names))
    return False


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in the file; a new key is made where there is no valid one."""
    with suppress(OSError, ValueError, TypeError):
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    key = ec.generate_private_key(ec.SECP256R1())
    secretfile.write(path, pem(key))
    return key


def _signed(
    key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: datetime
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_alternative(name) for name in dict.fromkeys(names)]


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _public(key: object) -> bytes:
    made: bytes = key.public_bytes(  # type: ignore[attr-defined] # any of the kinds of keys
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return made
