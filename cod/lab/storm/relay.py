"""The relay of a storm's network: DHCP exchanges of many machines over one socket."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from cod.lab.standin import BootFailed
from cod.wire import dhcp

SO_RCVBUFFORCE = 33  # asm-generic/socket.h
RETRANSMIT = (1.0, 2.0, 4.0, 8.0)  # seconds until a DHCP message is sent again, as firmware does
_FIRMWARE = {
    dhcp.VENDOR_CLASS: b"PXEClient:Arch:00000:UNDI:002001",
    dhcp.ARCH: b"\0\0",
    dhcp.PARAMETERS: bytes([dhcp.NETMASK, dhcp.ROUTER, dhcp.DNS, 66, dhcp.BOOTFILE]),
}
STAGES: Mapping[str, Mapping[int, bytes]] = {
    "firmware": _FIRMWARE,
    "loader": _FIRMWARE | {dhcp.USER_CLASS: b"iPXE"},
    "trampoline": {dhcp.VENDOR_CLASS: b"cod-trampoline"},
    "system": {dhcp.PARAMETERS: bytes([dhcp.NETMASK, dhcp.ROUTER, dhcp.DNS, 12, 15, 42])},
}


class Relay(asyncio.DatagramProtocol):
    """The relay of the machines' network. It sends each request to all servers, and passes each
    answer to the machine that waits for it."""

    def __init__(self, address: str, servers: Sequence[str]) -> None:
        self.address, self.servers = socket.inet_aton(address), servers
        self._waiting: dict[bytes, tuple[int, bytes, asyncio.Future[dhcp.Packet]]] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.DatagramTransport = transport

    def datagram_received(self, data: bytes, _: object) -> None:
        packet = dhcp.decode(data)
        waiting = self._waiting.get(packet.chaddr[:6])
        if waiting and not waiting[2].done() and packet.xid == waiting[0]:
            if packet.options[dhcp.TYPE] == waiting[1]:
                waiting[2].set_result(packet)
            elif packet.options[dhcp.TYPE] == b"\6":
                waiting[2].set_exception(BootFailed("NAK"))

    async def exchange(self, mac: bytes, options: Mapping[int, bytes]) -> dhcp.Packet:
        """Make a four-way exchange; return the acknowledgement. Raises BootFailed."""
        xid = random.getrandbits(32)
        offer = await self._ask(mac, xid, 1, options)
        chosen = {
            dhcp.REQUESTED: offer.yiaddr,
            dhcp.SERVER_ID: offer.options[dhcp.SERVER_ID],
        }
        return await self._ask(mac, xid, 3, {**options, **chosen})

    async def _ask(
        self, mac: bytes, xid: int, kind: int, options: Mapping[int, bytes]
    ) -> dhcp.Packet:
        own = {dhcp.TYPE: bytes([kind]), **options}
        head = (1, 1, 6, 1, xid, 0, 0, bytes(4), bytes(4), bytes(4), self.address)
        data = dhcp.encode(dhcp.Packet(*head, mac + bytes(10), bytes(64), bytes(128), own))
        heard: asyncio.Future[dhcp.Packet] = asyncio.get_running_loop().create_future()
        self._waiting[mac] = xid, bytes([kind + 1 + (kind == 3)]), heard
        try:
            for pause in RETRANSMIT:
                for server in self.servers:
                    self._transport.sendto(data, (server, dhcp.SERVER_PORT))
                if (await asyncio.wait([heard], timeout=pause))[0]:
                    return heard.result()
        finally:
            del self._waiting[mac]
        raise BootFailed("nobody answers DHCP")


async def open_relay(address: str, servers: Sequence[str]) -> Relay:
    """Return a relay to `servers` that listens at that address of this namespace."""
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    wire.setblocking(False)
    wire.bind((address, dhcp.SERVER_PORT))
    loop = asyncio.get_running_loop()
    return (await loop.create_datagram_endpoint(lambda: Relay(address, servers), sock=wire))[1]
