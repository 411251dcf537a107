"""X25519 (RFC 7748, section 5), for the ramdisk: standard library only.

Python's arithmetic takes a time that depends on the numbers. This is no danger here, because a key
is used for one connection only.
"""

from __future__ import annotations

P = 2**255 - 19
A24 = 121665
BASE = (9).to_bytes(32, "little")


def x25519(private: bytes, public: bytes) -> bytes:
    """Return the product of the key `private` and the point `public`, 32 bytes each: with `BASE`
    this is the public key, with the peer's public key the shared secret. Raises ValueError if it is
    zero."""
    k = int.from_bytes(private, "little") & ((1 << 255) - 8) | (1 << 254)
    x1 = int.from_bytes(public, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for t in range(254, -1, -1):
        bit = k >> t & 1
        if swap ^ bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % P, b * b % P, d * a, c * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, x1 * ((da - cb) ** 2 % P) % P
        x2, z2 = aa * bb % P, e * (aa + A24 * e) % P
    if swap:
        x2, z2 = x3, z3
    shared = x2 * pow(z2, P - 2, P) % P
    if not shared:
        raise ValueError("the peer's public key is a point of small order")
    return shared.to_bytes(32, "little")
