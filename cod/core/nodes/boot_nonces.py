"""Nonces of the boots that COD orders by nodes' BMCs, which do not travel over DHCP's network.

COD tells the BMC to boot once by UEFI's HTTP boot from a URI of COD's own boot server, with a new
nonce in its path. The firmware fetches the loader from there, which shows that this boot is the
ordered one. The loader (iPXE) does not know the URI that it was loaded from, so COD binds the nonce
to the address that fetched this URI. Only a client at this address gets the boot's secret, until
the node's agent connects or `Policy.secret_time` has passed.

A nonce is a row of `boot_secrets` of the kind 'nonce', without keys, which
`flows.agents.sessions.lookup` does not accept as a secret. Only the nonce's digest is stored.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from cod.model import BootSecret, Node, Refused
from cod.store.engine import Tx
from cod.store.nodes import secrets

WAITS = 3600.0  # seconds in which a boot has to bring its nonce: memory tests of servers are long


def order(tx: Tx, node: Node, nonce: str, now: float) -> None:
    """Store a nonce for the node's next boot. Earlier nonces of the node become invalid."""
    end(tx, node)
    row = BootSecret(_digest(nonce), node.boot_mac, "nonce", "", b"", b"", b"", now + WAITS)
    secrets.add(tx, row)


def bring(tx: Tx, node: Node, nonce: str, address: str, lasts: float, now: float) -> None:
    """Bind the nonce that the node's firmware has brought to the firmware's address, for `lasts`
    seconds.

    Repeats change nothing: firmware asks for a file's size first. Raises `Refused` when the nonce
    is not the node's, has expired, or was brought from another address.
    """
    found = secrets.get(tx, _digest(nonce))
    if found is None or found.kind != "nonce" or found.expires_at <= now:
        raise Refused("not_found", "no such nonce")
    if found.mac != node.boot_mac or found.address not in ("", address):
        raise Refused("forbidden", "the nonce is another boot's")
    if not found.address and secrets.spend(tx, found.id):
        secrets.add(tx, replace(found, address=address, expires_at=now + lasts))


def was_brought(tx: Tx, node: Node, address: str, now: float) -> bool:
    """Return whether the boot that is under way at that address has brought the node's nonce."""
    return any(each.address == address and each.expires_at > now for each in _of(tx, node))


def end(tx: Tx, node: Node) -> None:
    """Delete the node's nonces."""
    for each in _of(tx, node):
        secrets.spend(tx, each.id)


def _of(tx: Tx, node: Node) -> list[BootSecret]:
    return [each for each in secrets.of_mac(tx, node.boot_mac) if each.kind == "nonce"]


def _digest(nonce: str) -> str:
    return hashlib.blake2b(nonce.encode(), digest_size=16).hexdigest()
