"""DHCP messages: bytes <-> `Packet`, and `Packet` <-> the records of the flow.

RFC 2131 (format, where replies go), RFC 2132 (options), RFC 3046 (option 82, echoed last), RFC 3396
(long options), RFC 3397 (option 119), RFC 4578 (options 93, 94, 97), RFC 6842 (option 61 is
echoed), the PXE specification 2.1 (options 43 and 60) and iPXE's option 175.

Known deviations. A reply to a client without an address and without the broadcast flag should go to
its hardware address (RFC 2131 §4.1). A plain UDP socket cannot send this, because the client does
not answer ARP yet, so the reply is broadcast, which the same paragraph allows. A missing end option
is accepted; an option that runs past the end of its field is not.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from cod.model import DhcpAnswer, DhcpQuery, Subnet, ipv4
from cod.wire.errors import PeerError

SERVER_PORT, CLIENT_PORT = 67, 68
BROADCAST = "255.255.255.255"
MAGIC = b"\x63\x82\x53\x63"
KINDS = {
    1: "DISCOVER",
    2: "OFFER",
    3: "REQUEST",
    4: "DECLINE",
    5: "ACK",
    6: "NAK",
    7: "RELEASE",
    8: "INFORM",
}
_TYPES = {name: bytes([number]) for number, name in KINDS.items()}
_FROM_CLIENTS = frozenset({"DISCOVER", "REQUEST", "DECLINE", "RELEASE", "INFORM"})

NETMASK, ROUTER, DNS, HOSTNAME, DOMAIN, BROADCAST_ADDRESS, VENDOR_INFO = 1, 3, 6, 12, 15, 28, 43
REQUESTED, LEASE_TIME, OVERLOAD, TYPE, SERVER_ID, PARAMETERS, MESSAGE, MAX_SIZE = range(50, 58)
VENDOR_CLASS, CLIENT_ID, SERVER_NAME, BOOTFILE, USER_CLASS, RELAY_INFO = 60, 61, 66, 67, 77, 82
ARCH, UUID_OPTION, SEARCH, IPXE, PXELINUX_CONFIG, PXELINUX_PREFIX = 93, 97, 119, 175, 209, 210
# user class of `cod doctor`, which looks for foreign servers: COD's own do not answer it
PROBE = b"cod-doctor"
LONGEST_ID = 160  # hex digits of a circuit or remote id
_PAD, _END = 0, 255
# bytes of IP packet that every client takes (RFC 2131 §2); of its headers
_LEAST_SIZE, _IP_UDP = 576, 28

_BROADCAST_FLAG = 0x8000
_HEAD = struct.Struct("!4BIHH4s4s4s4s16s64s128s")
_NO_ADDRESS = bytes(4)

# PXE 2.1, option 43: discovery control (6), bit 3: take the boot file from this very offer; do not
# wait for others.
_NO_PXE_DISCOVERY = b"\x06\x01\x08\xff"
# iPXE, option 175: no-pxedhcp (176) = 1: do not wait for a proxy's offer.
_NO_PROXY = b"\xb0\x01\x01"


class DecodeError(PeerError, ValueError):
    """The bytes are not a DHCP message that a server can use. The text is for the debug log."""


class Packet(NamedTuple):
    """A DHCP message. Addresses, `chaddr`, `sname` and `file` as on the wire (4, 16, 64 and 128
    bytes)."""

    op: int
    htype: int
    hlen: int
    hops: int
    xid: int
    secs: int
    flags: int
    ciaddr: bytes
    yiaddr: bytes
    siaddr: bytes
    giaddr: bytes
    chaddr: bytes
    sname: bytes
    file: bytes
    options: Mapping[int, bytes]


# ---------------------------------------------------------------- bytes <-> Packet


def decode(data: bytes) -> Packet:
    """Read a message. Raises DecodeError; work and memory are bounded by the length of `data`."""
    if len(data) < _HEAD.size + 5 or data[_HEAD.size : _HEAD.size + 4] != MAGIC:
        raise DecodeError(f"{len(data)} bytes that are no DHCP message")
    head: Any = _HEAD.unpack_from(data)
    options = _options({}, data, _HEAD.size + 4)
    if OVERLOAD in options:
        # RFC 2132 §9.3; the order of the fields is RFC 3396's.
        what = options.pop(OVERLOAD)
        if what not in (b"\1", b"\2", b"\3"):
            raise DecodeError("option 52 has no meaning")
        if what[0] & 1:
            options = _options(options, head[13], 0)
        if what[0] & 2:
            options = _options(options, head[12], 0)
        # a field that is overloaded cannot overload again
        options.pop(OVERLOAD, None)
    return Packet._make((*head, options))


def _options(options: dict[int, bytes], data: bytes, at: int) -> dict[int, bytes]:
    """Add the options in `data` from offset `at` on. A repeated option continues its value (RFC
    3396)."""
    end = len(data)
    while at < end:
        code = data[at]
        if code == _END:
            break
        if code == _PAD:
            at += 1
            continue
        if at + 1 >= end or (after := at + 2 + data[at + 1]) > end:
            raise DecodeError(f"option {code} runs past the end")
        value = data[at + 2 : after]
        options[code] = options[code] + value if code in options else value
        at = after
    return options


def encode(packet: Packet) -> bytes:
    """Write a message: options in their order, option 82 last, at least 300 bytes long (RFC 1542
    §2.1)."""
    parts = [_HEAD.pack(*packet[:14]), MAGIC]
    options = packet.options
    for code, value in options.items():
        if code == RELAY_INFO:
            continue
        if len(value) > 255:
            parts.append(_option(code, value))
        else:
            parts += ((code << 8 | len(value)).to_bytes(2, "big"), value)
    if RELAY_INFO in options:
        parts.append(_option(RELAY_INFO, options[RELAY_INFO]))
    parts.append(b"\xff")
    return b"".join(parts).ljust(300, b"\0")


def _option(code: int, value: bytes) -> bytes:
    if len(value) <= 255:
        return bytes((code, len(value))) + value
    return b"".join(_option(code, value[at : at + 255]) for at in range(0, len(value), 255))


# ---------------------------------------------------------------- Packet -> DhcpQuery


def query(packet: Packet, subnet: str | None) -> DhcpQuery:
    """Return a client's message as the flow's record; `subnet` is the socket's. Raises DecodeError
    if the message is not from a client."""
    options = packet.options
    kind = KINDS.get(int.from_bytes(options.get(TYPE, b""), "big"))
    if packet.op != 1 or packet.htype != 1 or packet.hlen != 6 or kind not in _FROM_CLIENTS:
        raise DecodeError(
            f"op {packet.op}, hardware {packet.htype}/{packet.hlen}, kind {kind}: no Ethernet"
            " client"
        )
    if options.get(USER_CLASS) == PROBE:
        raise DecodeError("a probe for other servers")
    # the lowest bit marks a group's address, which no card has as its own
    if packet.chaddr[0] & 1 or packet.chaddr[:6] == bytes(6):
        raise DecodeError("its hardware address is no machine's")
    return DhcpQuery(
        kind or "",
        packet.chaddr[:6].hex(":"),
        packet.xid,
        subnet,
        stage(options),
        _text(packet.ciaddr),
        _text(packet.giaddr),
        _address(options.get(REQUESTED)),
        _address(options.get(SERVER_ID)),
        int.from_bytes(options[ARCH][:2], "big") if len(options.get(ARCH, b"")) >= 2 else None,
        _uuid(options[UUID_OPTION]) if UUID_OPTION in options else None,
        options.get(CLIENT_ID),
        *(_relay_info(options[RELAY_INFO]) if RELAY_INFO in options else (None, None)),
    )


def _relay_info(value: bytes) -> tuple[str | None, str | None]:
    """Return circuit id and remote id in hex (RFC 3046 §2.0), truncated. The rest of option 82 and
    malformed parts are ignored."""
    found: dict[int, str] = {}
    at = 0
    while at + 2 <= len(value) and at + 2 + value[at + 1] <= len(value):
        found.setdefault(value[at], value[at + 2 : at + 2 + value[at + 1]].hex()[:LONGEST_ID])
        at += 2 + value[at + 1]
    return found.get(1) or None, found.get(2) or None


def stage(options: Mapping[int, bytes]) -> str:
    """Return the client's boot stage: see `model.DhcpQuery`.

    iPXE is recognised by its user class (with or without RFC 3004's length byte) or by option 175,
    however it was loaded. PXELINUX keeps the vendor class of the firmware that loaded it, and is
    recognised by the options 209 and 210 that it requests.
    """
    vendor_class = options.get(VENDOR_CLASS, b"")
    if vendor_class.startswith(b"cod-trampoline"):
        return "trampoline"
    if IPXE in options or options.get(USER_CLASS, b"").removeprefix(b"\4") in (b"iPXE", b"gPXE"):
        return "ipxe"
    if vendor_class.startswith(b"HTTPClient"):
        return "httpclient"
    if not vendor_class.startswith(b"PXEClient"):
        return "os"
    wanted = options.get(PARAMETERS, b"")
    return "pxelinux" if PXELINUX_CONFIG in wanted or PXELINUX_PREFIX in wanted else "firmware"


def _text(address: bytes) -> str:
    return "0.0.0.0" if address == _NO_ADDRESS else socket.inet_ntoa(address)


def _address(value: bytes | None) -> str | None:
    return None if value is None or len(value) != 4 or value == _NO_ADDRESS else _text(value)


def _uuid(value: bytes) -> str | None:
    # RFC 4578 §2.3: a type byte 0, then the UUID as in SMBIOS, whose first three fields are
    # little-endian.
    return str(UUID(bytes_le=value[1:])) if len(value) == 17 and value[0] == 0 else None


# ---------------------------------------------------------------- DhcpAnswer -> Packet


def reply(packet: Packet, asked: DhcpQuery, answer: DhcpAnswer, subnet: Subnet) -> Packet:
    """Return the answer to `packet`. Options that many clients share are made once
    (`_constant`)."""
    if answer.kind == "NAK":
        options = {
            TYPE: _TYPES["NAK"],
            SERVER_ID: ipv4(subnet.server).to_bytes(4, "big"),
            MESSAGE: answer.reason.encode("ascii", "replace")[:200] or b"no",
        }
        _echo(packet, options)
        # RFC 2131 §4.3.2: through a relay a NAK must be broadcast, as the client's address may be
        # wrong.
        flags = packet.flags | _BROADCAST_FLAG if packet.giaddr != _NO_ADDRESS else packet.flags
        addresses = (_NO_ADDRESS, _NO_ADDRESS, _NO_ADDRESS, packet.giaddr, packet.chaddr)
        return Packet(2, 1, 6, 0, packet.xid, 0, flags, *addresses, bytes(64), bytes(128), options)
    options = dict(_constant(answer.kind, asked.stage, answer.lease_time, answer.domain, subnet))
    if answer.hostname:
        options[HOSTNAME] = answer.hostname.encode("ascii", "replace")
    file = bytes(128)
    if answer.bootfile:
        name = answer.bootfile.encode()
        wanted = packet.options.get(PARAMETERS, b"")
        if len(name) < 128:
            file = name.ljust(128, b"\0")
        if len(name) >= 128 or BOOTFILE in wanted or asked.stage in ("httpclient", "ipxe"):
            options[BOOTFILE] = name
        if SERVER_NAME in wanted and asked.stage != "httpclient":
            options[SERVER_NAME] = subnet.server.encode()
    _echo(packet, options)
    _fit(options, int.from_bytes(packet.options.get(MAX_SIZE, b""), "big"))
    yiaddr = socket.inet_aton(answer.yiaddr)
    siaddr = socket.inet_aton(subnet.server) if answer.bootfile else _NO_ADDRESS
    ciaddr = packet.ciaddr if answer.kind == "ACK" else _NO_ADDRESS  # RFC 2131 table 3
    addresses = (ciaddr, yiaddr, siaddr, packet.giaddr, packet.chaddr)
    return Packet(2, 1, 6, 0, packet.xid, 0, packet.flags, *addresses, bytes(64), file, options)


def _echo(packet: Packet, options: dict[int, bytes]) -> None:
    for code in (CLIENT_ID, UUID_OPTION, RELAY_INFO):  # RFC 6842, PXE 2.1, RFC 3046
        if code in packet.options:
            options[code] = packet.options[code]


def _fit(options: dict[int, bytes], max_size: int) -> None:
    """Drop the least important options if the message would be larger than the client accepts (RFC
    2132 §9.10)."""
    room = max(max_size, _LEAST_SIZE) - _IP_UDP - _HEAD.size - len(MAGIC) - 1
    for code in (SEARCH, DOMAIN, HOSTNAME, SERVER_NAME):
        if sum(map(len, options.values())) + 2 * len(options) <= room:
            return
        options.pop(code, None)


@lru_cache(maxsize=1024)
def _constant(
    kind: str, stage: str, lease_time: float | None, domain: str | None, subnet: Subnet
) -> dict[int, bytes]:
    """Return the options of a reply that depend on these arguments only; they are cached. Options
    that depend on the client's message, such as on its vendor class, are added in `reply`."""
    options = {TYPE: _TYPES[kind], SERVER_ID: ipv4(subnet.server).to_bytes(4, "big")}
    if lease_time is not None:
        options[LEASE_TIME] = int(lease_time).to_bytes(4, "big")
    options[NETMASK], options[BROADCAST_ADDRESS] = _mask_and_broadcast(subnet.network)
    if subnet.router:
        options[ROUTER] = ipv4(subnet.router).to_bytes(4, "big")
    if subnet.dns:
        options[DNS] = b"".join(ipv4(server).to_bytes(4, "big") for server in subnet.dns)
    if domain:
        options[DOMAIN] = domain.encode("ascii")
        options[SEARCH] = dns_name(domain)
    options.update(_OF_STAGE.get(stage, {}))
    return options


_OF_STAGE = {
    "firmware": {VENDOR_CLASS: b"PXEClient", VENDOR_INFO: _NO_PXE_DISCOVERY},
    "pxelinux": {VENDOR_CLASS: b"PXEClient", VENDOR_INFO: _NO_PXE_DISCOVERY},
    "httpclient": {VENDOR_CLASS: b"HTTPClient"},
    "ipxe": {VENDOR_CLASS: b"PXEClient", IPXE: _NO_PROXY},
}


def _mask_and_broadcast(network: str) -> tuple[bytes, bytes]:
    base, _, length = network.partition("/")
    hosts = (1 << (32 - int(length))) - 1
    return (~hosts & 0xFFFFFFFF).to_bytes(4, "big"), (ipv4(base) | hosts).to_bytes(4, "big")


def dns_name(name: str) -> bytes:
    """Return a domain name as in DNS (RFC 3397 §2), without compression."""
    labels = [label.encode("ascii") for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def destination(packet: Packet) -> tuple[str, int]:
    """Return the address and port to send a reply to (RFC 2131 §4.1; see the deviation above)."""
    if packet.giaddr != _NO_ADDRESS:
        return _text(packet.giaddr), SERVER_PORT
    if packet.ciaddr != _NO_ADDRESS and packet.options.get(TYPE) != _TYPES["NAK"]:
        return _text(packet.ciaddr), CLIENT_PORT
    return BROADCAST, CLIENT_PORT
