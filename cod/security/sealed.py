"""Secrets that rest in the database for minutes, encrypted: who has a copy of it has not got
them."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12  # bytes


class Sealer:
    """Seals and opens secrets by a key of 32 bytes (AES-256-GCM). What is sealed for some words
    opens for the same words only."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, secret: bytes, words: str) -> bytes:
        """Return the secret, sealed for those words."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, secret, words.encode())

    def open(self, sealed: bytes, words: str) -> bytes | None:
        """Return the secret; None where it was sealed by another key, for other words, or is
        broken."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], words.encode())
        except (InvalidTag, ValueError):
            return None
