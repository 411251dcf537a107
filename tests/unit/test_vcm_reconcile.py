"""A VCM's rounds, where calls of the pool's take their time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from cod.vcm import state as store
from cod.vcm.link import PASSING, LastingError, NmpError
from cod.vcm.pool import ANY, Demand, Ending, GivenUp, Member, Nodeset, NotYet
from cod.vcm.reconcile import Reconciler
from cod.vcm.retry import Options
from cod.vcm.service import VcmService
from cod.vcm.state import OpenRequest, OwnNode, VcmState
from cod.wire.nmp import bodies
from cod.wire.nmp.bodies import (
    Body,
    Error,
    Grant,
    Lease,
    MaintenanceStatus,
    Named,
    NodeMaintenance,
    Pong,
    Reclaim,
    ReclaimAnswer,
    ReclaimOver,
    Request,
    RequestNodes,
    Wanted,
    Window,
    Withdraw,
)


class Slow(Clock):
    """Reactor and threads: what is called in a thread waits until `work`."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Callable[[], None]] = []

    def callFromThread(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)

    def callInThreadWithCallback(
        self,
        done: Callable[[bool, Any], None],
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        def call() -> None:
            try:
                value = function(*args, **kwargs)
            except Exception:
                done(False, Failure())
            else:
                done(True, value)

        self.jobs.append(call)

    def work(self) -> None:
        """All at once, as threads do; then what follows from it."""
        while self.jobs:
            jobs, self.jobs = self.jobs, []
            for call in jobs:
                call()


class Farm:
    """Gives the first of the members that it is shown."""

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        return Demand()

    def add(self, member: Member) -> None:
        pass

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        return [Named(name) for name in sorted(members)[: reclaim.count]]

    def remove(self, member: Member, lost: bool) -> None:
        raise NotYet("its jobs are still there")


def test_two_reclaims_at_once_are_answered_with_different_nodes(tmp_path: Path) -> None:
    """Else one of them would run to its deadline, and COD seize a node of its own choice."""
    reactor = Slow()
    asked: list[Body] = []

    def ask(body: Body) -> Deferred[Body]:
        asked.append(body)
        return succeed(Pong())

    members = [
        Member(f"m{number}", f"n{number}", f"10.0.0.{number}", "active", "exec@1", "type-1")
        for number in (2, 3, 4)
    ]
    state = VcmState(
        "pool",
        sure=True,
        nodes={one.node: OwnNode(one, added=True) for one in members},
        reclaims={number: Reclaim(number, 1, 100.0, "for others") for number in (1, 2)},
    )
    reconciler = Reconciler(
        reactor,
        reactor,
        Options("pool", "test 1", tmp_path / "state.json"),
        Farm(),
        reactor.seconds,
        ask,
        lambda: None,
    )
    ensureDeferred(reconciler.run(state, True))
    reactor.work()
    answers = {
        body.reclaim: [one.node for one in body.nodes]
        for body in asked
        if isinstance(body, ReclaimAnswer)
    }
    assert answers == {1: ["n2"], 2: ["n3"]}
    assert [ours.reclaim for ours in state.nodes.values()] == [1, 2, 0]


class Mixed(Farm):
    """Wants one node of each of two nodesets, the first of which COD never gives."""

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        return Demand({Nodeset(name): 1 - coming[name] for name in ("gpu", "small")})


def test_a_nodeset_that_cod_refuses_keeps_no_other_from_being_asked_for(tmp_path: Path) -> None:
    reactor, asked = Slow(), list[str]()
    state = VcmState("pool", sure=True)

    def ask(body: Body) -> Deferred[Body]:
        assert isinstance(body, RequestNodes)
        asked.append(state.requests[body.key].nodeset.name)
        return (
            fail(LastingError(Error("refused", "no such nodes")))
            if asked[-1] == "gpu"
            else succeed(Request(3, body.key, "waiting"))
        )

    reconciler = Reconciler(
        reactor,
        reactor,
        Options("pool", "test 1", tmp_path / "s", interval=1.0),
        Mixed(),
        reactor.seconds,
        ask,
        lambda: None,
    )
    for seconds, said in (
        (0.0, ["gpu", "small"]),
        (10.0, ["gpu", "small"]),
        (60.0, ["gpu", "small", "gpu"]),
    ):
        reactor.advance(seconds)
        ensureDeferred(reconciler.run(state, True))
        reactor.work()
        assert asked == said


class Useless(Farm):
    """Wants a node, and has use for none but those at an address."""

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        return Demand({ANY: 1 - coming[""] - len(members)})

    def add(self, member: Member) -> None:
        if not member.address:
            raise GivenUp("it has less than was said")

    def remove(self, member: Member, lost: bool) -> None:
        pass


def test_nodes_of_no_use_are_asked_for_more_and_more_seldom(tmp_path: Path) -> None:
    reactor, asked, address = Slow(), list[float](), ""
    state = VcmState("pool", sure=True)

    def ask(body: Body) -> Deferred[Body]:
        if not isinstance(body, RequestNodes):
            return succeed(Pong())
        asked.append(reactor.seconds())
        one = bodies.Member(f"m{len(asked)}", "n2", address, "active", "e@1")
        state.hear(Grant(len(asked), body.key, inf, (one,)))
        return succeed(Request(len(asked), body.key, "granted"))

    reconciler = Reconciler(
        reactor,
        reactor,
        Options("pool", "test 1", tmp_path / "s", interval=1.0),
        Useless(),
        reactor.seconds,
        ask,
        lambda: None,
    )

    def turns(count: int) -> None:
        for _ in range(count):
            reactor.advance(1.0)
            ensureDeferred(reconciler.run(state, True))
            reactor.work()

    turns(500)
    assert [round(late - early, -1) for early, late in pairwise(asked)] == [60, 120, 240]
    address = "10.0.0.2"
    turns(500)
    assert [ours.added for ours in state.nodes.values()] == [True]
    state.nodes.clear()
    asked.clear()
    address = ""
    turns(200)
    assert [round(late - early, -1) for early, late in pairwise(asked)] == [60, 120]


class Blind(Farm):
    """Cannot see, until it can."""

    blind = True
    looks = 0

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        self.looks += 1
        if self.blind:
            raise OSError("no load")
        return Demand()


def test_what_fails_again_and_again_is_said_once_and_what_is_well_again_when_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cod.vcm")
    reactor, pool = Slow(), Blind()
    reconciler = Reconciler(
        reactor,
        reactor,
        Options("pool", "test 1", tmp_path / "s", interval=15.0),
        pool,
        reactor.seconds,
        lambda body: succeed(Pong()),
        lambda: None,
    )

    def turn(seconds: float) -> None:
        reactor.advance(seconds)
        ensureDeferred(reconciler.run(VcmState("pool", sure=True), True))
        reactor.work()

    for _ in range(5):
        turn(5.0)  # a round's pause after trouble, shorter than `interval`
    assert pool.looks == 5
    assert [line for line in caplog.messages if "looked at" in line] == [
        "not so: the pool is looked at: OSError: no load; this is tried again"
    ]
    pool.blind = False
    turn(5.0)
    turn(5.0)
    assert pool.looks == 6  # it has seen: not before `interval`
    assert caplog.messages[-1] == "the pool is looked at again"
    turn(10.0)
    assert pool.looks == 7


class Leased(Farm):
    """Wants to know that the lease ends."""

    def __init__(self) -> None:
        self.told: list[tuple[float, list[str]]] = []

    def ending(self, left: float, members: Mapping[str, Member]) -> None:
        self.told.append((left, sorted(members)))


def test_a_pool_is_told_in_time_that_the_lease_ends_and_not_any_more_when_it_is_extended(
    tmp_path: Path,
) -> None:
    """Say what is left at the next look: after that it would be too late."""
    reactor, pool = Slow(), Leased()
    member = Member("m2", "n2", "10.0.0.2", "active", "exec@1", "type-1")
    state = VcmState("pool", sure=True, nodes={"m2": OwnNode(member, added=True)})
    reconciler = Reconciler(
        reactor,
        reactor,
        Options("pool", "test 1", tmp_path / "s", interval=15.0),
        pool,
        reactor.seconds,
        lambda body: succeed(Pong()),
        lambda: None,
    )
    for lease in (
        None,
        Lease("warning", 100.0),
        Lease("draining", 100.0),
        Lease("extended", 900.0),
    ):
        if lease is not None:
            state.hear(lease)
        for _ in range(2):
            reactor.advance(15.0)
            ensureDeferred(reconciler.run(state, True))
            reactor.work()
    assert pool.told == [(100.0 - now - 15.0, ["n2"]) for now in (45.0, 60.0, 75.0)] + [
        (0.0, ["n2"])
    ]
    assert isinstance(pool, Ending)


class Books(Farm):
    """Wants what it is told to want."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        return self.demand

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        return [Named(name, 20.0) for name in sorted(members)[: reclaim.count]]


def turned(tmp_path: Path, state: VcmState, demand: Demand) -> list[Body]:
    """Take one round; return what COD was asked. COD knows requests by their keys' numbers."""
    reactor, asked = Slow(), list[Body]()
    reactor.advance(100.0)

    def ask(body: Body) -> Deferred[Body]:
        asked.append(body)
        return succeed(
            Request("key", 10 + len(asked), "pending") if isinstance(body, RequestNodes) else Pong()
        )

    options = Options("pool", "test 1", tmp_path / "s", template="web@1", requires="<own/>")
    ensureDeferred(
        Reconciler(
            reactor, reactor, options, Books(demand), reactor.seconds, ask, lambda: None
        ).run(state, True)
    )
    reactor.work()
    return asked


def test_each_nodeset_is_asked_for_by_its_own_requirements_and_withdrawn_by_its_name(
    tmp_path: Path,
) -> None:
    gpu = Nodeset("gpu", requires="<gpu/>")
    state = VcmState(
        "pool",
        sure=True,
        requests={
            "old": OpenRequest(1, 4, gpu),
            "plain": OpenRequest(1, 5),
            "new": OpenRequest(1, 6, gpu),
        },
    )
    asked = turned(tmp_path, state, Demand({ANY: 1, gpu: 1}, withdraw={"gpu": 1}))
    assert asked[0] == Withdraw(6)
    assert [body.wanted for body in asked[1:] if isinstance(body, RequestNodes)] == [
        (Wanted(1, "web@1", "<own/>"),),
        (Wanted(1, "web@1", "<gpu/>"),),
    ]
    assert state.coming() == {"gpu": 2, "": 2}


def test_a_node_that_drains_may_be_chosen_for_a_reclaim_and_then_goes_by_its_time(
    tmp_path: Path,
) -> None:
    """Nothing promises when its work ends: a reclaim is not answered with it unasked."""
    members = [
        Member(f"m{number}", f"n{number}", f"10.0.0.{number}", "active", "exec@1")
        for number in (2, 3)
    ]
    state = VcmState(
        "pool", sure=True, nodes={one.node: OwnNode(one, added=True) for one in members}
    )
    turned(tmp_path, state, Demand(drain=("n2",), why="old"))
    assert state.promised() == {"n2": inf}
    state.hear(ReclaimOver(9, "cancelled"))  # another's
    assert state.nodes["m2"].within == inf
    state.hear(Reclaim(5, 1, 400.0, "for others"))
    asked = turned(tmp_path, state, Demand())
    assert [body.nodes for body in asked if isinstance(body, ReclaimAnswer)] == [
        (Named("n2", 20.0),)
    ]
    assert state.promised() == {"n2": 120.0}


def test_a_reclaim_is_answered_while_a_node_still_joins(tmp_path: Path) -> None:
    """The command that starts a daemon may take two minutes, and COD waits no longer than its
    grace."""
    reactor = Slow()
    service = VcmService(
        reactor,
        reactor,
        Options("pool", "test 1", tmp_path / "s"),
        Farm(),
        lambda link: Deferred(),
        reactor.seconds,
    )
    members = [
        Member(f"m{number}", f"n{number}", f"10.0.0.{number}", "active", "exec@1")
        for number in (2, 3)
    ]
    service.state = VcmState(
        "pool", sure=True, nodes={one.node: OwnNode(one, one.node == "m2") for one in members}
    )
    service.startService()
    service._link = None
    reactor.advance(0.0)
    (joining,) = reactor.jobs
    service._received(7, Reclaim(5, 1, 400.0, "for others"))
    reactor.advance(0.0)
    assert reactor.jobs[0] is joining
    reactor.jobs[1]()
    assert [ours.reclaim for ours in service.state.nodes.values()] == [5, 0]
    assert not service.state.nodes["m3"].added


class Careful(Farm):
    """Gives up what windows have; its nodes do not go at once. `windows`: what it was told."""

    def __init__(self) -> None:
        self.windows: Sequence[Window] = ()
        self.next_look = 0.0
        self.added: list[str] = []

    def add(self, member: Member) -> None:
        self.added.append(member.hostname)

    def maintain(
        self, windows: Sequence[Window], members: Mapping[str, Member], next_look: float
    ) -> Mapping[str, float]:
        self.windows, self.next_look = windows, next_look
        named = {one.node: window.begins or inf for window in windows for one in window.nodes}
        return {name: by for name, by in named.items() if name in members}


class Windows:
    """A VCM of nodes n1 to n3 that COD tells of `windows`; of None by a server of before."""

    def __init__(self, tmp_path: Path) -> None:
        self.pool, self.asked = Careful(), list[Body]()
        self.windows: tuple[Window, ...] | None = ()
        self.reactor, self.failure = Slow(), "unknown-verb"
        self.state = VcmState("pool", sure=True)
        for number in (1, 2, 3):
            member = Member(f"m{number}", f"n{number}", f"10.0.0.{number}", "active", "exec@1")
            self.state.nodes[member.node] = OwnNode(member, added=True)
        self.reconciler = Reconciler(
            self.reactor,
            self.reactor,
            Options("pool", "test 1", tmp_path / "state.json"),
            self.pool,
            self.reactor.seconds,
            self.ask,
            lambda: None,
        )

    def ask(self, body: Body) -> Deferred[Body]:
        self.asked.append(body)
        if isinstance(body, MaintenanceStatus):
            if self.windows is None:
                kind = NmpError if self.failure in PASSING else LastingError
                return fail(kind(Error(self.failure, "there is no such verb")))
            return succeed(NodeMaintenance(self.windows))
        return succeed(Pong())

    def round(self, *windows: Window) -> dict[str, float]:
        """What leaves after a look on which there are these windows, and until when it may work."""
        self.windows = windows if self.windows is not None else None
        self.reactor.advance(20.0)
        ensureDeferred(self.reconciler.run(self.state, True))
        self.reactor.work()
        hosts = self.state.hosts()
        return {name: hosts[name].within for name in hosts if hosts[name].leaving}


def window(*names: str, begins: float = 0.0) -> Window:
    return Window(3, begins, 0.0, True, "power feed", tuple(map(Named, names)))


def test_nodes_leave_for_windows_and_stay_when_these_are_withdrawn(tmp_path: Path) -> None:
    vcm = Windows(tmp_path)
    assert vcm.round() == {}
    assert vcm.round(window("n2", "n3", "elsewhere")) == {"n2": inf, "n3": inf}
    assert vcm.state.nodes["m2"].leaving == "maintenance"
    assert vcm.round(window("n2")) == {"n2": inf}
    assert vcm.round(window("n2")) == {"n2": inf}
    assert vcm.pool.added == ["n3"], "it may be closed already, and is opened again"
    assert vcm.round() == {}
    vcm.round()
    assert vcm.pool.added == ["n3", "n2"]
    assert all(node.added for node in vcm.state.nodes.values())


def test_a_window_that_is_moved_to_an_earlier_time_is_obeyed(tmp_path: Path) -> None:
    vcm = Windows(tmp_path)
    assert vcm.round(window("n2", begins=9000.0)) == {"n2": 9000.0}
    assert vcm.round(window("n2", begins=8000.0)) == {"n2": 8000.0}


def test_nodes_leave_at_the_last_look_at_which_they_are_in_time(tmp_path: Path) -> None:
    """Else they would be `interval` late, and COD seizes them."""
    vcm = Windows(tmp_path)
    vcm.round(window("n2"))
    assert vcm.pool.next_look == vcm.reactor.seconds() + Options("", "", tmp_path).interval


def test_the_last_node_stays_for_cod_takes_it_back_from_nobody(tmp_path: Path) -> None:
    vcm = Windows(tmp_path)
    for _ in range(3):
        assert vcm.round(window("n1", "n2", "n3")) == {"n1": inf, "n2": inf}
    vcm.state.nodes.pop("m1"), vcm.state.nodes.pop("m2")
    assert vcm.round(window("n3")) == {}


def test_a_node_that_a_reclaim_takes_is_not_kept_by_a_window_s_end(tmp_path: Path) -> None:
    vcm = Windows(tmp_path)
    vcm.round(window("n2", begins=9000.0))
    vcm.state.hear(Reclaim(1, 1, 100.0, "for others", "", (Named("n2"),)))
    vcm.round(window("n2", begins=9000.0))
    assert vcm.state.nodes["m2"].reclaim == 1
    assert "n2" in vcm.round()


def test_a_reclaim_does_not_wait_for_a_window_that_is_later_than_its_deadline(
    tmp_path: Path,
) -> None:
    """Else COD takes the node from jobs that were never put back into the queue."""
    vcm = Windows(tmp_path)
    vcm.round(window("n2", begins=86_400.0))
    vcm.state.hear(Reclaim(1, 1, 100.0, "for others", "", (Named("n2"),)))
    vcm.round(window("n2", begins=86_400.0))
    node = vcm.state.nodes["m2"]
    assert (node.reclaim, node.within) == (1, vcm.reactor.seconds())
    assert "n2" in vcm.state.promised(), "recalled by a VCM that is started anew"


def test_a_server_of_before_is_asked_and_the_pool_goes_on(tmp_path: Path) -> None:
    vcm = Windows(tmp_path)
    vcm.windows = None
    assert vcm.round() == {}
    vcm.round()
    assert vcm.asked == [MaintenanceStatus()] * 2


def test_windows_outlive_a_server_that_is_away_for_a_moment(tmp_path: Path) -> None:
    """What leaves is not added again because nobody could say whether the window is still there."""
    vcm = Windows(tmp_path)
    vcm.round(window("n2"))
    vcm.windows, vcm.failure = None, "unavailable"
    assert vcm.round() == {"n2": inf}


def test_a_pool_that_knows_no_maintenance_asks_nothing(tmp_path: Path) -> None:
    asked = turned(tmp_path, VcmState("pool", sure=True), Demand())
    assert not [body for body in asked if isinstance(body, MaintenanceStatus)]


def test_what_leaves_for_maintenance_is_remembered(tmp_path: Path) -> None:
    vcm = Windows(tmp_path)
    vcm.round(window("n2"))
    store.save(vcm.state, tmp_path / "memory")
    read = store.load(tmp_path / "memory", "pool")
    assert read is not None
    assert read.nodes == vcm.state.nodes


def test_a_vcm_that_is_started_anew_waits_for_windows_before_it_takes_nodes_out(
    tmp_path: Path,
) -> None:
    """Else it would put jobs back into the queue that may go on for a day."""
    vcm = Windows(tmp_path)
    vcm.round(window("n2", begins=9000.0))
    again = Windows(tmp_path)
    again.state.nodes = vcm.state.nodes
    assert again.state.promised() == {}
    removed: list[str] = []
    again.pool.remove = lambda member, lost: removed.append(member.hostname)  # type: ignore[method-assign]
    again.windows, again.failure = None, "unavailable"
    again.round()
    assert removed == []
    again.windows = ()
    again.round(window("n2", begins=9000.0))
    again.reactor.advance(1.0)
    ensureDeferred(again.reconciler.run(again.state, True))
    again.reactor.work()
    assert removed == ["n2"]
