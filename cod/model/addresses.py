"""IPv4 addresses as text and as numbers."""

from __future__ import annotations

import socket


def ipv4(text: str) -> int:
    """Return a dotted IPv4 address as an integer. Raises OSError when it is none."""
    return int.from_bytes(socket.inet_aton(text), "big")


def dotted(address: int) -> str:
    """Return the reverse of `ipv4`."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))
