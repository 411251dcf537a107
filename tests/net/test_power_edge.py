"""The power edge with a moved clock and a machine that behaves as machines do; the lab driver over a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock, deferLater
from twisted.protocols.basic import LineOnlyReceiver

from cod.flows import power as flows
from cod.model import Node
from cod.policy.power import BUDGET
from cod.pool import in_transaction
from cod.power import edge as edges
from cod.power.driver import PowerError
from cod.power.edge import Pace, PowerEdge
from cod.power.lab import LabDriver
from cod.store import nodes, tables
from cod.store.engine import Tx


class Straight:
    """The pool without its threads: the flow runs now, in a transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, flow: Callable[..., Any], *args: Any) -> Deferred[Any]:
        return succeed(in_transaction(self.engine, flow, *args))


class Bmc:
    """Switches that take `delay` seconds to show; `deaf` machines accept and do nothing; `dead` ones do not answer."""

    def __init__(self, clock: Clock, delay: float = 0.0) -> None:
        self.clock, self.delay = clock, delay
        self.power: dict[str, str] = {}
        self.said: list[str] = []
        self.deaf: set[str] = set()
        self.dead: set[str] = set()
        self.hung: set[str] = set()

    def status(self, address: str) -> Deferred[str]:
        if address in self.hung:
            return Deferred()
        if address in self.dead:
            return fail(PowerError("the BMC does not answer"))
        return succeed(self.power.get(address, "off"))

    def on(self, address: str) -> Deferred[None]:
        return self._set(address, "on", "on")

    def off(self, address: str) -> Deferred[None]:
        return self._set(address, "off", "off")

    def cycle(self, address: str) -> Deferred[None]:
        return self._set(address, "cycle", "on")

    def _set(self, address: str, command: str, power: str) -> Deferred[None]:
        self.said.append(f"{command} {address}")
        if address not in self.deaf:
            deferLater(self.clock, self.delay, self.power.__setitem__, address, power)
        return succeed(None)


class World:
    """An edge, its clock, its database and its machines."""

    def __init__(self, engine: Engine, clock: Clock, **options: Any) -> None:
        self.engine, self.clock, self.bmc = engine, clock, Bmc(clock)
        self.edge = PowerEdge(clock, Straight(engine), {"lab": self.bmc}, "s1", clock.seconds,
                              **options)

    def wish(self, name: str, desired: str) -> None:
        def write(tx: Tx) -> None:
            node = nodes.by_name(tx, name) or nodes.add(
                tx, name=name, boot_mac=f"52:54:00:00:00:{name[1:].zfill(2)}", now=0.0, cause="seen", actor="dhcp",
                power_driver="lab", power_address=name)
            nodes.wish_power(tx, node, desired, self.clock.seconds())

        in_transaction(self.engine, write)

    def node(self, name: str) -> Node:
        found = in_transaction(self.engine, nodes.by_name, name)
        assert found is not None
        return found

    def pass_(self, seconds: float) -> None:
        """Time goes by in tenths of a second."""
        self.clock.pump([0.1] * round(seconds * 10))

    def errors(self) -> list[str]:
        a = tables.power_actions.c
        with self.engine.connect() as connection:
            return list(connection.scalars(select(a.error).where(a.done_at.is_not(None)).order_by(a.id)))


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine, Clock())


@pytest.mark.parametrize(("before", "desired", "said", "after"), [
    ("off", "on", ["on n1"], "on"),
    ("on", "on", [], "on"),
    ("on", "off", ["off n1"], "off"),
    ("off", "off", [], "off"),
    ("on", "cycle", ["cycle n1"], "on"),
    ("off", "cycle", ["on n1"], "on"),
])
def test_wishes(world: World, before: str, desired: str, said: list[str], after: str) -> None:
    world.bmc.power["n1"] = before
    world.wish("n1", desired)
    world.edge.startService()
    assert world.bmc.said == said
    world.pass_(1)
    assert world.node("n1").power == world.bmc.power["n1"] == after
    assert world.errors() == [""]


def test_a_slow_switch_is_verified_not_believed(world: World) -> None:
    world.bmc.delay = 11.0
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(10)
    assert world.node("n1").power == "unknown"
    world.pass_(2)
    assert world.node("n1").power == "on"
    assert world.bmc.said == ["on n1"]


def test_a_deaf_machine_is_asked_again_then_given_up(world: World) -> None:
    world.bmc.deaf.add("n1")
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(20)
    assert world.bmc.said == ["on n1", "on n1"]
    world.pass_(200)
    assert world.bmc.said == ["on n1"] * BUDGET
    assert world.node("n1").reason == "power: asked to be on, it is still off after 15 s"


def test_a_machine_that_recovers_is_switched_by_a_retry(world: World) -> None:
    world.bmc.dead.add("n1")
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(3)
    world.bmc.dead.clear()
    world.pass_(10)
    assert world.node("n1").power == "on"
    assert world.errors() == [""]


def test_a_driver_that_hangs_is_left_before_the_claim_runs_out(world: World) -> None:
    world.bmc.hung.add("n1")
    world.wish("n1", "off")
    world.wish("n2", "on")
    world.edge.startService()
    world.pass_(1)
    assert world.node("n2").power == "on", "others do not wait"
    world.pass_(edges.ATTEMPT)
    a = tables.power_actions.c
    with world.engine.connect() as connection:
        error = connection.scalar(select(a.error).where(a.desired == "off"))
    assert error == "no answer from the lab driver within 30 s"
    assert edges.ATTEMPT < edges.LEASE


def test_a_broken_driver_is_an_error_on_the_row_not_the_end_of_the_edge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.bmc, "on", lambda address: {}[address])
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(300)
    assert world.node("n1").reason == "power: the lab driver failed: KeyError"
    world.bmc.power["n2"] = "on"
    world.wish("n2", "off")
    world.pass_(1)
    assert world.node("n2").power == "off"


