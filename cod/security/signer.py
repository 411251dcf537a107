"""The signer's interface for parts of the server that cannot read the authority's key: a UNIX
socket at which the part edge, which has the key, signs certificates of VCMs.

One line of JSON each way. The request has a vcluster and a certificate request (PKCS #10, DER in
base64); the reply has the certificate, or an error. A certificate's private key is never sent.
"""

from __future__ import annotations

import json
import socket
import struct
from base64 import b64encode
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cod.security import ca, partusers
from cod.security.ca import Issued

PATIENCE = 10.0  # seconds for the signer to answer
LONGEST = 16384  # bytes of a line
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


class SignerAway(Exception):
    """The signer has not signed; the sentence says why."""


class VcmAuthority(Protocol):
    """The authority that enrols VCMs: the authority itself, or a client of its signer."""

    certificate: bytes

    def vcm(self, vcluster: str, now: datetime) -> Issued:
        """Return a key and certificate for the VCM of that vcluster. Raises `SignerAway`."""


class RemoteAuthority:
    """The authority in `folder`, of which this process can read only the certificate. `path`: the
    signer's socket. Raises OSError."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.certificate = ca.certificate(folder)
        self._path = path

    def vcm(self, vcluster: str, now: datetime) -> Issued:
        """Return a key and certificate for the VCM of that vcluster. `now` is ignored: the signer's
        own clock counts. Raises `SignerAway`."""
        key = ec.generate_private_key(ec.SECP256R1())
        asked = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
        answer = self._ask(
            {
                "vcluster": vcluster,
                "request": b64encode(asked.public_bytes(serialization.Encoding.DER)).decode(),
            }
        )
        try:
            issued = decoded(answer)
        except (TypeError, KeyError, AttributeError):
            raise SignerAway(
                f"the signer refuses: {answer.get('error', 'no certificate')}"
            ) from None
        return replace(issued, key=ca.pem(key))

    def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(PATIENCE)
                line.connect(str(self._path))
                if peer(line)[1] not in partusers.signers():
                    raise PermissionError(f"{self._path} is no signer's")
                line.sendall(json.dumps(question).encode() + b"\n")
                with line.makefile("rb") as file:
                    answer = json.loads(file.readline(LONGEST))
        except (OSError, ValueError) as error:
            raise SignerAway(
                "the authority's signer, which is in the part edge, does not answer"
                f" ({error}): does edge run on this host?"
            ) from None
        return answer if isinstance(answer, dict) else {}


def peer(line: Any) -> tuple[int, int]:
    """Return the process and the user at the other end of a UNIX socket, as the kernel reports
    them."""
    process, user, _group = _CREDENTIALS.unpack(
        line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return process, user


def encoded(issued: Issued) -> dict[str, Any]:
    """Return a certificate without its key as JSON."""
    return {
        "certificate": issued.certificate.decode(),
        "serial": issued.serial,
        "holder": issued.holder,
        "ends_at": issued.ends_at,
    }


def decoded(answer: dict[str, Any]) -> Issued:
    """Return the certificate in a reply. Raises KeyError, TypeError, AttributeError where the reply
    has none."""
    return Issued(
        b"",
        answer["certificate"].encode(),
        str(answer["serial"]),
        str(answer["holder"]),
        float(answer["ends_at"]),
    )
