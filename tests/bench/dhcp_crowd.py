"""Many PXE machines switched on within some seconds, behind one relay: ``python -m
tests.bench.dhcp_crowd``.

Each is first firmware, then iPXE: two DISCOVER-OFFER-REQUEST-ACK exchanges, retransmitting as
firmware does (after 1, 3 and 7 seconds). Prints JSON: seconds from a machine's first DISCOVER to
its last ACK, sorted, and how many machines got none.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import select
import socket
import time

from cod.wire import dhcp
from cod.wire.dhcp import Packet

PAUSES = (1.0, 2.0, 4.0, 8.0)
VENDOR = b"PXEClient:Arch:00000:UNDI:002001"


class Machine:
    """One machine: what it sends next, and how long its exchanges took."""

    def __init__(self, mac: bytes, relay: bytes) -> None:
        self.mac, self.relay = mac, relay
        self.stage = 0
        self.tries = 0
        self.began = 0.0
        self.took: list[float] = []
        self.next = self.discover()

    def message(self, kind: int, options: dict[int, bytes]) -> bytes:
        own = {53: bytes([kind]), 60: VENDOR, 93: b"\0\0", 55: bytes([1, 3, 6, 66, 67])}
        own |= {77: b"iPXE"} if self.stage else {}
        return dhcp.encode(
            Packet(
                1,
                1,
                6,
                1,
                self.xid,
                0,
                0,
                bytes(4),
                bytes(4),
                bytes(4),
                self.relay,
                self.mac + bytes(10),
                bytes(64),
                bytes(128),
                own | options,
            )
        )

    def discover(self) -> bytes:
        self.xid = random.getrandbits(32)
        return self.message(1, {})

    def hear(self, packet: Packet, now: float) -> bool:
        """Take a reply; is there something to send now?"""
        if packet.xid != self.xid or self.stage == 2:
            return False
        self.tries = 0
        if packet.options[53] == b"\2":
            self.next = self.message(3, {50: packet.yiaddr, 54: packet.options[54]})
            return True
        self.took.append(now - self.began)
        self.stage, self.began = self.stage + 1, now
        self.next = self.discover()
        return self.stage < 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--relay", required=True)
    parser.add_argument("--base", required=True, help="the first machine's MAC")
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    relay = socket.inet_aton(options.relay)
    base = int(options.base.replace(":", ""), 16)
    macs = [(base + number).to_bytes(6, "big") for number in range(options.machines)]
    machines = {mac: Machine(mac, relay) for mac in macs}
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.setsockopt(socket.SOL_SOCKET, 33, 2**24)
    wire.bind((options.relay, 67))
    wire.setblocking(False)
    start = time.monotonic()
    due = [(start + random.random() * options.seconds, mac) for mac in macs]
    heapq.heapify(due)
    while due and time.monotonic() < start + options.seconds + 30:
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, mac = heapq.heappop(due)
            send(machines[mac], wire, options.server, now, due)
        readable, _, _ = select.select(
            [wire], [], [], max(0.0, min(due[0][0] - now, 0.1)) if due else 0.1
        )
        if readable:
            hear(machines, wire, options.server, due)
        while due and machines[due[0][1]].stage == 2:
            heapq.heappop(due)
    took = sorted(sum(machine.took) for machine in machines.values() if machine.stage == 2)
    each = sorted(one for machine in machines.values() for one in machine.took)
    print(json.dumps({"took": took, "each": each, "unanswered": len(machines) - len(took)}))


def send(
    machine: Machine, wire: socket.socket, server: str, now: float, due: list[tuple[float, bytes]]
) -> None:
    if machine.stage == 2 or machine.tries >= len(PAUSES):
        return
    machine.began = machine.began or now
    wire.sendto(machine.next, (server, 67))
    heapq.heappush(due, (now + PAUSES[machine.tries], machine.mac))
    machine.tries += 1


def hear(
    machines: dict[bytes, Machine], wire: socket.socket, server: str, due: list[tuple[float, bytes]]
) -> None:
    while True:
        try:
            packet = dhcp.decode(wire.recv(2048))
        except BlockingIOError:
            return
        now = time.monotonic()
        machine = machines[packet.chaddr[:6]]
        if machine.hear(packet, now):
            send(machine, wire, server, now, due)


if __name__ == "__main__":
    main()
