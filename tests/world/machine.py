"""A machine: power, a disk that knows who has written it, firmware, the real agent, a BMC.

What it says is encoded by `cod.wire`, and its agent is `trampoline.agent.Agent`; only disks and the
time that work takes are made up. Its BMC speaks the lab's protocol (`cod.power.lab`), and may lie,
hang, refuse and answer late.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.protocols.basic import LineOnlyReceiver

from cod.lab.standin import BootFailed
from cod.lab.storm.relay import RETRANSMIT, STAGES
from cod.model.site.network import Boot
from cod.orders import Erasure, Order
from cod.policy.nodes.seed import INSTALLATION
from cod.wire import dhcp
from cod.wire.confd import protocol
from cod.wire.confd.messages import Done
from tests.world.clock import SimReactor
from tests.world.network import Network, Transport
from tests.world.switch import ROUTERS, port_of
from trampoline.agent import Agent, Disconnect
from trampoline.errors import PrimeError

RELAY, SERVERS = "10.80.0.1", ("10.77.0.1", "10.77.0.2", "10.77.0.3")
SIZE = 4 << 30
POST = 4.0  # seconds from power-on to the firmware's first question
RESTART = 2.0  # seconds until firmware begins anew
PATIENCE = 20.0  # seconds for a file
SECONDS = {"wipe": 6.0, "prime": 8.0, "look": 1.0}
BMCS = ("well", "well", "lies", "hangs", "late", "refuses")
REPORT = (
    '<node version="1"><system uuid="{uuid}"/><firmware kind="bios"/><memory mib="{mib}"/>'
    '<cpu count="1" sockets="1" arch="x86_64"/><nic name="eth0" mac="{mac}" link="up" boot="yes">'
    '<neighbour switch="leaf" port="{port}"/></nic>'
    f'<disk name="vda" size="{SIZE}" transport="virtio" local="yes" rotational="no"'
    ' removable="no"/><kernel release="6"/></node>'
)


def mac_of(number: int) -> str:
    return f"52:54:00:77:00:{number:02x}"


def hardware(number: int) -> str:
    """Return the report of machine `number`; every fourth has more memory."""
    uuid = f"c0d00000-0000-4000-8000-{number:012x}"
    mib = 8192 if number % 4 == 3 else 2048
    return REPORT.format(uuid=uuid, mac=mac_of(number), mib=mib, port=port_of(number))


class Relay:
    """The relays of the machines' networks: what the server says goes to the machine that waits."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.waiting: dict[bytes, Any] = {}
        for address in (RELAY, *ROUTERS.values()):
            network.bind((address, dhcp.SERVER_PORT), self._heard)

    def _heard(self, data: bytes) -> None:
        packet = dhcp.decode(data)
        heard = self.waiting.get(packet.chaddr[:6])
        if heard is not None:
            heard(packet)


