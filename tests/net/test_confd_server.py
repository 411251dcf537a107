"""confd on loopback: whole lives of agents, and peers that mean no good."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update
from twisted.internet.task import Clock

from cod.core.nodes import transitions
from cod.flows.agents import orders, progress
from cod.flows.boot import script
from cod.flows.nodes import hold
from cod.model import Binding, Meter, Node, Policy, RequestTuple, Site, SiteRef, ipv4
from cod.net.confd.server import BATCH, ConfdServer, StrangerLimits
from cod.orders import Order, look_id
from cod.policy.nodes import lifecycle
from cod.pool import Pool, in_transaction
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import bindings, conflicts, holding, nodes, secrets, sessions
from cod.store.people import groups
from cod.store.scheduler import requests
from cod.wire.confd import protocol
from cod.wire.confd.messages import (
    Ack,
    Done,
    Error,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Progress,
    Report,
    Welcome,
    encode,
)
from tests.net.confd_woken import confd_server
from tests.rows import add_vcluster
from tests.waiting import until

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
MACS = ["52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:03"]


def report(*macs: str, uuid: str = "4c4c4544-0042-3510-8054-b4c04f4e3232", mib: int = 2048) -> str:
    nics = "".join(
        f'<nic name="eth{n}" mac="{mac}" link="up" boot="{"no" if n else "yes"}"/>'
        for n, mac in enumerate(macs)
    )
    return (
        f'<node version="1"><system uuid="{uuid}"/><firmware kind="bios"/><memory mib="{mib}"/><cpu'
        f' count="1" sockets="1" arch="x86_64"/>{nics}<disk name="vda" size="1073741824"'
        ' transport="virtio" local="yes" rotational="no" removable="no"/><kernel'
        ' release="6.1.0"/></node>'
    )


def at(number: int) -> str:
    """The address that is bound to a machine."""
    return f"127.0.0.{10 + number}"


class Agent:
    """A real `AgentSide` on a blocking socket."""

    def __init__(self, port: int, secret: protocol.Secret, mac: str, address: str) -> None:
        self.secrets = protocol.Secrets(secret)
        self.mac = mac
        self.address = address
        self.port = port
        self.got: list[Any] = []
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), 60, (self.address, 0))
        self.side = protocol.AgentSide(
            self.secrets.current(), self.mac, os.urandom(32), os.urandom(32)
        )
        self.socket.sendall(self.side.to_send())

    def next(self, kind: type, timeout: float = 60) -> Any:
        """The next message of that kind; others wait. EOFError when the server closes."""
        deadline = time.monotonic() + timeout
        while True:
            for message in self.got:
                if isinstance(message, kind):
                    self.got.remove(message)
                    return message
            self.socket.settimeout(max(deadline - time.monotonic(), 0.01))
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            for event in self.side.receive(data):
                if isinstance(event, protocol.NewSecret):
                    self.secrets.learned(event.secret)
                else:
                    self.got.append(event)
            if out := self.side.to_send():
                self.socket.sendall(out)

    def say(self, message: Message) -> None:
        self.socket.sendall(self.side.send(message))

    def closed(self) -> bool:
        """Return whether the server closes the connection within a minute."""
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

    def at(self, state: protocol.State) -> list[Any]:
        """Return the open connections whose server's side is in the state."""
        connections: list[Any] = [*self.server.open]
        return [each for each in connections if each._side.state is state]

    def flow(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **kwargs)

    def machine(self, number: int) -> Node:
        """A machine that DHCP has met."""

        def add(tx: Tx) -> Node:
            node = nodes.add(
                tx, name=f"n{number}", boot_mac=MACS[number], now=NOW, cause="test", actor="test"
            )
            address = Binding(
                ipv4(at(number)), MACS[number], "boot", node.id, "lab", None, "bound", NOW + 1e6
            )
            bindings.add(tx, [address])
            return node

        made: Node = self.flow(add)
        return made

    def boot(self, number: int) -> protocol.Secret:
        """Boot the trampoline in the machine, which gets a new secret of its own."""
        secret = protocol.Secret(os.urandom(8).hex(), os.urandom(32))
        made = protocol.verifier(secret.key, os.urandom(16))

        def mint(tx: Tx) -> None:
            script.mint(
                tx,
                MACS[number],
                at(number),
                secret.id,
                made.salt,
                made.stored_key,
                made.server_key,
                now=NOW,
                site=self.site,
            )

        self.flow(mint)
        return secret

    def agent(self, number: int, secret: protocol.Secret | None = None) -> Agent:
        agent = Agent(self.server.port, secret or self.boot(number), MACS[number], at(number))
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
    return replace(site, subnets=(subnet,), policy=Policy(auto_approve=True, heartbeat=5.0))


