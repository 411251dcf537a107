"""Headers of the tus protocol 1.0 for resumable uploads
(https://tus.io/protocols/resumable-upload), read and written.

A client creates a file with its length (POST), and appends its pieces (PATCH) at the offset that
the server tells (HEAD). Extensions: creation, creation-with-upload, expiration, checksum,
termination.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from email.utils import formatdate

from cod.wire.errors import PeerError

VERSION = "1.0.0"
EXTENSIONS = "creation,creation-with-upload,expiration,checksum,termination"
PIECE_TYPE = "application/offset+octet-stream"
# hashlib has all of them under these names; the protocol requires sha1
ALGORITHMS = ("sha256", "sha1", "md5")
MISMATCH = 460  # the protocol's own status: a piece's checksum is wrong
LARGEST = 2**63 - 1  # what a column holds

_KEY = re.compile(r"[!-+\--~]+")  # printable ASCII but space and comma


class BadHeader(PeerError):
    """A header cannot be read. `name` is the header's."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name}: {sentence}")
        self.name = name


def number(name: str, text: str) -> int:
    """Return a length or offset, bytes. Raises BadHeader."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= LARGEST):
        raise BadHeader(name, "should be a number of bytes")
    return int(text)


def metadata(text: str) -> dict[str, str]:
    """Parse Upload-Metadata: pairs of a key and a value in base64, separated by commas. Raises
    BadHeader."""
    values: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = pair.partition(" ")
        if not _KEY.fullmatch(key) or key in values:
            raise BadHeader("Upload-Metadata", f"{key!r} is no key, or there twice")
        try:
            values[key] = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError:  # binascii.Error and UnicodeDecodeError are such
            raise BadHeader(
                "Upload-Metadata", f"the value of {key!r} should be text in base64"
            ) from None
    return values


def encode_metadata(values: Mapping[str, str]) -> str:
    """Return the text of Upload-Metadata. Keys without a value stand alone."""
    return ",".join(
        f"{key} {base64.b64encode(value.encode()).decode()}".rstrip()
        for key, value in values.items()
    )


def checksum(text: str) -> tuple[str, bytes]:
    """Parse Upload-Checksum into (algorithm, digest). Raises BadHeader, also for an algorithm that
    is not in `ALGORITHMS`."""
    algorithm, _, value = text.strip().partition(" ")
    if algorithm not in ALGORITHMS:
        raise BadHeader(
            "Upload-Checksum", f"the algorithm should be one of {', '.join(ALGORITHMS)}"
        )
    try:
        return algorithm, base64.b64decode(value.strip(), validate=True)
    except ValueError:
        raise BadHeader("Upload-Checksum", "the digest should be base64") from None


def encode_digest(sha256: str) -> str:
    """Return a hexadecimal sha256 as Repr-Digest shows it (RFC 9530, section 3)."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def expires(at: float) -> str:
    """Return a time as Upload-Expires shows it (RFC 9110, section 5.6.7)."""
    return formatdate(at, usegmt=True)