class Machine:
    """One machine. `disk`: who has written it, a host's full name; '' when it is empty.

    on     whether it has power
    bmc    how its BMC is: one of `BMCS`
    told   called with a sentence for each thing that somebody may want to know
    """

    def __init__(self, number: int, world: Any) -> None:
        self.number, self.mac, self.world = number, mac_of(number), world
        self.name = f"m{number}"
        self.on, self.disk, self.bmc = False, "", "well"
        # of the installation on its disk: the order's id, and what the seed says of it
        self.mark = self.installation = ""
        self.fails = 0.0  # share of orders that fail
        self.slow = 1.0  # by which work takes longer
        # the secret of its last boot that was accepted, from which address, where, and when
        self.spent: tuple[str, str, list[str], float] | None = None
        self.running = ""  # what runs: firmware, trampoline, or the full name of a system
        self._mac = bytes.fromhex(self.mac.replace(":", ""))
        self._rng = random.Random(f"{world.seed} {number}")
        self._reactor: SimReactor | None = None
        path = f"bmc/{self.name}"
        self.address = f"{path}#{self.mac}"
        management = SimReactor(world.clock, world.network, path, path)
        world.network.listen(management, (path, 0), Factory.forProtocol(lambda: _Bmc(self)))

    # ------------------------------------------------------------ power

    def power_on(self) -> None:
        """Switch on, if it is off."""
        if not self.on:
            self.on = True
            self._begin(POST * self._rng.uniform(0.8, 1.5))

    def power_off(self) -> None:
        """Take the power away: nobody hears a word."""
        self.on = False
        self._end()

    def reset(self) -> None:
        self.power_off()
        self.power_on()

    def _end(self) -> None:
        reactor, self._reactor, self.running = self._reactor, None, ""
        if reactor is not None:
            for each in list(reactor.open):
                if isinstance(each, Transport):
                    each.vanish()
            self.world.relay.waiting.pop(self._mac, None)
            self.world.network.down.discard(reactor.host)
            reactor.kill()

    def _begin(self, seconds: float) -> None:
        """Run a boot, and another one when it fails or ends in a reboot."""
        self._end()
        reactor = self._reactor = SimReactor(
            self.world.clock, self.world.network, self.name, self.name
        )
        self.running = "firmware"

        def begin() -> None:
            boot = Deferred.fromCoroutine(self._boot(reactor))
            boot.addErrback(lambda failure: failure.trap(BootFailed, CancelledError))
            boot.addBoth(self._ended, reactor)

        reactor.callLater(seconds, begin)

    def _ended(self, result: Any, reactor: SimReactor) -> None:
        if isinstance(result, type) or result is None or result == "reboot":
            if self._reactor is reactor:
                reactor.callLater(0, self._begin, RESTART)
        elif result == "off":
            reactor.callLater(0, self.power_off)
        else:
            self.world.trouble(f"{self.name}: its boot raised {result}")

    def hang(self, seconds: float) -> None:
        """Be cut off from the network for so long."""
        if self._reactor is not None:
            host = self._reactor.host
            self.world.network.down.add(host)
            self.world.clock.later(seconds, self.world.network.down.discard, host)

    def drop(self) -> None:
        """Have its connections reset."""
        for each in list(self._reactor.open) if self._reactor else ():
            if isinstance(each, Transport):
                each.abortConnection()

    def stick(self) -> None:
        """Hang until it is switched off."""
        if self.on:
            self._end()

    def replay(self) -> None:
        """Have somebody who has read the secret of its last boot use it again, from its address."""
        if self.spent is not None:
            secret, address, servers, at = self.spent
            thief = SimReactor(self.world.clock, self.world.network, address, "a thief")
            self.world.say(f"somebody uses the spent secret of {self.name}")
            shell = _Shell(self, thief, secret, servers)
            shell.stolen_at = at
            Deferred.fromCoroutine(shell.run())
            self.world.clock.later(30.0, thief.kill)

    # ------------------------------------------------------------ firmware

    async def _boot(self, reactor: SimReactor) -> str | None:
        await self._lease(reactor, "firmware")
        found = await self._lease(reactor, "loader")
        named = found.options.get(dhcp.BOOTFILE, b"").rstrip(b"\0").decode()
        tried = [named]
        while True:
            asked = reactor.seconds()
            script = (await self._fetch(reactor, named)).decode()
            try:
                return await self._follow(reactor, script, asked)
            except _NoFile:
                chained = re.findall(r"^chain .*?(http://\S+)", script, re.M)
                named = next((url for url in chained if url not in tried), "")
                if not named:
                    raise
                self.world.seen["boot script of the next server"] += 1
                tried.append(named)

    async def _follow(self, reactor: SimReactor, script: str, asked: float) -> str | None:
        """Do what a boot script says."""
        local = re.search(r"^kernel (\S+/boot/disk/\S+)|^sanboot", script, re.M)
        if local is not None:
            return await self._run_system(reactor, local[1], asked)
        kernel = re.search(r"^kernel (\S+) .*cod\.confd=(\S+)", script, re.M)
        files = re.findall(r"^initrd .*?(http://\S+)", script, re.M)
        self.world.seen["machine told to wait for its switch port"] += "switch port" in script
        if kernel is None or len(files) != 2:
            raise BootFailed("neither the trampoline nor its disk")
        await self._fetch(reactor, kernel[1])
        text = await self._fetch(reactor, files[1])
        secret = re.search(rb"[0-9a-f]{8,} [0-9a-f]{64}", text)
        if secret is None:
            raise BootFailed("no secret")
        await self._lease(reactor, "trampoline")
        self.running = "trampoline"
        return await _Shell(self, reactor, secret[0].decode(), kernel[2].split(",")).run()

    async def _run_system(self, reactor: SimReactor, loader: str | None, asked: float) -> None:
        if loader:
            await self._fetch(reactor, loader)
        if not self.disk:
            raise BootFailed("no bootable device")
        self.world.booted(self, asked)
        self.running = self.disk
        while True:
            with suppress(BootFailed):
                await self._lease(reactor, "system")
                break
        for server in self.world.servers:
            with suppress(BootFailed):
                url = f"http://{server}:{Boot().http_port}/latest/meta-data/local-hostname"
                self.world.named(self, (await self._fetch(reactor, url)).decode())
                break
        await Deferred()

    async def _lease(self, reactor: SimReactor, stage: str) -> dhcp.Packet:
        xid = self._rng.getrandbits(32)
        options = STAGES[stage]
        offer = await self._ask(reactor, xid, 1, options)
        chosen = {dhcp.REQUESTED: offer.yiaddr, dhcp.SERVER_ID: offer.options[dhcp.SERVER_ID]}
        packet = await self._ask(reactor, xid, 3, {**options, **chosen})
        reactor.host = socket.inet_ntoa(packet.yiaddr)
        seconds = int.from_bytes(packet.options.get(dhcp.LEASE_TIME, b""))
        self.world.lent(self, reactor, reactor.host, seconds)
        return packet

    async def _ask(
        self, reactor: SimReactor, xid: int, kind: int, options: Mapping[int, bytes]
    ) -> dhcp.Packet:
        own = {dhcp.TYPE: bytes([kind]), **options}
        vlan = self.world.switch.vlan(self.number)
        relay = socket.inet_aton(ROUTERS.get(vlan, RELAY))
        head = (1, 1, 6, 1, xid, 0, 0, bytes(4), bytes(4), bytes(4), relay)
        data = dhcp.encode(dhcp.Packet(*head, self._mac + bytes(10), bytes(64), bytes(128), own))
        found: list[dhcp.Packet] = []
        waiting: Deferred[None] = Deferred()

        def heard(packet: dhcp.Packet) -> None:
            is_cut = reactor.host in self.world.network.down
            answers = (2,) if kind == 1 else (5, 6)
            is_one = packet.xid == xid and packet.options[dhcp.TYPE][0] in answers
            if is_one and not found and not waiting.called and not is_cut:
                found.append(packet)
                reactor.callLater(0, _fire, waiting)

        self.world.relay.waiting[self._mac] = heard
        for pause in RETRANSMIT:
            if reactor.host not in self.world.network.down:
                for server in self.world.servers:
                    self.world.network.send(data, (server, dhcp.SERVER_PORT))
            timer = reactor.callLater(pause, _fire, waiting)
            await waiting
            if timer.active():
                timer.cancel()
            if found:
                break
            waiting = Deferred()
        else:
            raise BootFailed("nobody answers DHCP")
        if found[0].options[dhcp.TYPE] == bytes([6]):
            raise BootFailed("the address is refused")
        return found[0]

    async def _fetch(self, reactor: SimReactor, url: str) -> bytes:
        parts = urlsplit(url)
        if not parts.hostname:
            raise BootFailed(f"no file to load: {url!r}")
        head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        endpoint = TCP4ClientEndpoint(reactor, parts.hostname, parts.port or 80, timeout=10)
        fetch = _Fetch(head.encode())
        try:
            await connectProtocol(endpoint, fetch)
            text = await fetch.done.addTimeout(PATIENCE, reactor)
        except (OSError, TimeoutError, BootFailed) as error:
            raise _NoFile(f"{url}: {error}") from None
        except Exception as error:
            if not type(error).__module__.startswith("twisted.internet.error"):
                raise
            raise _NoFile(f"{url}: {error}") from None
        finally:
            if fetch.transport is not None:
                fetch.transport.abortConnection()
        status, _, body = text.partition(b"\r\n\r\n")
        size = re.search(rb"\r\ncontent-length: *(\d+)", status, re.I)
        if b" 200 " not in status[:20] or size is None or len(body) != int(size[1]):
            raise _NoFile(f"{url}: {status[:60]!r}")
        return body

    # ------------------------------------------------------------ orders

    def _marks(self) -> str:
        """Return what an agent finds on the disk."""
        if not self.disk:
            return "blank"
        if self.disk.startswith("part of "):
            return "other"
        return f"{self.mark} {self.disk} {self.installation}"

    def act(self, reactor: SimReactor, order: Order, tell: Any) -> Any:
        """Carry out an order, in a thread of the agent."""
        if order.id.partition(".")[0] != str(self.number + 1):
            self.world.trouble(f"{self.name} gets the order {order.id}, which is another's")
        seconds = SECONDS[order.action] * self.slow * self._rng.uniform(0.5, 1.5)
        self.world.seen[f"{order.action} begun"] += 1
        fails = self._rng.random() < self.fails
        if order.action == "look":
            reactor.pause(seconds)
            self.world.loss.tells(self)
            return Done(order.id, disks=self._marks())
        goal, losses = _goal(order), self.world.loss.times
        self.world.loss.writes(self, order)
        if order.action == "prime" and not order.wipe and self.disk not in ("", goal):
            self.world.trouble(f"{self.name} writes {goal} over {self.disk} without a wipe")
        for part in range(4):
            reactor.pause(seconds / 4)
            if order.action == "prime" and part == 0:
                self.disk = f"part of {goal}"
            tell("write", SIZE * part // 4, SIZE, 1e9)
            if fails and part == 1:
                raise PrimeError("the disk does not take it")
        self.disk, self.mark, self.installation = goal, order.id, _in_seed(order, INSTALLATION)
        self.world.loss.written(self, losses)
        self.world.seen[f"{order.action} done"] += 1
        servers = {each.getPeer().host for each in reactor.open if isinstance(each, Transport)}
        self.world.carried_out(self, order.action, servers)
        erased = (Erasure("vda", "", "", "", SIZE, "discard", seconds, 0),)
        figures = {"bytes_written": SIZE, "seconds": seconds}
        return Done(order.id, figures, erased=erased if order.wipe else ())


def _fire(waiting: Deferred[None]) -> None:
    if not waiting.called:
        waiting.callback(None)


def _goal(order: Order) -> str:
    """Return who has written the disk once the order is carried out."""
    if order.action != "prime":
        return ""
    return _in_seed(order, "local-hostname") or "?"


def _in_seed(order: Order, key: str) -> str:
    """Return a value of the seed's meta-data; '' where there is none."""
    return str(json.loads(order.seed.get("meta-data", "{}")).get(key, ""))


class _NoFile(BootFailed):
    """A server that does not give a file."""


class _Fetch(Protocol):
    """One file over HTTP."""

    transport: Any = None

    def __init__(self, head: bytes) -> None:
        self._head, self._text = head, bytearray()
        self.done: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(self._head)

    def dataReceived(self, data: bytes) -> None:
        self._text += data

    def connectionLost(self, reason: Any = None) -> None:
        if not self.done.called:
            self.done.callback(bytes(self._text))


# ---------------------------------------------------------------- the agent's shell


class _Shell(Protocol):
    """What `trampoline.ctramp` is on a machine: connects the agent, tells it the time, and leaves
    when it says so."""

    transport: Any = None

    def __init__(
        self, machine: Machine, reactor: SimReactor, secret: str, servers: list[str]
    ) -> None:
        self._reactor, self._servers = reactor, servers
        self._machine, self._secret = machine, secret
        self.stolen_at: float | None = None  # when the secret was spent; None: this is its machine
        self.agent = Agent(
            machine.mac,
            protocol.Secrets(protocol.Secret.read(secret)),
            lambda: hardware(machine.number),
            lambda order, tell: machine.act(reactor, order, tell),
            lambda: reactor.callLater(0, self._tick),
            lambda _: None,
            lambda _: None,
        )
        self._over: Deferred[None] | None = None
        self._timer: Any = None
        self._rng = random.Random(f"{machine.world.seed} {machine.number} shell")

    async def run(self) -> str:
        """Serve until the machine is to leave; return 'reboot' or 'off'."""
        failures = 0
        for server in itertools.cycle(self._servers):
            if self.agent.leave is not None:
                break
            host, _, port = server.partition(":")
            endpoint = TCP4ClientEndpoint(self._reactor, host, int(port), timeout=10)
            over = self._over = Deferred[None]()  # the connection may be lost as soon as it is made
            try:
                await connectProtocol(endpoint, self)
                await over
            except Exception as error:
                if not type(error).__module__.startswith("twisted.internet.error"):
                    raise
            failures = 1 if self.agent.welcomed else failures + 1
            self.agent.lost()
            if self.agent.leave is None:
                pause = min(2.0 ** (failures - 1), 20.0) * self._rng.uniform(0.25, 1.0)
                await deferLater(self._reactor, pause, lambda: None)
        return self.agent.leave or ""

    def connectionMade(self) -> None:
        self.agent.connected(self._reactor.seconds())
        self._said()

    def dataReceived(self, data: bytes) -> None:
        self._guard(lambda: self.agent.receive(data, self._reactor.seconds()))

    def connectionLost(self, reason: Any = None) -> None:
        self._end()

    def _tick(self) -> None:
        if self._over is not None:
            self._guard(lambda: self.agent.tick(self._reactor.seconds()))

    def _guard(self, step: Any) -> None:
        if self._over is None:
            return
        try:
            step()
            self._said()
        except (Disconnect, protocol.ProtocolError):
            self.transport.abortConnection()
            self._end()

    def _said(self) -> None:
        machine = self._machine
        if self.agent.welcomed and self.stolen_at is not None:
            if not machine.world.loss.has_lost(self.stolen_at):
                machine.world.trouble(f"the spent secret of {machine.name} is accepted again")
        elif self.agent.welcomed and (machine.spent is None or machine.spent[0] != self._secret):
            now = self._reactor.seconds()
            machine.spent = self._secret, self._reactor.host, self._servers, now
        if data := self.agent.to_send():
            self.transport.write(data)
        if self.agent.leave is not None:
            self.transport.loseConnection()
            self._end()
            return
        if self._timer and self._timer.active():
            self._timer.cancel()
        now = self._reactor.seconds()
        self._timer = self._reactor.callLater(max(0.05, self.agent.due() - now), self._tick)

    def _end(self) -> None:
        if self._timer and self._timer.active():
            self._timer.cancel()
        if self._over is not None:
            over, self._over = self._over, None
            over.callback(None)


def agree(private: bytes, public: bytes) -> bytes:
    """X25519, quicker than the agent's own."""
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


# ---------------------------------------------------------------- the BMC


class _Bmc(LineOnlyReceiver):
    """One connection of a machine's BMC."""

    delimiter = b"\n"
    transport: Any

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def lineReceived(self, line: bytes) -> None:
        machine, op = self._machine, json.loads(line)["op"]
        seen, later = machine.world.seen, machine.world.clock.later
        if machine.bmc != "well":
            seen[f"BMC {machine.bmc}"] += 1
        if machine.bmc == "hangs":
            return
        if machine.bmc == "refuses":
            self._say({"ok": False, "error": "not now"})
        elif machine.bmc == "late":
            later(machine._rng.uniform(2.0, 25.0), self._do, op)
        elif machine.bmc == "lies" and op != "status":
            self._say({"ok": True, "power": {"off": "off"}.get(op, "on")})
        else:
            later(0.05, self._do, op)

    def _do(self, op: str) -> None:
        machine = self._machine
        {"on": machine.power_on, "off": machine.power_off, "reset": machine.reset}.get(
            op, lambda: None
        )()
        self._say({"ok": True, "power": "on" if machine.on else "off"})

    def _say(self, answer: Mapping[str, object]) -> None:
        self.transport.write(json.dumps(answer).encode() + b"\n")