class Timed:
    """A reactor with real sockets, whose time is moved by hand."""

    def __init__(self, reactor: Any, in_reactor: Any) -> None:
        self.clock = Clock()
        self.listenTCP = reactor.listenTCP
        self.callLater, self.seconds = self.clock.callLater, self.clock.seconds
        self._in_reactor = in_reactor

    def advance(self, seconds: float) -> None:
        """Time passes, in steps that no timer is shorter than."""
        self._in_reactor(self.clock.pump, [0.25] * int(seconds * 4))


@pytest.fixture
def timed(reactor: Any, in_reactor: Any) -> Timed:
    return Timed(reactor, in_reactor)


@pytest.fixture
def start(
    timed: Timed, in_reactor: Any, pool: Pool, site: Site
) -> Iterator[Callable[..., ConfdServer]]:
    servers: list[ConfdServer] = []

    def start(name: str = "one", **options: Any) -> ConfdServer:
        server = confd_server(
            timed,
            pool,
            SiteRef(site),
            name,
            ["127.0.0.1"],
            0,
            clock=lambda: NOW,
            **options,
        )
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


class _Any:
    def __eq__(self, other: object) -> bool:
        return True


ANY: Any = _Any()


def test_an_agent_is_refused_while_its_driver_says_off(
    engine: Engine, site: Site, start: Callable[..., ConfdServer]
) -> None:
    """The secret stays good: the agent tries again until its driver says on."""
    asked: list[str] = []

    async def power(meter: Meter) -> str:
        asked.append(meter.node)
        return "off" if len(asked) == 1 else "on"

    world = World(engine, site, lambda: start(power=power))
    world.machine(0)
    inactive = {"state": "inactive", "power_driver": "lab"}
    world.flow(lambda tx: tx.execute(update(t.nodes).values(**inactive)))
    secret = world.boot(0)
    agent = world.agent(0, secret)
    assert (agent.next(Error).code, agent.closed()) == ("refused", True)
    agent = world.agent(0, secret)
    agent.next(Welcome)
    agent.say(Report(report(MACS[0])))
    agent.next(Ack)
    assert world.node(0).power == "on"
    agent.close()
    again = Agent(world.server.port, agent.secrets.current(), MACS[0], at(0))
    again.next(Welcome)  # the same boot: nobody is asked
    assert asked == ["n0"] * 2
    again.close()


def test_an_agent_whose_switch_heard_it_on_another_port_waits_for_an_administrator(
    engine: Engine, site: Site, start: Callable[..., ConfdServer]
) -> None:
    asked: list[str] = []

    async def ports(mac: str) -> tuple[tuple[str, ...], ...]:
        asked.append(mac)
        return (("leaf p2",),)

    world = World(engine, site, lambda: start(ports=ports))
    world.machine(0)
    place = {"home_at": 1.0, "home_port": "leaf p1", "state": "trampoline"}
    world.flow(lambda tx: tx.execute(update(t.nodes).values(**place)))
    agent = world.agent(0)
    agent.next(Welcome)
    agent.say(Report(report(MACS[0])))
    agent.next(Ack)
    assert (world.node(0).state, asked) == ("quarantined", [MACS[0]])
    agent.close()


def test_a_machine_reports_and_idles(world: World) -> None:
    world.machine(0)
    agent = world.agent(0)
    assert agent.next(Welcome) == Welcome(ANY, "n0", 5.0)
    agent.say(Report(report(MACS[0])))
    assert agent.next(Ack) == Ack()
    node = world.node(0)
    assert (node.state, node.firmware, node.uuid) == (
        "inactive",
        "bios",
        "4c4c4544-0042-3510-8054-b4c04f4e3232",
    )
    order = agent.next(Order)
    assert (order.id, order.action) == (f"{node.id}.{node.generation}", "wait")


