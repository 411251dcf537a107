"""The server's own object graph (`cod.service.parts`) on simulated time, network and threads.

Each part is a process with a pool of its own, as in `cod serve`. What the code takes from the
modules `threading`, `queue`, `time` and `os` in four places is given to it by `seams`; all else it
takes from its reactor.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

import cod.fileservers.edge
import cod.fileservers.loading
import cod.net.confd.server
import cod.net.nmp.server
import cod.net.notify.delivery
import cod.pool
import cod.power.edge
import cod.switches.edge
import cod.switches.loading
import cod.workers.ingest
import cod.workers.manager
import cod.workers.starts
import trampoline.agent
from cod.choices import FileServerDriverKind
from cod.model import FileServer, Policy, Site, SiteRef, Subnet, VolumeRules
from cod.model.site.network import Boot, Dns, Nmp
from cod.net.bootserver.sendfile import SendFile
from cod.net.dhcp.server import DhcpServer
from cod.pool import Pool
from cod.service.parts import PARTS, PartContext
from cod.site.load import Settings
from cod.site.tables import ApiTable, ServerTable
from cod.wire.confd import protocol
from cod.workers import lost_commits
from cod.workers.manager import Manager
from tests.world import fileserver, switch, vcm
from tests.world.clock import SimReactor, SimThreads
from tests.world.machine import RELAY, SERVERS, agree
from tests.world.network import DatagramSocket
from tests.world.plan import Plan

SUBNET = Subnet(
    name="lab",
    network="10.80.0.0/16",
    server=SERVERS[0],
    boot_pool=("10.80.1.0", "10.80.4.255"),
    block_pool=("10.80.128.0", "10.80.255.255"),
    block_size=16,
    router=RELAY,
    relay=RELAY,
)
LEFT_OUT = {
    "Recorder",
    "CertificateWatch",
    "DirectorySync",
    "CurveReader",
    "TftpServer",
}
"""Services that have nothing to do in this world: machines here boot by HTTP."""


FILES = FileServer(fileserver.NAME, FileServerDriverKind.GANESHA, "10.77.0.8", "/srv")


def site(plan: Plan, own: str, servers: Sequence[str]) -> Site:
    """Return the site of a world, as the server at the address `own` reads it."""
    others = tuple(each for each in servers if each != own)
    policy = Policy(
        auto_approve=True,
        patience=plan.patience,
        new_rate=1000.0,
        inertia=20.0,
        reclaim_grace=10.0,
        drain_grace=10.0,
        default_lease=3600.0,
        approved_share=0.0,
    )
    return Site(
        name="world",
        domain="cod.test",
        subnets=(replace(SUBNET, server=own, others=others),),
        policy=policy,
        energy=plan.energy,
        dns=Dns(port=0),
        nmp=Nmp(plain_port=vcm.PORT),
        boot=Boot(),
        fileservers=(FILES,) if plan.volumes else (),
        volumes=VolumeRules(grace=30.0),
        switches=(switch.SWITCH,),
        isolation=switch.isolation(own, others),
    )


def settings(folder: Path, name: str) -> Settings:
    """Return the settings of a server that keeps its files in `folder`, which all servers share."""
    server = ServerTable(name=name, data_dir=folder, database="sqlite://")
    made = Settings(folder / "site.toml", server, ApiTable())
    for name, size in (("vmlinuz", 4096), ("ramdisk", 4096)):
        (made.boot / "trampoline").mkdir(parents=True, exist_ok=True)
        (made.boot / "trampoline" / name).write_bytes(bytes(size))
    for each in (made.images, made.incoming, made.run):
        each.mkdir(parents=True, exist_ok=True)
    return made


# ---------------------------------------------------------------- the database


class Away(Exception):
    """What the driver says of a database that does not answer: its number comes first."""


def trouble(number: int, words: str) -> OperationalError:
    """Return the error that MariaDB's driver would raise."""
    return OperationalError("COMMIT", {}, Away(number, words))


class SimEngine:
    """The engine of one process. A transaction takes no time of its own; it waits before it begins
    and after its end, and may fail in all the ways that `world.database` draws."""

    def __init__(self, world: Any, reactor: SimReactor, engine: Engine) -> None:
        self._world, self._reactor, self._engine = world, reactor, engine
        self.dialect = engine.dialect
        self._reading = bool(engine.get_execution_options().get("reading"))

    def execution_options(self, **options: Any) -> SimEngine:
        return SimEngine(self._world, self._reactor, self._engine.execution_options(**options))

    def dispose(self) -> None:
        """Keep the connection, which all processes share."""

    @contextmanager
    def begin(self) -> Iterator[Any]:
        world, reactor = self._world, self._reactor
        if not self._reading:
            world.hesitate(reactor, has_read=False)
        reactor.pause(world.database.latency())
        fault = world.database.fault(self._reading)
        if fault == "away":
            raise trouble(2002, "the database is away")
        with self._engine.begin() as tx:
            yield tx
            if fault == "deadlock":
                raise trouble(1213, "deadlock")
        world.committed(reactor, self._reading)
        if fault == "lost answer":
            raise trouble(2013, "connection lost during COMMIT")
        reactor.pause(world.database.latency())


