"""Public SSH keys, as people paste them. All bytes are checked, because keys end up in root's
authorized_keys. Pure.

A key is one line `ALGORITHM BASE64 COMMENT` (RFC 4253, 6.6, and sshd(8)), without options. The
decoded key consists of fields with their lengths, and must have exactly the fields of its
algorithm: RFC 8709 (Ed25519), RFC 4253 (RSA), RFC 5656 (ECDSA), OpenSSH's PROTOCOL.u2f (keys on
security tokens).
"""

from __future__ import annotations

import hashlib
import struct
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from cod.model import Refused

LONGEST_LINE = 8000
LONGEST_NAME = 200
MOST = 20
"""Most keys of one user."""
MOST_OF_A_NODE = 2**19
"""Most bytes of keys in one seed, which is sent in one message: two thousand RSA keys."""
LEAST_RSA, MOST_RSA = 2048, 16_384  # bits


class _Wrong(Exception):
    """The line is no valid key; the message says why."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A checked key: `key` in base64, `name` its comment, `fingerprint` as ssh-keygen prints it."""

    algorithm: str
    key: str
    name: str
    fingerprint: str


def parse(line: str) -> PublicKey:
    """Return the key in a line. Raises `Refused` if the line is no valid key."""
    try:
        line = line.strip()
        if "PRIVATE KEY" in line:
            raise _Wrong(
                "this is a private key: keep it to yourself, and paste the file that ends in .pub"
            )
        if len(line) > LONGEST_LINE or not line.isprintable():
            raise _Wrong("a public key is one line of text")
        algorithm, _, rest = line.partition(" ")
        encoded, _, name = rest.strip().partition(" ")
        if algorithm not in _KINDS:
            raise _Wrong(
                f"the line should begin with one of {', '.join(_KINDS)}; options before it are not"
                " taken"
            )
        try:
            blob = b64decode(encoded, validate=True)
        except (BadBase64, ValueError):
            blob = b""
        if not blob or b64encode(blob).decode() != encoded:
            raise _Wrong("the key's second word is not base64: was a part of it lost?")
        fields = _fields(blob)
        wanted, check = _KINDS[algorithm]
        if not fields or fields[0] != algorithm.encode():
            raise _Wrong(f"the key is not one of {algorithm}, as its line says")
        if len(fields) != wanted:
            raise _Wrong("the key has a part too many or too few")
        check(fields[1:])
        digest = b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
        return PublicKey(algorithm, encoded, name.strip()[:LONGEST_NAME], f"SHA256:{digest}")
    except _Wrong as wrong:
        raise Refused("invalid", str(wrong), "key") from None


def fitting(lines: Iterable[str]) -> list[str]:
    """Return the first of the lines, as many as fit into a seed."""
    every = list(lines)
    ends = accumulate(len(line.encode()) + 1 for line in every)
    return [line for line, end in zip(every, ends, strict=True) if end <= MOST_OF_A_NODE]


def _fields(blob: bytes) -> list[bytes]:
    """Return the fields of a decoded key, each of which is preceded by its length (RFC 4251, 5)."""
    fields = []
    while blob:
        if len(blob) < 4 or len(blob) - 4 < (length := struct.unpack(">I", blob[:4])[0]):
            raise _Wrong("the key ends too early: was a part of it lost?")
        fields.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return fields


def _ed25519(fields: list[bytes]) -> None:
    if len(fields[0]) != 32:
        raise _Wrong("an Ed25519 key has 32 bytes")


def _rsa(fields: list[bytes]) -> None:
    exponent, modulus = (_mpint(field) for field in fields)
    if not LEAST_RSA <= modulus.bit_length() <= MOST_RSA:
        raise _Wrong(
            f"an RSA key needs {LEAST_RSA} bits at least, this has {modulus.bit_length()}; Ed25519"
            " is better"
        )
    if exponent < 3 or exponent % 2 == 0 or exponent >= modulus or modulus % 2 == 0:
        raise _Wrong("these numbers make no RSA key")


def _mpint(field: bytes) -> int:
    """Return the positive number in a field, which must have its shortest form (RFC 4251, 5)."""
    if not field or field[0] & 0x80 or (field[0] == 0 and not (len(field) > 1 and field[1] & 0x80)):
        raise _Wrong("the key has a number that is not written as it should be")
    return int.from_bytes(field)


def _ecdsa(curve: bytes, size: int) -> Callable[[list[bytes]], None]:
    def check(fields: list[bytes]) -> None:
        if fields[0] != curve:
            raise _Wrong("the key's curve is not the one that its line says")
        if len(fields[1]) != 2 * size + 1 or fields[1][0] != 4:
            raise _Wrong("the key holds no point of its curve")

    return check


def _on_token(check: Callable[[list[bytes]], None]) -> Callable[[list[bytes]], None]:
    def both(fields: list[bytes]) -> None:
        check(fields[:-1])
        if not fields[-1]:
            raise _Wrong("a key on a security token names its application")

    return both


_P256 = _ecdsa(b"nistp256", 32)
_KINDS: Mapping[str, tuple[int, Callable[[list[bytes]], None]]] = {
    "ssh-ed25519": (2, _ed25519),
    "ssh-rsa": (3, _rsa),
    "ecdsa-sha2-nistp256": (3, _P256),
    "ecdsa-sha2-nistp384": (3, _ecdsa(b"nistp384", 48)),
    "ecdsa-sha2-nistp521": (3, _ecdsa(b"nistp521", 66)),
    "sk-ssh-ed25519@openssh.com": (3, _on_token(_ed25519)),
    "sk-ecdsa-sha2-nistp256@openssh.com": (4, _on_token(_P256)),
}
