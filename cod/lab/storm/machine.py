"""A machine as far as a server sees it, from power-on to idle, without firmware, kernels or disks.

It asks DHCP through a relay as firmware, as iPXE and as the trampoline; fetches its boot script,
one range each of kernel and ramdisk, and its secret, over a connection each, and proves the secret,
reports, and obeys at once. Everything comes from an address of its own. It retransmits as firmware
does, boots anew when a stage fails, and connects again as the agent does.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cod.lab.standin import BootFailed
from cod.orders import Erasure, Order
from cod.wire import dhcp
from cod.wire.confd import protocol
from cod.wire.confd.messages import (
    Ack,
    Done,
    Error,
    Heartbeat,
    Message,
    Progress,
    Report,
    Welcome,
)

STEPS = (
    "firmware",
    "loader",
    "script",
    "kernel",
    "ramdisk",
    "secret",
    "trampoline",
    "welcome",
    "report",
    "order",
    "work",
)
FIRST_MAC = 0x525402000000
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
RANGE = 64 << 10  # bytes of kernel and ramdisk
DISK = 4 << 30
RETRANSMIT = (1.0, 2.0, 4.0, 8.0)  # seconds until a DHCP message is sent again, as firmware does
FETCH = 30.0  # seconds for a file
HANDSHAKE = 10.0  # seconds until welcome, as the agent waits
RESTART = 1.0  # seconds until a machine whose boot failed begins anew
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0  # seconds between two connections, as the agent's
REFUSALS = 6  # of its secrets in a row, until it boots for a new one
_FIRMWARE = {
    dhcp.VENDOR_CLASS: b"PXEClient:Arch:00000:UNDI:002001",
    dhcp.ARCH: b"\0\0",
    dhcp.PARAMETERS: bytes([dhcp.NETMASK, dhcp.ROUTER, dhcp.DNS, 66, dhcp.BOOTFILE]),
}
STAGES: Mapping[str, Mapping[int, bytes]] = {
    "firmware": _FIRMWARE,
    "loader": _FIRMWARE | {dhcp.USER_CLASS: b"iPXE"},
    "trampoline": {dhcp.VENDOR_CLASS: b"cod-trampoline"},
}
_UUIDS = uuid.UUID("c0d00000-0000-4000-8000-0000000057f0")
_REPORT = (
    '<node version="1"><system uuid="{uuid}"/><firmware kind="bios"/><memory mib="2048"/>'
    '<cpu count="1" sockets="1" arch="x86_64"/><nic name="eth0" mac="{mac}" link="up" boot="yes"/>'
    f'<disk name="vda" size="{DISK}" transport="virtio" local="yes" rotational="no"'
    ' removable="no"/><kernel release="6"/></node>'
)


class Relay(asyncio.DatagramProtocol):
    """The relay of the machines' network: what it hears from the server goes to who waits for
    it."""

    def __init__(self, address: str, server: str) -> None:
        self.address, self.server = socket.inet_aton(address), server
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
                self._transport.sendto(data, (self.server, dhcp.SERVER_PORT))
                if (await asyncio.wait([heard], timeout=pause))[0]:
                    return heard.result()
        finally:
            del self._waiting[mac]
        raise BootFailed("nobody answers DHCP")


async def open_relay(address: str, server: str) -> Relay:
    """Return the relay at that address of this namespace, listening."""
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    wire.setblocking(False)
    wire.bind((address, dhcp.SERVER_PORT))
    loop = asyncio.get_running_loop()
    return (await loop.create_datagram_endpoint(lambda: Relay(address, server), sock=wire))[1]


class Machine:
    """One machine. `on`, and when each step ended for the last time, are seconds since the storm
    began; `took` is how long each step took that time."""

    def __init__(self, number: int, relay: Relay, began: float) -> None:
        self.on, self.ended, self.took = 0.0, dict[str, float](), dict[str, float]()
        self.boots = self.reconnects = 0
        self.idle = asyncio.Event()
        self._mac = (FIRST_MAC + number).to_bytes(6, "big")
        self._mac_text = self._mac.hex(":")
        self._relay, self._began = relay, began
        self._address = ""
        self._last = 0.0

    def record(self) -> dict[str, object]:
        """Return what it did, for JSON."""
        return {
            "on": self.on,
            "ended": self.ended,
            "took": self.took,
            "boots": self.boots,
            "reconnects": self.reconnects,
        }

    async def run(self, at: float) -> None:
        """Switch on at `at`, boot, and stay until cancelled."""
        await asyncio.sleep(at - self._now())
        self.on = self._now()
        while True:
            self.boots += 1
            self._last = self._now()
            try:
                await self._boot()
            except (BootFailed, OSError, EOFError):
                await asyncio.sleep(RESTART)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _did(self, step: str) -> None:
        now = self._now()
        self.ended[step], self.took[step], self._last = now, now - self._last, now

    # ------------------------------------------------------------ firmware, loader, trampoline

    async def _boot(self) -> None:
        await self._lease("firmware")
        named = (await self._lease("loader")).options.get(dhcp.BOOTFILE, b"").rstrip(b"\0")
        script = (await self._fetch(named.decode())).decode()
        kernel = re.search(r"^kernel (\S+) .*cod\.confd=(\S+):(\d+)", script, re.M)
        files = re.findall(r"^initrd .*?(http://\S+)", script, re.M)
        if kernel is None or len(files) != 2:
            raise BootFailed("not the trampoline")
        self._did("script")
        for step, url in (("kernel", kernel[1]), ("ramdisk", files[0])):
            await self._fetch(url, RANGE)
            self._did(step)
        found = re.search(rb"[0-9a-f]{8,} [0-9a-f]{64}", await self._fetch(files[1]))
        if found is None:
            raise BootFailed("no secret")
        self._did("secret")
        await self._lease("trampoline")
        await self._serve(kernel[2], int(kernel[3]), protocol.Secret.read(found[0].decode()))

    async def _lease(self, stage: str) -> dhcp.Packet:
        packet = await self._relay.exchange(self._mac, STAGES[stage])
        self._address = socket.inet_ntoa(packet.yiaddr)
        self._did(stage)
        return packet

    async def _connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(host, port, local_addr=(self._address, 0))

    async def _fetch(self, url: str, length: int = 0) -> bytes:
        """Return a file, or its first bytes. Raises BootFailed."""
        parts = urlsplit(url)
        ranged = f"Range: bytes=0-{length - 1}\r\n" if length else ""
        async with asyncio.timeout(FETCH):
            reader, writer = await self._connect(str(parts.hostname), parts.port or 80)
            try:
                asked = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{ranged}"
                writer.write(f"{asked}Connection: close\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
                status = head.split(b" ", 2)[1]
                if size is None or status != (b"206" if length else b"200"):
                    raise BootFailed(f"{url}: {status.decode()}")
                return await reader.readexactly(int(size[1]))
            finally:
                writer.close()

    # ------------------------------------------------------------ the agent

    async def _serve(self, host: str, port: int, secret: protocol.Secret) -> None:
        """Converse, connection after connection. Raises BootFailed when its secrets are refused."""
        secrets, failures, refusals = protocol.Secrets(secret), 0, 0
        while refusals < REFUSALS:
            talk = AgentConversation(self, secrets)
            with suppress(OSError, EOFError, protocol.ProtocolError):
                await talk.run(*await self._connect(host, port))
            if talk.refused:
                secrets.refused()
            refusals = refusals + talk.refused if not talk.welcomed else 0
            failures = 1 if talk.welcomed else failures + 1
            self.reconnects += 1
            pause = min(FIRST_PAUSE * 2.0 ** (failures - 1), LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.25, 1.0))
        raise BootFailed("the server knows none of its secrets")

    def heard(self, step: str) -> None:
        """Note the first time that the agent gets so far in this boot, and that it is idle."""
        if step not in self.ended or self.ended[step] < self.ended["trampoline"]:
            self._did(step)
        if step == "work":
            self.idle.set()

    def hardware(self) -> str:
        """Return its report."""
        return _REPORT.format(uuid=uuid.uuid5(_UUIDS, self._mac_text), mac=self._mac_text)

    def side(self, secret: protocol.Secret) -> protocol.AgentSide:
        """Return the agent's end of a new connection."""
        nonce, private = os.urandom(protocol.NONCE), os.urandom(protocol.KEY)
        return protocol.AgentSide(secret, self._mac_text, nonce, private, agree=_agree)


