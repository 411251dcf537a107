"""An empty router advertisement for firmware that waits for one.

iPXE and many UEFI firmwares configure IPv6 beside IPv4 and wait some 15 s for a router. A router
advertisement with lifetime 0 and no prefix (RFC 4861 §4.2) says that there is no router and no
address, and ends the wait. Hosts that do use IPv6 ignore it: a router with lifetime 0 is no default
router, and the advertisement contains nothing else.
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import Any

from cod.net.socketservice import SocketService

ALL_NODES = "ff02::1"
ALL_ROUTERS = "ff02::2"
SOLICITATION, ADVERTISEMENT = 133, 134
_ICMP6_FILTER = 1

# type, code, checksum (the kernel's), hop limit 0 (unspecified), flags, router lifetime 0,
# reachable 0, retransmit 0
EMPTY = struct.pack("!BBHBBHII", ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0)

log = logging.getLogger("cod.ra")


class RouterAdvertiser(SocketService):
    """A server that answers router solicitations on `interface`. Needs CAP_NET_RAW. `count`:
    answers since the start."""

    def __init__(self, reactor: Any, interface: str) -> None:
        super().__init__(reactor, f"ra {interface}")
        self.interface = interface
        self.count = 0

    def startService(self) -> None:
        """Open the socket. A kernel without IPv6 has no clients: this is logged, and no error."""
        try:
            super().startService()
        except OSError as error:
            log.warning("no router advertisements on %s: %s", self.interface, error)

    def _open(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.interface.encode())
        # RFC 4861 §6.1.2 drops any other
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
        index = socket.if_nametoindex(self.interface)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        listener.setsockopt(
            socket.IPPROTO_IPV6,
            socket.IPV6_JOIN_GROUP,
            socket.inet_pton(socket.AF_INET6, ALL_ROUTERS) + struct.pack("@I", index),
        )
        block_all_but = [0xFFFFFFFF] * 8
        block_all_but[SOLICITATION >> 5] &= ~(1 << (SOLICITATION & 31))
        listener.setsockopt(
            socket.IPPROTO_ICMPV6, _ICMP6_FILTER, struct.pack("@8I", *block_all_but)
        )
        return listener

    def doRead(self) -> None:
        """Answer one solicitation."""
        assert self._socket is not None
        try:
            data, _ancillary, _flags, _source = self._socket.recvmsg(1500)
            if data[:1] == bytes([SOLICITATION]):
                # To all nodes, as RFC 4861 §6.2.6 prefers: a booting machine may not answer
                # neighbour discovery yet.
                self._socket.sendto(EMPTY, (ALL_NODES, 0, 0, socket.if_nametoindex(self.interface)))
                self.count += 1
        except OSError as error:
            log.debug("%s: %s", self.interface, error)
