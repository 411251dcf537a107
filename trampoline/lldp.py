"""The switch and port at the other end of each cable, by LLDP (IEEE 802.1AB).

Switches announce themselves every half a minute. A socket therefore listens from the agent's start,
and the first report goes out without neighbours. The agent scans the machine at every heartbeat,
and reports again when a switch has been heard. The first neighbour that a NIC hears is kept until
the next boot, because a hub with several switches behind it must not cause report after report.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

ETHERTYPE = 0x88CC
GROUP = bytes.fromhex("0180c200000e")  # nearest bridge: no switch passes it on
LONGEST = 200  # characters of a name
MOST = 1000  # frames that are read at once
_SOL_PACKET, _ADD_MEMBERSHIP, _MULTICAST = 263, 1, 0  # linux/if_packet.h
_END, _CHASSIS, _PORT, _TIME_TO_LIVE, _SYSTEM_NAME = 0, 1, 2, 3, 5  # types of fields
# subtypes whose value is a MAC; an address (5, 4) begins with its family
_MAC = {_CHASSIS: 4, _PORT: 3}
_ADDRESS = {_CHASSIS: 5, _PORT: 4}


class Neighbour(NamedTuple):
    """A switch, by its system name or else its chassis id; and the id of its port."""

    switch: str
    port: str


Heard = Callable[[Iterable[str]], Mapping[str, Neighbour]]
"""Tells the neighbours that were heard on the interfaces of those names, as far as any were."""


def deaf(names: Iterable[str]) -> Mapping[str, Neighbour]:
    """Return no neighbours, without listening."""
    return {}


def parse(frame: bytes) -> Neighbour | None:
    """Return the neighbour in an Ethernet frame; None if the frame is not LLDP, is malformed, or
    ends an announcement (time to live 0)."""
    if len(frame) < 16 or frame[12:14] != ETHERTYPE.to_bytes(2, "big"):
        return None
    fields: dict[int, bytes] = {}
    at = 14
    while at + 2 <= len(frame):
        (head,) = struct.unpack_from("!H", frame, at)
        kind, end = head >> 9, at + 2 + (head & 0x1FF)
        if kind == _END:
            break
        if end > len(frame):
            return None
        fields.setdefault(kind, frame[at + 2 : end])
        at = end
    if fields.get(_TIME_TO_LIVE) in (None, b"\0\0"):
        return None
    switch = _clean(fields.get(_SYSTEM_NAME, b"")) or _identifier(
        _CHASSIS, fields.get(_CHASSIS, b"")
    )
    port = _identifier(_PORT, fields.get(_PORT, b""))
    return Neighbour(switch, port) if switch and port else None


def _identifier(kind: int, value: bytes) -> str:
    if len(value) < 2:
        return ""
    subtype, body = value[0], value[1:]
    if subtype == _MAC[kind]:
        return body.hex(":")[:LONGEST]
    if subtype == _ADDRESS[kind] and body[0] == 1 and len(body) == 5:
        return socket.inet_ntoa(body[1:])
    return _clean(body)


def _clean(value: bytes) -> str:
    return readable(value.decode("utf-8", "replace"))


def readable(text: str) -> str:
    """Return the text without characters that XML cannot carry or people cannot read: firmware and
    switches fill these fields with anything."""
    shown = "".join(c if c.isprintable() and c != "\ufffd" else " " for c in text)
    return " ".join(shown.split())[:LONGEST]


class LldpListener:
    """A listener for LLDP on all interfaces; frames wait in the kernel until they are read. Without
    the right to listen, it hears nothing."""

    def __init__(self) -> None:
        self._seen: dict[str, Neighbour] = {}
        self._joined: set[str] = set()
        self._socket: socket.socket | None = None
        with suppress(OSError):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
            self._socket.setblocking(False)

    def neighbours(self, nics: Iterable[str]) -> Mapping[str, Neighbour]:
        """Return the neighbours heard so far, by interface name, and begin to listen on those of
        `nics` that are new."""
        if self._socket is None:
            return {}
        for name in {*nics} - self._joined:
            with suppress(OSError):  # it is gone again
                # NICs drop frames to groups that nobody has joined.
                membership = struct.pack(
                    "iHH8s", socket.if_nametoindex(name), _MULTICAST, len(GROUP), GROUP
                )
                self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
                self._joined.add(name)
        self._drain(self._socket)
        return dict(self._seen)

    def _drain(self, listener: socket.socket) -> None:
        for _ in range(MOST):
            try:
                frame, address = listener.recvfrom(2048)
            except OSError:  # nothing more waits; or an interface went down
                return
            # the machine's own frames are not delivered to this socket: packet(7), ETH_P_ALL
            if neighbour := parse(frame):
                self._seen.setdefault(address[0], neighbour)
