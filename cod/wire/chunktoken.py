"""Tokens by which nodes that receive an image may fetch chunks from each other. Travels in the
ramdisk.

The server gives a node a key for each order (`PassOn.key`), and a token to each node that may fetch
from it: 'EXPIRES.MAC', where MAC is the HMAC-SHA256 with that key over the image's digest, the
second in which the token expires, and the address of the node that fetches.
"""

from __future__ import annotations

import hmac


def token(key: str, digest: str, address: str, expires: int) -> str:
    """Return the token for the image with that digest, for the node at `address`; `key` is hex."""
    words = f"{digest} {expires} {address}".encode()
    return f"{expires}.{hmac.new(bytes.fromhex(key), words, 'sha256').hexdigest()}"


def allows(given: str, key: str, digest: str, address: str, now: float) -> bool:
    """Return whether the token `given` allows the node at `address` to fetch the image with that
    digest at the time `now`."""
    expires = given.partition(".")[0]
    if not expires.isascii() or not expires.isdecimal() or len(expires) > 12:
        return False
    wanted = token(key, digest, address, int(expires)).encode()
    return hmac.compare_digest(given.encode(), wanted) and now < int(expires)
