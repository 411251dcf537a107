"""The driver `wol`: machines without a BMC, which wake up when their sleeping network card receives
a magic packet.

Address: ``MAC@BROADCAST[:PORT]``, where BROADCAST is the broadcast address of the node's network
(10.77.255.255): the packet is sent there by UDP, to port 9 unless another is given. It is sent
three times, since nobody acknowledges it.

A packet cannot switch off. A node that is put to sleep powers down by itself, by its agent's order
in the trampoline (`flows.agents.orders`); while anything else runs on it, only an operator can
switch it off. Nothing tells whether a machine is on.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Any

from twisted.internet.protocol import DatagramProtocol
from twisted.internet.task import deferLater

from cod.choices import PowerDriverKind
from cod.power.driver import Plain, PowerError, Target

FORM = "MAC@BROADCAST[:PORT]"
TIMES = 3
APART = 0.2  # seconds
_ADDRESS = re.compile(
    r"((?:[0-9a-f]{2}:){5}[0-9a-f]{2})@([0-9.]+)(?::([0-9]{1,5}))?", re.IGNORECASE
)


class WolDriver(Plain):
    """The driver that sends magic packets (Wake-on-LAN)."""

    kind = PowerDriverKind.WOL

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    async def status(self, target: Target) -> str:
        """Return 'unknown'."""
        return "unknown"

    async def on(self, target: Target) -> None:
        """Send the magic packets."""
        mac, broadcast, port = parse(target.address)
        sender = self._reactor.listenUDP(0, DatagramProtocol())
        try:
            sender.setBroadcastAllowed(True)
            for time in range(TIMES):
                await deferLater(self._reactor, APART if time else 0.0, lambda: None)
                sender.write(magic(mac), (broadcast, port))
        except OSError as error:
            raise PowerError(f"no packet can be sent to {broadcast}: {error.strerror}") from None
        finally:
            sender.stopListening()

    async def off(self, target: Target) -> None:
        """Raise `PowerError`: the driver cannot switch off."""
        raise PowerError("Wake-on-LAN cannot switch off", lasting=True)

    cycle = off


def magic(mac: str) -> bytes:
    """Return the packet: six bytes of ones, then the MAC sixteen times."""
    return b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) * 16


def parse(address: str) -> tuple[str, str, int]:
    """Return (MAC, broadcast address, port). Raises a lasting `PowerError`."""
    found = _ADDRESS.fullmatch(address)
    if found is not None:
        mac, broadcast, port = found[1].lower(), found[2], int(found[3] or 9)
        try:
            if 0 < port < 65536:
                return mac, str(IPv4Address(broadcast)), port
        except ValueError:
            pass
    raise PowerError(f"{address!r} is not of the form {FORM}", lasting=True)
