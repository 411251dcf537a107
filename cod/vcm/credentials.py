"""The files that identify a VCM: its key, its certificate and the site's authority, and the file of
a renewed certificate.

`cod vcm enroll` (or an exchanged invitation) writes three files. Renewed credentials are in a
fourth file, which contains key, certificate and authority, because one file can be replaced
atomically and two cannot. The younger certificate is used, so a new enrolment takes precedence over
earlier renewals.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cod.vcm.files import put
from cod.vcm.settings import Settings

SUFFIX = ".renewed"

log = logging.getLogger("cod.vcm")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key, the certificate and the authority of a VCM, as PEM."""

    certificate: bytes
    key: bytes
    authority: bytes

    def life(self) -> tuple[float, float]:
        """Return when the certificate begins and ends, in seconds since the epoch. Raises
        ValueError."""
        shown = _certificate(self.certificate)
        return shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()


def renewed_file(settings: Settings, folder: Path) -> Path:
    return folder / (settings.certificate + SUFFIX)


def load(settings: Settings, folder: Path) -> Credentials:
    """Return the credentials to use now. Raises OSError, ValueError."""
    renewed = _renewed(renewed_file(settings, folder))
    try:
        given = Credentials(
            *(
                (folder / name).read_bytes()
                for name in (settings.certificate, settings.key, settings.authority)
            )
        )
        since = _certificate(given.certificate).not_valid_before_utc
    except (OSError, ValueError):
        if renewed is None:
            raise
        return renewed[0]
    return renewed[0] if renewed is not None and renewed[1] > since else given


def _renewed(file: Path) -> tuple[Credentials, datetime] | None:
    """Return the file's credentials, and the time from which they are valid; None if the file is
    missing or cannot be used."""
    try:
        content = file.read_bytes()
        certificate, authority = x509.load_pem_x509_certificates(content)
        key = serialization.load_pem_private_key(content, None)
        if key.public_key() != certificate.public_key():
            raise ValueError("the key is of another certificate")
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s is of no use: %s", file, error)
        return None
    return Credentials(pem(certificate), content, pem(authority)), certificate.not_valid_before_utc


def keep_renewed(
    settings: Settings,
    folder: Path,
    key: ec.EllipticCurvePrivateKey,
    certificate: bytes,
    authority: bytes,
) -> Credentials:
    """Write renewed credentials, given as DER, to disk and return them; they are used from now on.
    Raises OSError, and ValueError if they do not match the request."""
    made = x509.load_der_x509_certificate(certificate)
    by = x509.load_der_x509_certificate(authority)
    if made.public_key() != key.public_key():
        raise ValueError("the certificate is of another key")
    made.verify_directly_issued_by(by)
    put(renewed_file(settings, folder), pem(made) + pem(by) + key_pem(key))
    return load(settings, folder)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key on the curve that COD certifies."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a request for a certificate (PKCS #10, DER). Its name is empty, because the authority
    decides on the certificate's name."""
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def pem(certificate: x509.Certificate) -> bytes:
    """Return the certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificate(content: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise ValueError(f"the certificate cannot be read: {error}") from None
