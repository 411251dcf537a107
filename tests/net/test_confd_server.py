"""confd on loopback: whole lives of agents, and peers that mean no good."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from cod.flows import boot
from cod.model import Binding, Node, Order, Policy, Site, ipv4
from cod.net.confd import ConfdServer, Limits
from cod.pool import Pool, in_transaction
from cod.store import bindings, conflicts, nodes, secrets, sessions
from cod.store import tables as t
from cod.store.engine import Tx
from cod.wire import confd
from cod.wire.confdxml import Ack, Done, Error, Failed, Heartbeat, Message, Progress, Report, Welcome

NOW = 1_000_000.0
MACS = ["52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:03"]


def report(*macs: str, uuid: str = "4c4c4544-0042-3510-8054-b4c04f4e3232", mib: int = 2048) -> str:
    nics = "".join(f'<nic name="eth{n}" mac="{mac}" link="up" boot="{"no" if n else "yes"}"/>'
                   for n, mac in enumerate(macs))
    return (f'<node version="1"><system uuid="{uuid}"/><firmware kind="bios"/><memory mib="{mib}"/>'
            f'<cpu count="1" sockets="1" arch="x86_64"/>{nics}'
            '<disk name="vda" size="1073741824" transport="virtio" local="yes" rotational="no" removable="no"/>'
            '<kernel release="6.1.0"/></node>')


class Agent:
    """A real `AgentSide` on a blocking socket."""

    def __init__(self, port: int, secret: confd.Secret, mac: str) -> None:
        self.secrets = confd.Secrets(secret)
        self.mac = mac
        self.port = port
        self.got: list[Any] = []
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), 10)
        self.side = confd.AgentSide(self.secrets.current(), self.mac, os.urandom(32))
        self.socket.sendall(self.side.to_send())

    def next(self, kind: type, timeout: float = 10) -> Any:
        """The next message of that kind; others are skipped. EOFError when the server closes."""
        deadline = time.monotonic() + timeout
        while True:
            while self.got:
                message = self.got.pop(0)
                if isinstance(message, kind):
                    return message
            self.socket.settimeout(max(deadline - time.monotonic(), 0.01))
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            for event in self.side.receive(data):
                if isinstance(event, confd.NewSecret):
                    self.secrets.learned(event.secret)
                else:
                    self.got.append(event)
            if out := self.side.to_send():
                self.socket.sendall(out)

    def say(self, message: Message) -> None:
        self.socket.sendall(self.side.send(message))

    def closed(self) -> bool:
        """Does the server close the connection (within ten seconds)?"""
        try:
            while True:
                self.next(type(None))
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()


class World:
    """A confd server, its database, and machines that have booted."""

    def __init__(self, engine: Engine, site: Site, start: Callable[..., ConfdServer]) -> None:
        self.engine, self.site, self.start = engine, site, start
        self.server = start()
        self.agents: list[Agent] = []

    def flow(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **kwargs)

    def machine(self, number: int) -> Node:
        """A machine that DHCP has met, at 127.0.0.1."""
        def add(tx: Tx) -> Node:
            return nodes.add(tx, name=f"n{number}", boot_mac=MACS[number], now=NOW, cause="test", actor="test")
        return self.flow(add)

    def boot(self, number: int) -> confd.Secret:
        """It boots the trampoline: a new secret of its own."""
        secret = confd.Secret(os.urandom(8).hex(), os.urandom(32))
        made = confd.verifier(secret.key, os.urandom(16))

        def mint(tx: Tx) -> None:
            bindings.put(tx, [Binding(ipv4("127.0.0.1"), MACS[number], "boot", None, "lab", None, "bound", NOW + 1e6)])
            boot.mint(tx, MACS[number], "127.0.0.1", secret.id, made.salt, made.stored_key, made.server_key,
                      now=NOW, site=self.site)
        self.flow(mint)
        return secret

    def agent(self, number: int, secret: confd.Secret | None = None) -> Agent:
        agent = Agent(self.server.port, secret or self.boot(number), MACS[number])
        self.agents.append(agent)
        return agent

    def ready(self, number: int) -> Agent:
        """A machine that has connected and reported."""
        agent = self.agent(number)
        agent.next(Welcome)
        agent.say(Report(report(MACS[number], uuid=f"4c4c4544-0042-3510-8054-b4c04f4e323{number}")))
        agent.next(Ack)
        return agent

    def node(self, number: int) -> Node:
        node = self.flow(nodes.by_mac, MACS[number])
        assert node is not None
        return node


@pytest.fixture
def site(site: Site) -> Site:
    subnet = replace(site.subnets[0], server="127.0.0.1", network="127.0.0.0/8")
    return replace(site, subnets=(subnet,), policy=Policy(auto_approve=True, heartbeat=1.0))


@pytest.fixture
def start(reactor: Any, in_reactor: Any, pool: Pool, site: Site) -> Iterator[Callable[..., ConfdServer]]:
    servers: list[ConfdServer] = []

    def start(name: str = "one", **options: Any) -> ConfdServer:
        server = ConfdServer(reactor, pool, site, name, ["127.0.0.1"], 0, clock=lambda: NOW, **options)
        in_reactor(server.startService)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.running:
            in_reactor(server.stopService)


@pytest.fixture
def world(engine: Engine, site: Site, start: Callable[..., ConfdServer]) -> Iterator[World]:
    world = World(engine, site, start)
    yield world
    for agent in world.agents:
        agent.close()


def test_a_machine_reports_and_idles(world: World) -> None:
    world.machine(0)
    agent = world.agent(0)
    assert agent.next(Welcome) == Welcome(ANY, "n0", 1.0)
    agent.say(Report(report(MACS[0])))
    assert agent.next(Ack) == Ack()
    node = world.node(0)
    assert (node.state, node.firmware, node.uuid) == ("inactive", "bios", "4c4c4544-0042-3510-8054-b4c04f4e3232")
    order = agent.next(Order)
    assert (order.id, order.action) == (f"{node.id}.{node.generation}", "wait")


class _Any:
    def __eq__(self, other: object) -> bool:
        return True


ANY: Any = _Any()
