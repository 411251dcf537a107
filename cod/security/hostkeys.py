"""SSH host keys that are derived from a secret: the same secret gives the same key file, to the
last byte."""

from __future__ import annotations

import hashlib
import struct
from base64 import b64encode
from textwrap import wrap

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ALGORITHM = "ssh-ed25519"
_BLOCK = 8  # bytes to whose multiple an unencrypted file is padded


def ed25519(seed: bytes) -> tuple[str, str]:
    """Return the Ed25519 key of that seed of 32 bytes: its public part in base64, and the private
    key as a file of OpenSSH (PROTOCOL.key), without a password.

    `cryptography` writes such files, too, but with random bytes in each.
    """
    point = (
        Ed25519PrivateKey.from_private_bytes(seed)
        .public_key()
        .public_bytes(Encoding.Raw, PublicFormat.Raw)
    )
    public = _string(ALGORITHM.encode()) + _string(point)
    # written twice, so that a reader sees whether the decryption succeeded
    check = hashlib.sha256(public).digest()[:4]
    private = check + check + public + _string(seed + point) + _string(b"")
    private += bytes(range(1, 1 + -len(private) % _BLOCK))
    file = b"openssh-key-v1\0" + _string(b"none") + _string(b"none") + _string(b"")
    file += struct.pack(">I", 1) + _string(public) + _string(private)
    lines = "\n".join(wrap(b64encode(file).decode(), 70))
    return (
        b64encode(public).decode(),
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n",
    )


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
