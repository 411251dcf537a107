"""The agent against the server's real end of the protocol, over a wire that can be cut, with a
clock that is moved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from cod.orders import Order
from cod.wire.confd import protocol
from cod.wire.confd.messages import Ack, Done, Error, Failed, Heartbeat, Message, Progress, Report
from trampoline import agent as agent_module
from trampoline.agent import Agent, Disconnect, Job, Tell
from trampoline.errors import OrderError, PrimeError, WayError

MAC = "52:54:00:00:00:01"
BEAT = 5.0
NODE = '<node version="1" />'


class Gate:
    """An act that has `told` of its start, and waits to `go` on to its end."""

    def __init__(self) -> None:
        self.told, self.go = threading.Event(), threading.Event()
        self.runs: list[str] = []

    def __call__(self, order: Order, tell: Tell) -> Mapping[str, float]:
        self.runs.append(order.id)
        tell("write", 1, 10, 1.0)
        self.told.set()
        assert self.go.wait(60)
        tell("write", 10, 10, 2.0)
        return {"bytes_written": 10.0}


@dataclass
class Server:
    """The server's end: what it knows of secrets, one connection's machine, and what it has
    heard."""

    known: dict[str, protocol.Verifier] = field(default_factory=dict)
    side: protocol.ServerSide = field(init=False)
    heard: list[Message] = field(default_factory=list)

    def connect(self) -> None:
        self.side = protocol.ServerSide(b"n" * 32, b"k" * 32)

    def receive(self, data: bytes) -> bytes:
        events: list[Any] = self.side.receive(data)
        while events:
            event = events.pop(0)
            if isinstance(event, protocol.NeedVerifier):
                events += self._lookup(event)
            elif isinstance(event, protocol.Proved):
                if self.known.pop("boot", None):  # traded for the session's, which then stays
                    self.known[event.session] = event.verifier
                events += self.side.welcome("n1", BEAT)
            else:
                self.heard.append(event)
        return self.side.to_send()

    def _lookup(self, asked: protocol.NeedVerifier) -> list[protocol.Event]:
        if asked.id in self.known:
            return self.side.known(self.known[asked.id])
        self.side.refuse("unknown", "no such secret")
        return []


class World:
    """An agent and its server, and the wire between them."""

    def __init__(self, act: Callable[[Order, Tell], Mapping[str, float]]) -> None:
        self.now = 1000.0
        self.log: list[str] = []
        self.kept: list[protocol.Secret] = []
        self.woken = threading.Event()
        secret = protocol.Secret("boot", b"k" * 32)
        self.server = Server({"boot": protocol.verifier(secret.key, b"s" * 16)})
        self.hardware = NODE
        self.agent = Agent(
            MAC,
            protocol.Secrets(secret),
            lambda: self.hardware,
            act,
            self.woken.set,
            self.log.append,
            self.kept.append,
        )

    def connect(self) -> World:
        self.server.connect()
        self.agent.connected(self.now)
        return self.settle()

    def settle(self) -> World:
        """Carry bytes until nobody has any."""
        while data := self.agent.to_send():
            self.to_agent(self.server.receive(data))
        return self

    def to_agent(self, data: bytes) -> None:
        if data:
            self.agent.receive(data, self.now)

    def say(self, message: Message) -> World:
        self.to_agent(self.server.side.send(message))
        return self.settle()

    def order(self, order_id: str, action: str) -> World:
        return self.say(Order(order_id, action))

    def job_ends(self) -> World:
        """Wait until a job has something to say, and let the agent say it."""
        assert self.woken.wait(60)
        self.woken.clear()
        self.agent.tick(self.now)
        return self.settle()

    def later(self, seconds: float) -> World:
        self.now += seconds
        self.agent.tick(self.now)
        return self.settle()

    def cut(self) -> World:
        self.agent.lost()
        return self

    def heard(self, *kinds: type) -> list[Message]:
        """What the server has heard of those kinds, and forget it all."""
        found = [message for message in self.server.heard if isinstance(message, kinds)]
        self.server.heard.clear()
        return found


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go.set()


@pytest.fixture
def world(gate: Gate) -> World:
    return World(gate)


def quick(order: Order, tell: Tell) -> Mapping[str, float]:
    return {"bytes_written": 7.0}


# ---------------------------------------------------------------- connections


def test_it_reports_on_every_connection_and_proves_itself_by_what_it_learned(world: World) -> None:
    assert world.connect().heard(Report) == [Report(NODE)]
    assert "boot" not in world.server.known
    for _ in range(3):  # reconnects are with the session's secret, which does not change
        assert world.cut().connect().heard(Report) == [Report(NODE)]
    assert {secret.id for secret in world.kept} == set(world.server.known)


def test_a_lost_proof_leaves_the_boots_secret_good(world: World) -> None:
    world.server.connect()
    world.agent.connected(world.now)
    # hello, challenge; the proof is made and lost
    world.to_agent(world.server.receive(world.agent.to_send()))
    assert world.agent.to_send()
    world.cut()
    with pytest.raises(Disconnect, match="unknown"):
        world.connect()  # with the session's secret, which the server has never seen
    assert world.cut().connect().heard(Report) == [Report(NODE)]


def test_a_server_without_the_secret_is_not_obeyed(world: World) -> None:
    world.server.known["boot"] = protocol.verifier(b"x" * 32, b"s" * 16)
    with pytest.raises(protocol.ProtocolError):
        world.connect()
    assert not world.heard(Report)


def test_a_machine_that_no_server_knows_reboots_for_a_new_secret(world: World) -> None:
    world.server.known.clear()
    for _ in range(agent_module.REFUSALS):
        assert world.agent.leave is None
        with pytest.raises(Disconnect):
            world.connect()
        world.cut()
    assert world.agent.leave == "reboot"


def test_it_beats_at_the_interval_that_it_was_told(world: World) -> None:
    world.connect().say(Ack()).heard(Heartbeat)
    for _ in range(4):
        assert world.agent.due() == world.now + BEAT
        assert not world.later(BEAT - 0.1).heard(Heartbeat)
        assert len(world.later(0.1).say(Heartbeat()).heard(Heartbeat)) == 1


def test_a_silent_server_is_left(world: World) -> None:
    world.connect()
    world.later(2 * BEAT)
    with pytest.raises(Disconnect, match="nothing heard"):
        world.later(BEAT)


def test_a_server_that_does_not_finish_the_handshake_is_left(world: World) -> None:
    world.agent.connected(world.now)
    assert world.agent.due() == world.now + agent_module.PATIENCE
    world.now = world.agent.due()
    with pytest.raises(Disconnect, match="handshake"):
        world.agent.tick(world.now)


def test_a_report_is_made_anew_until_it_is_acknowledged(world: World) -> None:
    world.connect().say(Error("refused", "another machine has that NIC")).heard()
    for _ in range(11):
        world.later(BEAT).say(Heartbeat())
    assert not world.heard(Report)
    assert world.later(BEAT).say(Heartbeat()).heard(Report)
    world.say(Ack())
    for _ in range(30):
        world.later(BEAT).say(Heartbeat())
    assert not world.heard(Report)


def test_a_machine_that_changes_is_reported_again_but_not_an_orders_own_doings(
    world: World, gate: Gate
) -> None:
    world.connect().say(Ack()).heard()
    world.hardware = '<node version="2" />'
    assert world.later(BEAT).heard(Report) == [Report(world.hardware)]
    assert not world.say(Ack()).say(Heartbeat()).later(BEAT).heard(Report)
    world.order("1.2", "prime")
    world.hardware = '<node version="3" />'
    assert not world.say(Heartbeat()).later(BEAT).heard(Report)


@pytest.mark.parametrize("code", ["replaced", "stopping", "broken"])
def test_an_error_that_ends_the_connection_ends_it(world: World, code: str) -> None:
    world.connect()
    with pytest.raises(Disconnect, match=code):
        world.say(Error(code, "because"))


# ---------------------------------------------------------------- orders


def test_waiting_is_no_work(world: World, gate: Gate) -> None:
    assert not world.connect().order("1.1", "wait").heard(Done, Failed)
    assert not gate.runs


def test_heartbeats_and_progress_go_on_while_it_works(world: World, gate: Gate) -> None:
    world.connect().say(Ack()).order("1.2", "prime")
    assert gate.told.wait(60)
    assert world.later(1.0).heard(Progress) == [Progress("1.2", "write", 1, 10, 1.0)]
    assert world.agent.due() <= world.now + 1.0
    assert not world.later(1.0).heard(Progress), "no progress is no sign of progress"
    assert world.later(BEAT).heard(Heartbeat)
    gate.go.set()
    assert world.job_ends().heard(Done) == [Done("1.2", {"bytes_written": 10.0})]


def test_progress_tells_where_the_image_comes_from_and_forgets_it_with_the_order(
    gate: Gate,
) -> None:
    world: World

    def act(order: Order, tell: Tell) -> Mapping[str, float]:
        world.agent.source = "n7"
        return gate(order, tell)

    world = World(act)
    world.connect().say(Ack()).order("1.2", "prime")
    assert gate.told.wait(60)
    assert world.later(1.0).heard(Progress) == [Progress("1.2", "write", 1, 10, 1.0, "n7")]
    gate.go.set()
    world.job_ends().order("1.3", "wait")
    assert world.agent.source == ""


def test_an_order_that_is_repeated_is_done_once_and_its_result_said_again(
    world: World, gate: Gate
) -> None:
    gate.go.set()
    world.connect().order("1.2", "prime").job_ends()
    assert world.heard(Done) == [Done("1.2", {"bytes_written": 10.0})]
    assert world.cut().connect().heard(Done) == [Done("1.2", {"bytes_written": 10.0})], (
        "it was not acknowledged"
    )
    world.say(Ack("1.2"))
    assert not world.cut().connect().heard(Done)
    assert world.order("1.2", "prime").heard(Done) == [Done("1.2", {"bytes_written": 10.0})]
    assert gate.runs == ["1.2"]


def test_work_goes_on_without_a_connection(world: World, gate: Gate) -> None:
    world.connect().order("1.2", "prime").cut()
    gate.go.set()
    assert world.woken.wait(60)
    assert world.connect().heard(Done) == [Done("1.2", {"bytes_written": 10.0})]
    assert not world.order("1.2", "prime").heard(Progress)
    assert gate.runs == ["1.2"]


def test_another_order_replaces_the_one_in_hand_and_waits_for_its_end(
    world: World, gate: Gate
) -> None:
    world.connect().order("1.2", "prime")
    assert gate.told.wait(60)
    world.order("1.3", "wipe").later(1.0)
    assert gate.runs == ["1.2"], "two jobs never run at the same time"
    gate.go.set()
    world.job_ends()
    assert world.job_ends().heard(Done, Failed) == [Done("1.3", {"bytes_written": 10.0})]
    assert gate.runs == ["1.2", "1.3"]


def test_an_order_taken_back_ends_the_work(world: World, gate: Gate) -> None:
    world.connect().order("1.2", "prime")
    assert gate.told.wait(60)
    world.order("1.3", "wait")
    gate.go.set()
    assert not world.job_ends().heard(Done, Failed)
    assert world.agent._job is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PrimeError("no suitable disk"), "no suitable disk"),
        (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error"),
        (ZeroDivisionError("x"), "ZeroDivisionError: x"),
    ],
)
def test_what_goes_wrong_is_said(error: Exception, said: str) -> None:
    def fail(order: Order, tell: Tell) -> Mapping[str, float]:
        raise error

    assert World(fail).connect().order("1.2", "prime").job_ends().heard(Failed) == [
        Failed("1.2", said)
    ]


@pytest.mark.parametrize(("kind", "cause"), [(OrderError, "order"), (WayError, "way")])
def test_whose_fault_it_is_is_said_where_it_is_known(kind: type[PrimeError], cause: str) -> None:
    def fail(order: Order, tell: Tell) -> Mapping[str, float]:
        raise kind("no place")

    assert World(fail).connect().order("1.2", "prime").job_ends().heard(Failed) == [
        Failed("1.2", "no place", cause)
    ]


@pytest.mark.parametrize("action", ["reboot", "off"])
def test_it_leaves_once_that_is_acknowledged(action: str) -> None:
    world = World(quick).connect().order("1.4", action).job_ends()
    assert world.heard(Done) == [Done("1.4")]
    assert world.agent.leave is None
    assert world.say(Ack("1.4")).agent.leave == action


def test_it_leaves_unacknowledged_when_the_server_is_slow() -> None:
    world = (
        World(quick)
        .connect()
        .say(Ack())
        .order("1.4", "reboot")
        .job_ends()
        .later(BEAT)
        .say(Heartbeat())
    )
    assert world.agent.leave is None
    assert world.agent.due() <= world.now + BEAT
    assert world.later(agent_module.PATIENCE - BEAT).agent.leave == "reboot"


def test_it_leaves_when_the_connection_goes_after_its_last_word() -> None:
    assert World(quick).connect().order("1.4", "reboot").job_ends().cut().agent.leave == "reboot"


def test_a_job_writes_nothing_after_it_was_replaced() -> None:
    steps: list[str] = []
    started, go = threading.Event(), threading.Event()

    def act(order: Order, tell: Tell) -> Mapping[str, float]:
        started.set()
        assert go.wait(60)
        tell("write", 1, 2, 1.0)
        steps.append("written")
        return {}

    ended = threading.Event()
    job = Job(Order("1.1", "prime"), act, ended.set)
    assert started.wait(60)
    job.replace()
    go.set()
    assert ended.wait(60)
    assert (steps, job.result) == ([], Failed("1.1", "replaced by another order"))


def test_nothing_secret_reaches_the_console(world: World, gate: Gate) -> None:
    gate.go.set()
    world.connect().order("1.2", "prime").job_ends()
    said = "\n".join(world.log)
    assert "n1" in said
    assert not any(secret.key.hex() in said or secret.id in said for secret in world.kept)