def test_a_wish_for_a_node_that_lost_its_driver_is_given_up_at_once(world: World) -> None:
    world.wish("n1", "on")
    in_transaction(world.engine, lambda tx: tx.execute(tables.nodes.update().values(power_driver="none")))
    world.edge.startService()
    world.pass_(1)
    assert world.errors() == ["this site has no power driver 'none'"]


def test_power_ons_are_paced_and_counted(engine: Engine) -> None:
    world = World(engine, Clock(), concurrency=3, rate=2.0)
    world.bmc.delay = 5.0
    for number in range(1, 9):
        world.wish(f"n{number}", "on")
    world.edge.startService()
    assert len(world.bmc.said) == 2, "the burst"
    world.pass_(2)
    assert len(world.bmc.said) == 3, "no more than three at once"
    world.pass_(30)
    assert len(world.bmc.said) == 8
    assert {world.node(f"n{number}").power for number in range(1, 9)} == {"on"}


def test_a_wake_up_saves_the_wait_for_the_next_look(world: World) -> None:
    world.edge.startService()
    world.wish("n1", "on")
    world.edge.wake()
    assert world.bmc.said == ["on n1"]
    world.edge.wake()
    world.pass_(2)
    assert world.bmc.said == ["on n1"]


def test_stop_waits_for_what_is_under_way(world: World) -> None:
    world.bmc.delay = 3.0
    world.wish("n1", "on")
    world.edge.startService()
    stopped = world.edge.stopService()
    world.wish("n2", "on")
    world.pass_(2)
    assert not stopped.called
    world.pass_(2)
    assert stopped.called
    assert world.node("n1").power == "on"
    assert world.bmc.said == ["on n1"], "nothing new is begun"
    assert not world.clock.getDelayedCalls()


def test_the_database_gone_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right = world.edge._pool.run
    monkeypatch.setattr(world.edge._pool, "run", lambda *_: fail(OSError("database away")))
    world.edge.startService()
    world.pass_(2)
    monkeypatch.setattr(world.edge._pool, "run", right)
    world.wish("n1", "on")
    world.pass_(1)
    assert world.node("n1").power == "on"


def test_an_outcome_that_could_not_be_written_is_found_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right = flows.succeeded
    monkeypatch.setattr(flows, "succeeded", lambda *_: 1 / 0)
    world.wish("n1", "on")
    world.edge.startService()
    monkeypatch.setattr(flows, "succeeded", right)
    world.pass_(edges.LEASE + 1)
    assert world.node("n1").power == "on"
    assert world.bmc.said == ["on n1"], "it was on already when asked again"


def test_the_bucket() -> None:
    pace = Pace(2.0, 4.0, 4.0, 0.0)
    assert pace.room(0.0) == 4
    pace.took(4)
    assert [pace.room(now) for now in (0.0, 0.4, 0.5, 1.0, 100.0)] == [0, 0, 1, 2, 4]
    assert pace.room(50.0) == 4, "a clock that is set back gives nothing and takes nothing"


# ---------------------------------------------------------------- the lab driver


class Lab(LineOnlyReceiver):
    """The lab's end of the socket: what was asked is kept, `answers` are given one by one."""

    delimiter = b"\n"
    asked: list[Any]
    answers: list[bytes | None]

    def lineReceived(self, line: bytes) -> None:
        self.asked.append(json.loads(line))
        answer = self.answers.pop(0)
        if answer is None:
            self.transport.loseConnection()  # type: ignore[union-attr]
        else:
            self.transport.write(answer + b"\n")  # type: ignore[union-attr, call-arg]


@pytest.fixture
def lab(reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path) -> Iterator[type[Lab]]:
    kind = type("Kind", (Lab,), {"asked": [], "answers": []})
    port = in_reactor(reactor.listenUNIX, str(tmp_path / "lab.sock"), Factory.forProtocol(kind))
    yield kind
    in_reactor(port.stopListening)


def test_the_lab_driver_speaks_one_line_each_way(
    lab: type[Lab], reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path
) -> None:
    driver, address = LabDriver(reactor), f"{tmp_path}/lab.sock#52:54:00:00:00:01"
    lab.answers += [b'{"ok": true, "power": "off"}', b'{"ok": true, "power": "on"}', b'{"ok": true, "power": "on"}',
                    b'{"ok": true, "power": "off"}']
    assert in_reactor(driver.status, address) == "off"
    for command in (driver.on, driver.cycle, driver.off):
        assert in_reactor(command, address) is None
    assert [request["op"] for request in lab.asked] == ["status", "on", "reset", "off"]
    assert {request["node"] for request in lab.asked} == {"52:54:00:00:00:01"}


@pytest.mark.parametrize(("answer", "sentence"), [
    (b'{"ok": false, "error": "no node n9"}', "the lab says: no node n9"),
    (b"hello", "is no lab"),
    (b"[]", "the lab says: nothing"),
    (None, "closed the connection without an answer"),
])
def test_the_lab_driver_gives_reasons(
    lab: type[Lab], reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path, answer: bytes | None, sentence: str
) -> None:
    lab.answers.append(answer)
    with pytest.raises(PowerError, match=sentence) as raised:
        in_reactor(LabDriver(reactor).on, f"{tmp_path}/lab.sock#n9")
    assert not raised.value.lasting


def test_the_lab_driver_without_a_lab(reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(PowerError, match="does not answer"):
        in_reactor(LabDriver(reactor).status, f"{tmp_path}/gone.sock#n1")
    with pytest.raises(PowerError, match="SOCKET#NODE") as raised:
        in_reactor(LabDriver(reactor).status, "nonsense")
    assert raised.value.lasting
