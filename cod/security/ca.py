"""The site's own certificate authority, for its virtual cluster managers: a key, a certificate, and
the certificates that it issues.

It is simple on purpose: one level, elliptic curve P-256, no revocation lists. A VCM's certificate
names its vcluster, and COD has the serial number of each valid certificate (table `vcms`), so a
certificate is revoked by deleting its number. The key is a file that only its owner can read, in
the data folder's `ca/`; copied to another server of the site, it makes the same CA there.

A VCM that runs on a node of its vcluster makes its key itself, and shows an invitation. The
invitation is derived from the CA's key, so that every server of the site derives the same one, and
none has to be stored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cod.security import secretfile

CA_DAYS, SERVER_DAYS, VCM_DAYS = 7300, 825, 397
# days before its end: three lifetimes of issued certificates, so that none of them outlives the CA
CA_RENEWED = 1200
EARLY = timedelta(hours=1)  # certificates are valid from before now: clocks differ
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
SERVER_NAME = "cod"  # what the servers' certificates name, whatever address they are reached at


@dataclass(frozen=True, slots=True)
class Issued:
    """A key with its certificate, both PEM; `serial` in hex, as `serial_text` writes it. `key` is
    empty where the holder made the key; `holder`: SHA-256 of the public key, in hex; `ends_at`:
    seconds since the epoch; 0: there is no certificate."""

    key: bytes
    certificate: bytes
    serial: str
    holder: str = ""
    ends_at: float = 0.0

    def der(self) -> bytes:
        return x509.load_pem_x509_certificate(self.certificate).public_bytes(
            serialization.Encoding.DER
        )


class BadAuthority(Exception):
    """The authority's files cannot be used; the sentence names them and says what to do."""