def test_an_order_that_could_not_be_sent_waits_again(
    world: World, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, refused = ConfdServer.send_order, []

    def once(server: ConfdServer, node_id: int, epoch: int, order: Order) -> None:
        if refused or order.action != "prime":
            send(server, node_id, epoch, order)
        else:
            refused.append(order)
            server.unsent.add((node_id, epoch))

    monkeypatch.setattr(ConfdServer, "send_order", once)
    world.machine(0)
    agent = world.agent(0)
    agent.next(Welcome)
    agent.say(Report(report(MACS[0])))
    agent.next(Ack)
    agent.next(Order)
    to_prime(world, 0)
    timed.advance(1.0)
    until(lambda: world.server.unsent and not world.server._polling)
    timed.advance(1.0)
    assert [agent.next(Order)] == refused


def test_an_order_is_not_missed_when_its_commit_is_not_answered(
    world: World, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_at, missed = world.server.pool.run_at, []

    def cut(priority: int, flow: Callable[..., Any], *args: Any) -> Any:
        def answered(result: Any) -> Any:
            if flow is orders.waiting and result.value and not missed:
                missed.append(result)
                raise ConnectionError
            return result

        return run_at(priority, flow, *args).addCallback(answered)

    monkeypatch.setattr(world.server.pool, "run_at", cut)
    world.machine(0)
    agent = world.agent(0)
    agent.next(Welcome)
    agent.say(Report(report(MACS[0])))
    agent.next(Ack)
    agent.next(Order)
    to_prime(world, 0)
    timed.advance(1.0)
    until(lambda: missed and not world.server._polling)
    timed.advance(1.0)
    assert [agent.next(Order)] == [order for _, _, order in missed[0].value]


def to_prime(world: World, number: int) -> None:
    """Somebody gives the machine to a vcluster."""

    def assign(tx: Tx) -> None:
        document = (
            '<template><image target="disk" url="http://10.0.0.9/a" size="1000" compression="raw" '
            f'sha256="{"ab" * 32}"/></template>'
        )
        row = {"name": "t", "revision": 1, "document": document, "digest": "", "created_at": 0.0}
        template_id = new_id(tx.execute(insert(t.config_templates).values(**row)))
        group = groups.ensure(tx, "g", 0.0)
        vcluster = add_vcluster(
            tx, "v", group.id, template_id, world.site.subnets[0], now=NOW, lease_time=1e6
        )
        request = requests.add(
            tx,
            vcluster_id=vcluster.id,
            kind="create",
            priority=0,
            now=NOW,
            tuples=[RequestTuple(1, "", template_id)],
        )
        node = nodes.by_mac(tx, MACS[number])
        assert node is not None
        held = holding.take(
            tx,
            node,
            vcluster=vcluster,
            request_id=request.id,
            template_id=template_id,
            hostname="h",
            now=NOW,
        )
        wanted = holding.assignment(tx, held)
        assert wanted is not None
        transitions.apply(
            tx,
            held,
            lifecycle.assign(held, wanted),
            now=NOW,
            actor="test",
            policy=world.site.policy,
        )

    world.flow(assign)


# ---------------------------------------------------------------- lives


def test_primed_through_lost_connections(world: World, timed: Timed) -> None:
    world.machine(0)
    agent = world.ready(0)
    assert agent.next(Order).action == "wait"
    to_prime(world, 0)
    timed.advance(0.5)  # found by the poll: nobody woke the server
    order = agent.next(Order)
    assert (order.action, order.images[0].size) == ("prime", 1000)
    agent.say(Progress(order.id, "write", 400, 1000, 12.5))
    until(lambda: world.node(0).progress_done == 400)
    agent.close()
    agent.connect()
    agent.next(Welcome)
    agent.say(Report(report(MACS[0], uuid="4c4c4544-0042-3510-8054-b4c04f4e3230")))
    assert agent.next(Ack) == Ack()
    assert agent.next(Order) == order
    assert world.node(0).state == "prime"
    for _ in range(2):  # the answer may be lost: it is said again
        agent.say(Done(order.id, {"bytes_written": 1000.0}))
        assert agent.next(Ack) == Ack(order.id)
    assert agent.next(Order).action == "reboot"
    assert world.node(0).state == "boot"


def test_of_frequent_progress_the_newest_is_written_every_two_seconds(
    world: World, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def note(tx: Tx, peer: Any, order: str, phase: str, done: int, *rest: Any) -> Any:
        written.append(done)
        return write(tx, peer, order, phase, done, *rest)

    write = progress.progress
    monkeypatch.setattr(progress, "progress", note)
    world.machine(0)
    agent = world.ready(0)
    agent.next(Order)
    to_prime(world, 0)
    timed.advance(0.5)
    order = agent.next(Order)
    for done in (100, 200, 300):
        agent.say(Progress(order.id, "write", done, 1000, 12.5))
    connection: Any = world.server.nodes[world.node(0).id]
    until(lambda: connection._newest and connection._newest.done == 300)
    assert written == [100]
    timed.advance(2.0)
    until(lambda: written == [100, 300])
    until(lambda: world.node(0).progress_done == 300)
    agent.say(Progress(order.id, "write", 400, 1000, 12.5))
    agent.say(Failed(order.id, "the disk broke"))
    assert agent.next(Ack) == Ack(order.id)
    assert written == [100, 300, 400]
    last = world.flow(nodes.history, world.node(0).id)[-1]
    assert last["bytes_written"] == 400, "by when it failed"


def test_failure_is_acknowledged_and_told(
    world: World, in_reactor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world.machine(0)
    agent = world.ready(0)
    agent.next(Order)
    to_prime(world, 0)
    in_reactor(world.server.poll)  # woken
    order = agent.next(Order)
    agent.say(Failed(order.id, "disk too\nsmall"))
    assert agent.next(Ack) == Ack(order.id)
    assert (world.node(0).state, world.node(0).reason) == ("trampoline", "disk too\nsmall")
    assert f"n0: order {order.id} failed: disk too small" in caplog.messages
    said = next(
        record for record in caplog.records if record.getMessage().endswith("disk too small")
    )
    assert (vars(said)["node"], vars(said)["mac"]) == (
        "n0",
        MACS[0],
    ), "programs need not take the line apart"


def test_heartbeats_are_answered_and_written(world: World, timed: Timed) -> None:
    world.machine(0)
    agent = world.ready(0)
    agent.say(Heartbeat())
    assert agent.next(Heartbeat) == Heartbeat()
    world.server.clock = lambda: NOW + 77
    agent.say(Heartbeat())
    agent.next(Heartbeat)
    world.server.site.current = replace(world.site, policy=Policy(heartbeat=1e6))
    timed.advance(BATCH)
    until(lambda: world.node(0).last_seen == NOW + 77)


def test_signs_of_life_are_not_written_beside_what_agents_say(
    world: World, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both lock rows of many nodes, in other orders: on MariaDB one would end the other."""
    world.machine(0)
    world.ready(0)
    together: list[str] = []
    run = world.server.pool.run_together

    def noted(flow: Any, *args: Any) -> Any:
        together.append(getattr(flow, "__name__", ""))
        return run(flow, *args)

    monkeypatch.setattr(world.server.pool, "run_together", noted)
    world.server.site.current = replace(world.site, policy=Policy(heartbeat=1e6))
    world.server.clock = lambda: NOW + 77
    world.server.seen[world.node(0).id] = NOW + 77
    timed.advance(BATCH)
    until(lambda: world.node(0).last_seen == NOW + 77)
    until(lambda: {"seen", "held"} <= set(together))


def test_short_heartbeats_are_written_before_anybody_takes_the_node_for_silent(
    world: World, timed: Timed
) -> None:
    """A warm node counts as lost after twelve heartbeats in which nothing was written."""
    world.machine(0)
    world.ready(0)
    world.server.site.current = replace(world.site, policy=Policy(heartbeat=1.0))
    world.server.clock = lambda: NOW + 3
    timed.advance(3)
    until(lambda: world.flow(sessions.silent, NOW + 1) == [])


def test_the_newest_connection_wins(
    world: World, start: Callable[..., ConfdServer], timed: Timed
) -> None:
    world.machine(0)
    first = world.ready(0)
    second = Agent(world.server.port, first.secrets.current(), MACS[0], at(0))
    second.next(Welcome)
    assert first.next(Error).code == "replaced"
    assert first.closed()
    other = start("two")
    third = Agent(other.port, first.secrets.current(), MACS[0], at(0))
    third.next(Welcome)
    assert second.side.state is protocol.State.OPEN
    world.server.site.current = replace(world.site, policy=Policy(heartbeat=1e6))
    other.site = world.server.site
    timed.advance(BATCH)  # then it learns that it does not hold the node any more
    assert second.next(Error).code == "replaced"
    third.say(Heartbeat())
    third.next(Heartbeat)
    world.agents += [second, third]
    assert world.node(0).state == "inactive"


def test_what_an_older_connection_says_is_not_heard(
    world: World, start: Callable[..., ConfdServer]
) -> None:
    world.machine(0)
    first = world.ready(0)
    other = start("two")
    second = Agent(other.port, first.secrets.current(), MACS[0], at(0))
    second.next(Welcome)
    world.agents.append(second)
    first.say(Report(report(MACS[0], mib=666)))
    assert first.next(Error).code == "replaced"
    assert first.closed()
    assert "666" not in (world.node(0).attributes or "")


def test_an_agent_that_stays_away_is_lost(world: World, timed: Timed) -> None:
    world.machine(0)
    agent = world.ready(0)
    agent.close()
    until(lambda: not world.server.nodes)
    timed.advance(14)
    assert not world.server.counts["lost"]  # not at once: it may come back
    timed.advance(2)
    until(lambda: world.server.counts["lost"] == 1)
    assert world.node(0).state == "trampoline"


def test_an_agent_that_falls_silent_is_lost(world: World, timed: Timed) -> None:
    world.machine(0)
    agent = world.ready(0)
    agent.next(Order)
    timed.advance(14)
    agent.say(Heartbeat())
    agent.next(Heartbeat)
    timed.advance(14)
    assert world.server.nodes
    timed.advance(3)
    until(lambda: world.node(0).state == "trampoline")
    assert agent.closed()


def test_a_server_finds_what_its_dead_predecessor_left(
    world: World, start: Callable[..., ConfdServer], in_reactor: Any, timed: Timed
) -> None:
    for number in (0, 1):
        world.machine(number)
        world.ready(number)
    in_reactor(world.server.stopService)
    assert world.agents[0].next(Error).code == "stopping"
    assert world.flow(sessions.connected, [world.node(0).id, world.node(1).id]) == {
        world.node(0).id,
        world.node(1).id,
    }
    world.server = start()
    back = world.agent(0, world.agents[0].secrets.current())
    back.next(Welcome)
    until(
        lambda: [call for call in timed.clock.getDelayedCalls() if call.func == world.server.lose]
    )
    timed.advance(14)
    assert world.node(1).state == "inactive"
    back.say(Heartbeat())
    back.next(Heartbeat)
    timed.advance(2)
    until(lambda: world.node(1).state == "trampoline")
    assert world.node(0).state == "inactive"


def test_a_connection_that_breaks_while_its_session_is_opened_is_nobodys(
    world: World, timed: Timed, pool: Pool
) -> None:
    node = world.machine(0)
    agent = world.agent(0)
    until(lambda: world.at(protocol.State.PROOF))
    begun, go = threading.Event(), threading.Event()
    pool.run(lambda tx: (begun.set(), go.wait(30)))  # the database takes its time
    assert begun.wait(30), "else what is more urgent goes first"
    agent.side.receive(agent.socket.recv(65536))
    agent.socket.sendall(agent.side.to_send())
    until(lambda: world.at(protocol.State.TRADE))
    agent.close()
    until(lambda: not world.server.open)
    go.set()
    until(lambda: world.flow(sessions.connected, [node.id]))
    until(
        lambda: [call for call in timed.clock.getDelayedCalls() if call.func == world.server.lose]
    )
    assert not world.server.nodes
    timed.advance(16)
    until(lambda: not world.flow(sessions.connected, [node.id]))


class Held:
    """The database takes its time until `go`: what agents say meanwhile is answered together."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.go = pool, threading.Event()

    def hold(self) -> None:
        begun = threading.Event()

        def busy(tx: Tx) -> None:
            begun.set()
            self.go.wait(60)

        self._pool.read(busy)
        assert begun.wait(60)

    def wait_for(self, messages: int) -> None:
        """Wait until so many messages wait for the database."""
        until(lambda: len(self._pool._gathered) == messages)


@pytest.fixture
def held(pool: Pool) -> Iterator[Held]:
    held = Held(pool)
    yield held
    held.go.set()


def test_a_message_that_is_refused_harms_no_other_of_its_transaction(
    world: World, held: Held
) -> None:
    for number in (0, 1, 2):
        world.machine(number)
        world.ready(number).next(Order)
    until(lambda: not world.server._polling)
    held.hold()
    foreign = f"{world.node(0).id}.{world.node(0).generation}"
    uuids = [f"4c4c4544-0042-3510-8054-b4c04f4e323{number}" for number in range(3)]
    hardware = [report(mac, uuid=uuid, mib=4096) for mac, uuid in zip(MACS, uuids, strict=True)]
    messages = [Report(hardware[0]), Done(foreign, {}), Report(hardware[2])]
    for count, (agent, message) in enumerate(zip(world.agents, messages, strict=True)):
        agent.say(message)
        held.wait_for(count + 1)
    held.go.set()
    assert world.agents[0].next(Ack) == Ack()
    assert world.agents[1].next(Error).code == "refused"
    assert world.agents[2].next(Ack) == Ack()
    assert ["4096" in (world.node(n).attributes or "") for n in (0, 1, 2)] == [True, False, True]


def test_in_one_transaction_the_newer_connection_of_a_machine_wins(
    world: World, held: Held
) -> None:
    world.machine(0)
    first = world.ready(0)
    first.next(Order)
    second = world.agent(0, first.secrets.current())
    until(lambda: world.at(protocol.State.PROOF))
    until(lambda: not world.server._polling)
    held.hold()
    second.side.receive(second.socket.recv(65536))
    second.socket.sendall(second.side.to_send())
    held.wait_for(1)
    first.say(Report(report(MACS[0], mib=666)))
    held.wait_for(2)
    held.go.set()
    second.next(Welcome)
    assert first.next(Error).code == "replaced"
    assert first.closed()
    assert "666" not in (world.node(0).attributes or "")


def test_a_session_without_a_connection_does_not_keep_a_node_alive(
    world: World, timed: Timed
) -> None:
    world.machine(0)
    agent = world.ready(0)
    node_id = world.node(0).id
    older = world.flow(sessions.get, node_id)
    # its connection came to nothing
    world.flow(sessions.open, node_id, "one", at(0), NOW + 60, older)

    def later() -> bool:
        timed.advance(BATCH)
        return world.node(0).state == "trampoline"

    until(later)
    assert agent.closed()


# ---------------------------------------------------------------- those who are not who they say


def test_refused_strangers_do_not_disturb_the_real_node(world: World) -> None:
    world.machine(0)
    world.machine(1)
    real = world.ready(0)
    before = world.node(0)
    stolen, own = world.boot(0), world.boot(1)
    attempts = {
        "another secret": Agent(
            world.server.port, protocol.Secret(stolen.id, bytes(32)), MACS[0], at(0)
        ),
        "from elsewhere": Agent(world.server.port, stolen, MACS[0], at(1)),
        "another's MAC": Agent(world.server.port, own, MACS[0], at(1)),
        "no such secret": Agent(
            world.server.port, protocol.Secret("f" * 16, bytes(32)), MACS[0], at(0)
        ),
    }
    for name, impostor in attempts.items():
        assert impostor.closed(), name
        assert not any(isinstance(message, Welcome) for message in impostor.got), name
    real.say(Heartbeat())
    assert real.next(Heartbeat)
    assert world.node(0) == before
    assert world.flow(secrets.get, stolen.id) is not None


def test_an_agent_that_encrypts_nothing_is_told_to_reboot(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cod.confd")
    world.machine(0)
    secret = world.boot(0)
    with socket.create_connection(("127.0.0.1", world.server.port), 60, (at(0), 0)) as peer:
        peer.sendall(protocol.frame(encode(Hello(secret.id, MACS[0], bytes(32)))))
        answer = until_closed(peer)
    assert b'code="unknown"' in answer
    assert b"build the trampolines anew" in answer
    assert any("this trampoline encrypts nothing" in each.getMessage() for each in caplog.records)
    assert world.flow(secrets.get, secret.id) is not None


def until_closed(peer: socket.socket) -> bytearray:
    """Return all that the server still says."""
    said = bytearray()
    while data := peer.recv(65536):
        said += data
    return said


def test_a_secret_opens_the_door_once(world: World) -> None:
    world.machine(0)
    secret = world.boot(0)
    real = world.agent(0, secret)
    real.next(Welcome)
    thief = Agent(world.server.port, secret, MACS[0], at(0))
    assert thief.next(Error).code == "unknown"
    assert thief.closed()
    real.say(Heartbeat())
    assert real.next(Heartbeat)


def test_a_recorded_conversation_is_worth_nothing(world: World) -> None:
    world.machine(0)
    secret = world.boot(0)
    sent = bytearray()
    real = world.agent(0, secret)
    real.socket = Recorder(real.socket, sent)  # type: ignore[assignment]
    real.next(Welcome)
    real.say(Report(report(MACS[0])))
    real.next(Ack)
    replay = socket.create_connection(("127.0.0.1", world.server.port), 60, (at(0), 0))
    replay.sendall(bytes(sent))
    assert closes(replay)
    real.say(Heartbeat())
    assert real.next(Heartbeat)


def test_a_report_in_anothers_name_is_refused(world: World) -> None:
    world.machine(0)
    world.machine(1)
    real = world.ready(0)
    before = world.node(0)
    impostor = world.agent(1)
    impostor.next(Welcome)
    for macs in ([MACS[0]], [MACS[1], MACS[0]]):
        impostor.say(Report(report(*macs)))
        assert impostor.next(Error).code == "refused"
    impostor.say(Done(f"{before.id}.{before.generation}"))
    assert impostor.next(Error).code == "refused"
    assert impostor.closed()
    assert world.node(0) == before
    assert world.node(1).attributes is None
    assert [c["kind"] for c in world.flow(conflicts.every)] == ["identity"]
    real.say(Heartbeat())
    assert real.next(Heartbeat)


# ---------------------------------------------------------------- those who mean no good


class Recorder:
    """A socket that remembers what was sent."""

    def __init__(self, inner: socket.socket, sent: bytearray) -> None:
        self._inner, self._sent = inner, sent

    def sendall(self, data: bytes) -> None:
        self._sent += data
        self._inner.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def closes(peer: socket.socket, seconds: float = 60.0) -> bool:
    """Return whether the server closes the connection."""
    peer.settimeout(seconds)
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


BOMB = b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><hello>&b;</hello>'


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        (1 << 30).to_bytes(4, "big"),
        b"\xff" * 5000,
        protocol.frame(b""),
        protocol.frame(BOMB),
        protocol.frame(b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>'),
        protocol.frame(b"<a>" * 1000),
        (300_000).to_bytes(4, "big") + b"<a>" * 100_000,
        protocol.frame(b"<heartbeat/>"),
    ],
)
def test_rubbish_is_refused_at_once_and_logged(
    world: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cod.confd")
    peer = socket.create_connection(("127.0.0.1", world.server.port), 60)
    with contextlib.suppress(ConnectionError):  # before it is all sent
        peer.sendall(data)
    assert closes(peer)
    assert [r for r in caplog.records if r.getMessage().startswith("127.0.0.1: closed: ")]
    world.machine(0)
    world.ready(0)


def test_strangers_cannot_fill_the_log(
    world: World, timed: Timed, caplog: pytest.LogCaptureFixture
) -> None:
    """Log one line a minute of each address, and how many more there were."""
    caplog.set_level("INFO", "cod.confd")

    def comes() -> None:
        with socket.create_connection(("127.0.0.1", world.server.port), 60) as peer:
            peer.sendall(b"\xff" * 100)
            assert closes(peer)

    for _ in range(20):
        comes()
    assert len(caplog.records) == 1
    timed.advance(61)
    comes()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "127.0.0.1",
        "19 more connections of unknown peers were closed",
        "127.0.0.1",
    ]


def test_a_proven_peer_gets_no_further_with_rubbish(world: World) -> None:
    """The nesting of 100,000, a bomb and a huge length, each properly sealed by an agent that was
    let in."""
    for number, body in enumerate([b"<a>" * 100_000, BOMB, b""]):
        world.machine(number)
        agent = world.ready(number)
        seal = agent.side._out
        assert seal is not None
        with contextlib.suppress(ConnectionError):  # before it is all sent
            agent.socket.sendall(
                protocol.frame(seal.close(body)) if body else (1 << 30).to_bytes(4, "big")
            )
        assert agent.closed()
    until(lambda: not world.server.nodes)


def test_dawdlers_are_cut_off(start: Callable[..., ConfdServer], timed: Timed) -> None:
    server = start("slow", limits=StrangerLimits(proof_time=10.0))
    silent, slow = (socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(2))
    until(lambda: len(server.open) == 2)
    for byte in b"\0\0\1\0<hell":  # a byte a second is no proof
        slow.sendall(bytes([byte]))
        timed.advance(1.0)
    assert len(server.open) == 2
    timed.advance(2)
    assert closes(silent)
    assert closes(slow)
    until(lambda: not server.open and not +server.strangers)


def test_one_address_gets_few_unproven_connections(world: World) -> None:
    there = [socket.create_connection(("127.0.0.1", world.server.port), 60) for _ in range(8)]
    until(lambda: world.server.strangers["127.0.0.1"] == 8)
    for _ in range(3):
        ninth = socket.socket()
        with contextlib.suppress(ConnectionError):
            ninth.connect(("127.0.0.1", world.server.port))
        assert closes(ninth)
    world.machine(0)
    world.ready(0)  # from its own address
    for one in there:
        one.close()
    until(lambda: world.server.strangers["127.0.0.1"] == 0)


def test_random_bytes_by_the_thousand(world: World) -> None:
    chance = random.Random(7)
    for _ in range(300):
        peer = socket.create_connection(
            ("127.0.0.1", world.server.port), 60, (f"127.0.1.{chance.randrange(250)}", 0)
        )
        with contextlib.suppress(ConnectionError):
            size = chance.randrange(1, 300)
            body = chance.randbytes(size)
            peer.sendall(size.to_bytes(4, "big") + body if chance.random() < 0.7 else body)
        peer.close()
    until(lambda: not world.server.open)
    world.machine(0)
    world.ready(0)


def test_a_peer_that_sends_ahead_is_not_read_for_ever(world: World) -> None:
    """A hundred messages at once: they are all answered, and never are more than a few kept."""
    world.machine(0)
    agent = world.ready(0)
    agent.next(Order)
    order_id = f"{world.node(0).id}.0"
    threading.Thread(
        target=agent.socket.sendall,
        daemon=True,
        args=(b"".join(agent.side.send(Done(order_id)) for _ in range(100)),),
    ).start()
    for _ in range(100):
        assert agent.next(Ack).order == order_id


def test_an_order_that_a_newer_one_has_overtaken_is_left_out(
    world: World, timed: Timed, in_reactor: Any
) -> None:
    """A look for orders may have found it before a message moved the node, whose answer took the
    newer order along. The next look sends the newer one again."""
    world.machine(0)
    agent = world.ready(0)
    newest = agent.next(Order)
    peer = next(iter(world.server.open)).peer
    assert peer is not None
    node, _, generation = newest.id.partition(".")
    overtaken = Order(f"{node}.{int(generation) - 1}", "wait")
    in_reactor(world.server.send_order, peer.node_id, peer.epoch, overtaken)
    timed.advance(1.0)
    assert agent.next(Order) == newest


def test_a_machine_is_asked_what_it_holds_when_the_database_has_lost_commits(
    world: World, timed: Timed
) -> None:
    """A node's generation may then be lower than that of the last order that its agent got."""
    world.machine(0)
    agent = world.ready(0)
    newest = agent.next(Order)
    world.flow(lambda tx: tx.execute(update(t.nodes).values(generation=0)) and None)
    world.flow(hold.start, NOW, hold.LOST)
    for _ in range(2):  # the first look finds that the last order was of a later generation
        timed.advance(1.0)
        until(lambda: not world.server._polling)
    order = agent.next(Order, timeout=10)
    assert (order.id, order.action) == (look_id(f"{world.node(0).id}.1"), "look")
    assert int(newest.id.partition(".")[2]) > 1
