"""A machine as a server sees it, from power-on to idle, without firmware, kernels or disks.

The machine asks by DHCP through a relay, as firmware and as iPXE, and fetches its boot script. If
the script boots the trampoline, it fetches the kernel, the ramdisk (a range or the whole of each)
and its secret, over a connection each, asks by DHCP once more, proves the secret, reports, and
carries out orders at once. If the script boots its disk, it fetches the program that does so, and
sends the requests of a system: DHCP, and then the metadata service, as cloud-init does. Each
machine has an address of its own. It retransmits as firmware does, boots anew when a stage fails,
and connects again as the agent does.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, pairwise
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cod.lab.standin import BootFailed
from cod.lab.storm.relay import STAGES, Relay
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

TRAMPOLINE_STEPS = (
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
SYSTEM_STEPS = ("firmware", "loader", "script", "disk", "system", "metadata")
STEPS = tuple(dict.fromkeys(TRAMPOLINE_STEPS + SYSTEM_STEPS))
_NEXT = dict(pairwise(SYSTEM_STEPS)) | dict(pairwise(TRAMPOLINE_STEPS))
FIRST_MAC = 0x525402000000
RANGE = 64 << 10  # bytes of kernel and ramdisk
KEPT = 1 << 16  # bytes of a file that are looked at
PIECE = 1 << 18  # bytes that are read at once
DISK = 4 << 30
FETCH = 30.0  # seconds without a byte of a file
METADATA = ("meta-data", "user-data", "vendor-data", "network-config")  # as cloud-init asks
TRIES = 10  # of a system's questions, as cloud-init's
HANDSHAKE = 10.0  # seconds until welcome, as the agent waits
RESTART = 1.0  # seconds until a machine whose boot failed begins anew
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0  # seconds between two connections, as the agent's
REFUSALS = 6  # of its secrets in a row, until it boots for a new one
_UUIDS = uuid.UUID("c0d00000-0000-4000-8000-0000000057f0")
_REPORT = (
    '<node version="1"><system uuid="{uuid}"/><firmware kind="bios"/><memory mib="2048"/>'
    '<cpu count="1" sockets="1" arch="x86_64"/><nic name="eth0" mac="{mac}" link="up" boot="yes"/>'
    f'<disk name="vda" size="{DISK}" transport="virtio" local="yes" rotational="no"'
    ' removable="no"/><kernel release="6"/></node>'
)


class Machine:
    """One machine. All times are in seconds since the storm began.

    on      time at which it was switched on
    ended   time at which each step ended, for the last time
    took    duration of each step, the last time
    at      the current step: the first that has not ended in this boot
    failed  number of failed boots, by the step that failed
    whole   kernel and ramdisk are fetched as a whole
    """

    def __init__(self, number: int, relay: Relay, began: float, whole: bool = False) -> None:
        self.on, self.ended, self.took = 0.0, dict[str, float](), dict[str, float]()
        self.at, self.failed = STEPS[0], Counter[str]()
        self.boots = self.reconnects = 0
        self.idle = asyncio.Event()
        self._mac = (FIRST_MAC + number).to_bytes(6, "big")
        self._mac_text = self._mac.hex(":")
        self._relay, self._began, self._whole = relay, began, whole
        self._address = ""
        self._last = 0.0
        self.disks = "blank"  # the result of an order to look at the disks

    def record(self) -> dict[str, object]:
        """Return the machine's times and counts, for JSON."""
        return {
            "on": self.on,
            "ended": self.ended,
            "took": self.took,
            "at": self.at,
            "failed": self.failed,
            "boots": self.boots,
            "reconnects": self.reconnects,
        }

    async def run(self, at: float) -> None:
        """Switch on at `at`, boot, and stay until cancelled."""
        await asyncio.sleep(at - self._now())
        self.on = self._now()
        while True:
            self.boots += 1
            self.at, self._last = STEPS[0], self._now()
            try:
                await self._boot()
            except (BootFailed, OSError, EOFError):
                self.failed[self.at] += 1
                await asyncio.sleep(RESTART)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _did(self, step: str) -> None:
        now = self._now()
        self.ended[step], self.took[step], self._last = now, now - self._last, now
        self.at = _NEXT.get(step, "")

    # ------------------------------------------------------------ firmware, loader, kernel

    async def _boot(self) -> None:
        await self._lease("firmware")
        offer = await self._lease("loader")
        script_url = offer.options.get(dhcp.BOOTFILE, b"").rstrip(b"\0").decode()
        script = (await self._fetch(script_url)).decode()
        from_disk = re.search(r"^kernel (\S+/boot/disk/\S+)|^sanboot", script, re.M)
        if from_disk is not None:
            self._did("script")
            self.at = "disk"
            if from_disk[1]:
                await self._fetch(from_disk[1])
            self._did("disk")
            await self._run_system("http://" + urlsplit(script_url).netloc)
            return
        kernel = re.search(r"^kernel (\S+) .*cod\.confd=(\S+)", script, re.M)
        files = re.findall(r"^initrd .*?(http://\S+)", script, re.M)
        if kernel is None or len(files) != 2:
            raise BootFailed("neither the trampoline nor its disk")
        self._did("script")
        for step, url in (("kernel", kernel[1]), ("ramdisk", files[0])):
            await self._fetch(url, 0 if self._whole else RANGE)
            self._did(step)
        secret = re.search(rb"[0-9a-f]{8,} [0-9a-f]{64}", await self._fetch(files[1]))
        if secret is None:
            raise BootFailed("no secret")
        self._did("secret")
        await self._lease("trampoline")
        addresses = (address.split(":") for address in kernel[2].split(","))
        servers = [(host, int(port)) for host, port in addresses]
        await self._serve(servers, protocol.Secret.read(secret[0].decode()))

    async def _run_system(self, server: str) -> None:
        """Send the requests of a vcluster's system, and wait for ever."""
        await _patiently(partial(self._lease, "system"))
        for name in METADATA:
            await _patiently(partial(self._fetch, f"{server}/nocloud/{name}"))
        self._did("metadata")
        self.idle.set()
        await asyncio.Event().wait()

    async def _lease(self, stage: str) -> dhcp.Packet:
        packet = await self._relay.exchange(self._mac, STAGES[stage])
        self._address = socket.inet_ntoa(packet.yiaddr)
        self._did(stage)
        return packet

    async def _connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        own = self._address, 0
        return await asyncio.open_connection(host, port, local_addr=own, limit=PIECE)

    async def _fetch(self, url: str, length: int = 0) -> bytes:
        """Fetch a file, or its first `length` bytes; return at most `KEPT` bytes. Raises
        BootFailed."""
        parts = urlsplit(url)
        ranged = f"Range: bytes=0-{length - 1}\r\n" if length else ""
        async with asyncio.timeout(FETCH) as limit:
            reader, writer = await self._connect(str(parts.hostname), parts.port or 80)
            try:
                asked = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{ranged}"
                writer.write(f"{asked}Connection: close\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
                status = head.split(b" ", 2)[1]
                if size is None or status != (b"206" if length else b"200"):
                    raise BootFailed(f"{url}: {status.decode()}")
                left, kept = int(size[1]), b""
                while left:
                    if not (piece := await reader.read(min(left, PIECE))):
                        raise EOFError(f"{url} ended early")
                    left, kept = left - len(piece), kept + piece[: KEPT - len(kept)]
                    limit.reschedule(asyncio.get_running_loop().time() + FETCH)
                return kept
            finally:
                writer.close()

    # ------------------------------------------------------------ the agent

    async def _serve(self, servers: Sequence[tuple[str, int]], secret: protocol.Secret) -> None:
        """Talk to the servers in turn, one connection after the other. Raises BootFailed when the
        machine's secrets are refused."""
        secrets, failures, refusals, turns = protocol.Secrets(secret), 0, 0, cycle(servers)
        while refusals < REFUSALS:
            talk = AgentConversation(self, secrets)
            with suppress(OSError, EOFError, protocol.ProtocolError):
                await talk.run(*await self._connect(*next(turns)))
            if talk.refused:
                secrets.refused()
            refusals = refusals + talk.refused if not talk.welcomed else 0
            failures = 1 if talk.welcomed else failures + 1
            self.reconnects += 1
            pause = min(FIRST_PAUSE * 2.0 ** (failures - 1), LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.25, 1.0))
        raise BootFailed("the server knows none of its secrets")

    def heard(self, step: str) -> None:
        """Record the first time that the agent ends this step in this boot; after the step 'work'
        the machine is idle."""
        if step not in self.ended or self.ended[step] < self.ended["trampoline"]:
            self._did(step)
        if step == "work":
            self.idle.set()

    def hardware(self) -> str:
        """Return the machine's hardware report."""
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
        """Talk to the server until either side ends the connection. Raises OSError and
        ProtocolError."""
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
        """Handle an event from the server; return the messages to answer with."""
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
            if event.action == "look":
                return [Done(event.id, disks=self._machine.disks)]
            erased = Erasure("vda", "", "", "", DISK, "discard", 0.1, 0)
            self._machine.disks = event.id if event.action == "prime" else "blank"
            return [
                Progress(event.id, event.action, DISK // 2, DISK, 1e9),
                Done(event.id, {"bytes_written": DISK, "seconds": 0.1}, erased=(erased,)),
            ]
        elif isinstance(event, Error) and not self.welcomed:
            self.refused = event.code == "unknown"
            raise ConnectionError(event.reason)
        return []


async def _patiently(ask: Callable[[], Awaitable[object]]) -> None:
    """Repeat `ask` while no answer comes, as a system does. Raises as `ask` does."""
    for _ in range(TRIES - 1):
        with suppress(BootFailed, OSError, EOFError):
            await ask()
            return
        await asyncio.sleep(RESTART)
    await ask()


def _agree(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))