class Ca:
    """The authority with the files in `folder`, which are made if they do not exist. Raises
    OSError, `BadAuthority`."""

    def __init__(self, folder: Path, site: str, now: datetime | None = None) -> None:
        self._folder = folder
        with secretfile.alone_in(folder):  # the parts of a new site start at once
            if not (folder / "ca.key").exists():
                _make(folder, site, now or datetime.now(UTC))
            self._key, self.certificate = _read(folder)
        self._own = x509.load_pem_x509_certificate(self.certificate)

    def renew(self, now: datetime) -> bool:
        """Renew the authority's certificate if its end is near; return whether it was renewed. Key,
        name and beginning stay the same (a clock may be wrong), so issued certificates stay valid
        under both the old and the new certificate. Holders of the old certificate get the new one
        in time."""
        if now < self._own.not_valid_after_utc - timedelta(days=CA_RENEWED):
            return False
        with secretfile.alone_in(self._folder):
            renewed = ends_at(self._folder) > self.ends_at
            if not renewed:  # nor has another process
                certificate = _own_certificate(
                    self._key, self._own.subject, self._own.not_valid_before_utc, now
                )
                secretfile.write(self._folder / "ca.crt", certificate)
            _key, self.certificate = _read(self._folder)
        self._own = x509.load_pem_x509_certificate(self.certificate)
        return not renewed

    def der(self) -> bytes:
        return self._own.public_bytes(serialization.Encoding.DER)

    @property
    def ends_at(self) -> float:
        """Return the time at which the certificate ends, in seconds since the epoch."""
        return self._own.not_valid_after_utc.timestamp()

    def vcm(self, vcluster: str, now: datetime) -> Issued:
        """Return a key and certificate for the VCM of that vcluster."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._for_vcm(vcluster, key.public_key(), pem(key), now)

    def certify(self, vcluster: str, asked: bytes, now: datetime) -> Issued:
        """Return a certificate for a VCM that has made its key itself. Only the public key is taken
        from its request `asked` (PKCS #10, RFC 2986, DER). Raises ValueError."""
        try:
            request = x509.load_der_x509_csr(asked)
            key, genuine = request.public_key(), request.is_signature_valid
        except UnsupportedAlgorithm:
            raise ValueError("its key or its signature is of an unknown kind") from None
        except (ValueError, x509.InvalidVersion):  # the parser's own text would not help
            raise ValueError("it should be a request by PKCS #10 (RFC 2986), in DER") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(
            key.curve, ec.SECP256R1
        ):
            raise ValueError("its key should be of the elliptic curve P-256")
        if not genuine:
            raise ValueError("it is not signed by its own key")
        return self._for_vcm(vcluster, key, b"", now)

    def invitation(self, words: str) -> str:
        """Return the secret that is derived for `words`, 64 hexadecimal digits."""
        return self._secret("invitation of a VCM", words).hex()

    def host_key_seed(self, words: str) -> bytes:
        """Return the seed of a node's SSH host key, derived for `words`, 32 bytes."""
        return self._secret("SSH host key of a node", words)

    def chunk_key(self, order_id: str) -> str:
        """Return the key of this order, 64 hexadecimal digits. With it the order's node checks
        whether a peer may have chunks of its image."""
        return self._secret("chunks of a node's images", order_id).hex()

    def keytab_key(self) -> bytes:
        """Return the key by which keytabs are encrypted until they are on their nodes, 32 bytes."""
        return self._secret("keytabs of nodes", "")

    def _secret(self, purpose: str, words: str) -> bytes:
        key = self._key.private_numbers().private_value.to_bytes(32, "big")
        return hmac.new(key, f"{purpose}\0{words}".encode(), hashlib.sha256).digest()

    def _for_vcm(
        self, vcluster: str, key: ec.EllipticCurvePublicKey, private: bytes, now: datetime
    ) -> Issued:
        use, names = ExtendedKeyUsageOID.CLIENT_AUTH, [x509.DNSName(vcluster)]
        return self._issue(vcluster, names, use, VCM_DAYS, now, key, private)

    def server(self, addresses: list[str], now: datetime) -> Issued:
        """Return a key and certificate for one of the site's servers."""
        names = [
            x509.DNSName(SERVER_NAME),
            *(x509.IPAddress(ip_address(address)) for address in addresses),
        ]
        key, use = ec.generate_private_key(ec.SECP256R1()), ExtendedKeyUsageOID.SERVER_AUTH
        return self._issue(SERVER_NAME, names, use, SERVER_DAYS, now, key.public_key(), pem(key))

    def _issue(
        self,
        subject: str,
        names: Sequence[x509.GeneralName],
        use: x509.ObjectIdentifier,
        days: int,
        now: datetime,
        key: ec.EllipticCurvePublicKey,
        private: bytes,
    ) -> Issued:
        certificate = (
            _builder(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
                self._own.subject,
                key,
                now - EARLY,
                min(now + timedelta(days=days), self._own.not_valid_after_utc),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        shown = key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return Issued(
            private,
            pem,
            serial_text(certificate.serial_number),
            hashlib.sha256(shown).hexdigest(),
            certificate.not_valid_after_utc.timestamp(),
        )


def _make(folder: Path, site: str, now: datetime) -> None:
    """Make key and certificate. A certificate without its key is left by a crash in here, and is
    replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"COD at {site}"[:64])])
    secretfile.write(folder / "ca.crt", _own_certificate(key, name, now - EARLY, now))
    secretfile.write(folder / "ca.key", pem(key))  # last: the CA exists when its key does


def _read(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """Return key and certificate (PEM) of the authority. Raises `BadAuthority`, also where the two
    do not belong together."""
    remedy = (
        f"restore both files in {folder} from a backup; or, if there is none, move both away: a new"
        " authority is made at the next start, and every VCM has to be enrolled again"
    )
    try:
        certificate = (folder / "ca.crt").read_bytes()
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        own = x509.load_pem_x509_certificate(certificate).public_key()
    except OSError as error:
        raise BadAuthority(
            f"the authority for VCMs has no {error.filename} ({error.strerror}): {remedy}"
        ) from None
    except (ValueError, TypeError):
        raise BadAuthority(
            f"the authority for VCMs cannot be read: ca.key or ca.crt is not PEM: {remedy}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != own:
        raise BadAuthority(
            "the authority for VCMs does not fit together: ca.crt is not the certificate of"
            f" ca.key: {remedy}"
        )
    return key, certificate


def certificate(folder: Path) -> bytes:
    """Return the certificate (PEM) of the authority in `folder`; more processes may read it than
    may read the key. Raises OSError."""
    return (folder / "ca.crt").read_bytes()


def ends_at(folder: Path) -> float:
    """Return the time at which the certificate in `folder` ends, in seconds since the epoch. The
    file is read anew, since another process may have renewed the certificate. Raises OSError,
    ValueError."""
    return x509.load_pem_x509_certificate(certificate(folder)).not_valid_after_utc.timestamp()


def _own_certificate(
    key: ec.EllipticCurvePrivateKey, name: x509.Name, begin: datetime, now: datetime
) -> bytes:
    certificate = (
        _builder(name, name, key.public_key(), begin, now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def serial_text(serial: int) -> str:
    """Return a serial number in the form in which it is stored and shown."""
    return f"{serial:040x}"


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