# ---------------------------------------------------------------- processes


class SimWake:
    """Wake-ups between the parts of the server, which may be lost."""

    def __init__(self, world: Any, reactor: SimReactor) -> None:
        self._world, self._reactor = world, reactor
        self._calls: dict[str, list[Any]] = {}

    def on(self, what: str, call: Any) -> None:
        self._calls.setdefault(what, []).append(call)

    def effects(self, effects: Any) -> None:
        for effect in sorted(effects, key=repr):  # a set of them has no order of its own
            if effect.kind == "wake":
                self.wake(effect.what)

    def wake(self, what: str) -> None:
        for part in self._world.parts.values():
            if part.reactor.host == self._reactor.host:
                self._world.clock.later(0.001, part.wake.heard, what, owner=part.reactor)

    def heard(self, what: str) -> None:
        if self._world.loses_wake():
            return
        for call in self._calls.get(what, ()):
            call()

    def close(self) -> None:
        """Keep nothing."""


class Part:
    """One process of server number `server` while it runs."""

    def __init__(self, world: Any, server: int, name: str, threads: int) -> None:
        self.site = world.sites[server]
        self.now = lambda: world.clock.now + world.ahead[server]
        host = world.servers[server]
        self.reactor = SimReactor(world.clock, world.network, host, f"{name} {server}")
        world.clock.running = self.reactor
        self.pool = Pool(SimEngine(world, self.reactor, world.engine), self.reactor, threads)
        self.wake = SimWake(world, self.reactor)
        context = PartContext(
            self.reactor,
            self.pool,
            SiteRef(self.site),
            world.settings[server],
            self.wake,
            self.now,
        )
        lost_commits.look_first(world.engine, context.settings.memory, self.now())
        left_out = LEFT_OUT if world.plan.volumes else {*LEFT_OUT, "FileServerEdge"}
        self.services = [
            each
            for each in (PARTS[name](context) if name != "web" else ())
            if type(each).__name__ not in left_out
        ]

    def start(self) -> None:
        for each in self.services:
            each.startService()


def _opened(self: Any) -> DatagramSocket:
    reactor = self._reactor
    return DatagramSocket(reactor.network, reactor, (self.subnet.server, 67), self)


def _sent(sender: SendFile) -> Any:
    sender._transport.write(os.pread(sender._file.fd, sender._end - sender.at, sender.at))
    sender.at = sender._end
    sender._transport._reactor.callLater(0, sender.done.callback, None)
    return sender.done


_act = Manager._act


@contextmanager
def seams(world: Any) -> Iterator[None]:
    """Give the product the world's threads, time, chance and sockets."""
    threads = SimThreads(world.clock)
    chance = random.Random(f"{world.seed} urandom")
    before = random.getstate()
    random.seed(f"{world.seed} random")
    poll = world.plan.poll
    defaults = protocol.AgentSide.__init__.__defaults__ or ()

    async def acts(manager: Any, *asked: Any) -> Any:
        world.acts(manager._reactor)
        return await _act(manager, *asked)

    patches = [
        patch.object(Manager, "_act", acts),
        patch.multiple(cod.pool, threading=threads, queue=threads, time=threads),
        patch.object(trampoline.agent, "threading", threads),
        patch.object(os, "urandom", chance.randbytes),
        patch.object(random, "_urandom", chance.randbytes),
        patch.object(DhcpServer, "_open", _opened),
        patch.object(SendFile, "start", _sent),
        patch.object(protocol.AgentSide.__init__, "__defaults__", (*defaults[:-1], agree)),
        patch.object(cod.fileservers.loading, "drivers", world.files.drivers),
        patch.object(cod.switches.loading, "drivers", world.switch.drivers),
        patch.object(cod.switches.loading, "mac_tables", lambda _: {}),
        patch.object(cod.switches.edge, "POLL", poll),
        patch.object(cod.fileservers.edge, "COMPARE", 60.0),
        patch.object(cod.fileservers.edge, "POLL", poll),
        patch.object(cod.net.confd.server, "POLL", poll),
        patch.object(cod.net.nmp.server, "POLL", poll),
        patch.object(cod.power.edge, "POLL", poll),
        patch.object(cod.workers.manager, "PERIOD", poll),
        patch.object(cod.net.notify.delivery, "POLL", 5 * poll),
        patch.object(cod.workers.ingest, "PERIOD", 5 * poll),
        patch.object(cod.workers.starts, "PERIOD", 5 * poll),
    ]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            with suppress(RuntimeError):
                each.stop()
        random.setstate(before)