class AgentConversation:
    """One connection of a machine's agent."""

    def __init__(self, machine: Machine, secrets: protocol.Secrets) -> None:
        self.welcomed = self.refused = False
        self._machine, self._secrets = machine, secrets
        self._side = machine.side(secrets.current())
        self._beat = HANDSHAKE

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak until either side ends. Raises OSError and ProtocolError."""
        reading: asyncio.Task[bytes] | None = None
        try:
            writer.write(self._side.to_send())
            while True:
                reading = reading or asyncio.ensure_future(reader.read(65536))
                if not (await asyncio.wait([reading], timeout=self._beat))[0]:
                    if not self.welcomed:
                        raise TimeoutError("no welcome")
                    writer.write(self._side.send(Heartbeat()))
                    continue
                if not (data := reading.result()):
                    return
                reading = None
                for event in self._side.receive(data):
                    for answer in self._hear(event):
                        writer.write(self._side.to_send() + self._side.send(answer))
                writer.write(self._side.to_send())
        finally:
            if reading is not None:
                reading.cancel()
            writer.close()

    def _hear(self, event: protocol.Event) -> list[Message]:
        """Take what the server says; return what is to be answered."""
        if isinstance(event, protocol.NewSecret):
            self._secrets.learned(event.secret)
        elif isinstance(event, Welcome):
            self.welcomed, self._beat = True, event.heartbeat
            self._machine.heard("welcome")
            return [Report(self._machine.hardware())]
        elif isinstance(event, Ack):
            self._machine.heard("work" if event.order else "report")
        elif isinstance(event, Order):
            self._machine.heard("order")
            if event.action == "wait":
                self._machine.heard("work")
                return []
            erased = Erasure("vda", "", "", "", DISK, "discard", 0.1, 0)
            return [
                Progress(event.id, event.action, DISK // 2, DISK, 1e9),
                Done(event.id, {"bytes_written": DISK, "seconds": 0.1}, erased=(erased,)),
            ]
        elif isinstance(event, Error) and not self.welcomed:
            self.refused = event.code == "unknown"
            raise ConnectionError(event.reason)
        return []


def _agree(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))
