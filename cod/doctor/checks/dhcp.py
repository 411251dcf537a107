"""Check for other DHCP servers on the site's networks, by four DISCOVERs on each interface.

Three DISCOVERs are those of network-booting machines (BIOS, UEFI, UEFI by HTTP), because some
servers answer only one kind; the fourth is that of an installed system. No offered address is
requested, and servers forget an offer within minutes. The hardware address is random, and COD's own
servers ignore this probe by its mark (`cod.wire.dhcp.PROBE`).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.model import Subnet
from cod.wire import dhcp as wire

# seconds: a server may check for three seconds whether an address is in use before it offers it
PATIENCE = 5.0
AGAIN = 2.0  # seconds after which all DISCOVERs are sent once more
FIRMWARE = {  # vendor class and architecture (RFC 4578) of the machine in a DISCOVER
    "BIOS": (b"PXEClient:Arch:00000:UNDI:002001", 0),
    "UEFI": (b"PXEClient:Arch:00007:UNDI:003001", 7),
    "UEFI by HTTP": (b"HTTPClient:Arch:00016:UNDI:003001", 16),
}
_ETH_P_IP, _UDP = 0x0800, 17


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer of a DHCP server. `firmware` is a key of `FIRMWARE`; '': the offer is for an
    installed system."""

    server: str
    address: str
    firmware: str
    bootfile: str


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each subnet with an interface, and for each other server on it."""
    local = [subnet for subnet in context.site.subnets if subnet.interface]
    sockets: dict[socket.socket, Subnet] = {}
    with ExitStack() as opened:
        for subnet in local:
            try:
                raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
                opened.enter_context(raw)
                raw.bind((subnet.interface, _ETH_P_IP))
                sockets[raw] = subnet
            except PermissionError:
                yield Finding(
                    UNSEEN,
                    f"{subnet.name}: whether other DHCP servers answer on {subnet.interface}",
                    "run `cod doctor` as root: the probe needs a raw socket",
                )
            except OSError as error:
                yield Finding(
                    UNSEEN,
                    f"{subnet.name}: {subnet.interface} cannot be listened to: "
                    f"{os.strerror(error.errno or 0)}",
                )
        own = {each for subnet in context.site.subnets for each in subnet.servers}
        for subnet, offers in (_asked(sockets) if sockets else {}).items():
            foreign: dict[tuple[str, bool, str], list[Offer]] = {}
            for offer in offers:
                if offer.server not in own:
                    key = (offer.server, bool(offer.firmware), offer.bootfile)
                    foreign.setdefault(key, []).append(offer)
            theirs = context.site.policy.os_addresses == "theirs"
            yield from (judged(subnet, same, theirs) for same in foreign.values())
            if not foreign:
                yield Finding(
                    GOOD, f"{subnet.name}: no other DHCP server answers on {subnet.interface}"
                )


def _asked(sockets: dict[socket.socket, Subnet]) -> dict[Subnet, list[Offer]]:
    """Send the DISCOVERs on every socket, and return the offers of the next `PATIENCE` seconds."""
    questions = {secrets.randbits(32): firmware for firmware in (*FIRMWARE, "")}
    mac = b"\x02" + secrets.token_bytes(5)  # locally administered: no machine's
    packets = [datagram(xid, mac, firmware) for xid, firmware in questions.items()]
    offers: dict[Subnet, list[Offer]] = {subnet: [] for subnet in sockets.values()}
    begin = time.monotonic()
    for pause in (AGAIN, PATIENCE):
        for raw in sockets:
            for packet in packets:
                try:
                    raw.sendto(packet, (raw.getsockname()[0], _ETH_P_IP, 0, 0, b"\xff" * 6))
                except OSError:
                    continue  # the interface is down, which another check reports
        while (left := begin + pause - time.monotonic()) > 0:
            for ready in select.select(list(sockets), [], [], left)[0]:
                if offer := _offer(ready.recv(4096), questions):
                    offers[sockets[ready]].append(offer)
    return offers


def datagram(xid: int, mac: bytes, firmware: str) -> bytes:
    """Return the DISCOVER as an IP datagram from 0.0.0.0 to the broadcast address. It requests
    answers by broadcast."""
    options = {
        wire.TYPE: b"\1",
        wire.USER_CLASS: wire.PROBE,
        wire.PARAMETERS: bytes((wire.NETMASK, wire.ROUTER, wire.SERVER_NAME, wire.BOOTFILE)),
    }
    if firmware:
        vendor, arch = FIRMWARE[firmware]
        options |= {wire.VENDOR_CLASS: vendor, wire.ARCH: arch.to_bytes(2, "big")}
    none = bytes(4)
    chaddr, sname, file = mac.ljust(16, b"\0"), bytes(64), bytes(128)
    # BOOTREQUEST over Ethernet, flag B: its sender has no address that an answer could be sent to
    packet = wire.Packet(
        1, 1, 6, 0, xid, 0, 0x8000, none, none, none, none, chaddr, sname, file, options
    )
    message = wire.encode(packet)
    # 0: no checksum
    udp = struct.pack("!4H", wire.CLIENT_PORT, wire.SERVER_PORT, 8 + len(message), 0) + message
    head = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, _UDP, 0, none, b"\xff" * 4
    )
    # The checksum of RFC 791, as RFC 1071 sums it.
    total: int = sum(struct.unpack(f"!{len(head) // 2}H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack("!H", ~total & 0xFFFF) + head[12:] + udp


def _offer(ip: bytes, questions: dict[int, str]) -> Offer | None:
    """Return the offer in an IP datagram, if it answers one of our DISCOVERs."""
    start = (ip[0] & 15) * 4 if ip else 0
    if (
        len(ip) < start + 8
        or ip[9] != _UDP
        or int.from_bytes(ip[start : start + 2], "big") != wire.SERVER_PORT
    ):
        return None
    try:
        packet = wire.decode(ip[start + 8 :])
    except wire.DecodeError:
        return None
    if packet.op != 2 or packet.xid not in questions:
        return None
    server = packet.options.get(wire.SERVER_ID, ip[12:16])
    bootfile = packet.file.rstrip(b"\0") or packet.options.get(wire.BOOTFILE, b"")
    return Offer(
        str(IPv4Address(server[:4])),
        str(IPv4Address(packet.yiaddr)),
        questions[packet.xid],
        bootfile.decode(errors="replace"),
    )


def judged(subnet: Subnet, offers: Sequence[Offer], theirs: bool = False) -> Finding:
    """Return the finding about like offers of one server. `theirs`: the site leaves systems'
    addresses to that server."""
    offer = offers[0]
    kinds = [name for name in FIRMWARE if name in {each.firmware for each in offers}]
    only = f" ({', '.join(kinds)} only)" if len(kinds) < len(FIRMWARE) else ""
    pools = (subnet.boot_pool, subnet.block_pool)
    inside = any(
        IPv4Address(first) <= IPv4Address(offer.address) <= IPv4Address(last)
        for first, last in pools
    )
    words = (
        f"{subnet.name}: the DHCP server {offer.server} answers "
        f"{f'network-booting machines{only}' if kinds else 'systems'} on {subnet.interface}"
    )
    if offer.address != "0.0.0.0":
        words += f" and offers {offer.address}"
    if inside:
        return Finding(
            BAD,
            f"{words}, which is in the subnet's own pools",
            "take the pools out of the other server's ranges, or change them in the site file",
        )
    if offer.bootfile or (kinds and offer.address == "0.0.0.0"):
        return Finding(
            BAD,
            f"{words}" + (f" with the boot file {offer.bootfile}" if offer.bootfile else ""),
            "have the other server ignore PXE clients (dnsmasq: dhcp-ignore=tag:pxe; Kea: a client"
            ' class), or set policy.unknown = "known-only"',
        )
    if theirs and not kinds:
        return Finding(GOOD, f"{words}, as os_addresses says")
    return Finding(
        WARNING,
        words,
        "nodes may get its addresses in place of COD's: have it ignore the nodes' "
        'hardware addresses, give the nodes a network of their own, or set os_addresses = "theirs"'
        " in [policy]",
    )
