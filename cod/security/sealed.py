"""Encryption of secrets that are in the database for minutes: a copy of the database does not
reveal them."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12  # bytes


class Sealer:
    """Encrypts and decrypts secrets with a key of 32 bytes (AES-256-GCM). A secret that was sealed
    for some words can be opened for the same words only."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, secret: bytes, words: str) -> bytes:
        """Return the secret, encrypted for those words."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, secret, words.encode())

    def open(self, sealed: bytes, words: str) -> bytes | None:
        """Return the secret; None if it was sealed with another key or for other words, or if it is
        damaged."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], words.encode())
        except (InvalidTag, ValueError):
            return None
