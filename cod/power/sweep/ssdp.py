"""Search for Redfish services by SSDP (UPnP, DSP0266 10.2): one question by multicast, which the
services in this host's network answer."""

from __future__ import annotations

import re
from socket import AF_INET, SOCK_DGRAM, socket
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import DatagramProtocol

GROUP = ("239.255.255.250", 1900)
SERVICE = "urn:dmtf-org:service:redfish-rest:1"
WAIT = 2  # seconds in which services spread their answers
MOST = 1 << 16  # addresses that are remembered
QUESTION = (
    "M-SEARCH * HTTP/1.1\r\n"
    f"HOST: {GROUP[0]}:{GROUP[1]}\r\n"
    'MAN: "ssdp:discover"\r\n'
    f"MX: {WAIT}\r\n"
    f"ST: {SERVICE}\r\n\r\n"
)
_SERVICE = re.compile(rb"^ST:\s*urn:dmtf-org:service:redfish-rest:1(\.\d+)?\s*$", re.I | re.M)


async def search(reactor: Any, toward: str, group: tuple[str, int] = GROUP) -> set[str]:
    """Return the addresses of the Redfish services that answer in the network of `toward`. An
    address is the sender of the answer, not the address that the answer states."""
    heard = _SsdpAnswers()
    # multicast leaves by the interface of its source address; without one, by the default route's
    port = reactor.listenUDP(0, heard, _own_address(toward))
    try:
        port.write(QUESTION.encode(), group)
        done: Deferred[None] = Deferred()
        reactor.callLater(WAIT + 1, done.callback, None)
        await done
    finally:
        port.stopListening()
    return heard.hosts


def _own_address(toward: str) -> str:
    """Return this host's own address for packets to `toward`. Raises OSError."""
    with socket(AF_INET, SOCK_DGRAM) as way:
        way.connect((toward, GROUP[1]))  # sends nothing
        return str(way.getsockname()[0])


class _SsdpAnswers(DatagramProtocol):
    """Collects the addresses of answers."""

    def __init__(self) -> None:
        self.hosts: set[str] = set()

    def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
        """Note the sender of an answer."""
        good = datagram.startswith(b"HTTP/1.1 200 ") and _SERVICE.search(datagram)
        if good and len(self.hosts) < MOST:
            self.hosts.add(addr[0])
